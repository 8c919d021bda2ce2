"""Who computes what: the double CSR of assignments against sorting pairs."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from splice.train.kernels import schedule

pytestmark = pytest.mark.usefixtures("no_memory_is_zero")


@st.composite
def assignments(draw):
    """(experts, token or None, E, T): some name expert E, which is none; with a list of tokens, some have no assignment."""
    count, tokens = draw(st.integers(1, 9)), draw(st.integers(1, 30))
    expert = st.integers(0, count)
    if draw(st.booleans()):
        size = tokens * draw(st.integers(0, 4))
        return draw(st.lists(expert, min_size=size, max_size=size)), None, count, tokens
    pairs = draw(st.lists(st.tuples(expert, st.integers(0, tokens - 1)), max_size=90))
    return [e for e, _ in pairs], [t for _, t in pairs], count, tokens


def as_tensor(numbers):
    return None if numbers is None else torch.tensor(numbers, dtype=torch.int32)


def check(reference, backend, experts, token, count, tokens):
    got = schedule(as_tensor(experts), count, tokens, as_tensor(token), backend)
    per_token = len(experts) // tokens
    wanted = reference.schedule(experts, token or [i // per_token for i in range(len(experts))], count, tokens)
    for name, tensor, numbers in zip(got._fields, got, wanted, strict=True):
        assert tensor.dtype == torch.int32
        assert tensor.tolist() == numbers, name


@settings(max_examples=60)
@given(assignments())
def test_it_is_the_sorted_list_of_pairs(reference, backend, case):
    check(reference, backend, *case)


@pytest.mark.parametrize("listed", [False, True])
def test_more_assignments_than_one_program_sorts(reference, backend, listed):
    draw = torch.Generator().manual_seed(0)
    experts = torch.randint(6, (700,), generator=draw).tolist()
    token = torch.randint(100, (700,), generator=draw).tolist() if listed else None
    check(reference, backend, experts, token, 5, 100)


def test_a_block_boundary_within_one_expert_keeps_the_order(reference, backend):
    check(reference, backend, [3] * 513, None, 4, 513)


def test_no_tokens(backend):
    plan = schedule(as_tensor([]), 3, 0, backend=backend)
    assert [part.tolist() for part in plan] == [[0, 0, 0, 0], [], [], [0], []]


def test_experts_of_every_token_in_a_table(reference, backend):
    table = torch.tensor([[2, 0], [1, 2], [0, 1]], dtype=torch.int32)
    wanted = reference.schedule([2, 0, 1, 2, 0, 1], [0, 0, 1, 1, 2, 2], 3, 3)
    assert [part.tolist() for part in schedule(table, 3, 3, backend=backend)] == list(wanted)


@pytest.mark.parametrize("wrong", [-1, 4, 2**31 - 1])
def test_an_expert_that_there_is_not_is_none_to_the_kernels(reference, backend, wrong):
    """They would write where nothing is theirs."""
    if backend == "plain":
        pytest.skip("counts what it is given")
    plan = schedule(as_tensor([1, wrong, 0, 2]), 3, 4, backend=backend)
    assert [part.tolist() for part in plan] == list(reference.schedule([1, 3, 0, 2], [0, 1, 2, 3], 3, 4))
