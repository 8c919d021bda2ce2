"""What a run's samples come to: by hand, in any order, with warnings where there is too little of them."""

from __future__ import annotations

import json
import math
import random

import numpy as np
import pytest
from rich.console import Console

from splice.errors import SpliceError
from splice.eval.statistics import bootstrap, student, wilson
from splice.eval.summary import four_digits, summarise, summary_table, unverified

pytest.importorskip("scipy")


def sample(cluster, number=0, **others):
    """others: scores, tags, buckets."""
    return {"id": f"{cluster}-{number}", "cluster": f"{cluster}", "item": f"{number}", "tags": {}, **others}


def sets(count, queries=8, seed=0, **tags):
    """tags: name -> a function of a query's number."""
    draw = random.Random(seed)
    return [
        sample(
            f"set-{s:03d}", q, scores={"acc": float(draw.random() < 0.7)}, tags={n: tag(q) for n, tag in tags.items()}
        )
        for s in range(count)
        for q in range(queries)
    ]


def documents(count, seed=0):
    """Nats of four buckets of other sizes, the later ones lower."""
    draw = random.Random(seed)
    edges = ((0, 4), (4, 8), (8, 16), (16, 32))
    return [
        sample(f"doc-{d}", scores={"nll": 0.0}, buckets=[[a, b, (b - a) * draw.uniform(2, 3) / (a + 8), b - a] for a, b in edges])
        for d in range(count)
    ]  # fmt: skip


def shown(samples, metrics, width=80, **facts):
    """The lines of the table."""
    console = Console(width=width, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    facts = {"name": "a-run", "task": "trec", "model": "runs/a", **facts}
    console.print(summary_table(facts | summarise(samples, metrics, 0, facts.get("unit", "sets"))))
    return [line.rstrip() for line in console.export_text().splitlines()]


def test_a_figure_is_the_mean_over_samples_with_both_intervals():
    counts = [4, 4, 4, 2, 1]
    right = [3, 4, 1, 1, 0]
    samples = [
        sample(s, q, scores={"acc": float(q < right[s]), "f1": 0.25}) for s in range(5) for q in range(counts[s])
    ]
    found = summarise(samples, ("acc", "f1"), seed=3)
    assert list(found) == ["metrics", "by", "buckets", "warnings"]
    assert (found["by"], found["buckets"]) == ({}, [])
    figure = found["metrics"]["acc"]
    assert figure["mean"] == 9 / 15
    assert (figure["n"], figure["clusters"]) == (15, 5)
    sums, numbers = np.array(right, float)[:, None], np.array(counts)[:, None]
    assert [figure["low"], figure["high"]] == bootstrap(sums, numbers, 3)[0].tolist()
    assert [figure["t_low"], figure["t_high"]] == pytest.approx(student(sums, numbers)[0].tolist())
    assert figure["interval"] == "95% percentile bootstrap over 5 sets, B = 10,000, seed 3"
    assert found["metrics"]["f1"]["mean"] == 0.25


def test_numbers_are_pythons_own_and_survive_json():
    found = summarise(sets(3, position=lambda q: q, kind=str) + documents(3), ("acc", "nll"), 0)
    assert json.loads(json.dumps(found)) == found


def test_the_order_of_samples_does_not_matter():
    samples = sets(9, position=lambda q: q % 3, length=lambda q: q % 2) + documents(9)
    for s in samples[:72]:
        s["scores"]["acc"] *= random.Random(s["id"]).random()  # sums that round
    first = json.dumps(summarise(samples, ("acc", "nll"), 0))
    for seed in range(3):
        random.Random(seed).shuffle(samples)
        assert json.dumps(summarise(samples, ("acc", "nll"), 0)) == first


def test_by_tag_sorted_with_wilson_where_a_cluster_is_one_sample():
    samples = sets(30, queries=11, position=lambda q: q)
    random.Random(0).shuffle(samples)
    found = summarise(samples, ("acc",), 0, unit="dictionaries")
    rows = found["by"]["position"]
    assert [row["value"] for row in rows] == list(range(11))  # 10 after 9
    assert {row["n"] for row in rows} == {30}
    scores = np.array([[s["scores"]["acc"]] for s in samples if s["tags"]["position"] == 4])
    figure = rows[4]["acc"]
    assert figure["interval"] == "95% Wilson score, 30 dictionaries of one query each"
    assert figure["mean"] == scores.mean()
    assert [figure["low"], figure["high"]] == pytest.approx(wilson(scores, np.ones((30, 1)))[0].tolist())
    assert "bootstrap over 30 dictionaries" in found["metrics"]["acc"]["interval"]
    assert found["warnings"] == []


def test_pairs_of_tags_only_where_both_vary():
    samples = sets(4, queries=12, position=lambda q: q % 3, length=lambda q: [512, 64][q % 2], mode=lambda q: "litm")
    by = summarise(samples, ("acc",), 0)["by"]
    assert list(by) == ["position", "length", "mode", "position x length"]
    assert [row["value"] for row in by["position x length"]] == [
        [0, 64],
        [0, 512],
        [1, 64],
        [1, 512],
        [2, 64],
        [2, 512],
    ]
    chosen = [s["scores"]["acc"] for s in samples if s["tags"]["position"] == 1 and s["tags"]["length"] == 64]
    row = by["position x length"][2]
    assert row["n"] == len(chosen) == 8
    assert row["acc"]["mean"] == sum(chosen) / 8


def test_words_follow_numbers_and_missing_tags_are_missing():
    samples = [
        sample(s, scores={"acc": 1.0}, tags=tags) for s, tags in enumerate([{"at": "b"}, {"at": 3}, {}, {"at": "a"}])
    ]
    found = summarise(samples, ("acc",), 0)
    assert [row["value"] for row in found["by"]["at"]] == [3, "a", "b"]
    assert found["metrics"]["acc"]["n"] == 4


def test_a_metric_is_of_the_samples_that_have_it():
    samples = sets(25, kind=lambda q: "a")
    for s in samples[1::2]:
        s["scores"]["yes_no"] = 1.0
    for s in samples[8:16]:
        s["scores"].pop("yes_no", None)  # a cluster without any
    found = summarise(samples, ("yes_no", "acc", "f1"), 0)
    assert list(found["by"]["kind"][0]) == ["value", "n", "yes_no", "acc"]  # though acc is there first
    figure = found["metrics"]
    assert list(figure) == ["yes_no", "acc"]
    assert (figure["yes_no"]["n"], figure["yes_no"]["clusters"]) == (96, 24)


def test_perplexity_weighs_by_tokens_and_its_buckets_are_summed_first():
    samples = documents(25)
    samples[0]["buckets"] = [*samples[0]["buckets"][1::-1], [8, 16, 0.0, 0]]  # a short document
    for s in samples:
        s["buckets"].append([32, 64, 0.0, 0])  # none reaches there
    found = summarise(samples, ("nll",), 0)
    nats = sum(b[2] for s in samples for b in s["buckets"])
    tokens = 24 * 32 + 8
    nll, perplexity = found["metrics"]["nll"], found["metrics"]["perplexity"]
    assert nll["mean"] == pytest.approx(nats / tokens)
    assert (nll["n"], nll["clusters"]) == (tokens, 25)
    for bound in ("mean", "low", "high", "t_low", "t_high"):
        assert perplexity[bound] == math.exp(nll[bound])
    assert nll["low"] < nll["mean"] < nll["high"]
    assert [(b["from"], b["to"], b["tokens"]) for b in found["buckets"]] == [
        (0, 4, 100),
        (4, 8, 100),
        (8, 16, 192),
        (16, 32, 384),
    ]
    third = [s["buckets"][2][2] for s in samples[1:]]
    assert found["buckets"][2]["nll"]["mean"] == pytest.approx(sum(third) / 192)
    assert found["buckets"][2]["nll"]["clusters"] == 24
    assert found["buckets"][2]["perplexity"]["mean"] == pytest.approx(math.exp(sum(third) / 192))
    assert found["warnings"] == []


def test_an_interval_too_wide_for_an_exponential_is_a_number_still():
    samples = [sample(d, scores={"nll": 0}, buckets=[[0, 4, nats, 4]]) for d, nats in enumerate((8.0, 9000.0))]
    figure = summarise(samples, ("nll",), 0)["metrics"]["perplexity"]
    assert math.isfinite(figure["t_high"])


@pytest.mark.parametrize("score", [math.nan, math.inf, None])  # null is what JSON has for the others
def test_a_score_that_is_no_number_is_refused(score):
    with pytest.raises(SpliceError, match=r"sample 3-0: its acc is no number; .* --dtype float32"):
        summarise([sample(3, scores={"acc": score})], ("acc",), 0)
    with pytest.raises(SpliceError, match="sample 3-0: its nll is no number"):
        summarise([sample(3, scores={"nll": None}, buckets=[[0, 4, score, 4]])], ("nll",), 0)


@pytest.mark.parametrize(
    ("count", "covers"),
    [(3, "less than 83%"), (5, "about 83%"), (7, "about 83 to 91%"), (10, "about 91%"), (19, "about 91 to 93%")],
)
def test_few_sets_are_warned_of(count, covers):
    found = summarise(sets(count), ("acc",), 0)["warnings"]
    assert found == [f"{count} sets: bootstraps cover {covers}, not 95%; read t, take 20+"]
    assert summarise(sets(20), ("acc",), 0)["warnings"] == []


def test_few_clusters_of_one_query_need_no_bootstrap():
    assert summarise(sets(5, queries=1), ("acc",), 0)["warnings"] == []


def test_one_set_has_no_interval_and_says_so():
    found = summarise(sets(1, position=lambda q: q), ("acc",), 0)
    for figure in (found["metrics"]["acc"], found["by"]["position"][0]["acc"]):
        assert figure["interval"] == "none: only one of the sets"
        assert {figure[bound] for bound in ("low", "high", "t_low", "t_high")} == {None}
    assert found["warnings"] == ["only one of the sets: no interval, nothing is known of others; take 20 or more"]
    alone = summarise(documents(1), ("nll",), 0)
    assert alone["metrics"]["perplexity"]["low"] is None
    assert alone["metrics"]["perplexity"]["mean"] == math.exp(alone["metrics"]["nll"]["mean"])


def test_an_interval_without_width_is_warned_of():
    always = [sample(s, q, scores={"acc": 1.0}) for s in range(20) for q in range(3)]
    found = summarise(always, ("acc",), 0)
    assert (found["metrics"]["acc"]["low"], found["metrics"]["acc"]["high"]) == (1.0, 1.0)
    assert found["warnings"] == ["acc: the same in all 20 sets; an interval of no width is no certainty"]
    for one in always:
        one["scores"] |= {"f1": 0.5} | ({"yes_no": 1.0} if one["cluster"] in "0123" else {})
    assert summarise(always, ("acc", "yes_no", "f1"), 0)["warnings"][1:] == [
        "acc, f1: the same in all 20 sets; an interval of no width is no certainty",
        "yes_no: the same in all 5 sets; an interval of no width is no certainty",
    ]


def test_values_of_few_sets_are_warned_of():
    samples = sets(30, length=lambda q: q % 2)
    few = [s for s in samples if s["tags"]["length"] == 0 or s["cluster"] < "set-005"]
    assert summarise(few, ("acc",), 0)["warnings"] == ["length: 1 of 2 values have fewer than 20 sets"]


def test_what_no_query_is_scored_by_and_no_queries_at_all():
    assert summarise(sets(20), ("acc", "f1"), 0)["warnings"] == ["f1: no query is scored by it"]
    assert summarise([], ("acc",), 0) == {
        "metrics": {},
        "by": {},
        "buckets": [],
        "warnings": ["no samples: nothing was asked"],
    }


def test_the_table_of_few_positions_has_them_all():
    lines = shown(
        sets(500, queries=3, position=lambda q: [0, 37, 74][q]), ("acc",), name="kv-litm-75", task="kv", unit="dictionaries"
    )  # fmt: skip
    assert lines[0] == "kv-litm-75  kv  runs/a"
    assert lines[1].split() == ["mean", "95%", "interval", "95%", "t", "n", "dictionaries"]
    assert lines[2].startswith("acc ")
    assert lines[3] == "position"
    assert [line.split()[0] for line in lines[4:7]] == ["0", "37", "74"]
    assert lines[4].split()[-3:] == ["–", "500", "500"]  # Wilson's needs no t beside it
    assert lines[2].split()[-2:] == ["1,500", "500"]
    assert lines[7:] == ["by position: Wilson score"]


def test_an_interval_of_the_whole_that_is_wilsons_is_said():
    graded = sets(30, queries=1)
    for s in graded:
        s["scores"]["f1"] = 0.5 * s["scores"]["acc"]
    lines = shown(graded, ("acc", "f1"))
    assert lines[2].split()[-3] == "–"
    assert lines[4:] == ["acc: Wilson score"]
    assert "Wilson" not in "".join(shown(sets(30), ("acc",)))


def test_the_table_leaves_pairs_and_metrics_of_some_values_to_the_json():
    samples = sets(20, queries=4, position=lambda q: q % 2, length=lambda q: q // 2)
    for s in samples:
        if s["tags"]["position"] == 1:
            s["scores"] = {"f1": 1.0}
    lines = shown(samples, ("acc", "f1"))
    assert [line.split()[0] for line in lines[4:9]] == ["position", "0", "length", "0", "1"]
    assert lines[9:11] == ["by length: Wilson score", "position: 1 of 2 values shown"]


def test_the_table_of_many_positions_has_five():
    samples = sets(20, queries=40, position=lambda q: q)
    for s in samples:
        if s["tags"]["position"] in (12, 31):
            s["scores"]["acc"] = float(s["tags"]["position"] == 31)
    lines = shown(samples, ("acc",))
    labels = [" ".join(line.split()[:2]) for line in lines[4:9]]
    assert labels == ["0, first", "20, middle", "39, last", "12, worst", "31, best"]
    assert "position: 5 of 40 values shown" in lines
    assert "  0.0%" in lines[7]
    assert " 100.0%" in lines[8]


def test_values_that_are_equal_have_no_best_one():
    samples = [sample(s, q, scores={"acc": 1.0}, tags={"position": q}) for s in range(20) for q in range(40)]
    lines = shown(samples, ("acc",))
    assert [" ".join(line.split()[:2]) for line in lines[4:7]] == ["0, first", "20, middle", "39, last"]
    assert "position: 3 of 40 values shown" in lines


@pytest.mark.parametrize(
    ("metric", "words"), [("f1", ["worst", "best"]), ("nll", ["best", "worst"]), ("bleu", ["lowest", "highest"])]
)
def test_what_is_best_is_by_the_metric(metric, words):
    samples = [sample(s, q, scores={metric: q / 40}, tags={"label": q}) for s in range(20) for q in range(40)]
    lines = shown(samples, (metric,))
    assert [line.split()[:2] for line in lines if line.startswith(("  0, ", "  39, "))][2:] == [
        ["0,", words[0]],
        ["39,", words[1]],
    ]


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (0.5, "0.500"), (12.345, "12.35"), (999.94, "999.9"), (999.96, "1.000K"), (156883.13, "156.9K"),
        (1.9e6, "1.900M"), (2.5e13, "25.00T"), (1e304, "1.000e+304"),
    ],
)  # fmt: skip
def test_perplexities_have_four_digits(value, said):
    assert four_digits(value) == said


def test_a_table_of_large_perplexities_has_a_line_each():
    samples = documents(25)
    for s in samples:
        s["buckets"] = [[1 << i, 2 << i, (11 + nats / 9 / count) * (1 << i), 1 << i]
                        for i, (_, _, nats, count) in zip((0, 5, 10, 15), s["buckets"], strict=True)]  # fmt: skip
    lines = shown(samples, ("nll",), unit="documents")
    assert [line[:18].rstrip() for line in lines[2:]] == [
        "nll", "perplexity", "1 to 1", "32 to 63", "1,024 to 2,047", "32,768 to 65,535",
    ]  # fmt: skip
    assert all(line.count("K") == 5 for line in lines[3:])
    assert max(map(len, lines)) <= 80


def test_the_table_of_perplexity():
    lines = shown(documents(25), ("nll",), unit="documents")
    assert lines[1].split()[-2:] == ["tokens", "documents"]
    assert [line[:12].rstrip() for line in lines[2:]] == [
        "nll",
        "perplexity",
        "0 to 3",
        "4 to 7",
        "8 to 15",
        "16 to 31",
    ]
    assert "%" not in "".join(lines[2:])
    assert lines[2].split()[-2:] == ["800", "25"]


def test_the_table_says_what_has_to_be_known():
    skipped = {"groups": 3, "queries": 1500, "longest": 40000}
    known = {"scorer": "greedy exact match", "subset": "500 of 5,000", "skipped": skipped}
    lines = shown(sets(5, queries=2, mode=lambda q: "litm"), ("acc",), **known)
    assert not any(line.startswith("mode") for line in lines)  # of one value, which is the whole
    text = " ".join(lines)
    assert "scored by greedy exact match a subset: 500 of 5,000 skipped, over the context: 3 groups of 1,500" in text
    assert "queries, of up to 40,000 tokens warning: 5 sets: bootstraps" in text
    assert max(map(len, shown(sets(5), ("acc",), width=60))) <= 60


def test_files_that_are_not_the_known_ones_are_named():
    data = [{"name": name, "known": known} for name, known in
            (("train.tsv", False), ("test.tsv", True), ("train.tsv", False), ("dev.tsv", False), ("hub:a/b@test", False))]  # fmt: skip
    assert "data not verified: train.tsv, dev.tsv" in shown(sets(20), ("acc",), data=data)
    assert unverified({"task": "trec", "data": data[1:2]}) == unverified({"task": "trec", "data": data[4:]}) == ""
    assert unverified({"task": "perplexity", "data": data}) == "", "any text will do there"


@pytest.mark.parametrize(
    ("metric", "value", "said"),
    [
        ("acc", 0.5, "50.0%"),
        ("exact_match,flexible-extract", 0.5, "50.0%"),
        ("best_subspan_em", 1.0, "100.0%"),
        ("bleu_max,none", 31.25, "31.2500"),
        ("word_perplexity,none", 1234.5, "1,234.5000"),
        ("bits_per_byte", 0.75, "0.7500"),
    ],
)
def test_only_what_is_a_share_is_shown_as_percent(metric, value, said):
    lines = shown([sample(s, scores={metric: value}) for s in range(25)], (metric,), width=120)
    assert lines[2].split()[:2] == [metric, said]


def test_markup_in_a_name_is_text():
    lines = shown(sets(20, **{"[b]": lambda q: f"[red]{q % 2}"}), ("acc",), name="[red]run", model={"name": "[b]x"})
    assert lines[0] == "[red]run  trec  [b]x"
    assert [line.split()[0] for line in lines[3:6]] == ["[b]", "[red]0", "[red]1"]
