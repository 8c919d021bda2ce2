"""Rows of slots from tokens and back: each is a loop, and the gradient of the other."""

import pytest

torch = pytest.importorskip("torch")

from splice.train.kernels import combine, gather, schedule


@pytest.mark.parametrize("listed", [False, True])
def test_rows_are_gathered_and_summed_by_token(listed):
    draw = torch.Generator().manual_seed(0)
    chosen = torch.randint(6, (4 * 11,), generator=draw, dtype=torch.int32)  # of 5 experts; 5 is none
    token = torch.randint(11, chosen.shape, generator=draw, dtype=torch.int32) if listed else None
    plan = schedule(chosen, 5, 11, token)
    owner = token if listed else torch.arange(44) // 4
    count = int(plan.offsets[-1])
    assert count == int((chosen < 5).sum())
    x = torch.randn(11, 3, generator=draw, dtype=torch.float64, requires_grad=True)
    rows = gather(x, plan, count)
    order = sorted((i for i in range(44) if chosen[i] < 5), key=lambda i: (int(chosen[i]), i))
    assert torch.equal(rows, x[owner[order].long()])
    given = torch.randn(count, 3, generator=draw, dtype=torch.float64, requires_grad=True)
    sums = combine(given, plan, 11)
    for t in range(11):
        own = [given[place] for place, i in enumerate(order) if owner[i] == t]
        torch.testing.assert_close(sums[t], sum(own, torch.zeros(3, dtype=torch.float64)))
    assert torch.autograd.gradcheck(lambda x: gather(x, plan, count), x)
    assert torch.autograd.gradcheck(lambda rows: combine(rows, plan, 11), given)


def test_sums_are_in_float32_and_nothing_is_kept():
    plan = schedule(torch.zeros(300, dtype=torch.int32), 1, 1)
    rows = torch.full((300, 2), 1.0, dtype=torch.bfloat16, requires_grad=True)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        assert combine(rows, plan, 1).tolist() == [[300.0, 300.0]]  # a sum in bfloat16 stops at 256
    assert all(t.dtype == torch.int32 for t in kept)
