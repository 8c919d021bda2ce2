"""A model to evaluate: found, loaded by our own code or by transformers, its tokenizer beside it, and what identifies it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import xxhash

from splice.errors import SpliceError
from splice.files import read_json
from splice.tokenizer import load_tokenizer
from splice.train.checkpoint import is_checkpoint
from splice.train.restore import find_model

from .engine import Engine
from .hub import HubNet, why_whole
from .ours import LlamaNet
from .prompts import Prompter, bos_of
from .reader import Reader, SharedReader
from .settings import EngineSettings
from .whole import WholeReader

BLOCK = 2**24  # bytes of weights that are hashed at a time


@dataclass(frozen=True)
class Model:
    """engine: ready to answer. directory: where it lies. facts: what a result says of it. note: what the user should know, or None."""

    engine: Engine
    directory: Path
    facts: dict[str, Any]
    note: str | None


def open_model(name: str, settings: EngineSettings) -> Model:
    """Load a checkpoint of ours, a Hugging Face directory or a model of the hub.

    Raises SpliceError where there is none, where it cannot be loaded, where its tokenizer is missing or is another model's.
    """
    directory = find_model(name)
    device = _device(settings.device)
    dtype = _dtype(settings.dtype, device)
    backend = _backend(directory, settings.backend)
    if backend == "transformers" and is_checkpoint(directory):
        raise SpliceError(
            f"{name}: a checkpoint, which transformers does not read; export it: splice export {name} --output DIR"
        )
    tokenizer = load_tokenizer(str(directory))
    net = LlamaNet(directory, dtype, device) if backend == "splice" else HubNet(directory, dtype, device)
    if tokenizer.vocab_size > net.vocab_size:
        raise SpliceError(
            f"{directory}: its tokenizer has {tokenizer.vocab_size:,} tokens, the model {net.vocab_size:,}; copy the model's own there"
        )
    why = why_whole(net) if isinstance(net, HubNet) else None
    reader: Reader
    if why is None:
        reader = SharedReader(net, settings.chunk, settings.batch_tokens)
    else:
        assert isinstance(net, HubNet)
        reader = WholeReader(net.model)
    bos = bos_of(tokenizer, directory, settings.bos)
    limit = settings.max_context or _context(net)
    facts = {
        "name": called(name, directory),
        "backend": backend,
        "prefix": "read once" if why is None else f"read for every query: {why}",
        "parameters": net.parameters,
        "context": limit,
        "dtype": str(dtype).removeprefix("torch."),
        "device": device.type,
        "bos": bos is not None,
        "tokenizer": tokenizer.fingerprint,
        "weights": weights_fingerprint(directory),
    }
    note = f"{name} cannot share a prefix among queries: {why}. Every prompt is read whole." if why else None
    engine = Engine(reader, Prompter(tokenizer, bos), limit, _ends(directory, tokenizer.eos_id))
    return Model(engine, directory, facts, note)


def called(name: str, directory: Path) -> str:
    """What a model is called in results: its name on the hub, or the end of its path, whichever machine that is on."""
    if not Path(name).expanduser().is_dir():
        return name
    parts = directory.resolve().parts[1:]
    return "/".join(parts[-2:] if is_checkpoint(directory) else parts[-1:])


def _ends(directory: Path, eos: int | None) -> frozenset[int]:
    """Ids that end a text: the tokenizer's EOS, and those that the model's files name beside it."""
    ends = {eos}
    for name in ("generation_config.json", "config.json"):
        found = (read_json(directory / name) or {}).get("eos_token_id")
        ends |= set(found) if isinstance(found, list) else {found}
    return frozenset(one for one in ends if isinstance(one, int))


def weights_fingerprint(directory: Path) -> str:
    """16 hex digits over config.json and every file of weights, at the speed of memory."""
    digest = xxhash.xxh3_128((directory / "config.json").read_bytes())
    for path in sorted(directory.rglob("*")):
        name = path.relative_to(directory)
        if path.suffix not in (".safetensors", ".bin") or "optimizer" in name.parts:
            continue
        digest.update(f"{name} {path.stat().st_size}\n".encode())
        with path.open("rb") as file:
            while block := file.read(BLOCK):
                digest.update(block)
    return digest.hexdigest()[:16]


def _backend(directory: Path, asked: str) -> str:
    """Ours for what it knows: Llamas and Mixtrals. A setting of theirs that it does not have leaves them to transformers."""
    if asked != "auto":
        return asked
    from splice.train.hf_read import read_config

    try:
        read_config(directory)
    except SpliceError:
        return "transformers"
    return "splice"


def _context(net: LlamaNet | HubNet) -> int | None:
    if isinstance(net, LlamaNet):
        return net.config.length
    config = net.model.config.get_text_config()
    names = ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "seq_length")
    return next((int(value) for name in names if (value := getattr(config, name, None))), None)


def _device(asked: str) -> torch.device:
    if asked == "cuda" and not torch.cuda.is_available():
        raise SpliceError("--device cuda: torch sees no GPU here; leave it out, or take cpu")
    return torch.device("cuda" if asked == "cuda" or (asked == "auto" and torch.cuda.is_available()) else "cpu")


def _dtype(asked: str, device: torch.device) -> torch.dtype:
    if asked == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    return getattr(torch, asked)
