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
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from .errors import SpliceError

WEIGHTS = ("*.safetensors", "pytorch_model*.bin")
TEXT_FILES = ("*.json", "*.txt", "*.model", "*/*.json", "*/*.txt", "*/*.model")
CHARACTERS_PER_TOKEN = 8  # tokenised at first, for each token wanted
CPU_BATCH_TOKENS = 4096  # with their padding; larger batches were measured to be no faster
GPU_BATCH_TOKENS = 65536
REMEDY = "give --encoder a directory with one, or a hub name"


@dataclass(frozen=True)
class Located:
    """Where an encoder lies. revision: the hub's commit, None for a directory of the user's own."""

    name: str
    directory: Path
    revision: str | None

    @property
    def identity(self) -> str:
        """Changes with the weights, the configuration and the tokenizer: the commit, or a hash of the files."""
        if self.revision is not None:
            return f"{self.name}@{self.revision}"
        digest = xxhash.xxh3_128()
        for path in sorted(p for p in self.directory.rglob("*") if p.is_file() and not p.name.startswith(".")):
            digest.update(f"{path.relative_to(self.directory)}\0{path.stat().st_size}\0".encode())
            with open(path, "rb") as file:
                while block := file.read(2**24):
                    digest.update(block)
        return digest.hexdigest()

    @property
    def weight_bytes(self) -> int:
        """The size of the weights."""
        return sum(path.stat().st_size for path in _weights(self.directory))

    @property
    def dimension(self) -> int | None:
        """The size of its embeddings as config.json has it; None where that does not tell."""
        if any(path.is_dir() for path in self.directory.glob("*_Dense")):
            return None
        config = _config(self.directory)
        named = (config.get(name) for name in ("hidden_size", "dim", "d_model", "n_embd"))
        return next((size for size in named if isinstance(size, int)), None)


def locate(name: str, revision: str | None = None) -> Located:
    """Find an encoder: a directory, or a name on the Hugging Face hub, whose files are downloaded unless they are cached.

    Raises SpliceError where there is none, where it lacks its configuration or its weights, or the hub cannot be reached.
    """
    directory = Path(name).expanduser()
    if directory.is_dir():
        located = Located(name, directory, None)
    elif re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name) and not directory.exists():
        located = _from_hub(name, revision)
    else:
        raise SpliceError(f"encoder {name}: not a directory; {REMEDY}")
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
        self._pad_id = tokenizer.pad_token_id or 0
        self._pads_left = tokenizer.padding_side == "left"
        self._tokenizer = tokenizer.backend_tokenizer  # which several threads may call, as long as nobody sets it up
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(self.max_tokens)
        self._inputs = [name for name in tokenizer.model_input_names if name in ("attention_mask", "token_type_ids")]
        self._prompt = self._model.prompts.get("document") or ""
        self.dimension = self.embed([""]).shape[1]

    def embed(self, texts: Sequence[str], threads: int = 1) -> np.ndarray:
        """float16 [n, d]: the embeddings of texts. Raises SpliceError where one is not finite in float16.

        threads: batches at a time. Results do not depend on them.
        """
        encoded = self._encode([self._prompt + text for text in texts])
        lengths = np.array([len(e) for e in encoded], np.int64)
        embeddings: list[np.ndarray | None] = [None] * len(texts)

        def run(batch: np.ndarray) -> None:
            for place, embedding in zip(batch.tolist(), self._forward([encoded[i] for i in batch]), strict=True):
                embeddings[place] = embedding

        with ThreadPoolExecutor(max(1, threads)) as pool:
            list(pool.map(run, self._batches(lengths)))
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
        longest = max(len(e) for e in encoded)
        columns = {"input_ids": [e.ids for e in encoded]}
        for name in self._inputs:
            columns[name] = [e.attention_mask if name == "attention_mask" else e.type_ids for e in encoded]
        features = {}
        for name, rows in columns.items():
            padded = torch.full((len(rows), longest), self._pad_id if name == "input_ids" else 0)
            for i, row in enumerate(rows):
                where = slice(longest - len(row), longest) if self._pads_left else slice(len(row))
                padded[i, where] = torch.tensor(row)
            features[name] = padded.to(self.device)
        with torch.inference_mode():
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
    head = re.sub(r"\S+\Z", "", text[:characters]).rstrip()
    return head or text


def _from_hub(name: str, revision: str | None) -> Located:
    require()
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    def download(patterns: Sequence[str]) -> Path:
        return Path(snapshot_download(name, revision=revision, allow_patterns=list(patterns)))

    try:
        directory = download((*TEXT_FILES, "*.safetensors", "*/*.safetensors"))
        if not _weights(directory):
            directory = download((*TEXT_FILES, "pytorch_model*.bin"))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise SpliceError(
            f"encoder {name}: not a directory, and it cannot be had from the hub ({reason}); {REMEDY} that can be reached"
        ) from None
    return Located(name, directory, directory.name)


def _check(located: Located) -> None:
    directory, name = located.directory, located.name
    if not any((directory / place / "config.json").is_file() for place in (".", "0_Transformer")):
        raise SpliceError(f"encoder {name}: no config.json there, so no model of transformers; {REMEDY}")
    weights = _weights(directory)
    if not weights:
        there = ", ".join(sorted(p.name for p in directory.iterdir() if not p.name.startswith("."))[:6])
        raise SpliceError(
            f"encoder {name}: no weights there (model.safetensors or pytorch_model.bin; found: {there}); "
            "copy them beside config.json, or give another --encoder"
        )
    for path in weights:
        with open(path, "rb") as file:
            if file.read(24) == b"version https://git-lfs.":
                raise SpliceError(f"{path}: a Git LFS pointer, not the weights; run `git lfs pull` there")


def _weights(directory: Path) -> list[Path]:
    places = (directory, directory / "0_Transformer")
    return [path for place in places for pattern in WEIGHTS for path in sorted(place.glob(pattern))]


def _config(directory: Path) -> dict[str, Any]:
    path = next(p for place in (".", "0_Transformer") if (p := directory / place / "config.json").is_file())
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SpliceError(f"{path}: cannot be read ({error}); {REMEDY}") from None
    return config if isinstance(config, dict) else {}


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
    propagates, logger.propagate = logger.propagate, False
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
    if missing.names:
        raise SpliceError(
            f"encoder {located.name}: its weights lack {missing.names[0]} and {len(missing.names) - 1} more, which would be "
            "random; they are of another model than its config.json says"
        )
    return model.eval()
