"""Hugging Face model directories: found, read one tensor at a time, and written whole or not at all.

Nothing here needs transformers: a Llama's weights are named alike there and in train/model.py, so that reading is a check
of names and shapes, and writing a matter of files.
"""

from __future__ import annotations

import hashlib
import pickle
import re
import shutil
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from splice.errors import BuildFailed, SpliceError
from splice.files import read_json, replacing, write_json
from splice.tokenizer_files import read_definition

from .hf_config import config_from_hf, config_to_hf, special_ids
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
REMEDY = "name a directory with a Llama of Hugging Face's format, or ORG/NAME on the hub"


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

    A tied model's head is not among them. Names, shapes and dtypes are checked before this returns, by the headers.
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
    _check(stored, expected, directory)
    if head is not None:
        _check_tied(head, stored[EMBEDDING])
    files = dict.fromkeys(tensor.file for tensor in stored.values())
    return ((name, tensor) for file in files for name, tensor in _tensors(file, expected))


def parameter_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the weights of `Llama(config)`, which is not allocated."""
    with torch.device("meta"):
        return {name: tuple(weight.shape) for name, weight in Llama(config).named_parameters()}


def tokenizer_fingerprint(directory: Path) -> str | None:
    """The `fingerprint` of the tokenizer in `directory`: sha256 of the file that `load_tokenizer` takes; None without one."""
    file = next((directory / name for name in TOKENIZERS if (directory / name).is_file()), None)
    return hashlib.sha256(file.read_bytes()).hexdigest() if file else None


def write_model(
    output: Path,
    config: ModelConfig,
    weights: Iterable[tuple[str, Tensor]],
    tokenizer: Path | None,
    tokenizer_ids: Mapping[str, Any] | None,
    dtype: torch.dtype,
    shard_bytes: int = 5 * 2**30,
) -> None:
    """A directory that transformers, vLLM and `read_weights` load; it appears whole or not at all.

    weights: all of `Llama.named_parameters`, in any order, on any device; no more than a shard of them is held. A tied
    head is left out. tokenizer: a directory whose tokenizer is copied. tokenizer_ids: the `tokenizer` of a dataset's
    manifest. Raises SpliceError where `output` is taken, the tokenizer is absent, or the weights are not the model's,
    BuildFailed where they cannot be written.
    """
    output = Path(output).expanduser().resolve()
    if output.exists() and not (output.is_dir() and not any(output.iterdir())):
        raise SpliceError(f"{output}: is there already; name another directory, or remove it")
    if tokenizer and not any((tokenizer / name).is_file() for name in TOKENIZERS):
        raise SpliceError(
            f"{tokenizer}: neither a tokenizer.json nor a tokenizer.model there; name a directory with one"
        )
    with replacing(output) as directory:
        directory.mkdir()
        _write_weights(directory, config, weights, dtype, shard_bytes)
        write_json(directory / "config.json", config_to_hf(config, tokenizer_ids, dtype))
        ids = {key: value for key, value in special_ids(tokenizer_ids).items() if value is not None}
        write_json(directory / "generation_config.json", ids)
        if tokenizer:
            _copy_tokenizer(tokenizer, directory)
        if output.is_dir():
            output.rmdir()  # an empty one; no rename replaces a directory everywhere


# ------------------------------------------------------------------------------------------------------- finding


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
            f"{name}: no such directory here, and the hub does not give it ({_reason(error)}); without a network, name the "
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


# ------------------------------------------------------------------------------------------------------- reading


def _headers(file: Path) -> dict[str, Stored]:
    if file.suffix != ".safetensors":
        return {name: Stored(file, tuple(t.shape), str(t.dtype)[6:]) for name, t in _load_pickled(file).items()}
    try:
        with safe_open(file, "pt") as opened:
            slices = {name: opened.get_slice(name) for name in opened.keys()}  # noqa: SIM118, it is no dict
            return {name: Stored(file, tuple(s.get_shape()), s.get_dtype()) for name, s in slices.items()}
    except (SafetensorError, OSError) as error:
        raise SpliceError(f"{file}: torn, or no safetensors ({_reason(error)}); copy or download it again") from error


def _tensors(file: Path, names: Container[str]) -> Iterator[tuple[str, Tensor]]:
    """Those of `names` that are in the file."""
    if file.suffix != ".safetensors":
        yield from ((name, tensor) for name, tensor in _load_pickled(file).items() if name in names)
        return
    with safe_open(file, "pt") as opened:
        for name in opened.keys():  # noqa: SIM118
            if name in names:
                yield name, opened.get_tensor(name)


def _load_pickled(file: Path) -> dict[str, Tensor]:
    """Tensors stay on disk until they are used. Nothing in the file is run: what is not a tensor is refused."""
    try:
        values = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
    except pickle.UnpicklingError as error:
        raise SpliceError(
            f"{file}: holds more than tensors, which is not loaded since it may run code ({_reason(error)}); get the model "
            "as safetensors"
        ) from error
    except Exception as error:  # any: torn files fail in as many classes
        raise SpliceError(
            f"{file}: torn, or no file of torch.save ({_reason(error)}); copy or download it again"
        ) from error
    if not isinstance(values, dict) or not all(isinstance(value, Tensor) for value in values.values()):
        raise SpliceError(f"{file}: not a dictionary of tensors; name a model that transformers saved")
    return values


def _check(stored: Mapping[str, Stored], expected: Mapping[str, tuple[int, ...]], directory: Path) -> None:
    missing = [name for name in expected if name not in stored]
    if missing:
        hint = " (tie_word_embeddings is false in config.json)" if missing == [HEAD] else ""
        raise SpliceError(
            f"{directory}: its weights lack {_some(missing)}{hint}; they are not those of its config.json"
        )
    for name, tensor in stored.items():
        if name not in expected:
            more = [other for other in stored if other not in expected]
            raise SpliceError(f"{tensor.file}: {_some(more)} is no part of a Llama of its config.json; {REMEDY}")
        if tensor.shape != expected[name]:
            raise SpliceError(
                f"{tensor.file}: {name} is {list(tensor.shape)}, but {list(expected[name])} by config.json; "
                "the two are not of one model"
            )
        if tensor.dtype not in FLOATS:
            raise SpliceError(f"{tensor.file}: {name} is {tensor.dtype}: quantised; start from the model before that")


def _check_tied(head: Stored, embedding: Stored) -> None:
    """A head that was saved with a tied model must be its embedding: leaving out another would change the model."""
    pair = [
        tensor
        for file, name in ((head.file, HEAD), (embedding.file, EMBEDDING))
        for _, tensor in _tensors(file, {name})
    ]
    if not torch.equal(*pair):
        raise SpliceError(
            f"{head.file}: {HEAD} is not {EMBEDDING}, but tie_word_embeddings is true in config.json; set it to false"
        )


def _some(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"


def _reason(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]


# ------------------------------------------------------------------------------------------------------- writing


def _write_weights(
    directory: Path, config: ModelConfig, weights: Iterable[tuple[str, Tensor]], dtype: torch.dtype, shard_bytes: int
) -> None:
    shards: list[list[str]] = []
    total_bytes = parameters = 0
    for held in _in_shards(_checked(weights, config), dtype, shard_bytes):
        try:
            save_file(held, _shard(directory, len(shards)), metadata={"format": "pt"})
        except SafetensorError as error:
            raise BuildFailed(
                f"{directory.parent}: the weights cannot be written ({_reason(error)}); make room"
            ) from error
        shards.append(list(held))
        total_bytes += sum(tensor.nbytes for tensor in held.values())
        parameters += sum(tensor.numel() for tensor in held.values())
        held.clear()  # before the next is gathered
    if len(shards) == 1:
        _shard(directory, 0).rename(directory / "model.safetensors")
        return
    names = [f"model-{i + 1:05d}-of-{len(shards):05d}.safetensors" for i in range(len(shards))]
    for i, name in enumerate(names):
        _shard(directory, i).rename(directory / name)
    of_weight = {weight: name for name, shard in zip(names, shards, strict=True) for weight in shard}
    metadata = {"total_parameters": parameters, "total_size": total_bytes}
    write_json(directory / "model.safetensors.index.json", {"metadata": metadata, "weight_map": of_weight})


def _shard(directory: Path, number: int) -> Path:
    """Until it is known how many there are."""
    return directory / f"shard-{number}.safetensors"


def _checked(weights: Iterable[tuple[str, Tensor]], config: ModelConfig) -> Iterator[tuple[str, Tensor]]:
    missing = parameter_shapes(config)
    for name, tensor in weights:
        if config.tied and name == HEAD:
            continue
        shape = missing.pop(name, None)
        if shape != tuple(tensor.shape):
            wanted = "none, or one only" if shape is None else f"one of {list(shape)}"
            raise SpliceError(
                f"{name} {list(tensor.shape)}: the model has {wanted}; write the weights of its configuration"
            )
        yield name, tensor
    if missing:
        raise SpliceError(f"{_some(list(missing))}: not among the weights to be written; write all of the model")


def _in_shards(
    weights: Iterable[tuple[str, Tensor]], dtype: torch.dtype, shard_bytes: int
) -> Iterator[dict[str, Tensor]]:
    """Tensors in groups of at most `shard_bytes`, each a copy on the CPU. A larger tensor is a group of its own."""
    held: dict[str, Tensor] = {}
    size = 0
    for name, tensor in weights:
        nbytes = tensor.numel() * dtype.itemsize
        if held and size + nbytes > shard_bytes:
            yield held
            held, size = {}, 0
        held[name] = tensor.detach().to("cpu", dtype, copy=True).contiguous()
        size += nbytes
    yield held


def _copy_tokenizer(source: Path, directory: Path) -> None:
    for name in TOKENIZER_FILES:
        if (source / name).is_file():
            shutil.copyfile(source / name, directory / name)
    model = directory / "tokenizer.model"
    if not (directory / "tokenizer.json").exists() and not (directory / "tokenizer_config.json").exists():
        # A dataset's copy of a SentencePiece model is that file alone; untold, transformers 5 leaves out its first space.
        config = read_definition(model, model.name).hub_config()
        write_json(directory / "tokenizer_config.json", config | {"tokenizer_class": "LlamaTokenizer"})
