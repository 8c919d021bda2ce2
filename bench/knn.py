"""All-neighbours top-20 by BM25, every document a query: splice beside bm25s, tantivy and rank-bm25, one thread each.

    python bench/knn.py --corpus DIR [--sizes 5000 20000 46800] [--json out.json]

Documents are the .c and .h files of 300 to 30,000 bytes below DIR, in path order; a smaller size is a seeded sample, in path order.
All engines get the words of splice.words. What each is asked:

* splice: all documents as queries, k1 1.5, b 0.75; the figure includes the postings and dense rows made at the first query.
* bm25s, numba backend: token ids, so nothing is looked up, 50 queries at once; method "lucene", which ranks as splice does. Its query is a list of tokens
  and it has no weights, so a repeated word is repeated.
* tantivy: pre-split words, term frequencies, one segment; a boolean query of the different words, each boosted by its count, which is
  its fastest form; making the query object is not timed. Its k1 is 1.2 and it rounds document lengths.
* rank-bm25: BM25Okapi on token ids; as slow as it is, a few queries.

Peers answer as many random documents as fit --seconds, in rounds that alternate with splice's; the figure is the median of rounds.
Checked in the same run: splice's documents and scores against float64 sums over an inverted index made here with numpy.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import bm25s
import numba
import numpy as np
import tantivy
from numba.core.codegen import get_host_cpu_features
from rank_bm25 import BM25Okapi
from rich.console import Console
from rich.table import Table
from threadpoolctl import threadpool_limits

from splice.bm25 import Bm25Index, Bm25Settings
from splice.words import word_hashes

K1, B, M = 1.5, 0.75, 20
CHECKED = 40  # queries compared with the float64 sums


@dataclass(frozen=True)
class Corpus:
    texts: list[bytes]
    tokens: np.ndarray  # int32, the word numbers of all documents in turn
    ends: np.ndarray  # int64 [N + 1], where each document's words end

    def words(self, d: int) -> list[int]:
        return self.tokens[self.ends[d] : self.ends[d + 1]].tolist()

    def chunk(self) -> tuple[np.ndarray, np.ndarray]:
        ends = np.concatenate([[0], np.cumsum([len(text) for text in self.texts])])
        return np.frombuffer(b"".join(self.texts), np.uint8), ends.astype(np.int64)


def read_files(directory: Path) -> list[bytes]:
    paths = sorted(path for path in directory.rglob("*.[ch]") if path.is_file() and not path.is_symlink())
    return [path.read_bytes() for path in paths if 300 <= path.stat().st_size <= 30_000]


def sample(texts: list[bytes], size: int, seed: int) -> Corpus:
    chosen = np.sort(np.random.default_rng(seed).permutation(len(texts))[:size])
    texts = [texts[i] for i in chosen]
    hashes = [word_hashes(text) for text in texts]
    tokens = np.unique(np.concatenate(hashes), return_inverse=True)[1].astype(np.int32)
    return Corpus(texts, tokens, np.concatenate([[0], np.cumsum([len(part) for part in hashes])]))


def cpu_seconds(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def queries_per_second(
    answer: Callable[[list[int]], float], queries: np.ndarray, seconds: float, at_once: int
) -> tuple[float, int]:
    """Answer queries until `seconds` have passed; `answer` gives the CPU seconds of some. Gives (per CPU-second, how many)."""
    spent, n, end = 0.0, 0, time.monotonic() + seconds
    while n < len(queries) and time.monotonic() < end:
        some = queries[n : n + at_once].tolist()
        spent += answer(some)
        n += len(some)
    return n / spent, n


def make_bm25s(corpus: Corpus) -> Callable[[list[int]], float]:
    vocabulary = {i: i for i in range(int(corpus.tokens.max()) + 1)}
    engine = bm25s.BM25(k1=K1, b=B, method="lucene", backend="numba")
    documents = [corpus.words(d) for d in range(len(corpus.texts))]
    engine.index((documents, vocabulary), create_empty_token=False, show_progress=False)
    engine.activate_numba_scorer()

    def answer(queries: list[int]) -> float:
        words = [documents[query] or [0] for query in queries]
        return cpu_seconds(lambda: engine.retrieve(words, k=M + 1, n_threads=1, show_progress=False))

    return answer


def make_tantivy(corpus: Corpus, directory: str) -> Callable[[list[int]], float]:
    builder = tantivy.SchemaBuilder()
    builder.add_text_field("words", stored=False, tokenizer_name="whitespace", index_option="freq")
    schema = builder.build()
    index = tantivy.Index(schema, path=directory)
    writer = index.writer(heap_size=2_000_000_000, num_threads=1)
    for d in range(len(corpus.texts)):
        writer.add_document(tantivy.Document(words=" ".join(map(str, corpus.words(d)))))
    writer.commit()
    writer.wait_merging_threads()
    index.reload()
    searcher = index.searcher()

    def as_query(d: int) -> tantivy.Query:
        clauses = []
        for word, count in Counter(corpus.words(d)).items():
            term = tantivy.Query.term_query(schema, "words", str(word), "freq")
            clauses.append((tantivy.Occur.Should, tantivy.Query.boost_query(term, float(count))))
        return tantivy.Query.boolean_query(clauses)

    def answer(queries: list[int]) -> float:
        made = [as_query(query) for query in queries]
        return cpu_seconds(lambda: [searcher.search(query, M + 1, count=False) for query in made])

    return answer


def make_rank_bm25(corpus: Corpus) -> Callable[[list[int]], float]:
    engine = BM25Okapi([corpus.words(d) for d in range(len(corpus.texts))], k1=K1, b=B)

    def answer(queries: list[int]) -> float:
        return cpu_seconds(
            lambda: [np.argpartition(engine.get_scores(corpus.words(query)), -M - 1) for query in queries]
        )

    return answer


def check(corpus: Corpus, index: Bm25Index, queries: np.ndarray) -> dict:
    """Compare splice with float64 sums over an inverted index made from the tokens by sorting."""
    n = len(corpus.texts)
    lengths = np.diff(corpus.ends)
    pairs, tfs = np.unique(corpus.tokens.astype(np.int64) * n + np.repeat(np.arange(n), lengths), return_counts=True)
    starts = np.searchsorted(pairs, np.arange(int(corpus.tokens.max()) + 2) * n)
    norms = K1 * (1 - B + B * lengths / lengths.mean())
    found, found_scores = index.neighbours(queries, M)
    worst, same = 0.0, 0
    for query, documents, scores in zip(queries, found, found_scores, strict=True):
        exact = np.zeros(n)
        for word, count in Counter(corpus.words(query)).items():
            df = starts[word + 1] - starts[word]
            postings = slice(starts[word], starts[word + 1])
            d, tf = pairs[postings] % n, tfs[postings]
            exact[d] += count * math.log(1 + (n - df + 0.5) / (df + 0.5)) * tf * (K1 + 1) / (tf + norms[d])
        exact[query] = 0
        best = np.lexsort((np.arange(n), -exact))[:M]
        best = best[exact[best] > 0]
        scores = scores[: len(best)]
        worst = max(worst, float(np.max(np.abs(scores / exact[best] - 1), initial=0)))
        # equal but for documents whose float64 sums differ in the last bits only
        same += bool(np.allclose(exact[documents[: len(best)]], exact[best], rtol=1e-12, atol=0))
    return {"queries": len(queries), "same_documents": same, "largest_relative_score_difference": worst}


def measure(corpus: Corpus, seconds: float, rounds: int, seed: int) -> dict:
    n = len(corpus.texts)
    chunk = corpus.chunk()
    queries = np.random.default_rng(seed + 1).permutation(n)
    result: dict = {
        "documents": n,
        "megabytes": sum(map(len, corpus.texts)) / 1e6,
        "words": len(corpus.tokens),
    }
    builds: dict[str, float] = {}

    def built(name: str, make: Callable[[], object]) -> object:
        start = time.process_time()
        made = make()
        builds[name] = time.process_time() - start
        return made

    index = built("splice", lambda: Bm25Index.build([chunk], Bm25Settings(k1=K1, b=B)))
    start = time.perf_counter()
    Bm25Index.build([chunk], Bm25Settings(k1=K1, b=B), threads=2)
    result["splice_build_two_threads_wall_seconds"] = time.perf_counter() - start
    everything = np.arange(n)
    with tempfile.TemporaryDirectory() as directory:
        peers = {
            "bm25s (numba)": built("bm25s (numba)", lambda: make_bm25s(corpus)),
            "tantivy": built("tantivy", lambda: make_tantivy(corpus, directory)),
            "rank-bm25": built("rank-bm25", lambda: make_rank_bm25(corpus)),
        }
        for name in ("bm25s (numba)", "tantivy"):
            peers[name](queries[:2].tolist())  # compiled, paged in
        rates: dict[str, list[float]] = {"splice": [], **{name: [] for name in peers}}
        answered = Counter({"splice": 0})
        walls: dict[int, list[float]] = {1: [], 2: []}
        for turn in range(rounds):
            for threads in (1, 2):
                fresh = index.subset(everything)  # has its postings and dense rows yet to make
                start, start_cpu = time.perf_counter(), time.process_time()
                fresh.neighbours(everything, M, threads)
                walls[threads].append(time.perf_counter() - start)
                if threads == 1:
                    rates["splice"].append(n / (time.process_time() - start_cpu))
            for name, answer in peers.items():
                if name == "rank-bm25" and turn:
                    continue
                rate, count = queries_per_second(
                    answer, queries[turn * n // rounds :], seconds, 1 if name == "rank-bm25" else 50
                )
                rates[name].append(rate)
                answered[name] += count
    answered["splice"] = n * rounds
    median = {name: statistics.median(values) for name, values in rates.items()}
    result["engines"] = {
        name: {
            "queries_per_cpu_second": median[name],
            "ratio": median["splice"] / median[name],
            "queries": answered[name],
            "build_cpu_seconds": builds[name],
        }
        for name in rates
    }
    result["splice_wall_seconds"] = {str(threads): statistics.median(values) for threads, values in walls.items()}
    result["two_threads_over_one"] = statistics.median(a / b for a, b in zip(walls[1], walls[2], strict=True))
    result["exactness"] = check(corpus, index, queries[:CHECKED])
    return result


def machine() -> dict:
    cpu = next((line.split(":", 1)[1].strip() for line in _cpu_lines() if line.startswith("model name")), "?")
    packages = ("numpy", "numba", "llvmlite", "bm25s", "tantivy", "rank-bm25")
    return {
        "cpu": cpu,
        "cores": os.cpu_count(),
        "vectors": "AVX-512" if "+avx512f" in get_host_cpu_features() else "below AVX-512",
        "platform": platform.platform(),
        "python": platform.python_version(),
        **{name: version(name) for name in packages},
    }


def _cpu_lines() -> list[str]:
    path = Path("/proc/cpuinfo")
    return path.read_text().splitlines() if path.exists() else []


def show(console: Console, result: dict) -> None:
    table = Table(
        title=f"{result['documents']:,} documents, {result['megabytes']:.0f} MB, top {M}, one thread",
        title_justify="left",
    )
    for column in ("engine", "queries per CPU-second", "splice is faster by", "queries run", "build, CPU s"):
        table.add_column(column, justify="left" if column == "engine" else "right")
    for name, engine in result["engines"].items():
        rate = engine["queries_per_cpu_second"]
        table.add_row(
            name,
            f"{rate:,.0f}" if rate >= 10 else f"{rate:.2f}",
            "" if name == "splice" else f"{engine['ratio']:,.1f}",
            f"{engine['queries']:,}",
            f"{engine['build_cpu_seconds']:.1f}",
        )
    console.print(table)
    exact, walls = result["exactness"], result["splice_wall_seconds"]
    console.print(
        f"two threads: {walls['1']:.2f} s to {walls['2']:.2f} s, {result['two_threads_over_one']:.2f} times; "
        f"build {result['splice_build_two_threads_wall_seconds']:.2f} s\n"
        f"against float64 sums: {exact['same_documents']} of {exact['queries']} queries with the same documents, "
        f"scores within {exact['largest_relative_score_difference']:.1e}\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--corpus", type=Path, required=True, metavar="DIR")
    parser.add_argument("--sizes", type=int, nargs="+", default=[5000, 20_000, 46_800])
    parser.add_argument("--seconds", type=float, default=8.0, help="for each peer and round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    numba.set_num_threads(1)
    texts = read_files(options.corpus)
    if len(texts) < 100:
        parser.error(f"{options.corpus}: {len(texts)} .c and .h files of 300 to 30,000 bytes; at least 100 are needed")
    console = Console()
    start = time.process_time()
    warm = sample(texts, 100, options.seed)
    index = Bm25Index.build([warm.chunk()], Bm25Settings())
    index.neighbours(np.arange(100), M)
    report = {
        "machine": machine(),
        "splice_first_call_cpu_seconds": time.process_time() - start,
        "results": [],
    }
    console.print(
        f"{report['machine']['cpu']}, {report['machine']['cores']} cores, {report['machine']['vectors']}; "
        f"splice's first call {report['splice_first_call_cpu_seconds']:.1f} CPU s"
    )
    with threadpool_limits(1):
        for size in sorted({min(size, len(texts)) for size in options.sizes}):
            result = measure(sample(texts, size, options.seed), options.seconds, options.rounds, options.seed)
            report["results"].append(result)
            show(console, result)
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
