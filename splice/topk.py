"""The k best documents of each of a batch of queries: dense rows for frequent terms, postings for the others, one pass to pick.

Scores are summed in float32 first. That pass picks k + SLACK candidates; they are scored again in float64, one term after the
other in ascending order, which is the score the caller sees: it depends on neither batch, block, thread nor subset. The float32 sum
of n non-negative products is within a factor 1 +- `float32_error(n)` of it, so a query is proved exact when its worst kept score is
above what any document outside the candidates can reach. The rare query that is not (many equal documents) is left to `rank_one`.

Notation: Q queries of the batch, N documents, V terms, H head terms; a strip is 64 documents, a block 65,536.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from .postings import BLOCK, BLOCK_BITS, Counts, Postings

STRIP_BITS = 6
STRIP = 1 << STRIP_BITS  # documents of a strip: a set of them is one 64-bit mask
SLACK = 4
TABLE = 32  # counts of a term whose saturation is tabulated
QUERY_TF = {"linear": 0, "sqrt": 1, "binary": 2}


@dataclass(frozen=True)
class Model:
    """The numbers of the BM25 formula that do not depend on the query.

    score(q, d) = sum over terms t of both, f(tf of t in q) idf[t] tf (k1 + 1) / (tf + norms[d])
    """

    idf: np.ndarray  # float64 [V]
    norms: np.ndarray  # float64 [N] = k1 (1 - b + b length / average length)
    k1: float
    query_tf: int  # f: a value of QUERY_TF


@dataclass(frozen=True)
class Head:
    """The weights of the H most frequent terms in every document, strip by strip, so that a strip of all terms stays in cache."""

    rows: np.ndarray  # int32 [V], a term's row, or -1: its postings are used instead
    strips: np.ndarray  # float32 [N / 64, H, 64], aligned to 64 bytes


def aligned(shape: tuple[int, ...]) -> np.ndarray:
    """float32 zeros that start at a multiple of 64 bytes: a vector load then touches one cache line."""
    size = int(np.prod(shape))
    raw = np.zeros(size + 16, np.float32)
    skip = -raw.ctypes.data % 64 // 4
    return raw[skip : skip + size].reshape(shape)


def build_head(counts: Counts, model: Model, terms: np.ndarray) -> Head:
    """Lay out the weights of `terms` (ascending numbers) as dense rows."""
    rows = np.full(len(counts.dfs), -1, np.int32)
    rows[terms] = np.arange(len(terms), dtype=np.int32)
    strips = aligned((-(-len(counts.lengths) // STRIP), len(terms), STRIP))
    if strips.size:
        _fill_head(counts.document_ends, counts.terms, counts.tfs, rows, model.idf, model.norms, model.k1, strips)
    return Head(rows, strips)


@njit(cache=True, nogil=True)
def _fill_head(document_ends, terms, tfs, rows, idf, norms, k1, strips):
    for d in range(norms.size):
        for i in range(document_ends[d], document_ends[d + 1]):
            row = rows[terms[i]]
            if row >= 0:
                tf = np.float64(tfs[i])
                strips[d >> STRIP_BITS, row, d & (STRIP - 1)] = idf[terms[i]] * (tf * (k1 + 1.0) / (tf + norms[d]))


@intrinsic
def _add_strip(typingctx, head, rows, factors, n, sums, threshold):
    """sums[64] += the sum over i < n of factors[i] head[rows[i], 64]; gives the bit mask of the sums above the threshold.

    The first four and `sums` are addresses: float32 head rows of one strip, int32 rows, float32 factors. Written as vector
    instructions because the accumulators must stay in registers over all terms, which the compiler does not find out by itself.
    """
    sig = types.uint64(types.intp, types.intp, types.intp, types.intp, types.intp, types.float32)

    def codegen(context, builder, signature, args):
        head, rows, factors, n, sums, threshold = args
        vector = ir.VectorType(ir.FloatType(), STRIP)
        int32, int64 = ir.IntType(32), ir.IntType(64)
        pointer = {t: t.as_pointer() for t in (vector, int32, ir.FloatType())}
        head = builder.inttoptr(head, pointer[vector])
        rows = builder.inttoptr(rows, pointer[int32])
        factors = builder.inttoptr(factors, pointer[ir.FloatType()])
        sums = builder.inttoptr(sums, pointer[vector])
        fma_type = ir.FunctionType(vector, [vector] * 3)
        fma = cgutils.get_or_insert_function(builder.module, fma_type, f"llvm.fmuladd.v{STRIP}f32")

        def splat(scalar):
            one = builder.insert_element(ir.Constant(vector, ir.Undefined), scalar, ir.Constant(int32, 0))
            return builder.shuffle_vector(one, one, ir.Constant(ir.VectorType(int32, STRIP), [0] * STRIP))

        start = builder.load(sums, align=64)
        total = cgutils.alloca_once_value(builder, start)
        with cgutils.for_range(builder, n) as loop:
            row = builder.zext(builder.load(builder.gep(rows, [loop.index])), int64)
            weights = builder.load(builder.gep(head, [row]), align=64)
            factor = splat(builder.load(builder.gep(factors, [loop.index])))
            builder.store(builder.call(fma, [weights, factor, builder.load(total)]), total)
        result = builder.load(total)
        builder.store(result, sums, align=64)
        return builder.bitcast(builder.fcmp_ordered(">", result, splat(threshold)), int64)

    return sig, codegen


@intrinsic
def _trailing_zeros(typingctx, mask):
    """The place of the lowest bit set in a uint64."""

    def codegen(context, builder, signature, args):
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(mask), codegen


@intrinsic
def _prefetch(typingctx, address):
    """Ask for the cache line at an address that will be read soon."""

    def codegen(context, builder, signature, args):
        pointer = ir.IntType(8).as_pointer()
        int32 = ir.IntType(32)
        function_type = ir.FunctionType(ir.VoidType(), [pointer, int32, int32, int32])
        function = cgutils.get_or_insert_function(builder.module, function_type, "llvm.prefetch.p0")
        read, keep, data = (ir.Constant(int32, value) for value in (0, 2, 1))
        builder.call(function, [builder.inttoptr(args[0], pointer), read, keep, data])
        return context.get_dummy_value()

    return types.void(types.intp), codegen


@njit(cache=True, nogil=True, inline="always")
def _query_factor(tf, query_tf):
    if query_tf == 0:
        return np.float64(tf)
    return np.sqrt(np.float64(tf)) if query_tf == 1 else 1.0


@njit(cache=True, nogil=True, inline="always")
def float32_error(n_terms):
    """Bound on |float32 score - float64 score| / float64 score for a query of `n_terms` different terms.

    All terms are non-negative. Weight, factor and product are rounded once each and the sum n times, each by at most 2**-24; twice
    that covers the higher orders and the float64 roundings.
    """
    return (n_terms + 8) * 2.0**-23


@njit(cache=True, nogil=True)
def _insert(scores, documents, score, document):
    """Put a document into a list of the best so far, float32 scores descending; the last one falls out."""
    at = scores.size - 1
    while at > 0 and scores[at - 1] < score:
        scores[at] = scores[at - 1]
        documents[at] = documents[at - 1]
        at -= 1
    scores[at] = score
    documents[at] = document


@njit(cache=True, nogil=True)
def _exact_score(document_ends, terms, tfs, norms, k1, d, factors, saturation):
    """The score of document d in float64; factors float64 [V] = f(query tf) idf, 0 for terms not in the query.

    The terms of d go in turn to four sums: one order, that of the document, whatever the query, and no chain of waiting additions.
    saturation float64 [TABLE] is scratch: tf (k1 + 1) / (tf + norm) of small counts, divided once.
    """
    norm = norms[d]
    for tf in range(TABLE):
        saturation[tf] = np.float64(tf) * (k1 + 1.0) / (np.float64(tf) + norm + (tf == 0))
    s0 = s1 = s2 = s3 = 0.0
    start, end = document_ends[d], document_ends[d + 1]
    for i in range(start, end - 3, 4):
        s0 += _product(terms[i], tfs[i], norm, k1, factors, saturation)
        s1 += _product(terms[i + 1], tfs[i + 1], norm, k1, factors, saturation)
        s2 += _product(terms[i + 2], tfs[i + 2], norm, k1, factors, saturation)
        s3 += _product(terms[i + 3], tfs[i + 3], norm, k1, factors, saturation)
    for i in range(end - ((end - start) & 3), end):
        s0 += _product(terms[i], tfs[i], norm, k1, factors, saturation)
    return (s0 + s1) + (s2 + s3)


@njit(cache=True, nogil=True, inline="always")
def _product(term, tf, norm, k1, factors, saturation):
    if tf < TABLE:
        return factors[term] * saturation[tf]
    return factors[term] * (np.float64(tf) * (k1 + 1.0) / (np.float64(tf) + norm))


@njit(cache=True, nogil=True)
def set_factors(document_ends, terms, tfs, idf, query_tf, q, factors, clear):
    """Write f(query tf) idf of the query's terms into factors float64 [V], or zeros to clear it."""
    for i in range(document_ends[q], document_ends[q + 1]):
        factors[terms[i]] = 0.0 if clear else _query_factor(tfs[i], query_tf) * idf[terms[i]]


@njit(cache=True, nogil=True)
def exact_scores(document_ends, terms, tfs, norms, k1, documents, factors, scores):
    """The float64 scores of some documents for the query in `factors`."""
    saturation = np.empty(TABLE)
    for i in range(documents.size):
        scores[i] = _exact_score(document_ends, terms, tfs, norms, k1, documents[i], factors, saturation)


@njit(cache=True, nogil=True, inline="always")
def _add_postings(documents, weights, factor, sums):
    for i in range(documents.size):
        sums[documents[i]] += factor * weights[i]


@njit(cache=True, nogil=True)
def _rank_batch(
    queries, document_ends, terms, tfs, idf, norms, k1, query_tf,
    ends, posting_documents, weights, head_rows, strips,
    sums, factors, scores, documents, proved,
):  # fmt: skip
    """scores float64 [Q, m], documents int32 [Q, m], proved bool [Q] out; sums float32 [Q, block] and factors float64 [V] scratch."""
    n_queries, m = scores.shape
    k = m + SLACK
    total = 0
    for q in range(n_queries):
        total += document_ends[queries[q] + 1] - document_ends[queries[q]]
    rows = np.empty(total, np.int32)
    row_factors = np.empty(total, np.float32)
    row_ends = np.zeros(n_queries + 1, np.int64)
    best = np.zeros((n_queries, k), np.float32)
    best_documents = np.full((n_queries, k), -1, np.int32)
    at = 0
    for q in range(n_queries):
        for i in range(document_ends[queries[q]], document_ends[queries[q] + 1]):
            row = head_rows[terms[i]]
            if row >= 0:
                rows[at] = row
                row_factors[at] = _query_factor(tfs[i], query_tf)
                at += 1
        row_ends[q + 1] = at
    strip_bytes = strips.shape[1] * STRIP * 4
    for block in range(ends.shape[0]):
        for q in range(n_queries):
            sum_q = sums[q]
            for i in range(document_ends[queries[q]], document_ends[queries[q] + 1]):
                term = terms[i]
                if head_rows[term] < 0:
                    factor = np.float32(_query_factor(tfs[i], query_tf))
                    start, end = ends[block, term], ends[block, term + 1]
                    _add_postings(posting_documents[start:end], weights[start:end], factor, sum_q)
        first_strip = block << (BLOCK_BITS - STRIP_BITS)
        last_strip = min(first_strip + (BLOCK >> STRIP_BITS), (norms.size + STRIP - 1) >> STRIP_BITS)
        for strip in range(first_strip, last_strip):
            within = (strip - first_strip) << STRIP_BITS
            head = strips.ctypes.data + strip * strip_bytes
            next_strip = head + strip_bytes
            for q in range(n_queries):
                if strip + 1 < last_strip:
                    for address in range(next_strip + (strip_bytes >> 6) * q // n_queries * 64, next_strip + (strip_bytes >> 6) * (q + 1) // n_queries * 64, 64):
                        _prefetch(address)
                if q + 1 < n_queries:
                    ahead = sums.ctypes.data + ((q + 1) * sums.shape[1] + within) * 4
                    _prefetch(ahead)
                    _prefetch(ahead + 64)
                    _prefetch(ahead + 128)
                    _prefetch(ahead + 192)
                mask = _add_strip(
                    head, rows.ctypes.data + row_ends[q] * 4, row_factors.ctypes.data + row_ends[q] * 4,
                    row_ends[q + 1] - row_ends[q], sums.ctypes.data + (q * sums.shape[1] + within) * 4, best[q, k - 1],
                )  # fmt: skip
                while mask != 0:
                    lane = _trailing_zeros(mask)
                    mask &= mask - np.uint64(1)
                    document = (strip << STRIP_BITS) + lane
                    score = sums[q, within + lane]
                    if score > best[q, k - 1] and document != queries[q]:
                        _insert(best[q], best_documents[q], score, document)
                sums[q, within : within + STRIP] = 0
    saturation = np.empty(TABLE)
    for q in range(n_queries):
        set_factors(document_ends, terms, tfs, idf, query_tf, queries[q], factors, False)
        n_terms = document_ends[queries[q] + 1] - document_ends[queries[q]]
        proved[q] = _rank_candidates(
            document_ends, terms, tfs, norms, k1, factors, saturation, float32_error(n_terms), best[q], best_documents[q], scores[q], documents[q],
        )
        set_factors(document_ends, terms, tfs, idf, query_tf, queries[q], factors, True)


@njit(cache=True, nogil=True)
def _rank_candidates(
    document_ends, terms, tfs, norms, k1, factors, saturation, error, best, candidates, scores, documents
):
    """Score the candidates exactly and sort them, ties by document number; True where no other document can be among the m best.

    best float32, descending, and candidates int32: m + SLACK documents. With t the m-th float32 score, m documents have exact scores
    of at least t / (1 + error), so nothing whose float32 score is below t (1 - 2 error) can be among the m best.
    """
    m = scores.size
    scores[:] = 0.0
    documents[:] = -1
    least = np.float64(best[m - 1]) * (1.0 - 2.0 * error)
    for i in range(candidates.size):
        d = candidates[i]
        if d < 0 or best[i] < least:
            break
        score = _exact_score(document_ends, terms, tfs, norms, k1, d, factors, saturation)
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
def _scatter_all(document_ends, terms, tfs, query_tf, q, ends, posting_documents, weights, sums):
    """The float32 scores of all documents for one query, from postings alone; sums float32 [N] zero on entry."""
    for block in range(ends.shape[0]):
        sums_b = sums[block << BLOCK_BITS :]
        for i in range(document_ends[q], document_ends[q + 1]):
            term = terms[i]
            factor = np.float32(_query_factor(tfs[i], query_tf))
            start, end = ends[block, term], ends[block, term + 1]
            _add_postings(posting_documents[start:end], weights[start:end], factor, sums_b)


@njit(cache=True, nogil=True)
def _candidates(sums, allowed, k, error, best, best_documents, out):
    """The documents that may be among the k best allowed ones, ascending, into out int32 [N]; gives how many."""
    for d in range(sums.size):
        if sums[d] > best[k - 1] and allowed[d]:
            _insert(best, best_documents, sums[d], d)
    least = np.float64(best[k - 1]) * (1.0 - 2.0 * error)
    n = 0
    for d in range(sums.size):
        if sums[d] > 0 and sums[d] >= least and allowed[d]:
            out[n] = d
            n += 1
    return n


def rank_batch(
    queries: np.ndarray,
    m: int,
    counts: Counts,
    model: Model,
    postings: Postings,
    head: Head,
    sums: np.ndarray,
    factors: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The m best documents of each query (documents int32 [Q, m], scores float64 [Q, m]) and proved bool [Q], without the GIL.

    sums float32 [>= Q, padded block] and factors float64 [V] are scratch, zero on entry and on return.
    """
    scores, documents = np.empty((len(queries), m), np.float64), np.empty((len(queries), m), np.int32)
    proved = np.empty(len(queries), np.bool_)
    _rank_batch(
        queries, counts.document_ends, counts.terms, counts.tfs, model.idf, model.norms, model.k1, model.query_tf,
        postings.ends, postings.documents, postings.weights, head.rows, head.strips,
        sums, factors, scores, documents, proved,
    )  # fmt: skip
    return documents, scores, proved


def rank_one(
    query: int, k: int, allowed: np.ndarray, counts: Counts, model: Model, postings: Postings, factors: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The k best documents of one query among those allowed (bool [N]), exact whatever the ties: every document whose float32
    score could reach the k-th is scored in float64. factors float64 [V] is scratch, zero on entry and on return."""
    n = len(counts.lengths)
    k = min(k, n)
    n_terms = int(counts.document_ends[query + 1] - counts.document_ends[query])
    arrays = counts.document_ends, counts.terms, counts.tfs
    set_factors(*arrays, model.idf, model.query_tf, query, factors, False)
    if k < 1:
        documents = np.empty(0, np.int32)
    else:
        sums = np.zeros(n, np.float32)
        _scatter_all(*arrays, model.query_tf, query, postings.ends, postings.documents, postings.weights, sums)
        found = np.empty(n, np.int32)
        best = np.zeros(k, np.float32), np.empty(k, np.int32)
        documents = found[: _candidates(sums, allowed, k, float32_error(n_terms), *best, found)]
    scores = np.empty(len(documents), np.float64)
    exact_scores(*arrays, model.norms, model.k1, documents, factors, scores)
    set_factors(*arrays, model.idf, model.query_tf, query, factors, True)
    order = np.lexsort((documents, -scores))[:k]
    return documents[order], scores[order]
