"""The encoder of the dense retriever: a sentence-transformers or transformers model, by hub name or directory.

A model that says how it pools and whether it normalises (modules.json) is taken at its word; of any other the embedding is the
mean of its last hidden states, not normalised, which is what Contriever asks for. Only the first tokens of a document are
embedded. Batches hold documents of like length, and a document is tokenised no further than is needed to fill them: a
tokenizer reads 2 MB/s, a GPU embeds faster than that.

torch is imported when an Encoder is made, and not before.
"""

from __future__ import annotations

import json
import logging
import os
import re
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from .errors import BuildFailed, SpliceError

WEIGHTS = ("*.safetensors", "pytorch_model*.bin")
TEXT_FILES = ("*.json", "*.txt", "*.model")  # configuration and tokenizer
TOKENIZERS = ("tokenizer.json", "vocab.txt", "vocab.json", "*.model")
SENTENCE_FILES = ("*_Pooling", "sentence_bert_config.json", "config_sentence_transformers.json")
CHARACTERS_PER_TOKEN = 8  # tokenised at first, for each token wanted
CPU_BATCH_TOKENS = 4096  # with their padding; larger batches were measured to be no faster
GPU_BATCH_TOKENS = 65536
GPU_BATCHES = 2  # at a time on one GPU: one computes while the next is copied
REMEDY = "give --encoder the directory of a model, or its name on the hub"


@dataclass(frozen=True)
class Located:
    """Where an encoder lies. revision: the hub's commit, None for a directory of the user's own."""

    name: str
    directory: Path
    revision: str | None

    @cached_property
    def identity(self) -> str:
        """A hash of the weights, the configuration and the tokenizer. Not the commit: its files may be there in part."""
        digest = xxhash.xxh3_128()
        for path in _files(self.directory, (*WEIGHTS, *TEXT_FILES)):
            digest.update(f"{path.relative_to(self.directory)}\0{path.stat().st_size}\0".encode())
            with open(path, "rb") as file:
                while block := file.read(2**24):
                    digest.update(block)
        return digest.hexdigest()

    @property
    def weight_bytes(self) -> int:
        """The size of the weights that are loaded."""
        weights = _weights(self.directory)
        safe = [path for path in weights if path.suffix == ".safetensors"]
        return sum(path.stat().st_size for path in safe or weights)

    @property
    def dimension(self) -> int | None:
        """The size of its embeddings as config.json has it; None where what follows the transformer may change it."""
        modules = self.directory / "modules.json"
        if modules.is_file():
            kinds = [str(module.get("type", "")).rsplit(".", 1)[-1] for module in _json(modules)]
            if not set(kinds) <= {"Transformer", "Pooling", "Normalize"}:
                return None
            for path in self.directory.glob("*_Pooling/config.json"):
                if sum(on is True for name, on in _json(path).items() if name.startswith("pooling_mode_")) > 1:
                    return None  # one after the other
        config = _json(_config(self.directory))
        named = (config.get(name) for name in ("hidden_size", "dim", "d_model", "n_embd"))
        return next((size for size in named if isinstance(size, int)), None)


def locate(name: str, revision: str | None = None) -> Located:
    """Find an encoder: a directory, or a name on the Hugging Face hub, whose files are downloaded unless they are cached.

    Raises SpliceError where there is none, where it lacks its configuration or its weights, or the hub cannot be reached.
    """
    directory = Path(os.path.expanduser(name))
    if directory.is_dir():
        located = Located(name, directory, None)
    elif re.fullmatch(r"\w[\w.-]*(/\w[\w.-]*)?", name) and not directory.exists():
        located = _from_hub(name, revision)
    else:
        raise SpliceError(f"encoder {name}: no such directory; {REMEDY}")
    _check(located)
    return located


def require() -> None:
    """Raise SpliceError where what dense retrieval needs is not installed, without importing it."""
    from importlib.util import find_spec

    missing = [name for name in ("torch", "sentence_transformers", "faiss") if find_spec(name) is None]
    if missing:
        raise SpliceError(
            f"dense retrieval needs {', '.join(missing)}, which is not installed; pip install 'splice-data[dense]'"
        )


def device_of(number: int) -> str:
    """The device of task `number`: GPUs in turn, or the CPU where there is none."""
    import torch

    return f"cuda:{number % torch.cuda.device_count()}" if torch.cuda.is_available() else "cpu"


class Encoder:
    """A loaded encoder. d: the size of its embeddings. Safe to use from several threads."""

    def __init__(self, located: Located, max_tokens: int, device: str = "cpu") -> None:
        """max_tokens: of a document, at most what the model takes. On a GPU the transformer computes in bfloat16.

        Raises SpliceError for a model that cannot be loaded, or whose weights are not all there.
        """
        import torch

        self.name = located.name
        self.device = device
        self._torch = torch
        self._model = _load(located, device)
        if device != "cpu":
            self._model[0].to(torch.bfloat16)
        self.max_tokens = min(max_tokens, self._model.max_seq_length or max_tokens)
        tokenizer = self._model.tokenizer
        if not getattr(tokenizer, "is_fast", False):
            raise SpliceError(f"encoder {self.name}: no tokenizer.json, and none can be made of its files; {REMEDY}")
        special = tokenizer.num_special_tokens_to_add()
        if self.max_tokens <= special:
            raise SpliceError(
                f"encoder {self.name}: {self.max_tokens} tokens of a document leave none of its text, since {special} are special; "
                "raise --encoder-tokens"
            )
        self._pad_id = tokenizer.pad_token_id or 0
        self._pads_left = tokenizer.padding_side == "left"
        self._tokenizer = tokenizer.backend_tokenizer  # which several threads may call, as long as nobody sets it up
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(self.max_tokens)
        self._inputs = [name for name in tokenizer.model_input_names if name in ("attention_mask", "token_type_ids")]
        self._prompt = self._model.prompts.get("document") or ""
        self._turns = nullcontext() if device == "cpu" else threading.Semaphore(GPU_BATCHES)
        self.parts = [type(module).__name__ for module in self._model]
        self.dimension = self.embed(["a"]).shape[1]

    def embed(self, texts: Sequence[str], threads: int = 1) -> np.ndarray:
        """float16 [n, d]: the embeddings of texts.

        threads: batches at a time. Results do not depend on them. Raises SpliceError where one is not finite in float16,
        BuildFailed where there is not enough memory.
        """
        encoded = self._encode([self._prompt + text for text in texts])
        lengths = np.array([len(e) for e in encoded], np.int64)
        embeddings: list[np.ndarray | None] = [None] * len(texts)

        def run(batch: np.ndarray) -> None:
            for place, embedding in zip(batch.tolist(), self._forward([encoded[i] for i in batch]), strict=True):
                embeddings[place] = embedding

        try:
            with ThreadPoolExecutor(max(1, threads)) as pool:
                list(pool.map(run, self._batches(lengths)))
        except (MemoryError, RuntimeError) as error:  # torch's own for memory is a RuntimeError
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise BuildFailed(
                f"encoder {self.name} failed on {self.device}: {reason}. Where memory ran out, fewer --workers or "
                "--encoder-tokens need less; what is embedded is kept"
            ) from error
        with np.errstate(over="ignore"):
            found = np.array(embeddings, np.float32).astype(np.float16)
        bad = np.flatnonzero(~np.isfinite(found).all(axis=1)) if len(texts) else []
        if len(bad):
            excerpt = texts[bad[0]][:60]
            raise SpliceError(
                f"encoder {self.name}: its embedding of {excerpt!r} ... is not finite in float16; give another --encoder"
            )
        return found

    def _encode(self, texts: list[str]) -> list[Any]:
        """The first tokens of each text. A text is cut at white space, and cut later where that gave too few tokens."""
        encoded: list[Any] = [None] * len(texts)
        characters = CHARACTERS_PER_TOKEN * self.max_tokens
        todo = list(range(len(texts)))
        while todo:
            heads = [_head(texts[i], characters) for i in todo]
            short = []
            for i, head, found in zip(todo, heads, self._tokenizer.encode_batch(heads), strict=True):
                encoded[i] = found
                if len(found) < self.max_tokens and len(head) < len(texts[i]):
                    short.append(i)
            todo, characters = short, 4 * characters
        return encoded

    def _batches(self, lengths: np.ndarray) -> Iterator[np.ndarray]:
        """Places of texts, longest first, so that a batch holds like lengths and the first tells what memory is needed."""
        tokens = CPU_BATCH_TOKENS if self.device == "cpu" else GPU_BATCH_TOKENS
        order = np.argsort(-lengths, kind="stable")
        start = 0
        while start < len(order):
            size = max(1, tokens // max(1, int(lengths[order[start]])))
            yield order[start : start + size]
            start += size

    def _forward(self, encoded: list[Any]) -> np.ndarray:
        """float32 [n, d] of one batch."""
        torch = self._torch
        columns = {"input_ids": [e.ids or [self._pad_id] for e in encoded]}  # something even of nothing
        longest = max(map(len, columns["input_ids"]))
        for name in self._inputs:
            columns[name] = [
                (e.attention_mask or [1]) if name == "attention_mask" else e.type_ids or [0] for e in encoded
            ]
        features = {}
        for name, rows in columns.items():
            padded = torch.full((len(rows), longest), self._pad_id if name == "input_ids" else 0)
            for i, row in enumerate(rows):
                where = slice(longest - len(row), longest) if self._pads_left else slice(len(row))
                padded[i, where] = torch.tensor(row)
            features[name] = padded
        with torch.inference_mode(), self._turns:
            features = {name: padded.to(self.device) for name, padded in features.items()}
            transformer, *rest = self._model
            features = transformer(features)
            features["token_embeddings"] = features["token_embeddings"].float()  # sums of bfloat16 lose what is small
            for module in rest:
                features = module(features)
            return features["sentence_embedding"].float().cpu().numpy()


def _head(text: str, characters: int) -> str:
    """The first `characters` of a text without the word that is cut, or all of it where that leaves nothing."""
    if len(text) <= characters:
        return text
    words = text[:characters].rsplit(None, 1)
    return words[0] if len(words) == 2 else text


def _from_hub(name: str, revision: str | None) -> Located:
    require()
    from huggingface_hub import snapshot_download

    below = tuple(f"*/{pattern}" for pattern in (*TEXT_FILES, "*.safetensors"))

    def download(patterns: Sequence[str]) -> Path:
        return Path(snapshot_download(name, revision=revision, allow_patterns=list(patterns)))

    try:
        directory = download((*TEXT_FILES, "*.safetensors", *below))
        if not _weights(directory):
            directory = download((*TEXT_FILES, *below, "pytorch_model*.bin"))
    except Exception as error:  # any: names, networks and permissions fail in as many classes
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise SpliceError(
            f"encoder {name}: not a directory, and it cannot be had from the hub ({reason}); {REMEDY}"
        ) from None
    return Located(name, directory, directory.name)


def _check(located: Located) -> None:
    directory, name = located.directory, located.name
    there = ", ".join(sorted(p.name for p in directory.iterdir() if not p.name.startswith("."))[:6]) or "nothing"
    if not any((directory / place / "config.json").is_file() for place in (".", "0_Transformer")):
        raise SpliceError(
            f"encoder {name}: no config.json there, so no model of transformers (found: {there}); {REMEDY}"
        )
    weights = _weights(directory)
    for missing, what in (
        (not weights, "weights there (model.safetensors or pytorch_model.bin"),
        (not _of_transformer(directory, TOKENIZERS), "tokenizer there (tokenizer.json, vocab.txt or the like"),
    ):
        if missing:
            raise SpliceError(
                f"encoder {name}: no {what}; found: {there}); copy it beside config.json, or give another --encoder"
            )
    if not (directory / "modules.json").is_file() and any(list(directory.glob(name)) for name in SENTENCE_FILES):
        raise SpliceError(
            f"encoder {name}: a model of sentence-transformers without its modules.json, which says how it pools; copy it "
            "there, or remove the other files of sentence-transformers to have the mean"
        )
    for path in weights:
        with open(path, "rb") as file:
            if file.read(24) == b"version https://git-lfs.":
                raise SpliceError(f"{path}: a Git LFS pointer, not the weights; run `git lfs pull` there")


def _weights(directory: Path) -> list[Path]:
    return _of_transformer(directory, WEIGHTS)


def _of_transformer(directory: Path, patterns: Sequence[str]) -> list[Path]:
    places = (directory, directory / "0_Transformer")
    return [path for place in places for pattern in patterns for path in sorted(place.glob(pattern))]


def _files(directory: Path, patterns: Sequence[str]) -> list[Path]:
    """The files of a model and of its modules, below no hidden directory."""
    found = {path for pattern in patterns for below in ("", "*/") for path in directory.glob(below + pattern)}
    return sorted(p for p in found if p.is_file() and not p.relative_to(directory).parts[0].startswith("."))


def _config(directory: Path) -> Path:
    return next(p for place in (".", "0_Transformer") if (p := directory / place / "config.json").is_file())


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SpliceError(f"{path}: cannot be read ({error}); {REMEDY}") from None


class _Missing(logging.Handler):
    """Gathers the parameters that transformers reports to have made up, since it goes on with random ones."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        plain = re.sub(r"\x1b\[[\d;]*m", "", record.getMessage())
        rows = (line.split("|")[0].strip() for line in plain.splitlines() if re.search(r"\|\s*MISSING", line))
        self.names += [name for name in rows if not name.startswith("pooler.")]  # which no mean needs


def _load(located: Located, device: str) -> Any:
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    require()
    import torch
    from sentence_transformers import SentenceTransformer
    from transformers.utils import logging as transformers_logging

    if device == "cpu":
        torch.set_num_threads(1)  # batches run side by side: a quarter faster than one batch on all cores
    transformers_logging.disable_progress_bar()
    missing = _Missing()
    logger = logging.getLogger("transformers.modeling_utils")
    propagates, level = logger.propagate, logger.level
    logger.propagate = False
    logger.setLevel(logging.WARNING)  # which the environment may have turned off
    logger.addHandler(missing)
    try:
        model = SentenceTransformer(
            str(located.directory),
            device=device,
            local_files_only=True,
            trust_remote_code=False,
            model_kwargs={"weights_only": True, "dtype": torch.float32},
        )
    except Exception as error:  # any: what is wrong with a model's files shows in many ways
        reason = " ".join(str(error).split()) or type(error).__name__
        raise SpliceError(f"encoder {located.name}: cannot be loaded ({reason}); give another --encoder") from None
    finally:
        logger.removeHandler(missing)
        logger.propagate = propagates
        logger.setLevel(level)
    if missing.names:
        raise SpliceError(
            f"encoder {located.name}: its weights lack {missing.names[0]} and {len(missing.names) - 1} more, which would be "
            "random; they are of another model than its config.json says"
        )
    return model.eval()
