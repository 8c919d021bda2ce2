"""What a build says at its end: the headline table and what each stage took."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

from splice.report import REPORT
from splice.report.figures import headline
from splice.settings import BuildSettings


def show_summary(manifest: dict[str, Any], settings: BuildSettings, console: Console) -> None:
    """Print documents, tokens, examples, fill, scores beside random packing, stages, and where the dataset is."""
    console.print(headline_table(manifest))
    console.print(stage_table(manifest))
    tokenizer = manifest["tokenizer"]
    console.print(
        f"tokenizer {tokenizer['name']} on {tokenizer['backend']}: {tokenizer['backend_reason']}",
        highlight=False,
        markup=False,
    )
    console.print(
        f"dataset: {settings.output}   look at: {settings.output}/{REPORT}   next: splice validate {settings.output}",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )


def headline_table(manifest: dict[str, Any]) -> Table:
    """The dataset in a dozen lines, those of its report."""
    table = Table(title=f"{manifest['settings']['retriever']} k={manifest['settings']['k']}", show_header=False)
    table.add_column()
    table.add_column(justify="right")
    for row in headline(manifest):
        table.add_row("  " * row.indent + row.label, row.text)
    return table


def stage_table(manifest: dict[str, Any]) -> Table:
    """Wall and CPU seconds of every stage of the run that finished the dataset."""
    run = manifest["run"]
    # Of workers elsewhere nothing is known here.
    where = f"{run['workers']} workers" if run["workers"] else f"on {run['runner']}, CPU s of the driver alone"
    table = Table("stage", title=f"{where}; driver's peak memory {run['peak_rss_bytes'] / 2**30:.2f} GiB")
    for name in ("tasks", "wall s", "CPU s"):
        table.add_column(name, justify="right")
    for name, stage in run["stages"].items():
        if stage["reused"]:
            table.add_row(name, "reused", "", "")
        else:
            table.add_row(name, str(stage["tasks"]), f"{stage['wall_seconds']:.1f}", f"{stage['cpu_seconds']:.1f}")
    table.add_row("all", "", f"{run['wall_seconds']:.1f}", f"{run['cpu_seconds']:.1f}")
    return table
