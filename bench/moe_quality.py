"""What experts bring at equal active FLOPs: a small dense model beside mixtures of experts of it, from random weights.

    python bench/moe_quality.py [--data demo/stdlib] [--steps 100] [--seeds 0 1 2] [--json out.json]

Each model is trained by `splice train` on the same rows in the same order; a seed is that of the first weights and of the order.
All compute as much for a token but for the routers (dense: 0; G = 1, 4 with expansion R = 4). Reported: validation loss at the
end on held-out examples, its mean over seeds, the least and most, and the difference to the dense model of the same seed,
with Student's 95% interval of the mean difference. Small models, few tokens: it shows that the layers learn, not how much
they bring at scale.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from measure import machine
from rich.console import Console
from rich.table import Table
from scipy.stats import t as student

MODELS = {
    "dense": {},
    "MoE, G = 1": {"routing": "token_choice", "granularity": 1, "expansion": 4},
    "MoE, G = 4": {"routing": "token_choice", "granularity": 4, "expansion": 4},
}
TRAINED = {
    "model.preset": "tiny",
    "context.length": 256,
    "batch.size": 16,
    "batch.micro": 16,
    "optimizer.lr": 2e-3,
    "optimizer.warmup": 10,
    "evaluation.holdout": 4,
    "evaluation.rows": 256,
    "checkpoint.every": 10_000,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--data", type=Path, default=Path("demo/stdlib"), help="a dataset of `splice build` (make demo)"
    )
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    found = {name: [_train(experts, arguments, seed) for seed in arguments.seeds] for name, experts in MODELS.items()}
    result = {
        "machine": machine("torch"),
        "steps": arguments.steps,
        "tokens": arguments.steps * TRAINED["batch.size"] * TRAINED["context.length"],
        "seeds": arguments.seeds,
        "settings": TRAINED,
        "models": {name: _summary(runs, found["dense"]) for name, runs in found.items()},
    }
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")
    _show(result)


def _train(experts: dict, arguments: argparse.Namespace, seed: int) -> dict:
    with tempfile.TemporaryDirectory() as scratch:
        run = Path(scratch) / "run"
        settings = TRAINED | {f"model.experts.{name}": value for name, value in experts.items()}
        settings |= {"data": arguments.data, "output": run, "steps": arguments.steps, "seed": seed}
        words = [word for name, value in settings.items() for word in (f"--{name}", str(value))]
        subprocess.run([sys.executable, "-m", "splice.cli", "train", *words], check=True, stdout=sys.stderr)
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        about = json.loads((run / "run.json").read_text())
    steps = [line for line in lines if "loss" in line]
    return {
        "loss": lines[-1]["validation"]["loss"],
        "dead": sum(line.get("dead_experts", 0) for line in steps[-10:]) / 10,
        "tokens_per_second": statistics.median(line["tokens_per_second"] for line in steps),
        **{name: about[name] for name in ("parameters", "active_parameters", "flops_per_token")},
    }


def _summary(runs: list[dict], dense: list[dict]) -> dict:
    losses = [run["loss"] for run in runs]
    paired = [run["loss"] - other["loss"] for run, other in zip(runs, dense, strict=True)]
    half = None
    if len(paired) > 1:
        half = student.ppf(0.975, len(paired) - 1) * statistics.stdev(paired) / len(paired) ** 0.5
    return {
        "losses": losses,
        "mean": statistics.mean(losses),
        "difference": statistics.mean(paired),
        "half_interval": half,
        "dead_experts": statistics.mean(run["dead"] for run in runs),
        "tokens_per_second": statistics.median(run["tokens_per_second"] for run in runs),
        **{name: runs[0][name] for name in ("parameters", "active_parameters", "flops_per_token")},
    }


def _show(result: dict) -> None:
    table = Table(
        "model", title=f"{result['tokens']:,} tokens, {len(result['seeds'])} seeds, {result['machine']['cpu']}"
    )
    for name in (
        "parameters",
        "active",
        "GFLOPs a token",
        "validation loss",
        "least .. most",
        "to dense",
        "dead",
        "tokens/s",
    ):
        table.add_column(name, justify="right")
    for name, model in result["models"].items():
        half = model["half_interval"]
        table.add_row(
            name,
            f"{model['parameters'] / 1e6:.2f}M",
            f"{model['active_parameters'] / 1e6:.2f}M",
            f"{model['flops_per_token'] / 1e9:.4f}",
            f"{model['mean']:.4f}",
            f"{min(model['losses']):.4f} .. {max(model['losses']):.4f}",
            "" if name == "dense" else f"{model['difference']:+.4f}" + (f" ± {half:.4f}" if half is not None else ""),
            f"{model['dead_experts']:.1f}",
            f"{model['tokens_per_second']:,.0f}",
        )
    Console(width=140).print(table)


if __name__ == "__main__":
    main()
