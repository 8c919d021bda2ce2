"""What a run's samples come to: means with intervals over clusters, overall, by tag and by position, and what to beware of.

A figure: mean, n (the samples it is of; of nll the tokens), clusters, low and high (95%, None where there is no interval),
interval (how it was made, in words), t_low and t_high (95%, by Student's t). nll is nats per token over all tokens, in
whichever document they are, and perplexity its exponential, bounds and all.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from splice.errors import SpliceError

from . import statistics
from .statistics import COVERED, DRAWS, ENOUGH

NLL, PERPLEXITY = "nll", "perplexity"
SHARES = {"acc", "em", "f1", "likelihood", "match"}  # a word in the name of each metric that is shown as percent
BUCKET = ("from", "to")  # what the figures of a bucket are by
SHOWN_VALUES = 12  # of a tag, that have a line each in the terminal
WORST, BEST = "worst", "best"  # what the extreme values of a tag are called, where it is known which is which
WILSON = "95% Wilson score"
IN_NATS = ("mean", "low", "high", "t_low", "t_high", "a", "b")  # of a figure of nll; the last two are a comparison's
LARGEST_POWER = 700.0  # the exponential of more is no float; an interval of two clusters can reach there
LARGEST_COUNT = 1_000_000  # from which tokens are shown as four digits
POWERS = " KMBT"  # of a thousand

Figure = dict[str, Any]
Sample = Mapping[str, Any]


def summarise(samples: Iterable[Sample], metrics: Sequence[str], seed: int, unit: str = "sets") -> dict[str, Any]:
    """The part of result.json that is made of the samples.

        metrics   {metric: figure}; with nll, perplexity too
        by        {tag: [{"value": 37, "n": samples, metric: figure}]}, sorted by value; for two tags of several values each
                  "position x length" too, whose values are pairs
        buckets   [{"from", "to", "tokens", "nll": figure, "perplexity": figure}], sorted
        warnings  [sentence]

    unit: what clusters are called, in the plural. Raises SpliceError for a score that is no number.
    """
    return arrange(figures(gather(samples, metrics), seed, unit), metrics, unit)


def arrange(found: Mapping[Column, Figure], metrics: Sequence[str], unit: str) -> dict[str, Any]:
    """Figures as result.json has them."""
    overall = {metric: found[Column(metric)] for metric in metrics if Column(metric) in found}
    by = _by_tag(found)
    return {
        "metrics": _with_perplexity(overall),
        "by": by,
        "buckets": _by_bucket(found),
        "warnings": _warnings(overall, by, metrics, unit),
    }


class Column(NamedTuple):
    """What a figure is of: a metric over all samples, or over those with these values of one tag or of two."""

    metric: str
    tags: tuple[str, ...] = ()
    values: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Columns:
    """Samples added up, a row a cluster (sorted), a column a figure: sums float64 [S, K], counts int64 [S, K]."""

    names: list[Column]
    clusters: list[str]
    sums: np.ndarray
    counts: np.ndarray

    @property
    def means(self) -> dict[Column, float]:
        """The mean over all samples, or tokens, of each column."""
        return {
            name: math.fsum(self.sums[:, k].tolist()) / int(self.counts[:, k].sum())
            for k, name in enumerate(self.names)
        }


def gather(samples: Iterable[Sample], metrics: Sequence[str]) -> Columns:
    """Add up what each cluster's samples scored. Raises SpliceError for a score that is no number."""
    values: dict[Column, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    counts: dict[Column, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    clusters = set()
    for sample in samples:
        cluster = sample["cluster"]
        clusters.add(cluster)
        for column, value, count in _cells(sample, metrics):
            if value is None or not math.isfinite(value):  # JSON has no nan: it is null there
                raise SpliceError(
                    f"sample {sample['id']}: its {column.metric} is no number; the model's logits are not finite, "
                    "try --dtype float32, or another checkpoint"
                )
            if count:
                values[column][cluster].append(value)
                counts[column][cluster] += count
    rows, names = sorted(clusters), sorted(values, key=lambda column: metrics.index(column.metric))
    shape = (len(rows), len(names))
    # fsum rounds once: the order of the samples does not matter
    sums = [math.fsum(values[name].get(row, ())) for row in rows for name in names]
    numbers = [counts[name].get(row, 0) for row in rows for name in names]
    return Columns(names, rows, np.array(sums, np.float64).reshape(shape), np.array(numbers, np.int64).reshape(shape))


def _cells(sample: Sample, metrics: Sequence[str]) -> Iterator[tuple[Column, float | None, int]]:
    """The figures that a sample is a part of, with what it adds to their sums and to their counts."""
    tags = sample.get("tags", {})
    groups = [(), *((tag,) for tag in tags), *combinations(tags, 2)]
    buckets = sample.get("buckets", ())
    for metric in metrics:
        if metric == NLL and buckets:
            nats = [bucket[2] for bucket in buckets]
            value = None if None in nats else math.fsum(nats)
            count = sum(bucket[3] for bucket in buckets)
        elif metric in sample["scores"]:
            value, count = sample["scores"][metric], 1
        else:
            continue
        for group in groups:
            yield Column(metric, group, tuple(tags[tag] for tag in group)), value, count
        if metric == NLL:
            yield from ((Column(NLL, BUCKET, (begin, end)), nats, tokens) for begin, end, nats, tokens in buckets)


def figures(columns: Columns, seed: int, unit: str, differences: bool = False) -> dict[Column, Figure]:
    """A figure for each column. differences: of two models' scores, which are no proportions even where they look like some."""
    sums, counts = columns.sums, columns.counts
    bounds = statistics.bootstrap(sums, counts, seed)
    proportion = statistics.is_proportion(sums, counts) & (not differences)
    bounds[proportion] = statistics.wilson(sums[:, proportion], counts[:, proportion])
    student = statistics.student(sums, counts)
    found = {}
    for k, (name, mean) in enumerate(columns.means.items()):
        clusters = int((counts[:, k] > 0).sum())
        (low, high), (t_low, t_high) = _bounds(bounds[k]), _bounds(student[k])
        if clusters < 2:
            interval = f"none: only one of the {unit}"
        elif proportion[k]:
            interval = f"{WILSON}, {clusters:,} {unit} of one query each"
        else:
            interval = f"95% percentile bootstrap over {clusters:,} {unit}, B = {DRAWS:,}, seed {seed}"
        found[name] = {
            "mean": mean, "n": int(counts[:, k].sum()), "clusters": clusters,
            "low": low, "high": high, "interval": interval, "t_low": t_low, "t_high": t_high,
        }  # fmt: skip
    return found


def _bounds(pair: np.ndarray) -> tuple[float | None, float | None]:
    return (None, None) if np.isnan(pair).any() else (float(pair[0]), float(pair[1]))


def _by_tag(found: Mapping[Column, Figure]) -> dict[str, list[dict[str, Any]]]:
    """Figures by tag and value; of pairs of tags those of which both vary."""
    tagged: dict[tuple[str, ...], dict[tuple[Any, ...], dict[str, Any]]] = defaultdict(dict)
    for (metric, tags, values), figure in found.items():
        if tags and tags != BUCKET:
            row = tagged[tags].setdefault(values, {"value": values[0] if len(tags) == 1 else list(values), "n": 0})
            row["n"] = max(row["n"], figure["n"])
            row |= _with_perplexity({metric: figure})
    vary = {tags for tags, rows in tagged.items() if len(rows) > 1}
    return {
        " x ".join(tags): [rows[values] for values in sorted(rows, key=_order)]
        for tags, rows in tagged.items()
        if len(tags) == 1 or all((tag,) in vary for tag in tags)
    }


def _order(values: tuple[Any, ...]) -> list[tuple[bool, Any]]:
    """Numbers before words."""
    return [(isinstance(value, str), value) for value in values]


def _by_bucket(found: Mapping[Column, Figure]) -> list[dict[str, Any]]:
    buckets = sorted((name.values, figure) for name, figure in found.items() if name.tags == BUCKET)
    return [
        {"from": begin, "to": end, "tokens": figure["n"], **_with_perplexity({NLL: figure})}
        for (begin, end), figure in buckets
    ]


def _with_perplexity(by_metric: dict[str, Figure]) -> dict[str, Figure]:
    """And the exponential of each number of nll that is in nats."""

    def exponential(figure: Figure) -> Figure:
        nats = {name: figure[name] for name in IN_NATS if figure.get(name) is not None}
        return figure | {name: math.exp(min(value, LARGEST_POWER)) for name, value in nats.items()}

    return by_metric | {PERPLEXITY: exponential(by_metric[NLL])} if NLL in by_metric else by_metric


def _warnings(
    overall: Mapping[str, Figure], by: Mapping[str, list[dict[str, Any]]], metrics: Sequence[str], unit: str
) -> list[str]:
    if not overall:
        return ["no samples: nothing was asked"]
    said = [f"{metric}: no query is scored by it" for metric in metrics if metric not in overall]
    clusters = max(figure["clusters"] for figure in overall.values())
    if clusters == 1:
        said.append(f"only one of the {unit}: no interval, nothing is known of others; take {ENOUGH} or more")
    elif any(map(_is_narrow, overall.values())):
        said.append(f"{clusters} {unit}: bootstraps cover {_coverage(clusters)}, not 95%; read t, take {ENOUGH}+")
    else:
        for tag, rows in by.items():
            few = [row for row in rows if any(map(_is_narrow, row.values()))]
            if few:
                said.append(f"{tag}: {len(few)} of {len(rows)} values have fewer than {ENOUGH} {unit}")
    same: dict[int, list[str]] = defaultdict(list)
    for metric, figure in overall.items():
        if figure["clusters"] > 1 and figure["low"] == figure["high"]:
            same[figure["clusters"]].append(metric)
    return said + [
        f"{', '.join(alike)}: the same in all {count} {unit}; an interval of no width is no certainty"
        for count, alike in same.items()
    ]


def _is_narrow(figure: Any) -> bool:
    """Whether it has no interval, or a percentile bootstrap over too few clusters."""
    return isinstance(figure, dict) and figure["clusters"] < ENOUGH and not _is_wilson(figure)


def _is_wilson(figure: Figure) -> bool:
    return figure["interval"].startswith(WILSON)


def _coverage(clusters: int) -> str:
    """Of a percentile bootstrap, by simulation."""
    below = [covered for n, covered in COVERED.items() if n <= clusters]
    above = [covered for n, covered in COVERED.items() if n >= clusters]
    if not below:
        return f"less than {above[0]}%"
    return f"about {below[-1]}%" if below[-1] == above[0] else f"about {below[-1]} to {above[0]}%"


def summary_table(facts: Mapping[str, Any]) -> RenderableType:
    """One result.json for the terminal: a line a metric, then the first metric by tag and by bucket, and the warnings below.

    Of a tag with many values only the first, middle and last are shown, and those with the lowest and highest means.
    facts["unit"] is what clusters are called, sets where it is not there.
    """
    metrics = facts["metrics"]
    table = plain_table()
    for name in ("mean", "95% interval", "95% t", "tokens" if NLL in metrics else "n", unit_of(facts)):
        table.add_column(name, justify="right")
    for metric, figure in metrics.items():
        _add(table, metric, metric, figure)
    add_tags(table, facts["by"], lambda label, metric, figure: _add(table, label, metric, figure))
    for bucket in facts["buckets"]:
        _add(table, bucket_label(bucket), PERPLEXITY, bucket[PERPLEXITY])
    title = f"{facts['name']}  {facts.get('task', '')}  {model_of(facts)}".rstrip()
    return page(title, table, _remarks(facts))


def page(title: str, table: Table, remarks: Sequence[str]) -> RenderableType:
    """A table beneath its title and above what has to be known of it, which are as wide as the terminal."""
    return Group(Text(title, "bold"), table, *map(Text, remarks))


def plain_table() -> Table:
    """A table without lines, whose first column is of labels."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("", no_wrap=True)
    return table


def add_tags(
    table: Table,
    by: Mapping[str, Sequence[dict[str, Any]]],
    add: Callable[[str, str, Figure], None],
    words: tuple[str, str] = (WORST, BEST),
) -> None:
    """The first metric by tag: a line with its name, then `add` a value's label, the metric and the figure."""
    for tag, rows in by.items():
        shown = shown_rows(rows, words)
        if shown:
            table.add_row(Text(tag))
        for label, metric, figure in shown:
            add(label, metric, figure)


def shown_rows(rows: Sequence[dict[str, Any]], words: tuple[str, str] = (WORST, BEST)) -> list[tuple[str, str, Figure]]:
    """(label, metric, figure) of a tag's values that the terminal shows: all, or five that stand for them.

    Nothing of a tag of one value, which is the whole; nor of pairs, which are for pictures. words: for the worst and the best
    value, which are not shown where all values are equal.
    """
    if len(rows) < 2 or isinstance(rows[0]["value"], list):
        return []
    metric = next(name for name in rows[0] if name not in ("value", "n"))
    rows = [row for row in rows if metric in row]
    if len(rows) <= SHOWN_VALUES:
        return [(f"  {row['value']}", metric, row[metric]) for row in rows]
    kinds = {"first": rows[0], "middle": rows[len(rows) // 2], "last": rows[-1]}
    lowest, *_, highest = sorted(rows, key=lambda row: row[metric]["mean"])
    if lowest[metric]["mean"] < highest[metric]["mean"]:
        better = {True: words, False: words[::-1], None: ("lowest", "highest")}[higher_is_better(metric)]
        kinds |= zip(better, (lowest, highest), strict=True)
    return [(f"  {row['value']}, {kind}", metric, row[metric]) for kind, row in kinds.items()]


def remarks_of_tags(by: Mapping[str, Sequence[dict[str, Any]]]) -> list[str]:
    """Which tags are not shown whole."""
    shown = {tag: len(shown_rows(rows)) for tag, rows in by.items()}
    return [
        f"{tag}: {shown[tag]} of {len(rows)} values shown" for tag, rows in by.items() if 0 < shown[tag] < len(rows)
    ]


def unit_of(facts: Mapping[str, Any]) -> str:
    """What a result's clusters are called, in the plural."""
    return facts.get("unit", "sets")


def bucket_label(bucket: Mapping[str, Any]) -> str:
    """Its positions, the first and the last."""
    return f"{bucket['from']:,} to {bucket['to'] - 1:,}"


def percent(metric: str) -> str:
    """The sign after its figures; none where they are no percent: of ours nll and perplexity, of lm-eval's (bleu,none) many."""
    return "%" if SHARES.intersection(metric.partition(",")[0].split("_")) else ""


def higher_is_better(metric: str) -> bool | None:
    """Whether it is; None of a metric of lm-eval's that is no share."""
    return True if percent(metric) else False if metric in (NLL, PERPLEXITY) else None


def number(metric: str, value: float | None, sign: str = "") -> str:
    """A mean as it is read: percent, perplexity, or as it is; sign: "+" for that of a difference."""
    if value is None:
        return "–"
    if metric == PERPLEXITY:
        return four_digits(value)
    if metric == NLL and not sign:
        return f"{value:.3f}"
    return f"{100 * value:{sign}.1f}" if percent(metric) else f"{value:{sign},.4f}"


def four_digits(value: float) -> str:
    """12.35, 987.6, 156.9K, 1.900M; 1.014e+304."""
    value = float(f"{value:.3e}")  # rounded first: 999.96 is 1.000K
    power = (len(str(int(value))) - 1) // 3
    if power >= len(POWERS):
        return f"{value:.3e}"
    scaled = value / 1000**power
    return f"{scaled:.{4 - len(str(int(scaled)))}f}{POWERS[power].strip()}"


def span(metric: str, low: float | None, high: float | None, sign: str = "") -> str:
    """An interval as it is read."""
    return "–" if low is None else f"{number(metric, low, sign)} to {number(metric, high, sign)}"


def _add(table: Table, label: str, metric: str, figure: Figure) -> None:
    table.add_row(
        Text(label),
        number(metric, figure["mean"]) + percent(metric),
        span(metric, figure["low"], figure["high"]),
        "–" if _is_wilson(figure) else span(metric, figure["t_low"], figure["t_high"]),
        f"{figure['n']:,}" if figure["n"] < LARGEST_COUNT else four_digits(figure["n"]),
        f"{figure['clusters']:,}",
    )


def model_of(facts: Mapping[str, Any]) -> str:
    """The model's name, in whichever form the result has it."""
    model = facts.get("model")
    if isinstance(model, Mapping):
        model = model.get("name") or model.get("path") or ""
    return str(model or "")


def _remarks(facts: Mapping[str, Any]) -> list[str]:
    """What has to be known to read the figures."""
    said = []
    if facts.get("scorer"):
        said.append(f"scored by {facts['scorer']}")
    if facts.get("subset"):
        said.append(f"a subset: {facts['subset']}")
    if skipped := facts.get("skipped"):
        said.append(
            f"skipped, over the context: {skipped['groups']:,} groups of {skipped['queries']:,} queries, of up to "
            f"{skipped['longest']:,} tokens"
        )
    if files := unverified(facts):
        said.append(files)
    wilson = [metric for metric, figure in facts["metrics"].items() if _is_wilson(figure)]
    wilson += [f"by {tag}" for tag, rows in facts["by"].items() if any(_is_wilson(row[2]) for row in shown_rows(rows))]
    if wilson:
        said.append(f"{', '.join(wilson)}: Wilson score")
    return said + remarks_of_tags(facts["by"]) + [f"warning: {warning}" for warning in facts["warnings"]]


def unverified(facts: Mapping[str, Any]) -> str:
    """Which of a result's files are not those that the task knows; hub datasets and texts for perplexity are any."""
    if facts.get("task") == "perplexity":
        return ""
    names = [file["name"] for file in facts.get("data", ()) if not file.get("known", True)]
    named = ", ".join(dict.fromkeys(name for name in names if name and not name.startswith("hub:")))
    return f"data not verified: {named}" if named else ""
