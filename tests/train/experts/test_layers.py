"""Each routing computes what a loop over tokens and experts computes: outputs, losses, the gradient of every weight."""

import pytest

torch = pytest.importorskip("torch")

from splice.train.experts.config import Experts
from splice.train.experts.token_choice import capacity, within_capacity

CASES = {
    "switch": Experts("token_choice", 1, 4, (0,), 1, renormalise=False, z=0.01),
    "top 2": Experts("token_choice", 2, 3, (0,), 2),
    "top 2, as they are": Experts("token_choice", 2, 3, (0,), 2, renormalise=False),
    "fine": Experts("token_choice", 8, 2, (0,), 8, balance=0.1, z=0.1),
    "more active than G": Experts("token_choice", 2, 3, (0,), 5),
    "relu": Experts("token_choice", 4, 2, (0,), 4, activation="relu"),
    "gelu": Experts("token_choice", 4, 2, (0,), 4, activation="gelu"),
    "expert choice": Experts("expert_choice", 1, 4, (0,), 1, group=4, balance=0.0),
    "expert choice, fine": Experts("expert_choice", 4, 2, (0,), 4, group=2, balance=0.0),
    "expert choice, gelu, one group": Experts("expert_choice", 2, 2, (0,), 2, "gelu", group=8, balance=0.0),
    "mixture of tokens": Experts("mixture_of_tokens", 1, 4, (0,), 1, group=4, balance=0.0),
    "mixture of tokens, fine": Experts("mixture_of_tokens", 4, 2, (0,), 4, group=2, balance=0.0),
    "mixture of one token": Experts("mixture_of_tokens", 2, 2, (0,), 2, "relu", group=1, balance=0.0),
    "threshold": Experts("threshold", 4, 1, (0,), 4, sparsity=0.3, balance=0.0),
    "threshold, most off": Experts("threshold", 8, 1, (0,), 8, tau=0.75, balance=0.0),
}


@pytest.mark.parametrize("name", CASES)
def test_a_layer_is_a_loop_over_tokens(name, loops, agree):
    config = CASES[name]
    layer, weights = loops.make_layer(config)
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(8, 3, 12, generator=draw)
    exact_x = x.double().requires_grad_()
    x.requires_grad_()
    slope = torch.randn(x.shape, generator=draw)
    out, record = layer(x)
    found = getattr(loops, config.routing)(config, weights, exact_x)
    wanted = found if isinstance(found, torch.Tensor) else found[0]
    loss = torch.zeros((), dtype=torch.float64)
    if config.routing == "token_choice":
        _, balance, z = found
        loss = config.balance * balance + config.z * z
        agree(record.balance, balance.detach(), 1e-5)
        agree(record.z, z.detach(), 1e-5)
    elif config.routing == "threshold":
        loss = config.sparsity * found[1]
    agree(out.detach(), wanted.detach(), 1e-5)
    agree(record.loss.detach() + 1, loss.detach() + 1, 1e-6)
    ((out * slope).sum() + record.loss).backward()
    ((wanted * slope).sum() + loss).backward()
    agree(x.grad, exact_x.grad, 1e-4)
    for parameter, p in layer.named_parameters():
        if config.routing == "mixture_of_tokens" and config.group == 1 and parameter == "gate.weight":
            assert not p.grad.any()  # of one token there is nothing to mix
        else:
            agree(p.grad, weights[parameter].grad, 1e-4)


@pytest.mark.parametrize("name", ["top 2", "expert choice", "threshold"])
def test_what_is_told_is_what_was_done(name, loops):
    config = CASES[name]
    layer, _ = loops.make_layer(config)
    x = torch.randn(8, 3, 12, generator=torch.Generator().manual_seed(1))
    _, record = layer(x)
    shares = layer.gate(x.flatten(0, 1))
    if name == "top 2":
        chosen = shares.topk(2).indices.flatten()
        assert record.load.tolist() == torch.bincount(chosen, minlength=6).tolist()
        assert (record.dropped, record.assigned) == (0, 48)
        assert record.entropy.item() == pytest.approx(
            torch.distributions.Categorical(logits=shares).entropy().mean().item(), rel=1e-5
        )
    elif name == "expert choice":
        assert record.load.tolist() == [6] * 4  # a quarter of 24 tokens each
        taken = set()
        for t in range(3):
            for start in (0, 4):
                some = shares.softmax(-1).view(8, 3, 4)[start : start + 4, t]
                taken |= {(start + int(row), t) for row in some.argmax(0)}
        assert record.dropped == 24 - len(taken) > 0
    else:
        assert record.load.tolist() == (shares.sigmoid() > 0.5).sum(0).tolist()
        assert record.dropped == (shares.sigmoid() <= 0.5).all(1).sum()


def test_a_capacity_keeps_the_first_tokens_and_counts_the_others(loops, agree):
    config = Experts("token_choice", 2, 2, (0,), 2, capacity=0.5)
    layer, weights = loops.make_layer(config)
    x = torch.randn(3, 8, 12, generator=torch.Generator().manual_seed(1))
    out, record = layer(x)
    most = capacity(config, 24)
    assert most == 6  # half of 24 tokens x 2 over 4 experts
    taken, dropped = [0] * 4, 0
    wanted = torch.zeros(24, 12, dtype=torch.float64)
    for i, token in enumerate(x.flatten(0, 1).double()):
        shares = (weights["gate.weight"] @ token).softmax(0)
        values, chosen = shares.topk(2)
        for e, w in zip(chosen.tolist(), values / values.sum(), strict=True):
            if taken[e] < most:
                wanted[i] += w * loops.network(weights["up"][e], weights["experts.down_proj"][e], token)
                taken[e] += 1
            else:
                dropped += 1
    agree(out.flatten(0, 1).detach(), wanted.detach(), 1e-5)
    assert record.dropped == dropped > 0
    assert record.load.tolist() == taken
    _, free = layer.eval()(x)
    assert free.dropped == 0  # at inference everything is computed


def test_no_later_token_displaces_an_earlier_one():
    """A later token's first choice comes after an earlier token's last one."""
    chosen = torch.tensor([[0, 1], [1, 2], [1, 0], [1, 2]], dtype=torch.int32)
    kept, wanted = within_capacity(chosen.flatten(), 3, 2)
    assert kept.tolist() == [0, 1, 1, 2, 3, 0, 3, 2]
    assert wanted.tolist() == [2, 4, 2]


def test_jitter_scales_the_routers_input_in_training_alone(loops):
    config = Experts("token_choice", 2, 2, (0,), 2, jitter=0.3)
    layer, _ = loops.make_layer(config)
    x = torch.randn(2, 4, 12)
    torch.manual_seed(0)
    one = layer(x)[1].entropy
    assert layer(x)[1].entropy != one
    torch.manual_seed(0)
    assert layer(x)[1].entropy == one
    assert layer.eval()(x)[1].entropy == layer(x)[1].entropy
    layer.train().gate.weight.data.fill_(1.0)
    with torch.no_grad():
        ratios = layer.gate(torch.eye(12), 0.3)[:, 0]  # each logit is one scaled value
    assert ratios.min() >= 0.7
    assert ratios.max() <= 1.3
    assert ratios.std() > 0.05


def test_the_router_computes_in_float32_whatever_the_layer_does(loops):
    config = CASES["top 2"]
    layer, _ = loops.make_layer(config)
    x = torch.randn(2, 4, 12).bfloat16()
    assert layer.gate(x).dtype == torch.float32
    assert torch.equal(layer.gate(x), x.float() @ layer.gate.weight.T)
    out, record = layer(x)
    assert out.dtype == torch.bfloat16
    assert record.loss.dtype == torch.float32


@pytest.mark.parametrize("training", [True, False])
def test_slices_that_are_all_on_are_the_dense_layer(training, agree):
    from splice.train.experts.starts import as_first_values
    from splice.train.model import MLP, Llama, ModelConfig

    dense = ModelConfig(64, 32, 2, 4, 2, 8, 48, 16)
    sliced = ModelConfig(64, 32, 2, 4, 2, 8, 48, 16, experts=Experts("threshold", 6, 1, (1,), 6, tau=0.4, balance=0.0))
    draw = torch.Generator().manual_seed(0)
    whole, cut = Llama(dense), Llama(sliced).train(training)
    with torch.no_grad():
        for p in whole.parameters():
            p.copy_(torch.randn(p.shape, generator=draw) / p.shape[-1] ** 0.5)
    values = dict(as_first_values(whole.state_dict().items(), dense, sliced))
    missing = cut.load_state_dict(values, strict=False).missing_keys
    assert missing == ["model.layers.1.mlp.gate.weight"]
    assert isinstance(cut.model.layers[0].mlp, MLP)
    torch.nn.init.zeros_(cut.model.layers[1].mlp.gate.weight)  # every gate is at 0.5, above 0.4
    ids = torch.randint(0, 64, (2, 16), generator=draw)
    with torch.set_grad_enabled(training):
        agree(cut(ids).detach(), whole(ids).detach(), 1e-5)


def test_slices_that_are_off_are_not_computed_outside_training(loops, monkeypatch):
    from splice.train.experts import weights as module

    layer, _ = loops.make_layer(CASES["threshold, most off"])
    x, seen = torch.randn(2, 4, 12), []
    before = module.schedule
    monkeypatch.setattr(module, "schedule", lambda *a: seen.append(before(*a)) or seen[-1])
    trained, record = layer(x)
    with torch.no_grad():
        used, _ = layer.eval()(x)
    torch.testing.assert_close(trained.detach(), used)
    assert seen[0].offsets[-1] == 8 * 8
    assert seen[1].offsets[-1] == record.load.sum() < 8 * 8 / 2
