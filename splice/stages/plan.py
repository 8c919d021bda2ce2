"""plan: one pack -> the walk over its graph, as a plan that holds neither text nor tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ..files import replacing
from ..graph import MaskedGraph, Retriever
from ..ordered import domain_order, repository_order
from ..packs import PACKS_AT_HAND, Pack, open_pack
from ..seeded import permutation
from ..shared import shared
from ..storage import local, location
from ..walk import WalkSettings, walk
from .index import saved_index
from .search import read_graph

CONTROL_PAIRS = 2000
ORDERED_NEIGHBOURS = 8  # of a retriever that knows the others without a search


def run(args: dict[str, Any], directory: Path, threads: int) -> dict[str, Any]:
    """args: ingest, tokens, link (directories; link None: no graph), pack, parts, starts (of the graph's blocks), retriever, domain
    (repo, extension or field), before, after (separators written around a document, 0 or 1 each), walk (WalkSettings).

    Writes plan/PPPPP.parquet: example, document, parent, score, begin, end, offset, a row a segment.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    pack = open_pack(args["ingest"], args["pack"], args["parts"], args["tokens"])
    lengths = pack.token_counts + args["before"] + args["after"]
    settings = WalkSettings(**args["walk"])
    index: Retriever | None = None
    roots: np.ndarray | None = None
    if args["link"] is not None:
        index = saved_index(args["link"], args["pack"], args["retriever"])
        neighbours, scores = read_graph(location(args["link"]), args["pack"], args["starts"])
    elif args["retriever"] == "random":
        neighbours, scores = np.full((pack.n_documents, 1), -1, np.int32), np.zeros((pack.n_documents, 1), np.float32)
    else:
        if args["retriever"] == "repo":
            index = repository_order(pack, settings.seed)
            roots = index.order
        else:
            index = domain_order(pack, args["domain"], settings.seed)
        neighbours, scores = index.neighbours(np.arange(pack.n_documents), ORDERED_NEIGHBOURS)
    graph = MaskedGraph(neighbours, scores, index, threads)
    plan = walk(graph, lengths, settings, args["pack"], roots)
    columns = plan.arrays()
    with replacing(plan_path(directory, args["pack"])) as temporary:
        pq.write_table(pa.table(columns), temporary, compression="zstd", compression_level=1)
    # A document that was split keeps its edge in every piece; it is one step.
    is_step = ~np.isnan(columns["score"]) & (columns["begin"] == 0)
    steps = columns["score"][is_step]
    control = _control_scores(index, columns["parent"][is_step], pack.n_documents, settings.seed, args["pack"])
    return {
        "documents": pack.n_documents,
        "examples": plan.examples,
        "steps": len(steps),
        "step_score_sum": float(steps.sum(dtype=np.float64)),
        "control_pairs": len(control),
        "control_score_sum": float(control.sum()),
        "fallbacks": graph.fallbacks,
        "renewed": graph.renewed,
        "by_source": _fates(pack, columns, args["before"]),
    }


def _fates(pack: Pack, plan: dict[str, np.ndarray], before: int) -> dict[str, dict[str, int]]:
    """What the plan does with the documents' own tokens, by source: trimmed from documents in it, used again, or left out whole."""
    n = pack.token_counts
    document = plan["document"]
    begin, end = (np.clip(plan[name] - before, 0, n[document]) for name in ("begin", "end"))
    written = np.bincount(document, weights=end - begin, minlength=len(n)).astype(np.int64)
    uses = np.bincount(document[plan["begin"] == 0], minlength=len(n))
    pieces = np.bincount(document, minlength=len(n))
    left_out, again = pieces == 0, np.maximum(uses - 1, 0)
    sources = np.array(pack.strings("source"))
    return {
        str(source): {
            "left_out_documents": int(left_out[mine].sum()),
            "left_out_tokens": int(n[mine & left_out].sum()),
            "trimmed_tokens": int((n * uses - written)[mine].sum()),
            "split_documents": int((pieces > uses)[mine].sum()),
            "reuses": int(again[mine].sum()),
            "reused_tokens": int((n * again)[mine].sum()),
        }
        for source in np.unique(sources)
        for mine in [sources == source]
    }


def _control_scores(index: Retriever | None, parents: np.ndarray, n: int, seed: int, pack: int) -> np.ndarray:
    """Scores of steps that random packing would make: from the same documents to others at random.

    From the same, because a long query scores high with whatever it meets, and long documents are rarely queries: they
    fill their examples.
    """
    if index is None or n < 2 or len(parents) == 0:
        return np.zeros(0)
    some = parents[permutation(len(parents), seed, "control", pack)[:CONTROL_PAIRS]]
    others = np.resize(permutation(n, seed, "control documents", pack), len(some))
    return index.pair_scores(some, np.where(others == some, (others + 1) % n, others))


def plan_path(directory: Path, pack: int) -> Path:
    """Where the plan of a pack lies."""
    return directory / "plan" / f"{pack:05d}.parquet"


def read_plan(directory: Path, pack: int) -> dict[str, np.ndarray]:
    """The plan's columns and `starts` (int64 [examples + 1]: the rows of example i are starts[i]:starts[i + 1])."""
    import pyarrow.parquet as pq

    # Of read_table's time two fifths: writing a shard reads the plans of all packs.
    table = pq.ParquetFile(local(plan_path(directory, pack))).read(use_threads=False)
    columns = {name: table.column(name).to_numpy() for name in table.column_names}
    examples = int(columns["example"][-1]) + 1 if table.num_rows else 0
    columns["starts"] = np.searchsorted(columns["example"], np.arange(examples + 1))
    return columns


def packs_path(directory: Path) -> Path:
    """Where the driver lists [parts, examples] of each pack for those who need all."""
    return directory / "packs.json"


@shared(maxsize=PACKS_AT_HAND)
def saved_plan(directory: str, pack: int) -> dict[str, np.ndarray]:
    """`read_plan`, once a process."""
    return read_plan(location(directory), pack)
