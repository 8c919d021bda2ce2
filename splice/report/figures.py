"""The manifest's figures as the report shows them: the headline, and where documents and tokens went.

A figure names the place in the manifest it is from: "ledger.examples", with * for every entry, "ledger.sources.*.packed", and
+ between places that are added.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

MOST_LISTED = 5  # sources, in the line of settings
SOURCES = "ledger.sources.*."
EXAMPLES = "examples"  # the place where written tokens, separators and padding meet


@dataclass(frozen=True)
class Row:
    """A line of the headline table: where its value stands in the manifest, the exact value, and how it is written."""

    label: str
    key: str
    value: float
    text: str
    indent: bool = False


@dataclass(frozen=True)
class Flow:
    """`count` documents or tokens that went from one place to another, in the flow's column `stage` to that in the next."""

    stage: int
    origin: str
    target: str
    count: int


def figure(manifest: dict[str, Any], key: str) -> float:
    """The figure at a key, summed over * and +; 0 for a place that is not there."""
    return sum(sum(_at(manifest, place.split("."))) for place in key.split(" + "))


def _at(value: Any, path: list[str]) -> Iterable[float]:
    if not path:
        yield value or 0
    elif path[0] == "*":
        for entry in value.values() if isinstance(value, dict) else value:
            yield from _at(entry, path[1:])
    elif isinstance(value, list):
        yield from _at(value[int(path[0])], path[1:])
    elif path[0] in value:
        yield from _at(value[path[0]], path[1:])


def score_text(score: float) -> str:
    """A score as the report writes it: those of BM25 are in the hundreds, inner products below 1."""
    return f"{score:,.1f}" if abs(score) >= 10 else f"{score:.3g}"


def headline(manifest: dict[str, Any]) -> list[Row]:
    """The dataset in a dozen lines; of a mixture, what it has of them."""

    def row(label: str, key: str, indent: bool = True) -> Row:
        value = figure(manifest, key)
        return Row(label, key, value, f"{value:,}", indent)

    each = row("tokens each", "settings.length")
    if "mixture" in manifest:
        examples = row("examples", "shards.*.examples", indent=False)
        tokens = row("tokens, without padding", "tokens", indent=False)
        parts = [
            Row(
                part["name"],
                f"mixture.{i}.tokens",
                part["tokens"],
                f"{part['tokens']:,} ({part['share_reached']:.1%})",
                True,
            )
            for i, part in enumerate(manifest["mixture"])
        ]
        return [examples, each, tokens, *parts, _fill(tokens.value, examples.value * each.value)]
    whole = figure(manifest, f"{SOURCES}tokens_in + {SOURCES}reused_tokens")  # each time that a document was used
    trimmed = row("trimmed", SOURCES + "trimmed")
    left_out = row("left out", SOURCES + "left_out_tokens")
    rows = [
        row("documents in", SOURCES + "documents_in", indent=False),
        row("packed", SOURCES + "packed"),
        row("filtered", SOURCES + "filtered.*"),
        row("duplicates", SOURCES + "duplicate"),
        row("near-duplicates", SOURCES + "near_duplicate"),
        row("left out, too long", SOURCES + "left_out"),
        row("quarantined", SOURCES + "quarantined"),
        row("tokens in", SOURCES + "tokens_in", indent=False),
        *(
            replace(part, text=f"{part.text} ({part.value / max(whole, 1):.1%})")
            for part in (trimmed, left_out)
            if part is trimmed or part.value
        ),
        row("examples", "ledger.examples", indent=False),
        each,
        _fill(manifest["ledger"]["tokens"] - manifest["ledger"]["padding"], manifest["ledger"]["tokens"]),
    ]
    if figure(manifest, SOURCES + "reuses"):
        rows.append(row("documents used again, times", SOURCES + "reuses", indent=False))
        rows.append(row("their tokens", SOURCES + "reused_tokens"))
    for label, name in (("mean score of a step", "mean_step"), ("of random packing", "mean_control")):
        value = manifest["scores"][name]
        if value is not None:
            rows.append(Row(label, f"scores.{name}", value, score_text(value), name == "mean_control"))
    return rows


def _fill(filled: float, tokens: float) -> Row:
    share = filled / tokens if tokens else 0.0
    return Row("fill", "fill", share, f"{share:.2%}")


def settings_line(manifest: dict[str, Any]) -> list[tuple[str, str]]:
    """The settings that matter to a reader, by name."""
    s = manifest["settings"]
    tokenizer = manifest["tokenizer"]["name"]
    if "mixture" in manifest:
        names = ", ".join(f"{p['name']} ({p['retriever']})" for p in manifest["mixture"])
        found = {"mixture of": names, "length": f"{s['length']:,}", "seed": s["seed"], "tokenizer": tokenizer}
    else:
        found = {"retriever": s["retriever"], **retriever_settings(manifest)}
        found |= {"k": s["k"], "length": f"{s['length']:,}"}
        found |= {name: s[name] for name in ("order", "exhausted", "tail", "join", "dedup", "seed")}
        found |= {"noise": s["noise"]} if s.get("noise") else {}
        found |= {"max uses": s["max_uses"]} if s.get("max_uses", 1) > 1 else {}
        found |= {"tokenizer": tokenizer, "sources": _listed(s["sources"])}
    return [(name, str(value)) for name, value in {**found, "splice": manifest["splice"]}.items()]


def retriever_settings(manifest: dict[str, Any]) -> dict[str, str]:
    """What a build's retriever was told and a reader asks for, by name: where these differ, scores do not compare."""
    s = manifest["settings"]
    found: dict[str, str] = {}
    if s.get("retriever") in ("dense", "hybrid"):
        encoder = manifest.get("encoder") or {}
        found["encoder"] = str(encoder.get("name") or s.get("encoder") or "unknown")
    if s.get("retriever") == "hybrid":
        found["merge"] = str(s.get("merge"))
    if s.get("retriever") == "domain":
        found["domain field"] = str(s.get("domain_field"))
    return found


def _listed(sources: list[str]) -> str:
    """The first of the sources, and how many more there are."""
    more = len(sources) - MOST_LISTED
    return ", ".join(sources[:MOST_LISTED]) + (f" and {more:,} more" if more > 0 else "")


def document_flow(manifest: dict[str, Any]) -> list[Flow]:
    """Sources to what became of their documents; nothing of a mixture."""
    fates = {"packed": "packed", "left_out": "left out", "duplicate": "duplicate", "near_duplicate": "near-duplicate"}
    flows = []
    for source, s in _sources(manifest):
        flows += [Flow(0, source, fate, s[name]) for name, fate in fates.items()]
        flows += [Flow(0, source, reason.replace("_", " "), n) for reason, n in sorted(s["filtered"].items())]
        flows.append(Flow(0, source, "quarantined", s["quarantined"]))
    return [flow for flow in flows if flow.count]


def token_flow(manifest: dict[str, Any]) -> list[Flow]:
    """Sources to written, trimmed or left out, and written to the examples, which also hold separators and padding.

    Of a mixture: its parts to the examples.
    """
    if "mixture" in manifest:
        length, examples = manifest["settings"]["length"], figure(manifest, "shards.*.examples")
        flows = [Flow(0, part["name"], EXAMPLES, part["tokens"]) for part in manifest["mixture"]]
        flows.append(Flow(0, "padding", EXAMPLES, int(examples * length - manifest["tokens"])))
    else:
        flows, written, separators = [], 0, 0
        for source, s in _sources(manifest):
            flows += [Flow(0, source, "written", s["written"]), Flow(0, source, "trimmed", s["trimmed"])]
            flows.append(Flow(0, source, "left out", s["left_out_tokens"]))
            written, separators = written + s["written"], separators + s["separators"]
        flows += [Flow(1, "written", EXAMPLES, written), Flow(1, "separators", EXAMPLES, separators)]
        flows.append(Flow(1, "padding", EXAMPLES, manifest["ledger"]["padding"]))
    return [flow for flow in flows if flow.count]


def written_by_source(manifest: dict[str, Any]) -> dict[str, int]:
    """Tokens written of each source; empty for a mixture, whose manifest does not count them."""
    return {source: s["written"] for source, s in _sources(manifest)}


def grouped(counts: dict[str, int], most: int) -> dict[str, int]:
    """The largest `most` - 1 entries and the rest together, where there are more than `most`; largest first."""
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    if len(ordered) <= most:
        return dict(ordered)
    rest = ordered[most - 1 :]
    return dict(ordered[: most - 1]) | {f"{len(rest)} others": sum(n for _, n in rest)}


def _sources(manifest: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    return list(manifest["ledger"]["sources"].items()) if "ledger" in manifest else []
