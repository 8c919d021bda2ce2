"""The k best documents of each of a batch of queries: dense rows for frequent terms, postings for the others, one pass to pick.

Scores are summed in float32 first. That pass picks m + SLACK candidates; those that can be among the m best are scored again in
float64, in an order that is the document's alone. This is the score the caller sees: it depends on no batch, block, thread or
subset. The float32 sum of n non-negative products is within a factor 1 +- `float32_error(n)` of it, which tells whether a document
outside the candidates could be among the best. The rare query where it could (many equal documents) is left to `rank_one`.

Notation: Q queries of a batch, N documents, V terms, E entries (document, term), H head terms; a strip is 64 documents, a block
8,192 or more. sums: float32 scores, at first of the tail terms. factors: float64 [V], f(tf in the query) idf, 0 elsewhere.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from .postings import Counts, Postings
from .simd import LANES, add_rows, lowest_bit, prefetch

STRIP = LANES  # documents of a strip
STRIP_BITS = 6
SLACK = 4
LINE = 64  # bytes of a cache line
TABLE = 32  # counts of a term whose saturation is tabulated
DIRECT_COST = 0.5  # of a posting scanned, measured against an entry of a document scored in float64
QUERY_TF = {"linear": 0, "sqrt": 1, "binary": 2}


INNER = njit(cache=True, nogil=True, no_cpython_wrapper=True, no_cfunc_wrapper=True)  # called from compiled code only


class Model(NamedTuple):
    """The numbers of the BM25 formula that do not depend on the query.

    score(q, d) = sum over the terms t of both of f(tf of t in q) idf[t] tf (k1 + 1) / (tf + norms[d])
    """

    idf: np.ndarray  # float64 [V]
    norms: np.ndarray  # float64 [N] = k1 (1 - b + b length / average length)
    k1: float
    query_tf: int  # f: a value of QUERY_TF


class Head(NamedTuple):
    """The weights of the H most frequent terms in every document, strip by strip, so that a strip of all terms stays in cache."""

    rows: np.ndarray  # int32 [V], a term's row, or -1: its postings are used instead
    strips: np.ndarray  # float32 [N / 64, H, 64], aligned


class Plan(NamedTuple):
    """The head terms of a batch of queries, and the best documents so far."""

    ends: np.ndarray  # int64 [Q + 1]; query q has the entries ends[q]:ends[q + 1]
    rows: np.ndarray  # int32 [entries]
    factors: np.ndarray  # float32 [entries], f(tf in the query)
    best: np.ndarray  # float32 [Q, m + SLACK], descending
    documents: np.ndarray  # int32 [Q, m + SLACK], -1 where there are fewer


def aligned(shape: tuple[int, ...]) -> np.ndarray:
    """float32 zeros that start at a multiple of 64 bytes: a vector load then touches one cache line."""
    size = int(np.prod(shape))
    raw = np.zeros(size + LINE // 4, np.float32)
    skip = -raw.ctypes.data % LINE // 4
    return raw[skip : skip + size].reshape(shape)


def build_head(counts: Counts, model: Model, terms: np.ndarray) -> Head:
    """Lay out the weights of `terms` (ascending numbers) as dense rows."""
    rows = np.full(len(counts.dfs), -1, np.int32)
    rows[terms] = np.arange(len(terms), dtype=np.int32)
    head = Head(rows, aligned((-(-len(counts.lengths) // STRIP), len(terms), STRIP)))
    _fill_head(counts, model, head)
    return head


@njit(cache=True, nogil=True)
def _fill_head(counts: Counts, model: Model, head: Head) -> None:
    for d in range(model.norms.size):
        for i in range(counts.document_ends[d], counts.document_ends[d + 1]):
            term = counts.terms[i]
            if head.rows[term] >= 0:
                tf = np.float64(counts.tfs[i])
                saturation = tf * (model.k1 + 1.0) / (tf + model.norms[d])
                head.strips[d >> STRIP_BITS, head.rows[term], d & (STRIP - 1)] = model.idf[term] * saturation


@INNER
def _query_factor(tf: int, query_tf: int) -> float:
    if query_tf == 0:
        return np.float64(tf)
    return np.sqrt(np.float64(tf)) if query_tf == 1 else 1.0


@INNER
def float32_error(n_terms: int) -> float:
    """Bound on |float32 score - float64 score| / float64 score for a query of `n_terms` different terms.

    All terms are non-negative. Weight, factor and product are rounded once each and the sum n times, each by at most 2**-24; twice
    that covers the higher orders and the float64 roundings.
    """
    return (n_terms + 8) * 2.0**-23


def rank_batch(
    queries: np.ndarray, m: int, counts: Counts, model: Model, postings: Postings, head: Head, sums: np.ndarray, factors: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:  # fmt: skip
    """The m best documents of each query, without the GIL: documents int32 [Q, m], scores float64 [Q, m], proved bool [Q].

    Where proved is False, other documents may be as good. sums float32 [>= Q, block, aligned] and factors are scratch, zero on entry
    and on return.
    """
    documents, scores = np.empty((len(queries), m), np.int32), np.empty((len(queries), m), np.float64)
    proved = np.empty(len(queries), np.bool_)
    best = np.zeros((len(queries), m + SLACK), np.float32), np.full((len(queries), m + SLACK), -1, np.int32)
    _rank_batch(queries, counts, model, postings, head, *best, sums, factors, documents, scores, proved)
    return documents, scores, proved


@njit(cache=True, nogil=True)
def _rank_batch(
    queries: np.ndarray, counts: Counts, model: Model, postings: Postings, head: Head,
    best: np.ndarray, candidates: np.ndarray, sums: np.ndarray, factors: np.ndarray,
    documents: np.ndarray, scores: np.ndarray, proved: np.ndarray,
) -> None:  # fmt: skip
    plan = _plan(queries, counts, model, head, best, candidates)
    for block in range(postings.starts.size):
        for i in range(queries.size):
            _add_postings(queries[i], block, counts, model, postings, head.rows, sums[i])
        _scan_block(queries, block, postings.block_bits, plan, head, sums)
    saturation = np.empty(TABLE)
    for i in range(queries.size):
        set_factors(queries[i], counts, model, factors)
        proved[i] = _rank_candidates(queries[i], counts, model, factors, saturation, plan, i, documents[i], scores[i])
        clear_factors(queries[i], counts, factors)


@INNER
def _plan(
    queries: np.ndarray, counts: Counts, model: Model, head: Head, best: np.ndarray, candidates: np.ndarray
) -> Plan:
    total = 0
    for q in queries:
        total += counts.document_ends[q + 1] - counts.document_ends[q]
    rows, factors = np.empty(total, np.int32), np.empty(total, np.float32)
    ends = np.zeros(queries.size + 1, np.int64)
    n = 0
    for i in range(queries.size):
        for j in range(counts.document_ends[queries[i]], counts.document_ends[queries[i] + 1]):
            row = head.rows[counts.terms[j]]
            if row >= 0:
                rows[n] = row
                factors[n] = _query_factor(counts.tfs[j], model.query_tf)
                n += 1
        ends[i + 1] = n
    return Plan(ends, rows, factors, best, candidates)


@INNER
def _add_postings(
    q: int, block: int, counts: Counts, model: Model, postings: Postings, rows: np.ndarray, sums: np.ndarray
) -> None:
    """Add the scores of the query's tail terms (rows[term] < 0; without rows, of all its terms) in a block to sums [block]."""
    ends = postings.ends[block]
    for i in range(counts.document_ends[q], counts.document_ends[q + 1]):
        term = counts.terms[i]
        if rows.size == 0 or rows[term] < 0:
            start, end = postings.starts[block] + ends[term], postings.starts[block] + ends[term + 1]
            documents, weights = postings.documents[start:end], postings.weights[start:end]
            factor = np.float32(_query_factor(counts.tfs[i], model.query_tf))
            for j in range(documents.size):
                sums[documents[j]] += factor * weights[j]


@INNER
def _scan_block(queries: np.ndarray, block: int, block_bits: int, plan: Plan, head: Head, sums: np.ndarray) -> None:
    """Add the head terms to the sums of a block, insert what beats the worst candidate so far, and leave the sums zero."""
    n_queries = queries.size
    n_lines = head.strips.shape[1] * (STRIP * 4 // LINE)  # of a strip
    first = block << (block_bits - STRIP_BITS)
    last = min(first + (1 << (block_bits - STRIP_BITS)), head.strips.shape[0])
    for strip in range(first, last):
        column = (strip - first) << STRIP_BITS
        weights = head.strips.ctypes.data + strip * n_lines * LINE
        for i in range(n_queries):
            if strip + 1 < last:  # each query fetches its share of the next strip
                for line in range(n_lines * i // n_queries, n_lines * (i + 1) // n_queries):
                    prefetch(weights + (n_lines + line) * LINE)
            sums_i = sums.ctypes.data + (i * sums.shape[1] + column) * 4
            for line in range(STRIP * 4 // LINE):  # the next query's sums; past the end this is harmless
                prefetch(sums_i + sums.shape[1] * 4 + line * LINE)
            at = plan.ends[i]
            better = add_rows(
                weights, plan.rows.ctypes.data + at * 4, plan.factors.ctypes.data + at * 4, plan.ends[i + 1] - at,
                sums_i, plan.best[i, -1],
            )  # fmt: skip
            while better != 0:
                lane = lowest_bit(better)
                better &= better - np.uint64(1)
                document = (strip << STRIP_BITS) + lane
                score = sums[i, column + lane]
                if score > plan.best[i, -1] and document != queries[i]:
                    _insert(plan.best[i], plan.documents[i], score, document)
            sums[i, column : column + STRIP] = 0


@INNER
def _insert(scores: np.ndarray, documents: np.ndarray, score: float, document: int) -> None:
    """Put a document into the list of the best so far, scores descending; the last one falls out."""
    at = scores.size - 1
    while at > 0 and scores[at - 1] < score:
        scores[at] = scores[at - 1]
        documents[at] = documents[at - 1]
        at -= 1
    scores[at] = score
    documents[at] = document


@INNER
def _rank_candidates(
    q: int, counts: Counts, model: Model, factors: np.ndarray, saturation: np.ndarray, plan: Plan, row: int,
    documents: np.ndarray, scores: np.ndarray,
) -> bool:  # fmt: skip
    """Score the candidates in float64 and sort them, ties by document number; True where no other document can be among the m best.

    With t the m-th float32 score, m documents have a float64 score of at least t / (1 + error); so whatever has a float32 score below
    t (1 - 2 error) is none of the m best.
    """
    m = scores.size
    best, candidates = plan.best[row], plan.documents[row]
    documents[:] = -1
    scores[:] = 0.0
    error = float32_error(counts.document_ends[q + 1] - counts.document_ends[q])
    least = np.float64(best[m - 1]) * (1.0 - 2.0 * error)
    for i in range(candidates.size):
        d = candidates[i]
        if d < 0 or best[i] < least:
            break
        score = _exact_score(d, counts, model, factors, saturation)
        at = min(i, m)
        while at > 0 and (scores[at - 1] < score or (scores[at - 1] == score and documents[at - 1] > d)):
            if at < m:
                scores[at] = scores[at - 1]
                documents[at] = documents[at - 1]
            at -= 1
        if at < m:
            scores[at] = score
            documents[at] = d
    return best[-1] == 0 or best[-1] < least


@njit(cache=True, nogil=True)
def set_factors(q: int, counts: Counts, model: Model, factors: np.ndarray) -> None:
    """Write f(tf) idf of the query's terms into factors."""
    for i in range(counts.document_ends[q], counts.document_ends[q + 1]):
        term = counts.terms[i]
        factors[term] = _query_factor(counts.tfs[i], model.query_tf) * model.idf[term]


@njit(cache=True, nogil=True)
def clear_factors(q: int, counts: Counts, factors: np.ndarray) -> None:
    for i in range(counts.document_ends[q], counts.document_ends[q + 1]):
        factors[counts.terms[i]] = 0.0


@njit(cache=True, nogil=True)
def exact_scores(documents: np.ndarray, counts: Counts, model: Model, factors: np.ndarray, scores: np.ndarray) -> None:
    """The float64 scores of some documents for the query whose factors are set."""
    saturation = np.empty(TABLE)
    for i in range(documents.size):
        scores[i] = _exact_score(documents[i], counts, model, factors, saturation)


@INNER
def _exact_score(d: int, counts: Counts, model: Model, factors: np.ndarray, saturation: np.ndarray) -> float:
    """The score of document d, its terms summed in ascending order.

    saturation float64 [TABLE] is scratch: tf (k1 + 1) / (tf + norm) of small counts, divided once.
    """
    norm, k1 = model.norms[d], model.k1
    saturation[0] = 0.0
    for tf in range(1, TABLE):
        saturation[tf] = np.float64(tf) * (k1 + 1.0) / (np.float64(tf) + norm)
    total = 0.0
    for i in range(counts.document_ends[d], counts.document_ends[d + 1]):
        tf = counts.tfs[i]
        if tf < TABLE:
            total += factors[counts.terms[i]] * saturation[tf]
        else:
            total += factors[counts.terms[i]] * (np.float64(tf) * (k1 + 1.0) / (np.float64(tf) + norm))
    return total


def rank_one(
    query: int,
    k: int,
    allowed: np.ndarray,
    counts: Counts,
    model: Model,
    postings: Postings,
    factors: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """The k best documents of one query among those allowed (bool [N]), exact whatever the ties.

    Every document whose float32 score could reach the k-th best is scored in float64; where few are allowed, all of them, which costs
    less than the postings. factors is scratch, zero on entry and on return.
    """
    terms = counts.terms[counts.document_ends[query] : counts.document_ends[query + 1]]
    scans = int((postings.ends[:, terms + 1] - postings.ends[:, terms]).sum())
    n_allowed = int(np.count_nonzero(allowed))
    k = min(k, n_allowed)
    if k < 1:
        return np.empty(0, np.int32), np.empty(0, np.float64)
    if n_allowed * len(counts.terms) < DIRECT_COST * scans * len(allowed):
        documents = np.flatnonzero(allowed).astype(np.int32)
    else:
        documents = np.empty(len(allowed), np.int32)
        documents = documents[: _possible(query, k, allowed, counts, model, postings, documents)]
    scores = np.empty(len(documents), np.float64)
    try:
        set_factors(query, counts, model, factors)
        exact_scores(documents, counts, model, factors, scores)
    finally:
        clear_factors(query, counts, factors)
    order = np.lexsort((documents, -scores))[: min(k, np.count_nonzero(scores))]
    return documents[order], scores[order]


@njit(cache=True, nogil=True)
def _possible(
    q: int, k: int, allowed: np.ndarray, counts: Counts, model: Model, postings: Postings, out: np.ndarray
) -> int:
    """The allowed documents that may be among the k best, ascending, into out int32 [N]; gives how many. From postings alone."""
    sums = np.zeros(allowed.size, np.float32)
    no_rows = np.empty(0, np.int32)
    for block in range(postings.starts.size):
        _add_postings(q, block, counts, model, postings, no_rows, sums[block << postings.block_bits :])
    best, best_documents = np.zeros(k, np.float32), np.empty(k, np.int32)
    for d in range(sums.size):
        if sums[d] > best[-1] and allowed[d]:
            _insert(best, best_documents, sums[d], d)
    error = float32_error(counts.document_ends[q + 1] - counts.document_ends[q])
    least = np.float64(best[-1]) * (1.0 - 2.0 * error)
    n = 0
    for d in range(sums.size):
        if sums[d] > 0 and sums[d] >= least and allowed[d]:
            out[n] = d
            n += 1
    return n
