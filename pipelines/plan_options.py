"""The options of `splice plan`: numbers as people write them, and the settings of a build that its cost goes by.

Apart from planning.py, since every command of splice makes all options.
"""

from __future__ import annotations

import inspect as signatures
import re
from typing import Annotated

import typer

from splice.errors import SpliceError
from splice.options import option, parameter
from splice.settings import fields

HELP = """Reckon what a build of a corpus that is not here takes: packs, CPU hours, memory, storage, the longest task.

splice plan --documents 1e9 --mean-chars 5000 --workers 500
"""
COUNTS = {
    "documents": "documents of the corpus: 1e9, 20k, 3.5M",
    "mean_chars": "their mean length in characters, or bytes where there are more (UTF-8)",
    "workers": "cores, each with one task at a time; default: those here",
    "pack_documents": "most documents indexed together [dim](50k)[/]",
    "encoder_parameters": "of the encoder of a dense retriever [dim](110M)[/]",
    "encoder_dimension": "of its embeddings [dim](768)[/]",
}
SETTINGS = (
    "retriever",
    "length",
    "neighbours",
    "shard_tokens",
    "dedup",
    "pack_by",
    "encoder_tokens",
    "glob",
    "text_field",
)
SUFFIXES = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "b": 1e9, "t": 1e12}


def parameters() -> list[signatures.Parameter]:
    """What the command line takes."""
    described = fields()
    given = [parameter(name, Annotated[str | None, typer.Option(help=text)], None) for name, text in COUNTS.items()]
    measure = typer.Option(metavar="SRC", help="build a sample of this source first, and go by what it took")
    given.append(parameter("measure", Annotated[str | None, measure], None))
    given += [parameter(name, option({**described[name], "panel": "Build"}), None) for name in SETTINGS]
    return [*given, parameter("json", Annotated[bool, typer.Option("--json", help="in seconds and bytes")], False)]


def count(text: str | None, flag: str) -> int | None:
    """A whole number as people write it: 1e9, 20k, 3.5M, 1,000,000. Raises SpliceError, naming the flag."""
    if text is None:
        return None
    found = re.fullmatch(r"(\d[\d_,]*(?:\.\d+)?(?:e\+?\d+)?|\.\d+)\s*([kmgbt]?)", text.strip().lower())
    number = float(re.sub("[_,]", "", found[1])) * SUFFIXES[found[2]] if found else 0.0
    if not 1 <= number <= 1e18:
        raise SpliceError(f"{flag} {text}: not a number from 1 to 1e18; write it as 1e9, 20k or 3.5M")
    return round(number)
