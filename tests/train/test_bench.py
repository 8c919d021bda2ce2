"""bench/train.py: it runs, both sides do one work, and what it says of its figures is true."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers")

BENCH = Path(__file__).parents[2] / "bench"
CASE = {
    "case", "length", "method", "who", "variant", "rows", "outcome", "step_seconds", "device", "threads", "sdpa", "peak_flops",
    "free_bytes", "weights_bytes", "warmup_seconds", "first_loss", "first_gradient_norm", "last_loss", "peak_bytes",
    "tokens_per_second", "tokens_per_second_of_rounds", "flops_per_token", "computed_flops_per_token", "mfu", "computed_mfu",
    "speed_to_transformers", "speed_to_compiled", "memory_to_transformers",
}  # fmt: skip


@pytest.fixture(scope="module")
def bench():
    name = "bench_train"
    spec = importlib.util.spec_from_file_location(name, BENCH / "train.py")
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCH))
        patch.setitem(sys.modules, name, module)
        spec.loader.exec_module(module)
        yield module


def test_the_check_runs_and_both_sides_do_the_same_work(tmp_path):
    output = tmp_path / "train.json"
    command = [sys.executable, BENCH / "train.py", "--check", "--json", output]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    report = json.loads(output.read_text())
    assert set(report) == {"machine", "setup", "model", "cases", "targets"}
    assert {"cpu", "device", "torch", "transformers", "cuda"} <= set(report["machine"])
    assert {"tokens", "rounds", "steps", "convention", "computed"} <= set(report["setup"])
    cuda = torch.cuda.is_available()
    for case in report["cases"]:
        assert case["outcome"] == "measured", case
        assert set(case) == CASE | ({"reserved_bytes"} if cuda else set())
        assert [len(seconds) for seconds in case["step_seconds"]] == [2]
        assert case["tokens_per_second"] > 0
        assert case["peak_bytes"] > 0
        assert cuda or case["mfu"] is None
        assert case["case"] in ran.stdout
    first = {(case["method"], case["who"]): case["first_loss"] for case in report["cases"]}
    assert set(first) == {("naive", "splice"), ("naive", "transformers"), ("fot", "splice")}
    assert first["naive", "splice"] == pytest.approx(first["naive", "transformers"], rel=1e-3 if cuda else 1e-5)
    assert report["targets"] == []  # they are of real sizes


H200 = {"device": "NVIDIA H200", "peak_flops": 989e12}


def made_up(bench, speeds, peaks):
    """A run of the paper's 270M at 32K; speed 0: out of memory."""
    found = {}
    for case in bench.list_cases("270m", [32768], cuda=True):
        speed = speeds.get(case.name, 10_000)
        measured = {
            "outcome": "measured",
            "step_seconds": [[32768 / max(speed, 1)] * 5] * 3,
            "peak_bytes": peaks.get(case.name, 2**35),
            "first_loss": 10.0,
            "first_gradient_norm": 1.0,
        }
        found[case] = H200 | (measured if speed else {"outcome": bench.OUT_OF_MEMORY, "step_seconds": []})
    return found


@pytest.mark.parametrize(
    ("only", "names"),
    [
        (["2K"], ["2K naive, splice", "2K naive, transformers", "2K naive, transformers, compiled"]),
        (["32K fot", "2K naive, splice"], ["2K naive, splice", "32K fot, splice"]),
        (["recompute"], ["32K naive, splice, recompute"]),
        (["64K"], None),
    ],
)
def test_cases_are_chosen_by_words_of_their_names(bench, monkeypatch, only, names):
    chosen = []
    monkeypatch.setattr(bench, "bench", lambda setup, cases, output: chosen.extend(cases) or 0)
    monkeypatch.setattr(sys, "argv", ["train.py", "--device", "cuda", "--only", *only])
    monkeypatch.setenv("TRANSFORMERS_VERBOSITY", "error")
    with pytest.raises(SystemExit) as ended:
        bench.main()
    assert ended.value.code == (2 if names is None else 0)
    assert [case.name for case in chosen] == (names or [])


def test_figures_and_targets_of_a_gpu(bench):
    """6 N + 12 layers d span is 6.24 GFLOP a token of 270M at 32K, so 45% of 989 TFLOP/s are 71,000 tokens a second."""
    setup = bench.Setup("270m", "cuda", 32768, 3, 5)
    ours, theirs, compiled = "32K naive, splice", "32K naive, transformers", "32K naive, transformers, compiled"
    found = made_up(
        bench,
        {ours: 71_400, theirs: 50_000, compiled: 60_000, "32K fot, splice": 120_000, "32K yarn, transformers": 0},
        {ours: 20 * 2**30, theirs: 31 * 2**30},
    )
    known = {values["case"]: values for values in bench.summarise(setup, found)}
    assert known[ours]["flops_per_token"] == 6 * 234_094_592 + 12 * 12 * 1024 * 32768
    assert known[ours]["mfu"] == pytest.approx(0.4503, abs=1e-3)
    assert known[ours]["computed_mfu"] < 0.7 * known[ours]["mfu"]
    assert known[ours]["speed_to_transformers"] == pytest.approx(71.4 / 50)
    assert known[ours]["speed_to_compiled"] == pytest.approx(71.4 / 60)
    assert known[ours]["memory_to_transformers"] == pytest.approx(20 / 31)
    assert known["32K fot, splice"]["speed_to_transformers"] == pytest.approx(2.4)
    assert known["32K yarn, transformers"]["tokens_per_second"] is None
    verdicts = {target["target"]: target["reached"] for target in bench.targets(setup, found)}
    assert verdicts == {
        f"{ours}: MFU": True,
        f"{ours}: speed to transformers": True,
        f"{ours}: peak memory to transformers": True,
        "32K yarn, splice: MFU": False,
        "32K yarn, splice: speed to transformers": None,
        "32K yarn, splice: peak memory to transformers": None,
        "32K fot, splice: speed to full attention": False,
    }


def test_on_a_cpu_splice_is_not_to_be_slower(bench):
    setup = bench.Setup("small", "cpu", 2048, 1, 5)
    found = {
        case: {"outcome": "measured", "peak_bytes": 1, "step_seconds": [[1.0 if case.who == "splice" else seconds] * 5]}
        for case, seconds in zip(
            bench.list_cases("small", [512, 2048], cuda=False), [0, 1.1, 0, 0.9, 0, 0, 1.0], strict=True
        )
    }
    assert [(target["target"], target["figure"], target["reached"]) for target in bench.targets(setup, found)] == [
        ("512 naive, splice: speed to transformers", pytest.approx(1.1), True),
        ("2K naive, splice: speed to transformers", pytest.approx(0.9), False),
        ("2K yarn, splice: speed to transformers", pytest.approx(1.0), True),
    ]
    assert all(known["mfu"] is None for known in bench.summarise(setup, found))


def test_the_table_tells_all_that_is_known(bench, capsys):
    setup = bench.Setup("270m", "cuda", 32768, 3, 5)
    found = made_up(bench, {"32K naive, transformers": 0}, {})
    report = {
        "machine": {"cpu": "a CPU", "device": "NVIDIA H200", "torch": "2.11.0", "transformers": "5.17.0"},
        "setup": {"preset": "270m", "device": "cuda", "tokens": 32768},
        "model": {"parameters": 1},
        "cases": bench.summarise(setup, found),
        "targets": bench.targets(setup, found),
    }
    bench.show(report)
    shown = capsys.readouterr().out
    for case in found:
        assert case.name in shown
    assert "out of memory" in shown
    assert "speed to transformers, at least 1.300: not measured\n" in shown
    assert "32K fot, splice: speed to full attention, at least 2.000: 1.000: not reached\n" in shown


@pytest.mark.parametrize(
    ("what", "by", "told"),
    [
        ("first_loss", 1.0, None),
        ("first_loss", 1 + 1e-6, None),
        ("first_loss", 1 + 1e-4, "32K naive, transformers: first loss 10.001000, splice's 10.000000"),
        ("first_loss", float("nan"), "32K naive, transformers: first loss nan"),
        ("first_gradient_norm", 1.01, "32K naive, transformers: first gradient norm 1.010000"),
    ],
)
def test_other_work_is_not_compared(bench, what, by, told):
    found = made_up(bench, {}, {})
    found[bench.Case(32768, "naive", "transformers")][what] *= by
    setup = bench.Setup("270m", "cpu", 32768, 3, 5)
    with pytest.raises(SystemExit, match=told) if told else nullcontext():
        bench.check_same_work(setup, found)


def test_who_has_no_memory_beside_others_is_tried_again_alone(bench, monkeypatch, tmp_path):
    asked = []

    def ask(case, steps):
        asked.append((case.variant or case.who, steps))
        alone = ("compiled", bench.WARMUP) in asked[:-1]
        if case.variant == "compiled" and steps and not alone:
            return {"outcome": bench.OUT_OF_MEMORY, "error": "CUDA out of memory"}
        if case.variant == "recompute":
            return {"outcome": "failed: RuntimeError: torn"}
        return {"seconds": [1.0] * steps, "first_loss": 1.0, "peak_bytes": 1, **H200} if steps else dict(H200)

    monkeypatch.setattr(bench, "worker", lambda setup, case: nullcontext(case))
    monkeypatch.setattr(bench, "ask", ask)
    cases = [case for case in bench.list_cases("270m", [32768], cuda=True) if case.method == "naive"]
    output = tmp_path / "deep" / "train.json"
    assert bench.bench(bench.Setup("270m", "cuda", 32768, 2, 5), cases, output) == 1  # since one is torn
    report = json.loads(output.read_text())
    outcomes = {case["variant"] or case["who"]: (case["outcome"], case.get("alone")) for case in report["cases"]}
    assert outcomes == {
        "splice": ("measured", None),
        "transformers": ("measured", None),
        "compiled": ("measured", True),
        "recompute": ("failed: RuntimeError: torn", None),
    }
    turns = [name for name, steps in asked if steps == 1 + 5]
    assert turns == ["splice", "transformers"] * 2 + ["compiled"] * 2
    assert report["machine"]["device"] == "NVIDIA H200"


def test_a_worker_that_is_killed_or_breaks_is_an_outcome(bench):
    class Gone:
        def send(self, steps):
            raise BrokenPipeError

    assert "killed" in bench.ask(Gone(), 5)["outcome"]

    class Pipe(list):
        send = list.append

    told = Pipe()
    bench.work(told, bench.Setup("check", "nowhere", 512, 1, 1), bench.Case(256, "naive", "splice"))
    assert told[0]["outcome"].startswith("failed: RuntimeError: ")
    assert "Traceback" in told[0]["error"]


def test_the_compiled_peer_keeps_the_causal_kernel(bench, monkeypatch):
    """Traced as it comes, transformers would write out a mask of length^2, and be slow for that."""
    nodes = []

    def record(graph, inputs):
        nodes.extend(node for node in graph.graph.nodes if "scaled_dot_product" in str(node.target))
        return graph.forward

    compile_as_it_is = torch.nn.Module.compile
    monkeypatch.setattr(torch.nn.Module, "compile", lambda self: compile_as_it_is(self, backend=record))
    case = bench.Case(256, "yarn", "transformers", "compiled")
    _, loss = bench.transformers_model(case.config("check"), 2, torch.device("cpu"), case.variant)
    ids = torch.arange(512).view(2, 256)
    got = loss(ids)
    assert len(nodes) == 2
    assert all(node.kwargs["attn_mask"] is None and node.kwargs["is_causal"] for node in nodes)
    _, ours = bench.splice_model(case.config("check"), 2, torch.device("cpu"), "")
    torch.testing.assert_close(got, ours(ids), rtol=1e-5, atol=0)
