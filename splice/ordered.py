"""Retrievers that need no index: what follows a document within its group, in an order that is fixed beforehand.

REPO: the files of a repository depth first, those of one directory together (Staniszewski et al., "Structured Packing in
LLM Training Improves Long Context Utilization", REPO). DOMAIN: the documents of one domain in a seeded random order (its
DomRnd baseline). RETRIEVE(d, k) gives the k unused documents that come after d, and after the group's last its first.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePosixPath

import numpy as np

from .packs import Pack
from .seeded import permutation

NO_DOMAIN = ""


class GroupOrder:
    """N documents, each of one group, the documents of a group in order. A Retriever (graph.py).

    Scores are of pairs and do not rank: `directories[d]`, where given, is the place of d in the tree, and a pair of one
    group scores 1 + the leading directories both lie in; without, 1. A pair of two groups scores 0.
    """

    def __init__(
        self, groups: np.ndarray, order: np.ndarray, directories: Sequence[tuple[str, ...]] | None = None
    ) -> None:
        """groups: int64 [N]; order: int64 [N], all documents, each group's one after the other."""
        self.groups = groups
        self.order = order
        self._directories = directories
        self._place = np.empty(len(order), np.int64)
        self._place[order] = np.arange(len(order))
        ranked = groups[order]
        new = np.flatnonzero(np.diff(ranked, prepend=ranked[:1] - 1)) if len(order) else np.zeros(0, np.int64)
        ends = np.append(new[1:], len(order))
        member = np.repeat(np.arange(len(new)), ends - new)
        self._start, self._stop = new[member], ends[member]  # by place: its group's range of places

    @property
    def n_documents(self) -> int:
        return len(self.order)

    def neighbours(self, queries: np.ndarray, m: int, threads: int = 1) -> tuple[np.ndarray, np.ndarray]:
        """The m documents that follow each query: int32 [Q, m] (-1: its group has no more), float64 [Q, m]."""
        place = self._place[queries][:, None]
        start, stop = self._start[place], self._stop[place]
        step = np.arange(1, m + 1)[None, :]
        there = step < stop - start
        found = np.where(there, self.order[start + (place - start + step) % (stop - start)], -1)
        scores = np.zeros(found.shape)
        rows, columns = np.nonzero(there)
        scores[rows, columns] = self.pair_scores(np.asarray(queries)[rows], found[rows, columns])
        return found.astype(np.int32), scores

    def best_unused(self, query: int, k: int, unused: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The k documents with unused[d] that follow `query`."""
        place = self._place[query]
        start, stop = self._start[place], self._stop[place]
        following = np.concatenate([self.order[place + 1 : stop], self.order[start:place]])
        found = following[unused[following]][:k]
        return found, self.pair_scores(np.full(len(found), query), found)

    def pair_scores(self, queries: np.ndarray, documents: np.ndarray) -> np.ndarray:
        """float64 [P]."""
        same = self.groups[queries] == self.groups[documents]
        if self._directories is None:
            return same.astype(np.float64)
        pairs = zip(same.tolist(), np.asarray(queries).tolist(), np.asarray(documents).tolist(), strict=True)
        tree = self._directories
        return np.array([1.0 + _common(tree[a], tree[b]) if together else 0.0 for together, a, b in pairs])

    def subset(self, documents: np.ndarray) -> GroupOrder:
        """The same order of some documents (ascending), renumbered."""
        number = np.full(self.n_documents, -1, np.int64)
        number[documents] = np.arange(len(documents))
        order = number[self.order]
        directories = None if self._directories is None else [self._directories[d] for d in documents.tolist()]
        return GroupOrder(self.groups[documents], order[order >= 0], directories)


def repository_order(pack: Pack, seed: int) -> GroupOrder:
    """Repositories in seeded order, each with its files depth first: a directory's own files, then its directories.

    A document without a repository counts to its source, one without a path lies at the root under its id.
    """
    sources, repos = pack.strings("source"), pack.strings("repo")
    groups, names = _numbered([(s, r or "") for s, r in zip(sources, repos, strict=True)])
    turn = np.argsort(permutation(len(names), seed, "repositories", pack.number))
    paths = [path or name or "" for path, name in zip(pack.strings("path"), pack.strings("id"), strict=True)]
    places = [PurePosixPath(path).parts for path in paths]
    keys = [
        (int(turn[group]), *((1, part) for part in place[:-1]), (0, place[-1] if place else ""))
        for group, place in zip(groups.tolist(), places, strict=True)
    ]
    order = np.array(sorted(range(len(keys)), key=keys.__getitem__), np.int64)
    return GroupOrder(groups, order, [place[:-1] for place in places])


def domain_order(pack: Pack, domain: str, seed: int) -> GroupOrder:
    """The documents of each domain in a seeded random order. domain: "repo", "extension" or "field" (the column `domain`)."""
    groups, _ = _numbered(domains(pack, domain))
    shuffled = permutation(pack.n_documents, seed, "domain", pack.number)
    return GroupOrder(groups, shuffled[np.argsort(groups[shuffled], kind="stable")])


def domains(pack: Pack, domain: str) -> list[str | None]:
    """Each document's domain; None where it has none."""
    if domain == "repo":
        repos = zip(pack.strings("source"), pack.strings("repo"), strict=True)
        return [None if repo is None else f"{source}\0{repo}" for source, repo in repos]
    if domain == "extension":
        return [None if path is None else PurePosixPath(path).suffix.lower() for path in pack.strings("path")]
    return pack.strings("domain")


def _numbered(names: Sequence[object]) -> tuple[np.ndarray, list[object]]:
    """int64 [N], a number for each different name, and the names."""
    known: dict[object, int] = {}
    return np.array([known.setdefault(name, len(known)) for name in names], np.int64), list(known)


def _common(a: tuple[str, ...], b: tuple[str, ...]) -> int:
    n = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        n += 1
    return n
