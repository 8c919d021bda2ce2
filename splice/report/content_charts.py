"""Charts of what is in the examples: documents, tokens, sources."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from . import plots, shapes
from .chart import Chart, bins, each, labels, names, of
from .facts import Facts
from .figures import figure, grouped, written_by_source
from .svg import MUTED, PADDING, SERIES

MOST_SOURCES = 10


def document_charts(facts: Sequence[Facts]) -> list[Chart]:
    """How many documents an example has, and how long documents are."""
    held = [f for f in facts if len(f.columns)]
    if not held:
        return []
    per_example = shapes.whole_number_histogram([f.columns.documents for f in held])
    charted = [
        Chart(
            "documents-per-example",
            "Documents per example",
            plots.histogram(
                "documents-per-example",
                per_example,
                labels(held),
                "documents in an example",
                "share of the examples (%)",
                whole=True,
            ),
            f"Median {each(held, lambda f: f'{np.median(f.columns.documents):,.0f}')}, at most "
            f"{each(held, lambda f: f'{f.columns.documents.max():,}')}.",
            f"histogram; median {each(held, lambda f: f'{np.median(f.columns.documents):,.0f}')}",
            ["documents", *names(held)],
            bins(per_example, lambda a, b: f"{a + 0.5:,.0f}" if b - a == 1 else f"{a + 0.5:,.0f} to {b - 0.5:,.0f}"),
        )
    ]
    held = [f for f in held if len(f.documents)]
    if held:
        lengths = shapes.log_histogram([f.documents for f in held])
        cut = [f for f in held if not f.whole]
        what = "whole documents" if len(cut) < len(held) else "documents' pieces in examples"
        what += f", of {' and '.join(names(cut))} their pieces in examples" if 0 < len(cut) < len(held) else ""
        charted.append(
            Chart(
                "document-length",
                "Document length",
                plots.histogram(
                    "document-length",
                    lengths,
                    labels(held),
                    "tokens of a document",
                    "share of the documents (%)",
                    log=True,
                ),
                f"Of {what}; each bar is 1.41 times as wide as the one before. Median "
                f"{each(held, lambda f: f'{np.median(f.documents):,.0f}')} tokens, mean "
                f"{each(held, lambda f: f'{f.documents.mean():,.0f}')}.",
                f"histogram; median {each(held, lambda f: f'{np.median(f.documents):,.0f}')} tokens",
                ["tokens", *names(held)],
                bins(lengths, lambda a, b: f"{np.ceil(a):,.0f} to {np.ceil(b) - 1:,.0f}"),
            )
        )
    return charted


def composition_charts(facts: Sequence[Facts]) -> list[Chart]:
    """What the shards' tokens are, and which sources they are from."""
    held = [f for f in facts if f.examples]
    if not held:
        return []
    parts = [composition(f) for f in held]
    shares = [{name: n / sum(one.values()) for name, n in one.items()} for one in parts]
    charted = [
        Chart(
            "fill",
            "What fills the examples",
            plots.composition(
                "fill", shares, labels(held), "share of the shards' tokens (%)", (SERIES[0], MUTED, PADDING)
            ),
            "\n".join(
                f"{of(f, held)}{one['documents']:.2%} documents' own tokens, {one['separators']:.2%} separators, "
                f"{one['padding']:.2%} padding{_split(f)}."
                for f, one in zip(held, shares, strict=True)
            ),
            "; ".join(
                f"{f.name}: " + ", ".join(f"{k} {v:.2%}" for k, v in one.items())
                for f, one in zip(held, shares, strict=True)
            ),
            ["tokens", *names(held)],
            [[name, *(f"{one[name]:,}" for one in parts)] for name in parts[0]],
        )
    ]
    charted += _fate_charts([f for f in held if not f.is_mixture])
    sources = [written_by_source(f.manifest) or f.columns.sources for f in held]
    total: dict[str, int] = {}
    for one in sources:
        for name, n in one.items():
            total[name] = total.get(name, 0) + n
    if len(total) < 2:
        return charted
    kept = grouped(total, MOST_SOURCES)
    rest = next((name for name in kept if name not in total), None)
    rows = []
    for one in sources:
        row = {name: one.get(name, 0) for name in kept if name != rest}
        if rest:
            row[rest] = sum(one.values()) - sum(row.values())
        rows.append(row)
    shares = [{name: n / max(sum(row.values()), 1) for name, n in row.items()} for row in rows]
    charted.append(
        Chart(
            "sources",
            "Tokens by source",
            plots.shares_by_name("sources", list(kept), shares, labels(held), "share of the tokens written (%)"),
            f"{len(total):,} source{'s' * (len(total) != 1)}, by the documents' own tokens in the shards."
            + "".join(
                f" {of(f, held)}counted in {len(f.columns):,} of {f.examples:,} examples."
                for f in held
                if f.is_mixture and len(f.columns) < f.examples
            ),
            ", ".join(f"{name} {shares[0][name]:.1%}" for name in kept),
            ["source", *names(held)],
            [[name, *(f"{row[name]:,}" for row in rows)] for name in kept],
        )
    )
    return charted


def _split(f: Facts) -> str:
    """What is said of figures that only some of the examples gave."""
    if not f.is_mixture or len(f.columns) == f.examples:
        return ""
    return f"; separators are estimated from {len(f.columns):,} of {f.examples:,} examples"


def _fate_charts(facts: Sequence[Facts]) -> list[Chart]:
    """What became of the tokens of packed documents, by the ledger; a mixture has none."""
    fates = {"written": "written", "trimmed": "trimmed", "left out": "left_out_tokens"}
    counts = [{name: int(figure(f.manifest, f"ledger.sources.*.{key}")) for name, key in fates.items()} for f in facts]
    if not any(sum(one.values()) for one in counts):
        return []
    shares = [{name: n / max(sum(one.values()), 1) for name, n in one.items()} for one in counts]
    words = [", ".join(f"{share:.2%} {name}" for name, share in one.items()) for one in shares]
    split = each(facts, lambda f: f"{figure(f.manifest, 'ledger.sources.*.split_documents'):,}")
    return [
        Chart(
            "fate",
            "What became of the documents' tokens",
            plots.composition(
                "fate", shares, labels(facts), "share of the documents' tokens (%)", (SERIES[0], SERIES[1], PADDING)
            ),
            "\n".join(f"{of(f, facts)}{said}." for f, said in zip(facts, words, strict=True))
            + f"\nDocuments that go on in the next example: {split}.",
            "; ".join(words),
            ["tokens", *names(facts)],
            [[name, *(f"{one[name]:,}" for one in counts)] for name in fates],
        )
    ]


def composition(f: Facts) -> dict[str, int]:
    """Tokens of the shards: documents' own, separators, padding, by the manifest.

    That of a mixture only knows padding: the rest is split as in the examples that were read.
    """
    if f.is_mixture:
        tokens, own = f.manifest["tokens"], int(f.columns.own.sum())
        read = len(f.columns) * f.length - int(f.columns.padding.sum())
        documents = round(tokens * own / max(read, 1))
        return {"documents": documents, "separators": tokens - documents, "padding": f.examples * f.length - tokens}
    written, separators = (int(figure(f.manifest, f"ledger.sources.*.{name}")) for name in ("written", "separators"))
    return {"documents": written, "separators": separators, "padding": f.manifest["ledger"]["padding"]}
