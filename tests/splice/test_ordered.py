"""The retrievers that follow an order: a literal walk of the tree, and the protocol under any mask."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from splice.graph import MaskedGraph
from splice.ordered import GroupOrder, domain_order, domains, repository_order
from splice.walk import WalkSettings, walk


class Columns:
    """As much of a pack as an order looks at."""

    number = 3

    def __init__(self, **columns: list) -> None:
        self.columns = columns
        self.n_documents = len(columns["id"])

    def strings(self, column: str) -> list:
        return self.columns.get(column, [None] * self.n_documents)


def tree_pack(seed: int, n: int = 120) -> Columns:
    rng = random.Random(seed)
    names = ["a", "b", "ab", "a.c", "a-b", "Z", "é"]
    paths = set()
    while len(paths) < n:
        paths.add("/".join([*rng.choices(names, k=rng.randrange(4)), f"{rng.choice(names)}{rng.randrange(40)}.py"]))
    paths = sorted(paths)
    rng.shuffle(paths)
    repos = [rng.choice(["r0", "r1", None]) for _ in paths]
    return Columns(id=[f"id{i}" for i in range(n)], source=["s"] * n, repo=repos, path=paths)


def depth_first(paths: dict[int, str]) -> list[int]:
    """A walk of the directory tree as one would write it down: a directory's files by name, then its directories by name."""
    files, directories = {}, {}
    for number, path in paths.items():
        head, slash, rest = path.partition("/")
        if slash:
            directories.setdefault(head, {})[number] = rest
        else:
            files[number] = head
    order = sorted(files, key=files.__getitem__)
    for name in sorted(directories):
        order += depth_first(directories[name])
    return order


@pytest.mark.parametrize("seed", range(5))
def test_a_repository_is_walked_depth_first(seed):
    pack = tree_pack(seed)
    order = repository_order(pack, seed)
    ranked = order.groups[order.order].tolist()
    groups = list(dict.fromkeys(ranked))
    assert [ranked.count(g) for g in groups] == [
        len(list(run)) for run in np.split(ranked, np.flatnonzero(np.diff(ranked)) + 1)
    ]
    for group in groups:
        members = np.flatnonzero(order.groups == group).tolist()
        assert len({pack.strings("repo")[d] for d in members}) == 1
        expected = depth_first({d: pack.strings("path")[d] for d in members})
        assert [d for d in order.order.tolist() if order.groups[d] == group] == expected


def test_repositories_come_in_an_order_that_the_seed_draws():
    pack = Columns(id=list("abcdefgh"), source=["s"] * 8, repo=list("abcdefgh"), path=list("abcdefgh"))
    orders = {tuple(repository_order(pack, seed).order.tolist()) for seed in range(20)}
    assert len(orders) > 10


def test_a_pair_scores_by_the_directories_it_shares():
    paths = ["a/b/x.c", "a/b/y.c", "a/z.c", "w.c", "a/b/x.c"]
    pack = Columns(id=paths, source=["s"] * 5, repo=["r", "r", "r", "r", "q"], path=paths)
    order = repository_order(pack, 0)
    first = np.zeros(5, np.int64)
    assert order.pair_scores(first, np.arange(5)).tolist() == [3.0, 3.0, 2.0, 1.0, 0.0]


@given(st.integers(1, 25), st.integers(1, 5), st.integers(0, 10**6), st.integers(1, 30))
def test_the_protocol(n, most_groups, seed, m):
    rng = np.random.default_rng(seed)
    groups = rng.integers(0, most_groups, n)
    shuffled = rng.permutation(n)
    order = GroupOrder(groups, shuffled[np.argsort(groups[shuffled], kind="stable")])

    def following(query: int, allowed: np.ndarray) -> list[int]:
        mine = [d for d in order.order.tolist() if groups[d] == groups[query]]
        at = mine.index(query)
        return [d for d in mine[at + 1 :] + mine[:at] if allowed[d]]

    documents, scores = order.neighbours(np.arange(n), m)
    unused = rng.random(n) < 0.5
    kept = np.flatnonzero(unused | (np.arange(n) == 0))
    cut = order.subset(kept)
    for q in range(n):
        expected = following(q, np.ones(n, bool))[:m]
        assert documents[q].tolist() == expected + [-1] * (m - len(expected))
        assert scores[q].tolist() == [1.0] * len(expected) + [0.0] * (m - len(expected))
        found, _ = order.best_unused(q, m, unused)
        assert found.tolist() == following(q, unused)[:m]
        if q in kept:
            found, _ = cut.best_unused(int(np.searchsorted(kept, q)), m, np.ones(len(kept), bool))
            allowed = np.isin(np.arange(n), kept)
            assert kept[found].tolist() == following(q, allowed)[:m]


def test_a_walk_of_repositories_reads_them_from_end_to_end():
    pack = tree_pack(7)
    order = repository_order(pack, 0)
    neighbours, scores = order.neighbours(np.arange(pack.n_documents), 4)
    graph = MaskedGraph(neighbours, scores, order, smallest_index=4)
    plan = walk(
        graph, np.full(pack.n_documents, 10), WalkSettings(2, 95, "identity", "restart", "trim", 0), 3, order.order
    )
    assert plan.document == order.order.tolist()
    edges = [(p, d) for p, d in zip(plan.parent, plan.document, strict=True) if p >= 0]
    assert all(order.groups[p] == order.groups[d] for p, d in edges)
    assert len(edges) > 90


def test_domains():
    pack = Columns(
        id=list("abcde"),
        source=["s", "s", "t", "t", "t"],
        repo=["r", "q", "r", None, "r"],
        path=["x.py", "d/y.C", None, "Makefile", "z.c"],
        domain=["news", None, "news", "law", ""],
    )
    assert domains(pack, "repo") == ["s\0r", "s\0q", "t\0r", None, "t\0r"]
    assert domains(pack, "extension") == [".py", ".c", None, "", ".c"]
    assert domains(pack, "field") == ["news", None, "news", "law", ""]
    groups = domain_order(pack, "extension", 0).groups.tolist()
    assert groups[1] == groups[4]
    assert len(set(groups)) == 4
    orders = {tuple(domain_order(pack, "field", seed).order.tolist()) for seed in range(30)}
    assert len(orders) > 1
