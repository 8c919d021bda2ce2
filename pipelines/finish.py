"""The end of a build: what a dataset keeps of the work directory, the balanced ledger and the manifest."""

from __future__ import annotations

import resource
import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console

from splice import __version__
from splice.errors import BuildFailed
from splice.files import gather, replacing, write_json
from splice.ledger import imbalances, make_ledger
from splice.report import REPORT, write_report
from splice.storage import TEMPORARY, local, names, read_all, remove, remove_all
from splice.store.manifest import MANIFEST
from splice.task import Receipt

from .link import Linked
from .run import Run
from .runners import runner_of, runs_on_this_machine
from .stages import Ingested, Tokens


def finish(
    run: Run,
    ingested: Ingested,
    tokens: Tokens,
    graph: Linked | None,
    plans: list[Receipt],
    shards: list[Receipt],
    directories: dict[str, Path],
    output: Path,
    started: tuple[float, float],
) -> dict[str, Any]:
    """Gather plan, graph, documents, tokenizer and quarantine beside the shards, balance the ledger, write the manifest."""
    s = run.settings
    ledger = make_ledger(s.length, ingested.read, _refused(ingested.directory), tokens.parts, plans, shards)
    wrong = imbalances(ledger)
    if wrong:
        raise BuildFailed("the ledger does not balance, which is a fault of splice: " + "; ".join(wrong))
    _keep(directories["walk"] / "plan", output / "plan")
    _keep(directories["link"] / "graph", output / "graph")
    _keep(tokens.directory / "documents", output / "documents")
    _keep(tokens.directory / "tokenizer", output / "tokenizer")
    gather(ingested.directory / "assign", output / "documents", ["refused.parquet"])
    _gather_quarantine(ingested.directory / "read", output / "quarantine.jsonl")
    steps, control = (sum(p[name] for p in plans) for name in ("steps", "control_pairs"))
    manifest = {
        "splice": __version__,
        "build": directories["write"].name,
        "settings": {**s.model_dump(mode="json", exclude={"output", "work", "workers"})},
        "versions": _versions(s.has_encoder),
        "input_hash": ingested.assigned["hash"],
        "tokenizer": tokens.tokenizer,
        "encoder": graph.encoder if graph else None,
        "join": {
            "bos_id": tokens.bos_id,
            "eos_id": tokens.eos_id,
        },
        "packs": [
            {"documents": n, "parts": parts, "examples": p["examples"]}
            for n, parts, p in zip(ingested.documents, ingested.parts, plans, strict=True)
        ],
        "scores": {
            "steps": steps,
            "mean_step": sum(p["step_score_sum"] for p in plans) / steps if steps else None,
            "control_pairs": control,
            "mean_control": sum(p["control_score_sum"] for p in plans) / control if control else None,
            "fallbacks": sum(p["fallbacks"] for p in plans),
            "renewed": sum(p["renewed"] for p in plans),
        },
        "ledger": ledger,
        "shards": [{name: shard[name] for name in ("file", "examples", "bytes", "sha256")} for shard in shards],
        "run": {
            "runner": runner_of(run.options),
            "workers": s.worker_count if runs_on_this_machine(run.options) else None,
            "wall_seconds": round(time.monotonic() - started[0], 3),
            "cpu_seconds": round(run.cpu_seconds() - started[1], 3),
            "peak_rss_bytes": _peak_rss_bytes(),
            "stages": {name: asdict(times) for name, times in run.stages.items()},
        },
    }
    write_json(output / MANIFEST, manifest, sync=True)
    remove(output / ".write")
    return manifest


def leave_report(output: Path, console: Console) -> None:
    """Write the dataset's report unless it is there. A dataset is complete without: what goes wrong here is only said."""
    if REPORT in names(output):
        return
    try:
        write_report([output], output / REPORT)
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        console.print(
            f"no {REPORT} ({reason}); the dataset is complete, and `splice report {output}` tries again",
            highlight=False,
            markup=False,
        )


def _refused(directory: Path) -> Counter[tuple[str, str]]:
    import pyarrow.parquet as pq

    table = pq.read_table(local(directory / "assign" / "refused.parquet"), columns=["source", "reason"])
    counts = table.group_by(["source", "reason"]).aggregate([([], "count_all")]).to_pylist()
    return Counter({(row["source"], row["reason"]): row["count_all"] for row in counts})


def _keep(source: Path, target: Path) -> None:
    """Every file of `source` appears in `target`, which then holds these and nothing else."""
    kept = {name for name in names(source) if not name.startswith(TEMPORARY)}  # a slow attempt's may be there
    remove_all(target, names(target) - kept - {"refused.parquet"})
    gather(source, target, sorted(kept))


def _gather_quarantine(directory: Path, target: Path) -> None:
    with replacing(target) as temporary, open(temporary, "wb") as out:
        quarantined = sorted(name for name in names(directory) if name.endswith(".quarantine.jsonl"))
        for data in read_all([directory / name for name in quarantined]):
            out.write(data or b"")


def _versions(encoder: bool) -> dict[str, str]:
    """Of what the result may depend on. FAISS has several packages of one module, which tells its version itself."""
    from importlib.metadata import version

    names = ["apache-beam", "gigatoken", "numba", "numpy", "pyarrow", "tokenizers"]
    versions = {name: version(name) for name in names + ["sentence-transformers", "torch", "transformers"] * encoder}
    if encoder:
        import faiss

        versions["faiss"] = faiss.__version__
    return versions


def _peak_rss_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
