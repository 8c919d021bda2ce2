"""Two models on the same prompts: differences by hand, signs, what is refused and in which words."""

from __future__ import annotations

import json
import math
import random
import tracemalloc
from pathlib import Path

import numpy as np
import orjson
import pytest
from rich.console import Console

from splice.errors import SpliceError
from splice.eval.compare import Comparison, NotCompared, _two_way, compare, show_compare
from splice.eval.results import Result, finish, read_results
from splice.eval.statistics import bootstrap, student, two_way
from splice.eval.summary import summarise

pytest.importorskip("scipy")


def make_run(directory: Path, samples, metrics=("acc",), name="trec-coarse-90", **facts) -> Result:
    """A finished run as the runner leaves it."""
    path = directory / name
    path.mkdir(parents=True)
    (path / "samples.jsonl").write_bytes(b"".join(orjson.dumps(sample) + b"\n" for sample in samples))
    facts = {
        "task": "trec", "name": name, "scorer": "match", "settings": {"seed": 0, "dtype": "float32"},
        "data": [{"name": "train.tsv", "sha256": "a" * 64}], **facts,
    }  # fmt: skip
    finish(path, facts | summarise(samples, metrics, 0), {})
    return next(run for run in read_results(directory) if run.name == name)


def sets(count, queries=10, seed=0, right=0.6, shared=True, score=None):
    """Samples of `count` sets; the same prompts for any seed. shared: sets ask the same items."""
    draw = random.Random(seed)
    return [
        {
            "id": f"s{s:02}-q{q}", "group": f"s{s:02}", "cluster": f"s{s:02}", "item": f"{q if shared else 100 * s + q}",
            "tags": {"label": "ab"[q % 2]}, "prefix": f"{s:016x}", "suffix": f"question {q}", "answers": [" a"],
            "prediction": "a", "scores": {"acc": score(s, q) if score else float(draw.random() < right)},
        }
        for s in range(count)
        for q in range(queries)
    ]  # fmt: skip


def documents(count, seed=0, worse=0.0):
    draw = random.Random(seed)
    return [
        {
            "id": f"d{d}", "group": f"d{d}", "cluster": f"d{d}", "item": f"d{d}", "tags": {}, "prefix": f"{d:016x}",
            "scores": {"nll": 0.0},
            "buckets": [[0, 8, 8 * (2 + worse + draw.gauss(0, 0.1)), 8], [8, 32, 24 * (1.5 + draw.gauss(0, 0.1)), 24]],
        }
        for d in range(count)
    ]  # fmt: skip


def compared(tmp_path, a, b, metrics=("acc",), seed=0, **facts) -> Comparison:
    return compare(make_run(tmp_path / "a", a, metrics, **facts), make_run(tmp_path / "b", b, metrics, **facts), seed)


def scores_of(samples, metric="acc"):
    """[sets, queries]"""
    clusters = len({s["cluster"] for s in samples})
    return np.array([s["scores"][metric] for s in samples]).reshape(clusters, -1)


def shown(a_dir, b_dir, output=None, width=80):
    console = Console(width=width, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    show_compare(a_dir, b_dir, console, output)
    return console.export_text()


def test_a_difference_is_as_minus_b_with_the_intervals_of_paired_clusters(tmp_path):
    a, b = sets(20, seed=1, right=0.8), sets(20, seed=2, right=0.5)
    found = compared(tmp_path, a, b, seed=5)
    x, y = scores_of(a), scores_of(b)
    figure, sums, counts = found.metrics["acc"], (x - y).sum(1)[:, None], np.full((20, 1), 10)
    assert (figure["a"], figure["b"], figure["n"], figure["clusters"]) == (x.mean(), y.mean(), 200, 20)
    assert figure["mean"] == pytest.approx(x.mean() - y.mean())
    assert figure["mean"] > 0.1
    assert [figure["low"], figure["high"]] == bootstrap(sums, counts, 5)[0].tolist()
    assert [figure["t_low"], figure["t_high"]] == pytest.approx(student(sums, counts)[0].tolist())
    assert (figure["two_way"]["low"], figure["two_way"]["high"]) == two_way(x - y, np.ones(x.shape), 5)
    assert figure["two_way"]["items"] == 10
    assert figure["two_way"]["interval"] == "95% percentile bootstrap over 20 sets x 10 items, B = 10,000, seed 5"
    assert figure["mcnemar"] is None
    assert found.deltas["acc"] == {f"s{s:02}": pytest.approx(v) for s, v in enumerate((x - y).mean(1))}
    assert (figure["higher_a"], figure["higher_b"], figure["equal"]) == (
        (sums > 0).sum(), (sums < 0).sum(), (sums == 0).sum(),
    )  # fmt: skip
    assert (found.name, found.unit, found.warnings) == ("trec-coarse-90", "sets", [])


def test_pairing_is_worth_more_than_two_intervals(tmp_path):
    """Sets differ much, the models little: the interval of the difference is of the little."""
    a = sets(20, queries=50, score=lambda s, q: float(q < 10 + s))
    b = sets(20, queries=50, score=lambda s, q: float(q < 9 + s + (s % 5 == 0)))
    figure = compared(tmp_path, a, b).metrics["acc"]
    assert figure["mean"] == pytest.approx(0.8 / 50)
    assert 0 < figure["low"] < figure["high"] <= 1 / 50
    alone = make_run(tmp_path / "c", a).facts["metrics"]["acc"]
    assert alone["high"] - alone["low"] > 5 * (figure["high"] - figure["low"])


def test_swapping_flips_every_sign(tmp_path):
    a, b = make_run(tmp_path / "a", sets(9, seed=1, right=0.8)), make_run(tmp_path / "b", sets(9, seed=2))
    here, there = compare(a, b, 0), compare(b, a, 0)
    one, other = here.metrics["acc"], there.metrics["acc"]
    for name in ("mean", "t_low", "t_high"):
        assert one[name] == -other[{"t_low": "t_high", "t_high": "t_low"}.get(name, name)]
    assert one["low"] == pytest.approx(-other["high"])
    assert one["two_way"]["low"] == pytest.approx(-other["two_way"]["high"])
    assert (one["a"], one["higher_a"]) == (other["b"], other["higher_b"])
    assert here.deltas["acc"] == {s: -value for s, value in there.deltas["acc"].items()}
    assert here.by["label"][0]["acc"]["mean"] == -there.by["label"][0]["acc"]["mean"]


def test_the_order_of_samples_does_not_matter(tmp_path):
    def graded(s, q):  # sums that round
        return random.Random(100 * s + q).random()

    a, b = sets(7, score=graded), sets(7, seed=2)
    first = compared(tmp_path / "sorted", a, b)
    random.Random(0).shuffle(a)
    random.Random(1).shuffle(b)
    assert compared(tmp_path / "shuffled", a, b) == first


def test_the_same_model_twice_is_even(tmp_path):
    figure = compared(tmp_path, sets(20), sets(20)).metrics["acc"]
    assert (figure["mean"], figure["low"], figure["high"], figure["equal"]) == (0, 0, 0, 20)


def test_by_tag(tmp_path):
    a, b = sets(20, seed=1), sets(20, seed=2)
    rows = compared(tmp_path, a, b).by["label"]
    assert [row["value"] for row in rows] == ["a", "b"]
    x, y = scores_of(a)[:, ::2], scores_of(b)[:, ::2]
    figure = rows[0]["acc"]
    assert (figure["a"], figure["b"]) == (x.mean(), y.mean())
    assert figure["mean"] == pytest.approx((x - y).mean())
    assert figure["low"] == bootstrap((x - y).sum(1)[:, None], np.full((20, 1), 5), 0)[0, 0]


def test_differences_of_zero_and_one_are_no_proportion(tmp_path):
    """One query a cluster, B always wrong: Wilson's interval is not for differences."""
    a, b = sets(30, queries=1, seed=1), sets(30, queries=1, score=lambda s, q: 0.0)
    figure = compared(tmp_path, a, b).metrics["acc"]
    assert set(scores_of(a).ravel()) == {0.0, 1.0}
    assert "bootstrap" in figure["interval"]


def test_sets_of_other_items_are_not_crossed(tmp_path):
    a, b = sets(6, seed=1, shared=False), sets(6, seed=2, shared=False)
    assert compared(tmp_path / "apart", a, b).metrics["acc"]["two_way"] is None
    a, b = sets(6, seed=1)[:-1], sets(6, seed=2)[:-1]  # one cell is missing
    assert compared(tmp_path / "missing", a, b).metrics["acc"]["two_way"] is None
    a, b = sets(6, queries=1, seed=1), sets(6, queries=1, seed=2)
    assert compared(tmp_path / "one-item", a, b).metrics["acc"]["two_way"] is None


def test_documents_of_their_own_take_no_table_of_all_by_all(tmp_path):
    a = make_run(tmp_path / "a", sets(2000, queries=1, shared=False))
    b = make_run(tmp_path / "b", sets(2000, queries=1, shared=False, seed=1))
    pairs = list(zip(a.samples, b.samples, strict=True))
    tracemalloc.start()
    try:
        assert _two_way(pairs, "acc", 0, "documents") is None
        assert tracemalloc.get_traced_memory()[1] < 4 << 20  # such a table has 32 MB
    finally:
        tracemalloc.stop()


def test_of_one_set_the_queries_are_resampled_and_mcnemar_is_exact(tmp_path):
    a = sets(1, 40, score=lambda s, q: float(q < 29))
    b = sets(1, 40, score=lambda s, q: float(q in range(20) or q == 39))  # 9 and 1 of 40 differ
    found = compared(tmp_path, a, b)
    figure = found.metrics["acc"]
    assert found.unit == "queries of one of the sets"
    assert figure["mcnemar"] == {"only_a": 9, "only_b": 1, "p": pytest.approx(22 / 1024)}
    assert (figure["higher_a"], figure["higher_b"], figure["equal"]) == (9, 1, 30)
    difference = (scores_of(a) - scores_of(b)).T
    assert figure["clusters"] == 40
    assert figure["interval"].startswith("95% percentile bootstrap over 40 queries of one of the sets")
    assert figure["t_low"] == pytest.approx(student(difference, np.ones((40, 1)))[0, 0])
    assert figure["two_way"] is None
    assert found.deltas["acc"] == {"s00": pytest.approx(0.2)}
    assert found.warnings[0] == "one of the sets: what is said is of its queries, not of other sets"
    assert "p = 0.0215  McNemar, exact" in shown(tmp_path / "a", tmp_path / "b")


def test_mcnemar_is_of_zero_and_one(tmp_path):
    a, b = sets(1, score=lambda s, q: q / 10), sets(1)
    assert compared(tmp_path, a, b).metrics["acc"]["mcnemar"] is None


def test_a_metric_that_some_samples_have(tmp_path):
    a, b = sets(5, seed=1), sets(5, seed=2)
    for x, y in zip(a[::3], b[::3], strict=True):
        x["scores"]["f1"], y["scores"]["f1"] = 0.75, 0.5
    figure = compared(tmp_path, a, b, metrics=("acc", "f1")).metrics["f1"]
    assert (figure["mean"], figure["n"], figure["a"], figure["b"]) == (0.25, 17, 0.75, 0.5)
    assert figure["two_way"] is None


def test_perplexity_is_compared_by_its_ratio_and_by_bucket(tmp_path):
    a, b = documents(25, seed=1, worse=0.3), documents(25, seed=2)
    found = compared(tmp_path, a, b, metrics=("nll",), unit="documents")
    nll, perplexity = found.metrics["nll"], found.metrics["perplexity"]
    nats = [np.array([[bucket[2] for bucket in s["buckets"]] for s in samples]) for samples in (a, b)]
    assert nll["mean"] == pytest.approx((nats[0] - nats[1]).sum() / (25 * 32))
    assert nll["n"] == 25 * 32
    assert perplexity["a"] == pytest.approx(math.exp(nats[0].sum() / 800))
    assert perplexity["mean"] == pytest.approx(perplexity["a"] / perplexity["b"])
    assert (perplexity["low"], perplexity["high"]) == (math.exp(nll["low"]), math.exp(nll["high"]))
    early, late = found.buckets
    assert (early["from"], early["to"], early["tokens"]) == (0, 8, 200)
    assert early["perplexity"]["mean"] == pytest.approx(math.exp((nats[0] - nats[1])[:, 0].sum() / 200))
    assert early["perplexity"]["mean"] == pytest.approx(early["perplexity"]["a"] / early["perplexity"]["b"])
    assert early["perplexity"]["low"] > 1.2
    assert late["perplexity"]["low"] < 1 < late["perplexity"]["high"]
    assert found.deltas["nll"]["d3"] == pytest.approx((nats[0] - nats[1])[3].sum() / 32)
    assert (found.unit, found.warnings) == ("documents", [])


def test_documents_weigh_by_their_tokens_so_they_are_not_crossed(tmp_path):
    a, b = documents(6, seed=1), documents(6, seed=2)
    for d in range(6):
        for sample in (a[d], b[d]):
            sample["cluster"], sample["item"] = f"c{d % 3}", f"i{d // 3}"
    assert compared(tmp_path, a, b, metrics=("nll",)).metrics["nll"]["two_way"] is None


def test_few_sets_and_settings_that_differ_are_warned_of(tmp_path):
    ours = {"settings": {"seed": 0, "dtype": "auto", "device": "cpu", "batch_tokens": 1, "too_long": "skip"}}
    theirs = {"settings": {"seed": 0, "dtype": "auto", "device": "cuda", "too_long": "error"}}
    a = make_run(tmp_path / "a", sets(5), **ours, model={"name": "a", "dtype": "float32", "bos": True})
    b = make_run(tmp_path / "b", sets(5, seed=2), **theirs, model={"name": "b", "dtype": "bfloat16", "bos": True})
    settings, few = compare(a, b, 0).warnings
    assert settings == "the settings differ: dtype float32 and bfloat16, too_long skip and error"
    assert few.startswith("5 sets: bootstraps cover about 83%, not 95%")


def test_files_that_are_not_verified_are_named(tmp_path):
    data = [{"name": "train.tsv", "sha256": "b" * 64, "known": False}]
    assert compared(tmp_path, sets(20), sets(20, seed=2), data=data).warnings == ["data not verified: train.tsv"]


def refused(tmp_path, a, b, facts_a=(), facts_b=(), metrics=("acc",)) -> str:
    a, b = (make_run(tmp_path / n, s, metrics, **dict(f)) for n, s, f in (("a", a, facts_a), ("b", b, facts_b)))
    with pytest.raises(SpliceError) as caught:
        compare(a, b, 0)
    message = str(caught.value)
    assert message.startswith(f"{tmp_path}/a/trec-coarse-90 and {tmp_path}/b/trec-coarse-90: ")
    return message.split(": ", 1)[1]


def test_other_samples_are_refused(tmp_path):
    said = refused(tmp_path, sets(4, 10), sets(3, 11), {"settings": {"seed": 0}}, {"settings": {"seed": 1}})
    assert said == (
        "the samples are not the same: 10 only in A (s03-q0, s03-q1, s03-q2 and 7 more), "
        "3 only in B (s00-q10, s01-q10, s02-q10), 30 in both; both models have to be run with the same task settings, "
        "seed and tokenizer (these differ: seed 0 and 1)"
    )


def test_a_part_is_refused(tmp_path):
    said = refused(tmp_path, sets(4), sets(4)[:-1])
    assert said.startswith("the samples are not the same: 1 only in A (s03-q9), 39 in both;")
    assert said.endswith("the same task settings, seed and tokenizer")
    said = refused(tmp_path / "other", sets(4)[1:], sets(4))
    assert said.startswith("the samples are not the same: 1 only in B (s00-q0), 39 in both;")


def test_groups_over_one_context_are_the_cause_that_is_said(tmp_path):
    left_out = [{"skipped": {"groups": n, "queries": 10 * n, "longest": 5000}} for n in (2, 1)]
    said = refused(tmp_path / "one", sets(4)[20:], sets(4), left_out[0], {"skipped": None})
    assert said == (
        "the samples are not the same: 20 only in B (s00-q0, s00-q1, s00-q2 and 17 more), 20 in both; 2 groups were over the "
        "context of A; ask both for prompts that fit, or run both with the same --max-context"
    )
    said = refused(tmp_path / "both", sets(4)[20:], sets(4)[10:], *left_out)
    assert "; 2 groups were over the context of A and 1 group was over the context of B; " in said
    said = refused(tmp_path / "alike", sets(4)[20:], sets(4)[10:], left_out[0], left_out[0])
    assert "context" not in said


@pytest.mark.parametrize("what", ["prefix", "suffix", "answers", "cluster", "item", "tags"])
def test_other_prompts_are_refused(tmp_path, what):
    b = sets(4)
    for sample in b[10:20]:
        sample[what] = {"tags": {"label": "c"}, "answers": [" b"]}.get(what, "other")
    random.Random(0).shuffle(b)
    said = refused(tmp_path, b, sets(4))
    assert said.startswith(
        f"10 of 40 samples have another {what} (s01-q0, s01-q1, s01-q2 and 7 more), so the prompts are not"
    )
    assert "run both models with the same data, settings and version" in said


def test_another_scorer_task_or_metric_is_refused(tmp_path):
    said = refused(tmp_path / "scorer", sets(4), sets(4), {"scorer": "match"}, {"scorer": "generation"})
    assert said == "not the same scorer (match; generation), so they cannot be compared; evaluate both models alike"
    assert refused(tmp_path / "task", sets(4), sets(4), {"task": "kv"}).startswith("not the same task (kv; trec)")
    b = sets(4)
    for sample in b:
        sample["scores"]["f1"] = 1.0
    said = refused(tmp_path / "metric", sets(4), b, metrics=("acc", "f1"))
    assert said.startswith("not the same metrics (acc; acc, f1), so they cannot be compared")
    a = sets(4)
    a[3]["scores"]["f1"] = 1.0
    assert refused(tmp_path / "some", a, b, metrics=("acc", "f1")).startswith("39 of 40 samples have other metrics")


def test_other_data_are_refused(tmp_path):
    files = [{"name": name, "sha256": "b" * 64} for name in ("train.tsv", "test.tsv")]
    said = refused(tmp_path, sets(4), sets(4), {}, {"data": files})
    assert said.startswith("not the same data (sha256 of train.tsv, test.tsv), so they cannot be compared")


def test_another_tokenizer_is_refused_where_tokens_are_what_is_counted(tmp_path):
    b = documents(3)
    b[1]["buckets"][1][3] = 23
    said = refused(tmp_path, documents(3), b, metrics=("nll",))
    assert said.startswith(
        "1 of 3 samples have other positions or tokens (d1); nats per token compare only with the same token"
    )


def test_samples_that_are_there_twice_or_not_at_all_are_refused(tmp_path):
    good = make_run(tmp_path / "good", sets(2))
    twice = make_run(tmp_path / "twice", [*sets(2), sets(2)[0]])
    empty = make_run(tmp_path / "empty", sets(2))
    (empty.path / "samples.jsonl").write_bytes(b"")
    for bad, state in ((twice, "a sample is there twice"), (empty, "no samples")):
        for pair in ((good, bad), (bad, good)):
            with pytest.raises(SpliceError, match=rf"{bad.path}: {state}; remove the run's directory"):
                compare(*pair, 0)


def both(tmp_path):
    """Two models with two runs in common, and one each of their own."""
    for name, seed, own in (("base", 1, "kv-litm-75"), ("spliced", 2, "kv-litm-300")):
        directory = tmp_path / name / "eval"
        make_run(directory, sets(20, seed=seed))
        make_run(directory, documents(20, seed), ("nll",), name="perplexity-32", unit="documents", task="perplexity")
        make_run(directory, sets(3), name=own)
    return tmp_path / "base" / "eval", tmp_path / "spliced" / "eval"


def test_runs_are_paired_by_name_and_the_others_named(tmp_path):
    text = shown(*both(tmp_path))
    lines = [line.rstrip() for line in text.splitlines()]
    assert lines[:2] == ["A: base/eval", "B: spliced/eval"]
    assert "A - B: in percentage points, paired; above 0, A scores higher" in lines
    assert "perplexity-32  over 20 documents" in lines
    assert "trec-coarse-90  over 20 sets" in lines
    assert lines[-2:] == [
        "only in base/eval, not compared: kv-litm-75",
        "only in spliced/eval, not compared: kv-litm-300",
    ]
    assert "two-way, 10 items" in text


@pytest.mark.parametrize("width", [80, 120])
def test_the_tables_fit(tmp_path, width):
    for line in shown(*both(tmp_path), width=width).splitlines():
        assert len(line.rstrip()) <= width
        assert "…" not in line


def test_the_table_has_both_means_and_the_difference(tmp_path):
    for name, right in (("a", 3), ("b", 2)):
        make_run(tmp_path / name, sets(20, queries=4, score=lambda s, q, right=right: float(q < right)))
    lines = shown(tmp_path / "a", tmp_path / "b").splitlines()
    row = next(line for line in lines if line.startswith("acc"))
    assert row.split()[:4] == ["acc", "75.0%", "50.0%", "+25.0"]
    assert row.split()[-1] == "bootstrap"
    assert "sets: A better on 20, B on 0, alike on 0" in lines


def test_each_metric_says_which_model_is_better(tmp_path):
    a, b = sets(20, score=lambda s, q: float(s < 12)), sets(20, score=lambda s, q: float(s > 14))
    for x, y in zip(a, b, strict=True):
        x["scores"]["bleu"], y["scores"]["bleu"] = 30.0, 31.0
    make_run(tmp_path / "a", a, ("acc", "bleu"), unit="questions")
    make_run(tmp_path / "b", b, ("acc", "bleu"), unit="questions")
    lines = shown(tmp_path / "a", tmp_path / "b").splitlines()
    assert "questions, acc: A better on 12, B on 5, alike on 3" in lines
    assert "questions, bleu: A higher on 0, B on 20, alike on 0" in lines


def test_models_are_named_where_their_directories_are_not_called_so(tmp_path):
    make_run(tmp_path / "one", sets(20), model={"name": "runs/x"})
    make_run(tmp_path / "two", sets(20), model={"name": "two"})
    assert shown(tmp_path / "one", tmp_path / "two").splitlines()[:2] == ["A: one  (model: runs/x)", "B: two"]


def test_of_many_values_those_that_are_best_for_each_are_shown(tmp_path):
    def run(name, better):
        samples = sets(20, 40, score=lambda s, q: float(q != better))
        for s in samples:
            s["tags"] = {"position": int(s["id"].split("q")[1])}
        make_run(tmp_path / name, samples)

    run("a", 7), run("b", 31)
    lines = shown(tmp_path / "a", tmp_path / "b").splitlines()
    assert next(line for line in lines if "best for A" in line).startswith("  31, best for A ")
    assert next(line for line in lines if "best for B" in line).startswith("  7, best for B ")


def test_the_table_of_perplexity_has_ratios(tmp_path):
    make_run(tmp_path / "a", documents(20, worse=math.log(2) * 4), ("nll",))
    make_run(tmp_path / "b", documents(20), ("nll",))
    lines = shown(tmp_path / "a", tmp_path / "b").splitlines()
    assert "percentage points" not in "".join(lines)
    row = next(line for line in lines if line.startswith("perplexity"))
    assert row.split()[3:8] == ["x", "2.0000", "2.0000", "to", "2.0000"]
    assert [line for line in lines if "better on" in line] == ["sets: A better on 0, B on 20, alike on 0"]
    row = next(line for line in lines if line.startswith("nll"))
    assert row.split()[3:4] == ["+0.6931"]
    row = next(line for line in lines if line.startswith("0 to 7"))
    assert row.split()[5:7] == ["x", "16.0000"]


def test_the_json_is_whole_and_the_same_on_a_rerun(tmp_path):
    base, spliced = both(tmp_path)
    text = shown(base, spliced, tmp_path / "out")
    assert text.splitlines()[-1] == f"written: {tmp_path}/out/compare.json"
    written = (tmp_path / "out" / "compare.json").read_bytes()
    facts = json.loads(written)
    assert (facts["a"], facts["b"], facts["difference"], facts["seed"]) == (str(base), str(spliced), "a - b", 0)
    assert (facts["only_a"], facts["only_b"]) == (["kv-litm-75"], ["kv-litm-300"])
    assert list(facts["runs"]) == ["perplexity-32", "trec-coarse-90"]
    (run,) = [run for run in read_results(base) if run.name == "trec-coarse-90"]
    (other,) = [run for run in read_results(spliced) if run.name == "trec-coarse-90"]
    assert facts["runs"]["trec-coarse-90"]["metrics"] == compare(run, other, 0).metrics
    shown(base, spliced, tmp_path / "named.json")
    assert (tmp_path / "named.json").read_bytes() == written


def test_runs_that_are_refused_leave_the_others(tmp_path):
    base, spliced = both(tmp_path)
    make_run(base, sets(4), name="dbpedia-14", scorer="generation")
    make_run(spliced, sets(4), name="dbpedia-14")
    console = Console(width=80, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    with pytest.raises(NotCompared) as caught:
        show_compare(base, spliced, console, tmp_path / "out")
    assert caught.value.exit_code == 1
    first, reason = str(caught.value).splitlines()
    assert first == "not compared: 1 of 3 runs"
    assert reason.startswith("dbpedia-14: ")
    assert "not the same scorer (generation; match)" in reason
    text = console.export_text()
    assert "perplexity-32  over 20 documents" in text
    assert "trec-coarse-90  over 20 sets" in text
    facts = json.loads((tmp_path / "out" / "compare.json").read_bytes())
    assert list(facts["runs"]) == ["perplexity-32", "trec-coarse-90"]
    assert f"dbpedia-14: {facts['refused']['dbpedia-14']}" == reason


def test_a_single_pair_that_is_refused_is_the_error_itself(tmp_path):
    make_run(tmp_path / "a", sets(4), scorer="generation")
    make_run(tmp_path / "b", sets(4))
    with pytest.raises(SpliceError, match="not the same scorer") as caught:
        shown(tmp_path / "a", tmp_path / "b")
    assert caught.value.exit_code == 2


def test_runs_without_an_averaged_metric_are_not_compared(tmp_path):
    """As of lm-eval's rolling tasks, whose perplexity is no mean over documents."""
    nothing = {"metrics": {}, "by": {}, "buckets": [], "warnings": []}
    for name in ("a", "b"):
        samples = [sample | {"scores": {}} for sample in sets(3)]
        run = make_run(tmp_path / name, samples, (), name="harness-wikitext", unit="documents")
        finish(run.path, run.facts | nothing, {})
    with pytest.raises(SpliceError, match="neither has a metric that is a mean over documents, so there is nothing to"):
        shown(tmp_path / "a", tmp_path / "b")
    for name in ("a", "b"):
        make_run(tmp_path / name, sets(20))
    lines = shown(tmp_path / "a", tmp_path / "b", width=120).splitlines()
    assert any(line.startswith("acc ") for line in lines)
    assert lines[-1] == "without a metric that is a mean over samples, not compared: harness-wikitext"


def test_other_metrics_are_compared_as_they_are(tmp_path):
    for name, bleu in (("a", 31.5), ("b", 30.0)):
        samples = [sample | {"scores": {"bleu_max,none": bleu + s}} for s, sample in enumerate(sets(20, queries=1))]
        make_run(tmp_path / name, samples, ("bleu_max,none",))
    text = shown(tmp_path / "a", tmp_path / "b")
    assert "percentage" not in text
    assert "A - B: bleu_max,none as the metric is, paired; above 0, A has more of it" in text
    row = next(line for line in text.splitlines() if line.startswith("bleu_max,none "))
    assert row.split()[1:4] == ["41.0000", "39.5000", "+1.5000"]


def test_nothing_in_common_and_an_output_that_cannot_be_written(tmp_path):
    base, spliced = both(tmp_path)
    with pytest.raises(
        SpliceError, match=r"no run is in both \(kv-litm-75; kv-litm-300\); run `splice eval` with the same"
    ):
        show_compare(base / "kv-litm-75", spliced / "kv-litm-300", Console(quiet=True))
    (tmp_path / "file").write_text("")
    with pytest.raises(SpliceError, match=r"file/compare.json: cannot be written \(.*\); name another --output"):
        show_compare(base, spliced, Console(quiet=True), tmp_path / "file")
    with pytest.raises(SpliceError, match="no such directory"):
        show_compare(base, tmp_path / "nowhere", Console(quiet=True))
