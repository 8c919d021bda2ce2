"""A model as a Hugging Face directory, written whole or not at all; one shard of its weights is held at a time."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from splice.errors import BuildFailed, SpliceError
from splice.files import replacing, write_json
from splice.tokenizer_files import read_definition

from .hf_config import beyond_mixtral, config_to_hf, special_ids
from .hf_experts import split
from .hf_read import HEAD, TOKENIZER_FILES, TOKENIZERS, parameter_shapes, reason, some
from .model import ModelConfig


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
    manifest. Raises SpliceError where its experts are none that Mixtral could have, `output` is taken, the tokenizer is
    absent, or the weights are not the model's, BuildFailed where they cannot be written.
    """
    if beyond := beyond_mixtral(config):
        raise SpliceError(
            f"{output}: not written, since Mixtral cannot express this model's experts: {', '.join(beyond)}; the checkpoint can be "
            "an --init, and what transformers is to load is trained with token_choice, swiglu, renormalise and experts in every "
            "layer (a mixture of tokens becomes one by --init and --model.experts.routing token_choice)"
        )
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
        for file in directory.glob("*.safetensors"):
            file.chmod((directory / "config.json").stat().st_mode)  # safetensors lets nobody else read what it writes
        if output.is_dir():
            output.rmdir()  # an empty one; no rename replaces a directory everywhere


def _write_weights(
    directory: Path, config: ModelConfig, weights: Iterable[tuple[str, Tensor]], dtype: torch.dtype, shard_bytes: int
) -> None:
    shards: list[list[str]] = []
    total_bytes = parameters = 0
    for held in _in_shards(split(_checked(weights, config)), dtype, shard_bytes):
        try:
            save_file(held, _shard(directory, len(shards)), metadata={"format": "pt"})
        except SafetensorError as error:
            raise BuildFailed(
                f"{directory.parent}: the weights cannot be written ({reason(error)}); make room"
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
        raise SpliceError(f"{some(list(missing))}: not among the weights to be written; write all of the model")


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
