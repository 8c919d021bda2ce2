"""What a build says at its end: the headline table and what each stage took."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

from splice.ledger import total
from splice.report import REPORT
from splice.report.figures import score_text
from splice.settings import BuildSettings


def show_summary(manifest: dict[str, Any], settings: BuildSettings, console: Console) -> None:
    """Print documents, tokens, examples, fill, scores beside random packing, stages, and where the dataset is."""
    console.print(headline(manifest))
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


def headline(manifest: dict[str, Any]) -> Table:
    """The dataset in ten lines."""
    ledger = manifest["ledger"]
    table = Table(title=f"{manifest['settings']['retriever']} k={manifest['settings']['k']}", show_header=False)
    table.add_column()
    table.add_column(justify="right")
    filtered = sum(sum(s["filtered"].values()) for s in ledger["sources"].values())
    fill = 1 - ledger["padding"] / ledger["tokens"] if ledger["tokens"] else 0.0
    tokens_in = total(ledger, "tokens_in")
    trimmed = total(ledger, "trimmed", "left_out_tokens")
    rows = [
        ("documents in", f"{total(ledger, 'documents_in'):,}"),
        ("  packed", f"{total(ledger, 'packed'):,}"),
        ("  filtered", f"{filtered:,}"),
        ("  duplicates", f"{total(ledger, 'duplicate'):,}"),
        ("  near-duplicates", f"{total(ledger, 'near_duplicate'):,}"),
        ("  left out, too long", f"{total(ledger, 'left_out'):,}"),
        ("  quarantined", f"{total(ledger, 'quarantined'):,}"),
        ("tokens in", f"{tokens_in:,}"),
        ("  trimmed", f"{trimmed:,} ({trimmed / max(tokens_in, 1):.1%})"),
        ("examples", f"{ledger['examples']:,} of {manifest['settings']['length']:,} tokens"),
        ("fill", f"{fill:.2%}"),
    ]
    reuses = total(ledger, "reuses")
    if reuses:
        rows.append(("documents used again", f"{reuses:,} times, {total(ledger, 'reused_tokens'):,} tokens"))
    scores = manifest["scores"]
    if scores["mean_step"] is not None:
        rows.append(("mean score of a step", score_text(scores["mean_step"])))
        if scores["mean_control"] is not None:
            rows.append(("  of random packing", score_text(scores["mean_control"])))
    for name, value in rows:
        table.add_row(name, value)
    return table


def stage_table(manifest: dict[str, Any]) -> Table:
    """Wall and CPU seconds of every stage of the run that finished the dataset."""
    run = manifest["run"]
    table = Table(
        "stage", title=f"{run['workers']} workers, driver's peak memory {run['peak_rss_bytes'] / 2**30:.2f} GiB"
    )
    for name in ("tasks", "wall s", "CPU s"):
        table.add_column(name, justify="right")
    for name, stage in run["stages"].items():
        if stage["reused"]:
            table.add_row(name, "reused", "", "")
        else:
            table.add_row(name, str(stage["tasks"]), f"{stage['wall_seconds']:.1f}", f"{stage['cpu_seconds']:.1f}")
    table.add_row("all", "", f"{run['wall_seconds']:.1f}", f"{run['cpu_seconds']:.1f}")
    return table
