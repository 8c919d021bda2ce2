"""bench/experts.py: it runs, its sides do one work or it stops, and it counts what it says."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

BENCH = Path(__file__).parents[3] / "bench"


@pytest.fixture(scope="module")
def bench():
    spec = importlib.util.spec_from_file_location("bench_experts", BENCH / "experts.py")
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCH))
        patch.setitem(sys.modules, "bench_experts", module)
        spec.loader.exec_module(module)
        yield module


def test_it_runs_and_draws(tmp_path):
    command = [
        sys.executable,
        BENCH / "experts.py",
        "--tokens",
        "64",
        "--sizes",
        "32",
        "--granularities",
        "1",
        "4",
        "--expansions",
        "2",
    ]
    command += ["--rounds", "2", "--json", tmp_path / "e.json", "--figure", tmp_path / "e.png"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    result = json.loads((tmp_path / "e.json").read_text())
    found = {(row["side"], row["layer"]["granularity"]) for row in result["layers"]}
    assert found >= {(side, g) for side in ("splice", "grouped_mm", "transformers") for g in (1, 4)}
    assert (tmp_path / "e.png").stat().st_size > 5000
    assert all(row["least"] <= row["seconds"] <= row["most"] for row in result["layers"])


def test_sizes_that_make_no_layer_are_refused(tmp_path):
    ran = subprocess.run(
        [sys.executable, BENCH / "experts.py", "--granularities", "3"], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 2
    assert "granularity 3: d_ff / G" in ran.stderr


def test_sides_that_differ_stop_the_bench(bench, monkeypatch):
    layer = bench.Layer(32, 16, 2, 2)
    inputs = bench.make_inputs(layer, torch.device("cpu"), torch.float32)
    wanted = bench.gradients(bench.splice(layer, inputs), inputs)
    for side in (bench.grouped_mm, bench.transformers):
        bench.compare(side.__name__, bench.gradients(side(layer, inputs), inputs), wanted, torch.float32)
    for i in range(5):
        wrong = [None if part is None else part.clone() for part in wanted]
        wrong[i].view(-1)[3] += wanted[i].abs().max() / 100
        with pytest.raises(SystemExit, match="differs by"):
            bench.compare("a side", wrong, wanted, torch.float32)


def test_what_is_kept_is_h_and_the_schedule(bench):
    layer = bench.Layer(128, 16, 4, 2)
    inputs = bench.make_inputs(layer, torch.device("cpu"), torch.float32)
    kept, _ = bench.memory(bench.splice(layer, inputs), inputs)
    h = 128 * 4 * 2 * layer.width * 4
    plan = 4 * (10 + 128 * 4 * 3 + 129)  # offsets are a view of one more number
    assert kept == h + plan
    assert layer.flops == 18 * 128 * 4 * 16 * 16
