"""Two models on the same prompts: the difference of their scores, by cluster, with every interval that fits.

A difference is A - B: above zero, A scores higher (of nll and perplexity: is worse). Both models saw the same prompts, so
what is resampled is the differences. Results of other prompts are refused: ids, prefixes, suffixes, answers, data and scorer
have to be the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from splice.errors import SpliceError
from splice.files import write_json
from splice.report.facts import distinct_names

from . import statistics
from .results import Result, read_results
from .statistics import DRAWS
from .summary import (
    NLL,
    PERPLEXITY,
    Column,
    Columns,
    add_tags,
    arrange,
    bucket_label,
    figures,
    four_digits,
    gather,
    higher_is_better,
    model_of,
    number,
    page,
    percent,
    plain_table,
    remarks_of_tags,
    span,
    unit_of,
    unverified,
)

SMALLEST_P = 1e-4  # that is written with decimals
COMPARE = "compare.json"
LARGEST_RATIO = 1000  # of perplexities, with four decimals
BEST = ("best for B", "best for A")  # of a tag's values, by A - B
NAMED = 3  # samples, settings or files that an error names
ASKED = ("prefix", "suffix", "answers", "cluster", "item", "tags")  # of a sample, that are not the model's doing
OWN = ("data_dir", "device", "chunk", "batch_tokens", "check")  # settings that change no prompt and no figure
CAME_OUT = ("backend", "dtype", "bos", "tokenizer")  # of a model's facts: what settings came to

Pair = tuple[dict[str, Any], dict[str, Any]]  # a sample of A's, and B's of the same id


class NotCompared(SpliceError):
    """Some runs could not be compared; the others were."""

    exit_code = 1


@dataclass(frozen=True)
class Comparison:
    """A run of two models.

    metrics   {metric: figure}, as in result.json, but of A - B (perplexity: of A / B), and in it
                a, b                         their means
                higher_a, higher_b, equal    in how many of the unit A has the higher value, B, neither
                two_way                      {"low", "high", "items", "interval"}, over clusters and items; None where not
                                             every cluster asks every item
                mcnemar                      {"only_a", "only_b", "p"}: how many queries one alone has right; None where there
                                             are several clusters, or scores other than 0 and 1
    by        as in result.json, each figure with a and b
    buckets   as in result.json, each figure with a and b
    deltas    {metric: {cluster: A - B}}
    unit      what is resampled: the clusters, by their name; of a single cluster its queries
    """

    name: str
    metrics: dict[str, Any]
    by: dict[str, list[dict[str, Any]]]
    buckets: list[dict[str, Any]]
    deltas: dict[str, dict[str, float]]
    unit: str
    warnings: list[str]


def show_compare(a_dir: Path, b_dir: Path, console: Console, output: Path | None = None, seed: int = 0) -> None:
    """Compare the runs that two --output directories have in common, by name; print a table each.

    output: a directory to write compare.json into, or a path that ends in .json. Raises SpliceError as `compare`, where no
    run is in both, and where `output` cannot be written; NotCompared, after the tables, where some of several runs are refused.
    """
    a_runs, b_runs = ({run.name: run for run in read_results(path)} for path in (a_dir, b_dir))
    a_name, b_name = distinct_names([a_dir, b_dir])
    common = [name for name in a_runs if name in b_runs]
    if not common:
        raise SpliceError(
            f"{a_dir} and {b_dir}: no run is in both ({', '.join(a_runs)}; {', '.join(b_runs)}); "
            "run `splice eval` with the same task and settings for both models"
        )
    only = {"only_a": [n for n in a_runs if n not in b_runs], "only_b": [n for n in b_runs if n not in a_runs]}
    compared = [name for name in common if a_runs[name].facts["metrics"]] or common
    found, refused = [], {}
    for name in compared:
        try:
            found.append(compare(a_runs[name], b_runs[name], seed))
        except SpliceError as error:
            if len(compared) == 1:
                raise
            refused[name] = str(error)
    metrics = {metric for comparison in found for metric in comparison.metrics}
    for which, name, runs in (("A", a_name, a_runs), ("B", b_name, b_runs)):
        _say(console, f"{which}: {name}{_models(name, runs.values())}")
    if any(map(percent, metrics)):
        _say(console, "A - B: in percentage points, paired; above 0, A scores higher")
    if NLL in metrics:
        _say(console, "A - B: nll in nats per token, perplexity as A / B; lower is better")
    if others := sorted(metric for metric in metrics - {NLL, PERPLEXITY} if not percent(metric)):
        _say(console, f"A - B: {', '.join(others)} as the metric is, paired; above 0, A has more of it")
    for comparison in found:
        console.print()
        console.print(comparison_table(comparison))
    if rest := [name for name in common if name not in compared]:
        _say(console, f"without a metric that is a mean over samples, not compared: {', '.join(rest)}")
    for name, which in ((a_name, "only_a"), (b_name, "only_b")):
        if only[which]:
            _say(console, f"only in {name}, not compared: {', '.join(only[which])}")
    if output is not None:
        path = output if output.suffix == ".json" else output / COMPARE
        facts = {"a": str(a_dir), "b": str(b_dir), "difference": "a - b", "seed": seed}
        runs = {comparison.name: asdict(comparison) for comparison in found}
        try:
            write_json(path, facts | {"runs": runs, "refused": refused} | only)
        except OSError as error:
            raise SpliceError(f"{path}: cannot be written ({error.strerror}); name another --output") from None
        _say(console, f"written: {path}")
    if refused:
        reasons = "".join(f"\n{name}: {reason}" for name, reason in refused.items())
        raise NotCompared(f"not compared: {len(refused)} of {len(compared)} runs{reasons}")


def _models(name: str, runs: Iterable[Result]) -> str:
    """Of which models the runs in a directory are, where it is not called so."""
    models = dict.fromkeys(model_of(run.facts) for run in runs)
    others = [model for model in models if model and model not in (name, Path(name).name)]
    return f"  (model: {', '.join(others)})" if others else ""


def compare(a: Result, b: Result, seed: int) -> Comparison:
    """A's scores minus B's, with intervals over clusters; over queries where there is one cluster.

    Raises SpliceError where the two were not asked the same, are not scored alike, or have no metric of each sample.
    """
    _require_alike(a, b)
    pairs = _paired(a, b)
    metrics = [metric for metric in a.facts["metrics"] if metric != PERPLEXITY]
    if not metrics:
        raise SpliceError(
            f"{a.path} and {b.path}: neither has a metric that is a mean over {unit_of(a.facts)}, so there is nothing to compare; "
            'what lm-evaluation-harness says of each is in its result.json, under "harness"'
        )
    columns = gather((_difference(x, y) for x, y in pairs), metrics)
    unit, single = unit_of(a.facts), len(columns.clusters) == 1
    over, resampled = unit, columns
    if single:
        over = f"queries of one of the {unit}"
        resampled = gather((_difference(x, y) | {"cluster": x["id"]} for x, y in pairs), metrics)
    found = figures(resampled, seed, over, differences=True)
    means = [gather((pair[side] for pair in pairs), metrics).means for side in (0, 1)]
    for column, figure in found.items():
        figure |= {"a": means[0][column], "b": means[1][column]}
    deltas = {}
    for metric in metrics:
        deltas[metric] = _by_cluster(columns, metric)
        found[Column(metric)] |= (
            _outcomes(_by_cluster(resampled, metric))
            | {"two_way": _two_way(pairs, metric, seed, unit)}
            | {"mcnemar": _mcnemar(pairs, metric) if single else None}
        )
    parts = arrange(found, metrics, over)
    said = [f"one of the {unit}: what is said is of its queries, not of other {unit}"] if single else []
    differing = _differing_settings(a, b)
    said += [f"the settings differ: {differing}"] if differing else []
    said += [files] if (files := unverified(a.facts)) else []
    return Comparison(a.name, **parts | {"deltas": deltas, "unit": over, "warnings": said + parts["warnings"]})


def _require_alike(a: Result, b: Result) -> None:
    """Raise SpliceError where the runs are of another task, scorer or data."""
    for what, ours, theirs in (
        ("task", a.facts["task"], b.facts["task"]),
        ("scorer", a.facts["scorer"], b.facts["scorer"]),
        ("metrics", ", ".join(a.facts["metrics"]), ", ".join(b.facts["metrics"])),
    ):
        if ours != theirs:
            raise SpliceError(
                f"{a.path} and {b.path}: not the same {what} ({ours}; {theirs}), so they cannot be compared; "
                "evaluate both models alike"
            )
    ours, theirs = ({file["name"]: file["sha256"] for file in run.facts["data"]} for run in (a, b))
    if ours != theirs:
        names = [name for name in {**ours, **theirs} if ours.get(name) != theirs.get(name)]
        raise SpliceError(
            f"{a.path} and {b.path}: not the same data (sha256 of {_listed(names)}), so they cannot be compared; "
            "evaluate both models with the same files"
        )


def _paired(a: Result, b: Result) -> list[Pair]:
    """The samples of both, by id. Raises SpliceError where they are not the same questions about the same prompts."""
    where = f"{a.path} and {b.path}"
    ours, theirs = _by_id(a), _by_id(b)
    only_a, only_b = (sorted(x.keys() - y.keys()) for x, y in ((ours, theirs), (theirs, ours)))
    if only_a or only_b:
        parts = [
            f"{len(only):,} only in {which} ({_listed(only)})" for which, only in (("A", only_a), ("B", only_b)) if only
        ]
        differing = _differing_settings(a, b)
        raise SpliceError(
            f"{where}: the samples are not the same: {', '.join(parts)}, {len(ours.keys() & theirs.keys()):,} in both; "
            + (_left_out(a, b) or "both models have to be run with the same task settings, seed and tokenizer")
            + (f" (these differ: {differing})" if differing else "")
        )
    pairs = [(ours[name], theirs[name]) for name in sorted(ours)]
    for what in ASKED:
        others = [x["id"] for x, y in pairs if x.get(what) != y.get(what)]
        if others:
            raise SpliceError(
                f"{where}: {len(others):,} of {len(pairs):,} samples have another {what} ({_listed(others)}), so the prompts "
                "are not the same; run both models with the same data, settings and version of splice"
            )
    others = [x["id"] for x, y in pairs if _read(x) != _read(y)]
    if others:
        raise SpliceError(
            f"{where}: {len(others):,} of {len(pairs):,} samples have other positions or tokens ({_listed(others)}); nats per "
            "token compare only with the same tokenizer"
        )
    others = [x["id"] for x, y in pairs if x["scores"].keys() != y["scores"].keys()]
    if others:
        raise SpliceError(
            f"{where}: {len(others):,} of {len(pairs):,} samples have other metrics ({_listed(others)}); "
            "run both models with the same version of splice"
        )
    return pairs


def _left_out(a: Result, b: Result) -> str:
    """That one model's context did not hold what the other's did, and what to do; nothing where that is not so."""
    ours, theirs = a.facts.get("skipped"), b.facts.get("skipped")
    if ours == theirs:
        return ""
    parts = [
        f"{count:,} {'group was' if count == 1 else 'groups were'} over the context of {which}"
        for which, skipped in (("A", ours), ("B", theirs))
        if (count := (skipped or {}).get("groups"))
    ]
    return f"{' and '.join(parts)}; ask both for prompts that fit, or run both with the same --max-context"


def _by_id(run: Result) -> dict[str, dict[str, Any]]:
    found = {sample["id"]: sample for sample in run.samples}
    if not found or len(found) < len(run.samples):
        state = "no samples" if not found else "a sample is there twice"
        raise SpliceError(f"{run.path}: {state}; remove the run's directory and run it again")
    return found


def _read(sample: Mapping[str, Any]) -> list[tuple[int, int, int]]:
    """What the buckets of a sample are of."""
    return [(begin, end, tokens) for begin, end, _, tokens in sample.get("buckets", ())]


def _difference(x: Mapping[str, Any], y: Mapping[str, Any]) -> dict[str, Any]:
    """A sample whose scores are the first one's minus the second one's; None, as in a sample, where one is no number."""

    def minus(one: float | None, other: float | None) -> float | None:
        return None if one is None or other is None else one - other

    pairs = zip(x.get("buckets", ()), y.get("buckets", ()), strict=True)
    return dict(x) | {
        "scores": {metric: minus(score, y["scores"][metric]) for metric, score in x["scores"].items()},
        "buckets": [[begin, end, minus(nats, other[2]), tokens] for (begin, end, nats, tokens), other in pairs],
    }


def _by_cluster(columns: Columns, metric: str) -> dict[str, float]:
    """The mean difference of each cluster that has one."""
    k = columns.names.index(Column(metric))
    values = zip(columns.clusters, columns.sums[:, k].tolist(), columns.counts[:, k].tolist(), strict=True)
    return {cluster: total / count for cluster, total, count in values if count}


def _outcomes(deltas: Mapping[str, float]) -> dict[str, int]:
    """How many clusters have a higher value with A, with B, with neither."""
    values = list(deltas.values())
    higher_a, higher_b = sum(value > 0 for value in values), sum(value < 0 for value in values)
    return {"higher_a": higher_a, "higher_b": higher_b, "equal": len(values) - higher_a - higher_b}


def _two_way(pairs: Sequence[Pair], metric: str, seed: int, unit: str) -> dict[str, Any] | None:
    """The interval over clusters and items; None where not every cluster asks every item, or there is one of either.

    Nor is there one of nll, whose samples weigh by their tokens: a document is asked once.
    """
    if metric == NLL:
        return None
    scored = [
        (x["cluster"], x["item"], x["scores"][metric] - y["scores"][metric]) for x, y in pairs if metric in x["scores"]
    ]
    clusters, row = np.unique([cluster for cluster, _, _ in scored], return_inverse=True)
    items, column = np.unique([item for _, item, _ in scored], return_inverse=True)
    if len(scored) < len(clusters) * len(items):  # documents, each a cluster and an item: their tables take gigabytes
        return None
    sums, counts = np.zeros((len(clusters), len(items))), np.zeros((len(clusters), len(items)), np.int64)
    np.add.at(sums, (row, column), [value for _, _, value in scored])
    np.add.at(counts, (row, column), 1)
    if min(sums.shape) < 2 or not counts.all():
        return None
    low, high = statistics.two_way(sums, counts, seed)
    interval = (
        f"95% percentile bootstrap over {len(clusters):,} {unit} x {len(items):,} items, B = {DRAWS:,}, seed {seed}"
    )
    return {"low": low, "high": high, "items": len(items), "interval": interval}


def _mcnemar(pairs: Sequence[Pair], metric: str) -> dict[str, Any] | None:
    """Of scores that are all 0 or 1."""
    a, b = (
        np.array([pair[side]["scores"][metric] for pair in pairs if metric in pair[0]["scores"]]) for side in (0, 1)
    )
    if not np.isin([a, b], (0, 1)).all():
        return None
    only_a, only_b, p = statistics.mcnemar(a, b)
    return {"only_a": only_a, "only_b": only_b, "p": p}


def _differing_settings(a: Result, b: Result) -> str:
    """Which settings differ, of those that may matter: `seed 0 and 1`."""
    ours, theirs = _settings(a), _settings(b)
    keys = [k for k in {**ours, **theirs} if ours.get(k) != theirs.get(k) and k not in OWN]
    return _listed([f"{key} {ours.get(key)} and {theirs.get(key)}" for key in keys])


def _settings(run: Result) -> dict[str, Any]:
    """Those of a run, with what "auto" came to."""
    model = run.facts.get("model")
    known = model if isinstance(model, Mapping) else {}
    return run.facts["settings"] | {name: known[name] for name in CAME_OUT if name in known}


def _listed(names: Sequence[str]) -> str:
    """The first few, and how many more."""
    more = f" and {len(names) - NAMED:,} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more


def comparison_table(comparison: Comparison) -> RenderableType:
    """For the terminal: each metric with its intervals beneath each other, then by tag and by bucket, and the warnings."""
    table = plain_table()
    for name in ("A", "B", "A - B", "95% interval"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("")
    for metric, figure in comparison.metrics.items():
        _add(table, metric, metric, figure, "bootstrap")
        lines = [(_span(metric, figure["t_low"], figure["t_high"]), "paired t")]
        if metric != PERPLEXITY:
            lines += _more(metric, figure)
        for value, said in lines:
            table.add_row("", "", "", "", value, said)
    add_tags(table, comparison.by, lambda label, metric, figure: _add(table, label, metric, figure), BEST)
    for bucket in comparison.buckets:
        _add(table, bucket_label(bucket), PERPLEXITY, bucket[PERPLEXITY])
    warnings = [f"warning: {warning}" for warning in comparison.warnings]
    title = f"{comparison.name}  over {_over(comparison)}"
    return page(title, table, [*_better(comparison), *remarks_of_tags(comparison.by), *warnings])


def _better(comparison: Comparison) -> Iterator[str]:
    """In how many clusters which model is better, a line a metric."""
    metrics = [metric for metric in comparison.metrics if metric != PERPLEXITY]
    for metric in metrics:
        counts = [comparison.metrics[metric][name] for name in ("higher_a", "higher_b", "equal")]
        higher = higher_is_better(metric)
        if higher is False:
            counts[:2] = counts[1::-1]
        a, b, equal = (f"{count:,}" for count in counts)
        of = f"{comparison.unit}, {metric}" if len(metrics) > 1 else comparison.unit
        yield f"{of}: A {'higher' if higher is None else 'better'} on {a}, B on {b}, alike on {equal}"


def _over(comparison: Comparison) -> str:
    return f"{max(figure['clusters'] for figure in comparison.metrics.values()):,} {comparison.unit}"


def _more(metric: str, figure: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What else is known of a metric's difference, and what that is."""
    if crossed := figure["two_way"]:
        yield _span(metric, crossed["low"], crossed["high"]), f"two-way, {crossed['items']:,} items"
    if found := figure["mcnemar"]:
        p = f"{found['p']:.4f}" if found["p"] >= SMALLEST_P else f"{found['p']:.0e}"
        yield f"p = {p}", "McNemar, exact"


def _add(table: Table, label: str, metric: str, figure: Mapping[str, Any], said: str = "") -> None:
    table.add_row(
        Text(label),
        number(metric, figure["a"]) + percent(metric),
        number(metric, figure["b"]) + percent(metric),
        _delta(metric, figure["mean"]),
        _span(metric, figure["low"], figure["high"]),
        said,
    )


def _delta(metric: str, value: float) -> str:
    """A difference with its sign; of perplexity a ratio."""
    return f"x {_ratio(value)}" if metric == PERPLEXITY else number(metric, value, "+")


def _ratio(value: float) -> str:
    return f"{value:.4f}" if value < LARGEST_RATIO else four_digits(value)


def _span(metric: str, low: float | None, high: float | None) -> str:
    if low is None or high is None:
        return "–"
    return f"{_ratio(low)} to {_ratio(high)}" if metric == PERPLEXITY else span(metric, low, high, "+")


def _say(console: Console, text: str) -> None:
    console.print(text, highlight=False, markup=False, soft_wrap=True)
