"""Expert layers as loops over tokens and experts, in float64, and small layers with weights to compare them with."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from splice.train.experts.layer import expert_layer


def network(up, down, x, activation="swiglu"):
    """One expert on one token."""
    h = up @ x
    if activation == "swiglu":
        gate, value = h[: len(h) // 2], h[len(h) // 2 :]
        a = gate / (1 + torch.exp(-gate)) * value
    elif activation == "relu":
        a = h.clamp(min=0)
    else:
        a = 0.5 * h * (1 + torch.erf(h / 2**0.5))
    return down @ a


def softmax(x):
    powers = torch.exp(x - x.max())
    return powers / powers.sum()


def best(scores, n):
    """Places of the n highest, the first of equals first."""
    return sorted(range(len(scores)), key=lambda i: (-float(scores[i].detach()), i))[:n]


def token_choice(config, weights, x):
    """Outputs [B, T, D], and the balance and z losses."""
    out, first, mass, squares = torch.zeros_like(x), [0] * config.count, 0, 0
    for b in range(x.shape[0]):
        for t in range(x.shape[1]):
            logits = weights["gate.weight"] @ x[b, t]
            shares = softmax(logits)
            chosen = best(shares, config.active)
            total = sum(shares[e] for e in chosen) if config.renormalise else 1.0
            out[b, t] = sum(
                shares[e]
                / total
                * network(weights["up"][e], weights["experts.down_proj"][e], x[b, t], config.activation)
                for e in chosen
            )
            for e in chosen:
                first[e] += 1
            mass, squares = mass + shares, squares + torch.logsumexp(logits, 0) ** 2
    n = x.shape[0] * x.shape[1]
    balance = config.count * sum(mass[e] / n * first[e] / (n * config.active) for e in range(config.count))
    return out, balance, squares / n


def expert_choice(config, weights, x):
    out = torch.zeros_like(x)
    each = config.group * config.active // config.count
    for start in range(0, x.shape[0], config.group):
        rows = range(start, start + config.group)
        for t in range(x.shape[1]):
            shares = {b: softmax(weights["gate.weight"] @ x[b, t]) for b in rows}
            for e in range(config.count):
                for i in best([shares[b][e] for b in rows], each):
                    b = rows[i]
                    y = network(weights["up"][e], weights["experts.down_proj"][e], x[b, t], config.activation)
                    out[b, t] = out[b, t] + shares[b][e] * y
    centred = out - out.mean(-1, keepdim=True)
    scaled = centred / (centred.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt()
    return scaled * weights["norm.weight"] + weights["norm.bias"]


def mixture_of_tokens(config, weights, x):
    out = torch.zeros_like(x)
    for start in range(0, x.shape[0], config.group):
        rows = range(start, start + config.group)
        for t in range(x.shape[1]):
            for e in range(config.count):
                share = softmax(torch.stack([weights["gate.weight"][e] @ x[b, t] for b in rows]))
                mix = sum(share[i] * x[b, t] for i, b in enumerate(rows))
                y = network(weights["up"][e], weights["experts.down_proj"][e], mix, config.activation)
                for i, b in enumerate(rows):
                    out[b, t] = out[b, t] + share[i] * y
    return out


def threshold(config, weights, x):
    """Outputs with the straight-through gradient, and the mean of the gates."""
    out, gates = torch.zeros_like(x), []
    for b in range(x.shape[0]):
        for t in range(x.shape[1]):
            shares = 1 / (1 + torch.exp(-(weights["gate.weight"] @ x[b, t])))
            on = [bool(share > config.tau) for share in shares]
            gates.append(shares.mean())
            for e in range(config.count):
                gate = float(on[e]) + shares[e] - shares[e].detach()
                y = network(weights["up"][e], weights["experts.down_proj"][e], x[b, t], config.activation)
                out[b, t] = out[b, t] + config.count / max(1, sum(on)) * gate * y
    return out, sum(gates) / len(gates)


def make_layer(config, hidden_size=12, mlp_size=16, seed=0):
    """A layer whose weights are large enough to matter, and the same in float64, with gradients, by name."""
    layer = expert_layer(config, hidden_size, mlp_size)
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in layer.named_parameters():
            noise = torch.randn(weight.shape, generator=draw)
            weight.copy_(1 + 0.2 * noise if name == "norm.weight" else noise / weight.shape[-1] ** 0.5)
    return layer, exact(layer)


def exact(layer):
    weights = {name: weight.detach().double().requires_grad_() for name, weight in layer.named_parameters()}
    weights["up"] = weights[next(name for name in weights if name.endswith("up_proj"))]
    return weights


@pytest.fixture(scope="session")
def loops():
    return SimpleNamespace(
        network=network,
        token_choice=token_choice,
        expert_choice=expert_choice,
        mixture_of_tokens=mixture_of_tokens,
        threshold=threshold,
        make_layer=make_layer,
    )
