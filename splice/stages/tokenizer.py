"""tokenizer: the LM tokenizer of the build, trained on the sample or given, and proven equal to its reference."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from splice.packs import open_table
from splice.shared import shared


def run(args: dict[str, Any], directory: Path, threads: int) -> dict[str, Any]:
    """args: tokenizer (or None: train one), vocab_size, join. Writes tokenizer/; the receipt names ids and backend."""
    from splice.tokenizer import load_tokenizer, train_tokenizer

    sample = [text.as_buffer() for text in open_table(directory / "assign" / "sample.arrow").column("text")]
    spec = args["tokenizer"]
    if spec is None:
        spec = str(directory / "trained")
        train_tokenizer((bytes(text) for text in sample), args["vocab_size"], Path(spec))
    tokenizer = load_tokenizer(spec, sample=[bytes(text) for text in sample])
    tokenizer.save(directory / "tokenizer")
    return {
        "name": tokenizer.name if args["tokenizer"] else f"trained-{tokenizer.vocab_size}",
        "vocab_size": tokenizer.vocab_size,
        "bos_id": tokenizer.bos_id,
        "eos_id": tokenizer.eos_id,
        "pad_id": tokenizer.pad_id,
        "backend": tokenizer.backend,
        "backend_reason": tokenizer.backend_reason,
        "fingerprint": tokenizer.fingerprint,
    }


@shared(maxsize=2)
def saved_tokenizer(directory: str, backend: str) -> Any:
    """The tokenizer that `run` saved, on the backend its proof chose."""
    from splice.tokenizer import load_tokenizer

    return load_tokenizer(str(Path(directory) / "tokenizer"), fast=backend == "gigatoken")
