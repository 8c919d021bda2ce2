"""The ledger: where every document and every token went, by source; it balances, or the build fails.

    documents in = packed + left out + filtered (by reason) + duplicate + near_duplicate + quarantined
    tokens in + reused = written + trimmed + left out      (the documents' own tokens, without separators)
    examples * L = written + separators + padding

Each figure is counted by the stage that decides it, so a balance is evidence, not arithmetic.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

Receipt = dict[str, Any]


def make_ledger(
    length: int,
    read: Iterable[Receipt],
    refused: Counter[tuple[str, str]],
    tokenised: Iterable[Receipt],
    plans: Iterable[Receipt],
    shards: Iterable[Receipt],
) -> dict[str, Any]:
    """Gather the stages' receipts. refused: documents by (source, reason), duplicates among them."""
    sources: dict[str, dict[str, Any]] = {}

    def of(source: str) -> dict[str, Any]:
        empty = {
            "documents_in": 0, "packed": 0, "left_out": 0, "duplicate": 0, "near_duplicate": 0, "quarantined": 0, "filtered": {},
            "tokens_in": 0, "written": 0, "trimmed": 0, "left_out_tokens": 0, "separators": 0, "split_documents": 0,
            "reuses": 0, "reused_tokens": 0,
        }  # fmt: skip
        return sources.setdefault(source, empty)

    for receipt in read:
        entry = of(receipt["source"])
        entry["documents_in"] += receipt["documents"]
        entry["quarantined"] += receipt["quarantined"]
    for (source, reason), count in sorted(refused.items()):
        if reason in ("duplicate", "near_duplicate"):
            of(source)[reason] += count
        else:
            of(source)["filtered"][reason] = count
    for source, counts in _by_source(tokenised):
        of(source)["packed"] += counts["documents"]
        of(source)["tokens_in"] += counts["tokens"]
    for source, counts in _by_source(plans):
        of(source)["packed"] -= counts["left_out_documents"]
        of(source)["left_out"] += counts["left_out_documents"]
        of(source)["left_out_tokens"] += counts["left_out_tokens"]
        of(source)["trimmed"] += counts["trimmed_tokens"]
        for name in ("split_documents", "reuses", "reused_tokens"):
            of(source)[name] += counts[name]
    shards = list(shards)
    for source, counts in _by_source(shards):
        of(source)["written"] += counts["written_tokens"]
        of(source)["separators"] += counts["separators"]
    examples = sum(receipt["examples"] for receipt in shards)
    return {
        "examples": examples,
        "tokens": examples * length,
        "padding": sum(receipt["padding"] for receipt in shards),
        "sources": dict(sorted(sources.items())),
    }


def imbalances(ledger: dict[str, Any]) -> list[str]:
    """What does not add up, a sentence each; empty when the ledger balances."""
    wrong = []
    for name, s in ledger["sources"].items():
        fates = ("packed", "left_out", "duplicate", "near_duplicate", "quarantined")
        out = sum(s[fate] for fate in fates) + sum(s["filtered"].values())
        if out != s["documents_in"]:
            wrong.append(f"source {name}: {s['documents_in']} documents in, {out} accounted for")
        spent = s["written"] + s["trimmed"] + s["left_out_tokens"]
        if spent != s["tokens_in"] + s["reused_tokens"]:
            again = f" and {s['reused_tokens']} used again" if s["reused_tokens"] else ""
            wrong.append(f"source {name}: {s['tokens_in']} tokens in{again}, {spent} accounted for")
    held = sum(s["written"] + s["separators"] for s in ledger["sources"].values()) + ledger["padding"]
    if held != ledger["tokens"]:
        wrong.append(f"examples hold {ledger['tokens']} tokens, but {held} were written with separators and padding")
    return wrong


def total(ledger: dict[str, Any], *names: str) -> int:
    """A sum over all sources of the named figures."""
    return sum(source[name] for source in ledger["sources"].values() for name in names)


def _by_source(receipts: Iterable[Receipt]) -> Iterable[tuple[str, dict[str, int]]]:
    for receipt in receipts:
        yield from receipt["by_source"].items()
