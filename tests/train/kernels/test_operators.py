"""The three functions as operators: what torch.compile is told of them is true, and compiled they give what they gave."""

from __future__ import annotations

import os

import pytest
import torch

from splice.train.kernels import experts, route, schedule

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
CHECKS = ["test_schema", "test_faketensor"]
if not INTERPRETED:
    CHECKS += ["test_autograd_registration"]
ALL_CHECKS = (
    CHECKS if INTERPRETED else [*CHECKS, "test_aot_dispatch_dynamic"]
)  # it adds outputs: integers must not be first


def make(tokens=9, depth=16, width=8, count=5, k=2):
    draw = torch.Generator().manual_seed(0)
    sizes = (tokens, depth), (tokens, count), (count, 2 * width, depth), (count, depth, width)
    return [torch.randn(size, generator=draw).requires_grad_() for size in sizes], k


def layer(x, logits, up, down, k, backend=None):
    routes = route(logits, k, True, backend)
    plan = schedule(routes.experts, up.shape[0], x.shape[0], backend=backend)
    out = experts(x, up, down, routes.weights.flatten(), plan, backend=backend)
    return out.square().sum() + 0.1 * routes.square + (routes.mass / x.shape[0]).square().sum(), out


def test_route_is_what_it_says(backend):
    (_, logits, *_), k = make()
    torch.library.opcheck(torch.ops.splice.route.default, (logits, k, True, backend), test_utils=CHECKS)


def test_the_gradient_of_route_is_what_it_says(backend):
    (_, logits, *_), k = make()
    routes = route(logits.detach(), k, True, backend)
    values = (routes.weights, routes.mass, routes.square, logits.detach(), routes.experts, True, backend)
    torch.library.opcheck(torch.ops.splice.route_backward.default, values, test_utils=ALL_CHECKS)


@pytest.mark.parametrize("listed", [False, True])
def test_schedule_is_what_it_says(backend, listed):
    token = torch.tensor([1, 0, 2, 2, 0, 1], dtype=torch.int32) if listed else None
    values = (torch.tensor([3, 0, 1, 2, 2, 0], dtype=torch.int32), token, 3, 3, backend)
    torch.library.opcheck(torch.ops.splice.schedule.default, values, test_utils=CHECKS)


@pytest.mark.parametrize("sideways", [False, True], ids=["contiguous", "sideways"])
def test_experts_and_their_gradient_are_what_they_say(backend, sideways):
    (x, logits, up, down), k = make()
    x, up, down = (value.detach().mT.contiguous().mT if sideways else value.detach() for value in (x, up, down))
    routes = route(logits.detach(), k, True, backend)
    plan = schedule(routes.experts, 5, 9, backend=backend)
    values = (x.requires_grad_(), up.requires_grad_(), down.requires_grad_(), routes.weights.flatten(), *plan)
    torch.library.opcheck(torch.ops.splice.experts.default, (*values, "swiglu", backend), test_utils=ALL_CHECKS)
    x, up, down, *rest = (value.detach() for value in values)
    h = torch.ops.splice.experts(x, up, down, *rest, "swiglu", backend)[1]
    values = (torch.randn(9, 16), x, h, up, down, *rest, "swiglu", backend)
    torch.library.opcheck(torch.ops.splice.experts_backward.default, values, test_utils=ALL_CHECKS)


@pytest.mark.skipif(INTERPRETED, reason="the interpreter is no target of a compiler")
def test_compiled_they_give_what_they_gave():
    torch._dynamo.reset()
    (*eager, k) = *make()[0], 2
    compiled = [value.detach().clone().requires_grad_() for value in eager]
    together = torch.compile(layer, fullgraph=True)
    for function, values in ((layer, eager), (together, compiled)):
        loss, out = function(*values, k)
        loss.backward()
        values.append(out.detach())
    for ours, theirs in zip(compiled[:4], eager[:4], strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)
    torch.testing.assert_close(compiled[4], eager[4])


def test_the_backends_agree_on_a_whole_layer(agree):
    from splice.train.kernels.backend import default_backend

    assert default_backend(torch.device("cpu")) == "plain"
    assert default_backend(torch.device("cuda")) == "triton"
    results = []
    for name in ["plain", "triton"] if INTERPRETED else ["plain", "grouped"]:
        values, k = make()
        loss, out = layer(*values, k, name)
        loss.backward()
        results.append([out.detach(), *(value.grad for value in values)])
    for ours, theirs in zip(*results, strict=True):
        agree(ours, theirs, 1e-5)
