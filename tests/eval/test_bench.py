"""bench/eval.py: it runs, and both sides of each case do one work."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

for name in ("torch", "transformers", "lm_eval", "accelerate"):
    pytest.importorskip(name)

BENCH = Path(__file__).parents[2] / "bench" / "eval.py"


def test_both_sides_answer_alike(tmp_path):
    output = tmp_path / "eval.json"
    sizes = {"shots": 10, "queries": 4, "peer-queries": 3, "pairs": 4, "length": 200, "rounds": 1}
    options = [part for name, size in sizes.items() for part in (f"--{name}", str(size))]
    data = Path(__file__).parent / "fixtures"
    command = [sys.executable, BENCH, "--data-dir", data, *options, "--json", output]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    report = json.loads(output.read_text())
    cases = report["cases"]
    assert cases["trec"]["splice"]["predictions"][:3] == cases["trec"]["harness"]["predictions"]
    assert cases["trec"]["apart"] < 1e-4
    assert cases["perplexity"]["splice"]["nll"] == pytest.approx(cases["perplexity"]["transformers"]["nll"], abs=1e-4)
    assert cases["kv"]["splice"]["queries"] == 4
    assert "3 of 3 predictions the same" in " ".join(done.stdout.split())
    assert "3 queries are reckoned up to 4" in " ".join(done.stdout.split())
