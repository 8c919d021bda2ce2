"""tokenizer: the LM tokenizer of the build, trained on the sample or given, and proven equal to its reference."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..files import read_json
from ..shared import shared
from ..storage import is_url, local_directory, location
from ..task import Task
from .gather import read_sample

if TYPE_CHECKING:
    from ..tokenizer import Tokenizer


def run(args: dict[str, Any], directory: Path, threads: int) -> dict[str, Any]:
    """args: ingest (directory), tokenizer (or None: train one), name (where it goes by another than its place's), vocab_size.
    Writes tokenizer/.

    The receipt names the ids of the special tokens, the backend that runs, and why.
    """
    from ..tokenizer import load_tokenizer, train_tokenizer

    sample = read_sample(location(args["ingest"]))
    with tempfile.TemporaryDirectory(prefix="splice-tokenizer-") as trained:
        if args["tokenizer"] is None:
            train_tokenizer(sample, args["vocab_size"], Path(trained))
        spec = args["tokenizer"] or trained
        tokenizer = load_tokenizer(str(local_directory(location(spec))) if is_url(spec) else spec, sample=sample)
    tokenizer.save(directory / "tokenizer")
    _proven[str(directory)] = tokenizer
    return {
        "name": (args["name"] or tokenizer.name) if args["tokenizer"] else f"trained-{tokenizer.vocab_size}",
        "vocab_size": tokenizer.vocab_size,
        "bos_id": tokenizer.bos_id,
        "eos_id": tokenizer.eos_id,
        "pad_id": tokenizer.pad_id,
        "backend": tokenizer.backend,
        "backend_reason": tokenizer.backend_reason,
        "fingerprint": tokenizer.fingerprint,
    }


_proven: dict[str, Tokenizer] = {}  # by directory: the process that made the proof need not make it again


def receipt_path(directory: Path) -> Path:
    """Where the receipt of the one task lies."""
    return Task("tokenizer", "all", str(directory)).marker


@shared(maxsize=2)
def saved_tokenizer(directory: str, ingest: str) -> Tokenizer:
    """The tokenizer that `run` saved, on the backend its proof chose; another process makes the same proof again."""
    from ..tokenizer import load_tokenizer

    fast = read_json(receipt_path(location(directory)))["backend"] == "gigatoken"
    sample = read_sample(location(ingest)) if fast else []
    saved = local_directory(location(directory) / "tokenizer")
    return _proven.get(directory) or load_tokenizer(str(saved), sample, fast)
