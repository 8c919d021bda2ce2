"""Models with expert layers: what a token sees, what is counted, what is read with a cache."""

import math
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from splice.train.attention import look
from splice.train.cache import Cache
from splice.train.experts.config import Experts
from splice.train.flops import CONVENTION, flops_per_token, memory_bytes, scaling_law_flops_per_token
from splice.train.fot import FoT
from splice.train.loss import cross_entropy
from splice.train.model import Llama, ModelConfig, initial

DENSE = ModelConfig(64, 32, 3, 4, 2, 8, 48, 32)
ROUTINGS = {
    "token choice": Experts("token_choice", 4, 2, (0, 1, 2), 4),
    "capacity": Experts("token_choice", 2, 2, (0, 1, 2), 2, capacity=0.6),
    "expert choice": Experts("expert_choice", 2, 2, (0, 1, 2), 2, group=4, balance=0.0),
    "mixture of tokens": Experts("mixture_of_tokens", 2, 2, (0, 1, 2), 2, group=2, balance=0.0),
    "threshold": Experts("threshold", 6, 1, (0, 2), 6, balance=0.0),
}


def make(experts, randomised, **changes):
    return randomised(Llama(replace(DENSE, experts=experts, **changes)))


def ids_of(rows, tokens, seed=0):
    return torch.randint(0, 64, (rows, tokens), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("name", ROUTINGS)
@pytest.mark.parametrize("training", [True, False])
def test_no_token_sees_its_future(name, training, randomised):
    """Another token at one place of one row changes no logits before that place, in any row."""
    model = make(ROUTINGS[name], randomised).train(training)
    ids, place = ids_of(4, 32), 20
    changed = ids.clone()
    changed[0, place] = (ids[0, place] + 7) % 64
    with torch.no_grad():
        before, after = model(ids), model(changed)
    rows = slice(0, 1) if name == "capacity" and training else slice(None)  # later rows come after all of the first
    assert (before - after)[rows, :place].abs().max() < 1e-4
    assert (before - after)[0, place:].abs().max() > 1e-2
    meets = (before - after)[1:, place:].abs().max() > 1e-3
    across = {"expert choice", "mixture of tokens"} | ({"capacity"} if training else set())
    assert bool(meets) == (name in across)


@pytest.mark.parametrize("name", ["expert choice", "mixture of tokens"])
def test_why_negatives_of_fot_are_refused_with_a_choice_across_rows(name, randomised):
    """Memory layers that see ends of other rows would show a token its own future, through the experts; by itself they do not."""
    fot = FoT((0, 1, 2), 8, 3)
    for reach, leaks in ((3, False), (6, True)):
        model = make(ROUTINGS[name], randomised, fot=replace(fot, cross_batch_range=reach))
        ids = ids_of(4, 32)
        changed = ids.clone()
        changed[1, 31] = (ids[1, 31] + 7) % 64
        with torch.no_grad():
            difference = (model(ids) - model(changed))[1, :31].abs().max()
        assert (difference > 1e-3) == leaks


@pytest.mark.parametrize("name", ["token choice", "capacity", "threshold", "mixture of one"])
def test_a_text_read_with_a_cache_has_the_logits_of_the_whole(name, randomised):
    """And so training and inference agree: for a mixture of tokens where groups are of one token."""
    experts = ROUTINGS.get(name) or replace(ROUTINGS["mixture of tokens"], group=1)
    model, ids = make(experts, randomised), ids_of(1, 32)
    with torch.no_grad():
        trained = model.train()(ids)
        whole = model.eval()(ids)
        cache = Cache()
        parts = torch.cat([model(ids[:, a:b], cache=cache) for a, b in ((0, 9), (9, 10), (10, 32))], 1)
    torch.testing.assert_close(parts, whole, rtol=0, atol=1e-4)
    if name != "capacity":
        torch.testing.assert_close(trained, whole, rtol=0, atol=1e-4)


def test_documents_do_not_meet_in_token_choice(randomised):
    model, ids = make(ROUTINGS["token choice"], randomised), ids_of(1, 32)
    documents = torch.tensor([[0] * 12 + [1] * 20])
    with torch.no_grad():
        both = model(ids, sight=look(1, 32, None, documents, ids.device))
        first = model(ids[:, :12])
    torch.testing.assert_close(both[:, :12], first, rtol=0, atol=1e-4)


def test_the_loss_is_that_of_tokens_and_its_gradient_that_of_the_routers_too(randomised):
    experts = replace(ROUTINGS["token choice"], balance=0.7, z=0.3)
    model, ids, targets = make(experts, randomised), ids_of(2, 32), ids_of(2, 32, 1)
    targets[:, 30:] = -100
    loss = model(ids, targets)
    with torch.no_grad():
        logits = model(ids)
    alone = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")
    assert loss.item() == pytest.approx(alone.item(), rel=1e-6)
    loss.backward()
    found = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    plain = cross_entropy(model.hidden(ids).flatten(0, 1), model.lm_head.weight, targets.flatten())
    routers = sum(record.loss for record in model.records.values())
    (plain + 60 * routers).backward()  # 2 x 30 targets
    for name, p in model.named_parameters():
        torch.testing.assert_close(found[name], p.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("jitter", [0.0, 0.2])
def test_recomputed_activations_change_nothing(jitter, randomised):
    model = make(replace(ROUTINGS["token choice"], jitter=jitter, z=0.1), randomised).train()
    ids, targets, grads = ids_of(2, 32), ids_of(2, 32, 1), []
    for model.recompute in (False, True):
        torch.manual_seed(0)
        model(ids, targets).backward()
        grads.append({name: p.grad.clone() for name, p in model.named_parameters()})
        model.zero_grad()
    assert all(torch.equal(grads[0][name], grads[1][name]) for name in grads[0])


def test_recomputation_takes_the_routes_that_were_taken(randomised, monkeypatch):
    from splice.train.kernels import plain

    seen, route = [], plain.route
    monkeypatch.setattr(plain, "route", lambda *a: seen.append(a) or route(*a))
    model = make(ROUTINGS["token choice"], randomised).train()
    model.recompute = True
    model(ids_of(2, 32), ids_of(2, 32, 1)).backward()
    assert len(seen) == 3  # once a layer


@pytest.mark.parametrize("name", ROUTINGS)
@pytest.mark.parametrize("activation", ["swiglu", "gelu"])
@pytest.mark.parametrize("tied", [True, False])
def test_parameters_are_counted_as_they_are(name, activation, tied):
    config = replace(DENSE, experts=replace(ROUTINGS[name], activation=activation), tied=tied)
    with torch.device("meta"):
        weights = dict(Llama(config).named_parameters())
    assert config.parameters == sum(weight.numel() for weight in weights.values())
    experts = config.experts
    active = sum(
        weight.numel() * (experts.computed / experts.count if ".experts." in name else 1)
        for name, weight in weights.items()
    )
    assert config.active_parameters == active
    norms = sum(weight.numel() for name, weight in weights.items() if "norm" in name)
    assert config.matmul_parameters == active - norms - (0 if tied else 64 * 32)


def test_experts_of_any_granularity_cost_what_the_dense_layer_does():
    for granularity, expansion in ((1, 8), (4, 2), (8, 16)):
        experts = Experts("token_choice", granularity, expansion, (0, 1, 2), granularity)
        config = replace(DENSE, experts=experts)
        routers = 3 * 32 * granularity * expansion
        assert config.active_parameters == DENSE.parameters + routers
        assert config.parameters == DENSE.parameters + routers + (expansion - 1) * 3 * 3 * 32 * 48
        assert flops_per_token(config, 32) == flops_per_token(DENSE, 32) + 6 * routers
    mixed = replace(DENSE, experts=Experts("mixture_of_tokens", 4, 8, (0,), 4, group=8))
    assert mixed.active_parameters == DENSE.parameters + 32 * 32
    assert flops_per_token(mixed, 32) == flops_per_token(DENSE, 32) + 6 * 3 * 32 * 32  # controller, mixing and back
    assert "6 N" in CONVENTION


def test_flops_of_the_scaling_law_are_the_papers():
    """(12 d^2 c_f + d R G c_r) n_blocks a token; G = 8, R = 16 adds 1.6% to a dense block of d = 1024... by hand."""
    config = replace(DENSE, hidden_size=1024, layers=12, experts=Experts("token_choice", 8, 16, tuple(range(12)), 8))
    assert scaling_law_flops_per_token(config) == (12 * 1024**2 * 6 + 1024 * 128 * 14) * 12


def test_memory_of_experts_is_x_and_h():
    config = replace(DENSE, mlp_size=64, experts=Experts("token_choice", 4, 2, (0, 1, 2), 4))
    dense = memory_bytes(replace(DENSE, mlp_size=64), 1, 32, 1, 4, False, 1)
    found = memory_bytes(config, 1, 32, 1, 4, False, 1)
    logits = 4 * 32 * 3 * 8
    assert dense["activations"] - found["activations"] + logits == 4 * 32 * 3 * 64  # H has two of three
    shared = memory_bytes(config, 1, 32, 2, 4, False, 1, expert_size=2)
    assert shared["activations"] - found["activations"] == 4 * 32 * 3 * 4 * 32  # tokens from the other rank
    assert found["weights, gradients, moments"] == 16 * config.parameters
    assert found["experts at work"] == 4 * 32 * (4 * 32 + 2 * 64 + 2 * 64)


def test_first_weights_of_experts_are_cut_normals_of_a_tenth_over_the_fan_in():
    for name, shape in {
        "model.layers.0.mlp.experts.gate_up_proj": (8, 64, 300),
        "model.layers.0.mlp.experts.down_proj": (8, 300, 64),
        "model.layers.0.mlp.gate.weight": (80, 300),
    }.items():
        drawn, std = initial(name, torch.Size(shape), DENSE, 0), math.sqrt(0.1 / shape[-1])
        assert drawn.abs().max() <= 2 * std
        assert drawn.std().item() == pytest.approx(0.8796 * std, rel=0.02)  # what cutting at two leaves of it
    assert initial("model.layers.0.mlp.norm.bias", torch.Size((8,)), DENSE, 0).eq(0).all()
    assert initial("model.layers.0.mlp.norm.weight", torch.Size((8,)), DENSE, 0).eq(1).all()


def test_no_copy_of_the_tokens_is_kept_for_the_router(randomised):
    """X and H, in their own dtype, and what is small: logits, weights, the schedule."""
    layer = make(ROUTINGS["token choice"], randomised).model.layers[0].mlp
    x, kept = torch.randn(4, 32, 32, dtype=torch.bfloat16, requires_grad=True), []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        layer(x)
    of_tokens = {(t.dtype, tuple(t.shape)) for t in kept if t.numel() >= x.numel()}
    weights = {(torch.bfloat16, (8, 24, 32)), (torch.bfloat16, (8, 32, 12))}
    assert of_tokens - weights <= {(torch.bfloat16, (128, 32)), (torch.bfloat16, (4 * 128, 24))}


@pytest.mark.parametrize("name", ["expert choice", "mixture of tokens"])
def test_an_evaluation_is_of_whole_groups(name, randomised):
    """Copies of the last row, which fill up its last batch, meet no row that counts."""
    from splice.train.evaluate import evaluated

    experts = ROUTINGS[name]
    assert evaluated(11, None, experts) == 11 - 11 % experts.group
    assert evaluated(11, 6, experts) == 6 - 6 % experts.group
    assert evaluated(11, 6, replace(experts, group=1)) == evaluated(11, 6, None) == 6
    assert evaluated(11, None, ROUTINGS["token choice"]) == 11


def test_a_compiled_block_has_no_break(randomised):
    model = make(ROUTINGS["token choice"], randomised)
    ids, targets = ids_of(2, 32), ids_of(2, 32, 1)
    model(ids, targets).backward()
    wanted = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    for block in model.model.layers:
        block.compile(fullgraph=True)
    model(ids, targets).backward()
    for name, p in model.named_parameters():
        torch.testing.assert_close(p.grad, wanted[name], rtol=1e-3, atol=1e-4)
