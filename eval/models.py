"""A model to evaluate: found, loaded by our own code or by transformers, its tokenizer beside it, and what identifies it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from splice.errors import SpliceError
from splice.tokenizer import load_tokenizer
from splice.train.restore import find_model

from .engine import Engine
from .hub import HubNet, why_whole
from .ours import LlamaNet
from .prompts import Prompter, bos_of
from .reader import Reader, SharedReader
from .settings import EngineSettings
from .whole import WholeReader

PIECES, PIECE = 64, 2**16  # of each file of weights, spread over it: bytes that are hashed


@dataclass(frozen=True)
class Model:
    """engine: ready to answer. facts: what a result says of the model. note: what the user should know, or None."""

    engine: Engine
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
        "name": name,
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
    return Model(Engine(reader, Prompter(tokenizer, bos), limit, tokenizer.eos_id), facts, note)


def weights_fingerprint(directory: Path) -> str:
    """16 hex digits over config.json and the sizes and PIECES evenly spread pieces of every file of weights.

    Not over every byte: those of a large model take longer to hash than its evaluation.
    """
    digest = hashlib.sha256((directory / "config.json").read_bytes())
    files = [
        p for p in sorted(directory.rglob("*")) if p.suffix in (".safetensors", ".bin") and "optimizer" not in p.parts
    ]
    for path in files:
        size = path.stat().st_size
        digest.update(f"{path.relative_to(directory)} {size}\n".encode())
        with path.open("rb") as file:
            for place in sorted({size * piece // PIECES for piece in range(PIECES)} | {max(0, size - PIECE)}):
                file.seek(place)
                digest.update(file.read(PIECE))
    return digest.hexdigest()[:16]


def _backend(directory: Path, asked: str) -> str:
    """Ours for what it knows: Llamas. A setting of theirs that it does not have leaves them to transformers."""
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
