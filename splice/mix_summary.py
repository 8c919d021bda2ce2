"""What `splice mix` says: what it would do, and what came out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from .mix import MixSettings, name_of
from .report import REPORT
from .settings import BuildSettings
from .store.manifest import MANIFEST


def show_plan(settings: MixSettings, builds: dict[int, BuildSettings], console: Console) -> None:
    """Print the datasets and their shares, whether they are there, and the settings of those to be built."""
    table = Table("dataset", "share", "repeat", "where")
    for number, part in enumerate(settings.datasets):
        if part.dataset is None:
            where = f"to be built: {builds[number].retriever} from {', '.join(builds[number].sources)}"
        else:
            where = f"{part.dataset}" + ("" if (part.dataset / MANIFEST).is_file() else " (not there yet)")
        table.add_row(name_of(part, number), f"{part.share:.0%}", str(part.repeat), where)
    console.print(table)
    said = f"{settings.tokens:,}" if settings.tokens else "as many as the datasets have for these shares"
    console.print(f"tokens: {said}", highlight=False)


def show_mixture(manifest: dict[str, Any], output: Path, console: Console) -> None:
    """Print what was taken of each dataset."""
    table = Table(title=f"{manifest['tokens']:,} tokens, {manifest['settings']['length']:,} an example")
    for name in ("dataset", "retriever", "share", "asked", "tokens", "examples", "of"):
        table.add_column(name, justify="left" if name in ("dataset", "retriever") else "right")
    for part in manifest["mixture"]:
        shares = (f"{part['share_reached']:.2%}", f"{part['share']:.2%}")
        counts = (f"{part[name]:,}" for name in ("tokens", "examples", "of_examples"))
        table.add_row(part["name"], part["retriever"], *shares, *counts)
    console.print(table)
    console.print(
        f"dataset: {output}   look at: {output}/{REPORT}   next: splice validate {output}",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )
