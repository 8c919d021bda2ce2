"""Evaluation: one reading of a prefix for all its queries, beside lm-evaluation-harness' hf backend and transformers.

    python bench/eval.py [--data-dir DIR] [--preset tiny] [--shots 780] [--queries 500] [--peer-queries 4] [--pairs 300]
                         [--length 16384] [--rounds 3] [--json out.json]

The model has random weights (time and agreement do not depend on them) and a tokenizer trained on TREC's questions. On a GPU
all sides compute in bfloat16: --preset 270m --shots 1560 --length 32768.

* trec: --shots demonstrations, --queries questions, six labels each. The harness is asked the same prompts as a multiple-choice
  task of --peer-queries of them, and its time is reckoned up to all (the table says from how many); timed is its loglikelihood
  alone, of ours the whole answer, tokenising included. The predictions of those queries are compared.
* kv: every key of a dictionary of --pairs, from one reading.
* perplexity: one text of --length tokens, beside transformers' forward pass and cross-entropy over its logits.

Each side runs in a process of its own, so that peak memory (PSS) is its own; medians of --rounds, the harness once.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

from measure import machine, run
from rich.console import Console
from rich.table import Table

SIDES = {"trec": ("splice", "harness"), "kv": ("splice",), "perplexity": ("splice", "transformers")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--preset", default="tiny")
    parser.add_argument("--shots", type=int, default=780)
    parser.add_argument("--queries", type=int, default=500)
    parser.add_argument("--peer-queries", type=int, default=4)
    parser.add_argument("--pairs", type=int, default=300)
    parser.add_argument("--length", type=int, default=16384)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="*", choices=list(SIDES), default=list(SIDES))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--worker", nargs=3, help=argparse.SUPPRESS)  # case, side, directory
    arguments = parser.parse_args()
    if arguments.worker:
        case, side, directory = arguments.worker
        Path(os.environ["SPLICE_BENCH_OUT"]).write_text(json.dumps(WORKERS[case, side](arguments, Path(directory))))
        return
    report: dict = {
        "machine": machine("torch", "transformers", "lm-eval"),
        "settings": _settings(arguments),
        "cases": {},
    }
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(temporary)
        report["model"] = _make_model(arguments, directory / "model")
        for case in arguments.only:
            report["cases"][case] = {side: _measure(case, side, directory) for side in SIDES[case]}
    _show(report)
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps(report, indent=1) + "\n")


def _settings(arguments: argparse.Namespace) -> dict:
    names = ("preset", "shots", "queries", "peer_queries", "pairs", "length", "rounds")
    return {name: getattr(arguments, name) for name in names}


def _measure(case: str, side: str, directory: Path) -> dict:
    """One side in a process of its own: what it says, and its peak memory."""
    out = directory / f"{case}-{side}.json"
    os.environ["SPLICE_BENCH_OUT"] = str(out)
    measured = run([sys.executable, __file__, *sys.argv[1:], "--worker", case, side, directory])
    return json.loads(out.read_text()) | {"peak_gib": round(measured.peak_bytes / 2**30, 2)}


def _make_model(arguments: argparse.Namespace, directory: Path) -> dict:
    """A Llama of a preset with random weights, positions enough, and a tokenizer of its own."""
    from dataclasses import replace

    import torch

    from splice.tokenizer import train_tokenizer
    from splice.train.hf_read import parameter_shapes
    from splice.train.hf_write import write_model
    from splice.train.model import PRESETS, initial

    group = _trec(arguments)
    train_tokenizer([group.prefix.encode()], 4000, directory.parent / "tokenizer")
    config = replace(PRESETS[arguments.preset], length=65536)
    weights = ((name, initial(name, torch.Size(shape), config, 0)) for name, shape in parameter_shapes(config).items())
    write_model(directory, config, weights, directory.parent / "tokenizer", None, torch.float32)
    return {"preset": arguments.preset, "parameters": config.parameters, "vocabulary": config.vocab_size}


def _trec(arguments: argparse.Namespace):
    """The first set's group."""
    from splice.eval.settings import make
    from splice.eval.tasks import TASKS

    task = TASKS["trec"]
    settings = make(task.settings, {"shots": [arguments.shots], "queries": arguments.queries, "sets": 1,
                                    "data_dir": arguments.data_dir, "unverified_data": True})  # fmt: skip
    ((_, variant),) = task.variants(settings)
    return next(task.groups(variant, task.load(variant), lambda text: len(text.split())))


def _engine(directory: Path):
    from splice.eval.models import open_model
    from splice.eval.settings import EngineSettings

    return open_model(str(directory / "model"), EngineSettings(bos="no")).engine


def _seconds(work, rounds: int) -> tuple[float, object]:
    """Median wall seconds of `work`, and what it gave last. A first run warms up."""
    import torch

    taken = []
    for _ in range(rounds + 1):
        started = time.perf_counter()
        gave = work()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        taken.append(time.perf_counter() - started)
    return statistics.median(taken[1:]), gave


def _fresh(engine) -> None:
    """Forget the prefix that was read last."""
    engine.reader.losses([1, 2, 3])


def trec_splice(arguments: argparse.Namespace, directory: Path) -> dict:
    engine = _engine(directory)
    group = _trec(arguments)

    def work():
        _fresh(engine)
        return engine.answer(group, {})

    seconds, answered = _seconds(work, arguments.rounds)
    predictions = [max(range(len(query.labels)), key=answer.log_likelihoods.__getitem__)
                   for query, answer in zip(group.queries, answered.answers, strict=True)]  # fmt: skip
    return {"seconds": seconds, "queries": len(group.queries), "prefix_tokens": answered.prefix_tokens,
            "predictions": predictions, "likelihoods": [a.log_likelihoods for a in answered.answers]}  # fmt: skip


def trec_harness(arguments: argparse.Namespace, directory: Path) -> dict:
    os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_CACHE": str(directory / "cache")}
    import torch
    from lm_eval import simple_evaluate
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager

    group = _trec(arguments)
    queries = group.queries[: arguments.peer_queries]
    labels = list(queries[0].labels)
    rows = [{"prompt": group.prefix + q.suffix, "gold": labels.index(q.answers[0])} for q in queries]
    data = directory / "trec.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    choices = json.dumps([label.strip() for label in labels])
    (directory / "trec_bench.yaml").write_text(
        f"task: trec_bench\ndataset_path: json\ndataset_kwargs:\n  data_files: {{test: {data}}}\ntest_split: test\n"
        f"output_type: multiple_choice\ndoc_to_text: '{{{{prompt}}}}'\ndoc_to_target: gold\ndoc_to_choice: {choices}\n"
        "target_delimiter: ' '\nmetric_list:\n  - metric: acc\n"
    )
    dtype, device = ("bfloat16", "cuda") if torch.cuda.is_available() else ("float32", "cpu")
    model = HFLM(pretrained=str(directory / "model"), dtype=dtype, device=device, batch_size=1, add_bos_token=False)
    taken = []
    loglikelihood = model.loglikelihood

    def timed(requests, **kwargs):
        started = time.perf_counter()
        gave = loglikelihood(requests, **kwargs)
        taken.append(time.perf_counter() - started)
        return gave

    model.loglikelihood = timed
    result = simple_evaluate(
        model, tasks=["trec_bench"], task_manager=TaskManager(include_path=str(directory)), bootstrap_iters=0
    )
    samples = sorted(result["samples"]["trec_bench"], key=lambda sample: sample["doc_id"])
    likelihoods = [[float(response[0]) for response in sample["filtered_resps"]] for sample in samples]
    return {"seconds": sum(taken), "queries": len(samples), "likelihoods": likelihoods,
            "predictions": [max(range(len(row)), key=row.__getitem__) for row in likelihoods]}  # fmt: skip


def kv_splice(arguments: argparse.Namespace, directory: Path) -> dict:
    from splice.eval.settings import make
    from splice.eval.tasks import TASKS

    engine, task = _engine(directory), TASKS["kv"]
    ((_, settings),) = task.variants(make(task.settings, {"pairs": [arguments.pairs], "examples": 1}))
    group = next(task.groups(settings, task.load(settings), engine.prompter.count))

    def work():
        _fresh(engine)
        return engine.answer(group, {})

    seconds, answered = _seconds(work, arguments.rounds)
    fed = sum(len(q.tree.tokens) for q in engine.prompter.group(group).queries)
    return {
        "seconds": seconds,
        "queries": len(group.queries),
        "prefix_tokens": answered.prefix_tokens,
        "query_tokens": fed,
    }


def perplexity_splice(arguments: argparse.Namespace, directory: Path) -> dict:
    engine = _engine(directory)
    ids = _text_ids(arguments, engine)
    seconds, losses = _seconds(lambda: engine.losses(ids, "text"), arguments.rounds)
    return {"seconds": seconds, "tokens": len(ids), "nll": float(losses.mean())}


def perplexity_transformers(arguments: argparse.Namespace, directory: Path) -> dict:
    import torch
    import torch.nn.functional as F
    from transformers import AutoModelForCausalLM

    ids = _text_ids(arguments, _engine(directory))
    cuda = torch.cuda.is_available()
    model = AutoModelForCausalLM.from_pretrained(
        directory / "model", dtype=torch.bfloat16 if cuda else torch.float32
    ).eval()
    prompt = torch.tensor([ids])
    if cuda:
        model, prompt = model.cuda(), prompt.cuda()

    @torch.inference_mode()
    def work():
        logits = model(prompt).logits[0, :-1].float()
        return F.cross_entropy(logits, prompt[0, 1:]).item()

    seconds, nll = _seconds(work, arguments.rounds)
    return {"seconds": seconds, "tokens": len(ids), "nll": nll}


def _text_ids(arguments: argparse.Namespace, engine) -> list[int]:
    """So many tokens of TREC's questions, over and over."""
    group = _trec(arguments)
    ids = engine.prompter.ids(group.prefix)
    return (ids * (arguments.length // len(ids) + 1))[: arguments.length]


WORKERS = {
    ("trec", "splice"): trec_splice,
    ("trec", "harness"): trec_harness,
    ("kv", "splice"): kv_splice,
    ("perplexity", "splice"): perplexity_splice,
    ("perplexity", "transformers"): perplexity_transformers,
}


def _show(report: dict) -> None:
    console, cases = Console(), report["cases"]
    console.print(f"{report['model']['parameters'] / 1e6:,.1f}M parameters; {report['machine']}", highlight=False)
    table = Table("", "seconds", "per query, s", "tokens of prefix", "peak memory, GiB", box=None)
    for case, sides in cases.items():
        for side, got in sides.items():
            each = f"{got['seconds'] / got['queries']:.4f}" if "queries" in got else ""
            asked = f" ({got['queries']} queries)" if "queries" in got else f" ({got['tokens']:,} tokens)"
            table.add_row(
                f"{case}, {side}{asked}",
                f"{got['seconds']:.2f}",
                each,
                str(got.get("prefix_tokens", "")),
                f"{got['peak_gib']:.2f}",
            )
    console.print(table)
    if "trec" in cases:
        ours, theirs = cases["trec"]["splice"], cases["trec"]["harness"]
        whole = theirs["seconds"] / theirs["queries"] * ours["queries"]
        few = theirs["queries"]
        same = sum(a == b for a, b in zip(ours["predictions"], theirs["predictions"], strict=False))
        apart = max(
            abs(x - y)
            for a, b in zip(ours["likelihoods"], theirs["likelihoods"], strict=False)
            for x, y in zip(a, b, strict=True)
        )
        cases["trec"] |= {"speed": whole / ours["seconds"], "apart": apart}
        console.print(f"trec: {whole / ours['seconds']:,.0f} times as fast as the harness, whose {few} queries are reckoned up to "
                      f"{ours['queries']} ({whole:,.0f} s); {same} of {few} predictions the same, log-likelihoods differ by at most {apart:.1e}")  # fmt: skip
        for side in (ours, theirs):
            del side["likelihoods"]
    if "perplexity" in cases:
        ours, theirs = cases["perplexity"]["splice"], cases["perplexity"]["transformers"]
        console.print(f"perplexity: {theirs['seconds'] / ours['seconds']:.2f} times as fast as transformers with "
                      f"{ours['peak_gib'] / theirs['peak_gib']:.2f} of its memory; {ours['nll']:.6f} and {theirs['nll']:.6f} nats")  # fmt: skip


if __name__ == "__main__":
    main()
