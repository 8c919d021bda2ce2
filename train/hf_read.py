"""Hugging Face model directories: found, here or on the hub, and read one tensor at a time.

Nothing here needs transformers: weights are named alike there and in train/model.py, so that reading is a check of names
and shapes; only experts, which are apart on disk, are put together (hf_experts.py).
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from splice.errors import SpliceError
from splice.files import read_json

from .hf_config import config_from_hf
from .hf_experts import Part, parts
from .model import Llama, ModelConfig

HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"
BUFFER = "rotary_emb.inv_freq"  # which older transformers saved with the weights
TOKENIZERS = ("tokenizer.json", "tokenizer.model")
TOKENIZER_FILES = (
    *TOKENIZERS,
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "vocab.json",
    "merges.txt",
)
FLOATS = {"F64", "F32", "F16", "BF16", "float64", "float32", "float16", "bfloat16"}  # safetensors' names and torch's
REMEDY = "name a directory with a Llama or Mixtral of Hugging Face's format, a checkpoint RUN/step-NNNNNN, or ORG/NAME on the hub"


@dataclass(frozen=True)
class Stored:
    """A tensor of a checkpoint, by what its file's header says. dtype: safetensors' or torch's name."""

    file: Path
    shape: tuple[int, ...]
    dtype: str


def locate(init: str) -> Path:
    """The directory of a model: `init` itself, or that of ORG/NAME on the hub, downloaded unless it is cached.

    Raises SpliceError where there is none, where it lacks config.json or weights, or the hub cannot be reached.
    """
    path = Path(init).expanduser()
    if path.is_dir():
        directory = path
    elif re.fullmatch(r"\w[\w.-]*(/\w[\w.-]*)?", init) and not path.exists():
        directory = _download(init)
    else:
        raise SpliceError(f"{init}: no such directory; {REMEDY}")
    found = ", ".join(sorted(p.name for p in directory.iterdir() if not p.name.startswith("."))[:6]) or "nothing"
    if not (directory / "config.json").is_file():
        raise SpliceError(f"{init}: no config.json there (found: {found}); {REMEDY}")
    if not _weight_files(directory):
        raise SpliceError(f"{init}: no weights there, *.safetensors or pytorch_model*.bin (found: {found}); {REMEDY}")
    return directory


def read_config(directory: Path) -> ModelConfig:
    """The sizes of the model in `directory`. Raises SpliceError where config.json is torn or asks for what there is not."""
    path = directory / "config.json"
    values = read_json(path)
    if not isinstance(values, dict):
        raise SpliceError(f"{path}: absent or torn; copy it there again")
    return config_from_hf(values, str(path))


def read_weights(directory: Path, config: ModelConfig) -> Iterator[tuple[str, Tensor]]:
    """The model's weights one by one, on the CPU, in the dtype they are stored in: names as in `Llama.named_parameters`.

    A tied model's head is not among them. Experts may be stored one by one or as here, each tensor of a layer's in one.
    Names, shapes and dtypes are checked before this returns, by the headers.
    Raises SpliceError for a file that cannot be read, and for weights that are missing, too many, misshapen or quantised.
    """
    expected = parameter_shapes(config)
    stored: dict[str, Stored] = {}
    for file in _weight_files(directory):
        for name, tensor in _headers(file).items():
            if name in stored:
                raise SpliceError(f"{file}: {name} is in {stored[name].file.name} too; keep one of the two files")
            if not name.endswith(BUFFER):
                stored[name] = tensor
    head = stored.pop(HEAD, None) if config.tied else None
    wanted = {
        name: [Part(name, (), shape)] if name in stored else parts(name, shape) for name, shape in expected.items()
    }
    _check(stored, wanted, directory)
    if head is not None:
        _check_tied(head, stored[EMBEDDING])
    return _assembled(stored, wanted, expected)


def parameter_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the weights of `Llama(config)`, which is not allocated."""
    with torch.device("meta"):
        return {name: tuple(weight.shape) for name, weight in Llama(config).named_parameters()}


def _download(name: str) -> Path:
    from huggingface_hub import snapshot_download

    def download(*patterns: str) -> Path:
        # Llama 3 and Mistral keep a second copy of their weights, in original/ or as consolidated*.
        allowed, ignored = [*patterns, *TOKENIZER_FILES], ["*/*", "consolidated*"]
        return Path(snapshot_download(name, allow_patterns=allowed, ignore_patterns=ignored))

    try:
        directory = download("*.json", "*.safetensors")
        if not any(directory.glob("*.safetensors")):
            directory = download("*.json", "pytorch_model*.bin")
    except Exception as error:  # any: names, networks and permissions fail in as many classes
        raise SpliceError(
            f"{name}: no such directory here, and the hub does not give it ({reason(error)}); without a network, name the "
            "directory of a model that was downloaded before"
        ) from error
    return directory


def _weight_files(directory: Path) -> list[Path]:
    """The files of weights in transformers' order: one file, an index, any; safetensors first. Empty where there are none."""
    for whole, pattern in (("model.safetensors", "*.safetensors"), ("pytorch_model.bin", "pytorch_model*.bin")):
        index = directory / f"{whole}.index.json"
        if (directory / whole).is_file():
            files = [directory / whole]
        elif index.is_file():
            files = _indexed(index)
        else:
            files = sorted(directory.glob(pattern))
        for file in files:
            _refuse_pointer(file)
        if files:
            return files
    return []


def _indexed(index: Path) -> list[Path]:
    values = read_json(index)
    shards = values.get("weight_map") if isinstance(values, dict) else None
    if not isinstance(shards, dict) or not all(isinstance(name, str) for name in shards.values()) or not shards:
        raise SpliceError(f"{index}: no weight_map in it, or torn; copy it there again")
    names = sorted(set(shards.values()))
    for name in names:
        if Path(name).name != name or not (index.parent / name).is_file():
            raise SpliceError(f"{index}: names {name}, which is not beside it; copy or download the model again")
    return [index.parent / name for name in names]


def _refuse_pointer(file: Path) -> None:
    with open(file, "rb") as stream:
        if stream.read(24) == b"version https://git-lfs.":
            raise SpliceError(f"{file}: a Git LFS pointer, not the weights; run `git lfs pull` there")


def _headers(file: Path) -> dict[str, Stored]:
    if file.suffix != ".safetensors":
        return {name: Stored(file, tuple(t.shape), str(t.dtype)[6:]) for name, t in _load_pickled(file).items()}
    try:
        with safe_open(file, "pt") as opened:
            slices = {name: opened.get_slice(name) for name in opened.keys()}  # noqa: SIM118, it is no dict
            return {name: Stored(file, tuple(s.get_shape()), s.get_dtype()) for name, s in slices.items()}
    except (SafetensorError, OSError) as error:
        raise SpliceError(f"{file}: torn, or no safetensors ({reason(error)}); copy or download it again") from error


def _assembled(
    stored: Mapping[str, Stored], wanted: Mapping[str, list[Part]], shapes: Mapping[str, tuple[int, ...]]
) -> Iterator[tuple[str, Tensor]]:
    """File after file, one of which is open at a time; of the tensors that are put together, one is held."""
    reader = lru_cache(maxsize=1)(_reader)

    def whole(name: str) -> Tensor:
        out = None
        for part in sorted(wanted[name], key=lambda part: stored[part.name].file):
            tensor = reader(stored[part.name].file)(part.name)
            if not part.index:
                return tensor
            out = torch.empty(shapes[name], dtype=tensor.dtype) if out is None else out
            out[part.index] = tensor
        assert out is not None
        return out

    owner = {part.name: name for name, pieces in wanted.items() for part in pieces}
    for name in dict.fromkeys(owner[part] for part in stored):
        yield name, whole(name)


def _reader(file: Path) -> Callable[[str], Tensor]:
    """Gives the file's tensors by their names."""
    return safe_open(file, "pt").get_tensor if file.suffix == ".safetensors" else _load_pickled(file).__getitem__


def _load_pickled(file: Path) -> dict[str, Tensor]:
    """Tensors stay on disk until they are used. Nothing in the file is run: what is not a tensor is refused."""
    try:
        values = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
    except pickle.UnpicklingError as error:
        raise SpliceError(
            f"{file}: holds more than tensors, which is not loaded since it may run code ({reason(error)}); get the model "
            "as safetensors"
        ) from error
    except Exception as error:  # any: torn files fail in as many classes
        raise SpliceError(
            f"{file}: torn, or no file of torch.save ({reason(error)}); copy or download it again"
        ) from error
    if not isinstance(values, dict) or not all(isinstance(value, Tensor) for value in values.values()):
        raise SpliceError(f"{file}: not a dictionary of tensors; name a model that transformers saved")
    return values


def _check(stored: Mapping[str, Stored], wanted: Mapping[str, list[Part]], directory: Path) -> None:
    expected = {part.name: part.shape for pieces in wanted.values() for part in pieces}
    missing = [name for name in expected if name not in stored]
    if missing:
        hint = " (tie_word_embeddings is false in config.json)" if missing == [HEAD] else ""
        raise SpliceError(f"{directory}: its weights lack {some(missing)}{hint}; they are not those of its config.json")
    for name, tensor in stored.items():
        if name not in expected:
            more = [other for other in stored if other not in expected]
            raise SpliceError(f"{tensor.file}: {some(more)} is no part of the model of its config.json; {REMEDY}")
        if tensor.shape != expected[name]:
            raise SpliceError(
                f"{tensor.file}: {name} is {list(tensor.shape)}, but {list(expected[name])} by config.json; "
                "the two are not of one model"
            )
        if tensor.dtype not in FLOATS:
            raise SpliceError(f"{tensor.file}: {name} is {tensor.dtype}: quantised; start from the model before that")
    for name, pieces in wanted.items():
        dtypes = sorted({stored[part.name].dtype for part in pieces})
        if len(dtypes) > 1:
            raise SpliceError(
                f"{directory}: the experts of {name} are partly {' and '.join(dtypes)}; convert them to one"
            )


def _check_tied(head: Stored, embedding: Stored) -> None:
    """A head that was saved with a tied model must be its embedding: leaving out another would change the model."""
    if not torch.equal(_reader(head.file)(HEAD), _reader(embedding.file)(EMBEDDING)):
        raise SpliceError(
            f"{head.file}: {HEAD} is not {EMBEDDING}, but tie_word_embeddings is true in config.json; set it to false"
        )


def some(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"


def reason(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]
