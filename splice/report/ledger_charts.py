"""Charts of the ledger: where the documents and tokens of a dataset went."""

from __future__ import annotations

from collections.abc import Sequence

from .chart import MOST_ROWS, Chart
from .facts import Facts
from .figures import Flow, document_flow, figure, token_flow
from .flow import draw_flow


def flow_charts(f: Facts, number: int) -> list[Chart]:
    """The ledger of one dataset as flows. number: of the dataset on the page."""
    charted = []
    documents, tokens = document_flow(f.manifest), token_flow(f.manifest)
    if documents:
        titles = ("sources", "became")
        charted.append(
            _flow(
                f"flow-documents-{number}",
                "Documents",
                documents,
                titles,
                "Every document that was read, by what became of it.",
            )
        )
    if tokens and f.is_mixture:
        titles = ("datasets", "mixture")
        asked = ", ".join(
            f"{p['name']} {p['share_reached']:.2%} (asked {p['share']:.2%})" for p in f.manifest["mixture"]
        )
        charted.append(_flow(f"flow-tokens-{number}", "Tokens", tokens, titles, f"Shares reached: {asked}."))
    elif tokens:
        shards = len(f.manifest["shards"])
        titles = ("sources", "tokens were", f"in {shards:,} shard{'s' * (shards != 1)}")
        used = ", as often as they were used" if figure(f.manifest, "ledger.sources.*.reuses") else ""
        caption = f"Every token of the packed documents{used}, by what became of it, and what else the shards hold."
        charted.append(_flow(f"flow-tokens-{number}", "Tokens", tokens, titles, caption))
    return charted


def _flow(name: str, title: str, flows: Sequence[Flow], titles: Sequence[str], caption: str) -> Chart:
    more = f" The table lists the first {MOST_ROWS} of {len(flows):,}." if len(flows) > MOST_ROWS else ""
    return Chart(
        name,
        title,
        draw_flow(name, flows, titles),
        caption + more,
        "; ".join(f"{flow.origin} to {flow.target} {flow.count:,}" for flow in flows[:20]),
        ["from", "to", title.lower()],
        [[flow.origin, flow.target, f"{flow.count:,}"] for flow in flows[:MOST_ROWS]],
    )
