"""A Llama: pre-norm blocks of RMSNorm, grouped-query attention with RoPE, and SwiGLU, dense or as a mixture of experts.

Modules carry Hugging Face's names (model.layers.3.self_attn.q_proj), so a state_dict loads either way as it is.
Features: any context extension of rope.py; FoT's memory layers; attention across or within documents; the loss in chunks;
weights in float32 with any compute dtype; recomputed activations, Ulysses context parallelism; the layers of experts/.

Shapes: B examples, T tokens (of this rank), D hidden size, H heads, G key-value heads, d head size, V vocabulary.
"""

from __future__ import annotations

import hashlib
import math
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from .attention import Sight, attention, look
from .experts.config import Experts
from .experts.layer import expert_layer
from .experts.record import Record
from .fot import FoT
from .loss import IGNORED, cross_entropy, token_losses, with_gradient_of
from .rope import Rope, cos_sin, frequencies, rotate

if TYPE_CHECKING:
    from .cache import Cache
    from .ulysses import Ulysses

INIT_STD = 0.02
EXPERT_INIT_SCALE = 0.1


@dataclass(frozen=True)
class ModelConfig:
    """The sizes of a model. length: the longest context it is made for, tokens. tied: one matrix embeds and predicts.

    mlp_size: d_ff of a dense layer; those of `experts.layers` have experts in its place.
    """

    vocab_size: int
    hidden_size: int
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    mlp_size: int
    length: int
    rope: Rope = field(default_factory=Rope)
    fot: FoT | None = None
    experts: Experts | None = None
    norm_eps: float = 1e-6
    tied: bool = False

    @property
    def parameters(self) -> int:
        """All of them."""
        return self._with_experts(0.0 if self.experts is None else self.experts.count)

    @property
    def active_parameters(self) -> int:
        """Those that compute one token, the embedding included; all, in a dense model."""
        return self._with_experts(0.0 if self.experts is None else self.experts.computed)

    @property
    def matmul_parameters(self) -> int:
        """Weights that a token is multiplied by: the N of 6 N FLOPs. The head is one of them, the embedding is not."""
        embedding = self.vocab_size * self.hidden_size * (not self.tied)
        return self.active_parameters - embedding - self.norm_parameters

    @property
    def norm_parameters(self) -> int:
        experts = self.experts
        layer_norms = len(experts.layers) if experts and experts.routing == "expert_choice" else 0
        return (2 * self.layers + 1 + 2 * layer_norms) * self.hidden_size

    def _with_experts(self, of_each_layer: float) -> int:
        """Parameters, if so many experts of an expert layer count."""
        attention = 2 * self.hidden_size * self.head_size * (self.heads + self.kv_heads)
        dense, experts = self.layers, 0.0
        if self.experts is not None:
            dense -= len(self.experts.layers)
            one = self.experts.matrices * self.hidden_size * (self.mlp_size // self.experts.granularity)
            experts = len(self.experts.layers) * (of_each_layer * one + self.experts.count * self.hidden_size)
        layers = self.layers * attention + dense * 3 * self.hidden_size * self.mlp_size + round(experts)
        return layers + self.vocab_size * self.hidden_size * (1 + (not self.tied)) + self.norm_parameters


class Linear(nn.Linear):
    """Weights stay float32; the product is in the input's dtype."""

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight.to(x.dtype))


class RMSNorm(nn.Module):
    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight.to(x.dtype), self.eps)


class Attention(nn.Module):
    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        self.layer = layer
        self.head_size = config.head_size
        self.memory = config.fot is not None and layer in config.fot.layers
        self.ulysses: Ulysses | None = None
        self.q_proj = Linear(config.hidden_size, config.heads * config.head_size, bias=False)
        self.k_proj = Linear(config.hidden_size, config.kv_heads * config.head_size, bias=False)
        self.v_proj = Linear(config.hidden_size, config.kv_heads * config.head_size, bias=False)
        self.o_proj = Linear(config.heads * config.head_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor, table: RopeTable, sight: Sight | None, cache: Cache | None) -> Tensor:
        q, k, v = (
            project(x).unflatten(-1, (-1, self.head_size)).transpose(1, 2)  # [B, H or G, T, d]
            for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        memory_k = k * table.scale if self.memory else None
        q = rotate(q, table.cos, table.sin).to(x.dtype)
        k = rotate(k, table.cos, table.sin).to(x.dtype)
        if cache is not None:
            out = cache.attend(self.layer, q, k, v, memory_k)
        elif self.ulysses is not None:
            out = self.ulysses.attention(q, k, v, sight, memory_k)
        else:
            assert sight is not None
            out = attention(q, k, v, sight, memory_k)
        return self.o_proj(out.transpose(1, 2).flatten(2))  # [B, T, D]


class MLP(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate_proj = Linear(config.hidden_size, config.mlp_size, bias=False)
        self.up_proj = Linear(config.hidden_size, config.mlp_size, bias=False)
        self.down_proj = Linear(config.mlp_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> tuple[Tensor, None]:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x)), None


class Block(nn.Module):
    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.norm_eps)
        self.self_attn = Attention(config, layer)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.norm_eps)
        expert = config.experts is not None and layer in config.experts.layers
        self.mlp = expert_layer(config.experts, config.hidden_size, config.mlp_size) if expert else MLP(config)

    def forward(
        self, x: Tensor, table: RopeTable, sight: Sight | None, cache: Cache | None
    ) -> tuple[Tensor, Record | None]:
        """The residual stream after the block, [B, T, D], and what its expert layer tells, where it is one."""
        x = x + self.self_attn(self.input_layernorm(x), table, sight, cache)
        out, record = self.mlp(self.post_attention_layernorm(x))
        return x + out, record


class Trunk(nn.Module):
    """Hugging Face's `model.`: everything but the head."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Block(config, layer) for layer in range(config.layers))
        self.norm = RMSNorm(config.hidden_size, config.norm_eps)


@dataclass(frozen=True)
class RopeTable:
    """cos, sin: float32 [T, d], of the positions of this rank's tokens; scale: cos at position 0."""

    cos: Tensor
    sin: Tensor
    scale: float


class Llama(nn.Module):
    """dtype: what is computed in; weights are float32. recompute: keep no activations within a block.

    records: what the expert layers told of the last forward pass, by layer.
    """

    def __init__(self, config: ModelConfig, dtype: torch.dtype = torch.float32, recompute: bool = False) -> None:
        super().__init__()
        self.config = config
        self.dtype = dtype
        self.recompute = recompute
        self.ulysses: Ulysses | None = None
        self.records: dict[int, Record] = {}
        self._tables: dict[tuple[int, int, torch.device], RopeTable] = {}  # made anew they would stall a GPU every step
        self.model = Trunk(config)
        self.lm_head = Linear(config.hidden_size, config.vocab_size, bias=False)
        if config.tied:
            self.lm_head.weight = self.model.embed_tokens.weight

    def forward(
        self,
        ids: Tensor,
        targets: Tensor | None = None,
        sight: Sight | None = None,
        cache: Cache | None = None,
        reduce: bool = True,
    ) -> Tensor:
        """Logits [B, T, V] of ids [B, T]; with targets (int64 [B, T], IGNORED where there is no loss) the sum of their
        losses, or with reduce=False each one's, [B, T] without gradient. The sum's gradient is also that of the routers'
        losses, each times the number of targets; its value is not, so that it compares between models.

        sight: what tokens see, by default all before them within their example (and FoT's contexts). cache: what was
        read before; the ids continue it. With Ulysses, ids and targets are this rank's tokens of the examples.
        """
        b, t = ids.shape
        x = self.hidden(ids, sight, cache)
        if targets is None:
            return self.lm_head(x)
        flat, weight, wanted = x.flatten(0, 1), self.lm_head.weight.to(x.dtype), targets.flatten()
        if not reduce:
            return token_losses(flat, weight, wanted).view(b, t)
        loss = cross_entropy(flat, weight, wanted)
        if not self.records:
            return loss
        routers = torch.stack([record.loss for record in self.records.values()]).sum()
        return with_gradient_of(loss, routers * (wanted != IGNORED).sum())

    def hidden(self, ids: Tensor, sight: Sight | None = None, cache: Cache | None = None) -> Tensor:
        """What the head predicts from, [B, T, D]."""
        b, t = ids.shape
        if sight is None and cache is None:
            ranks = self.ulysses.size if self.ulysses else 1
            sight = look(b, t * ranks, self.config.fot, None, ids.device)
        table = self._table(t, cache, ids.device)
        x = self.model.embed_tokens(ids).to(self.dtype)
        self.records = {}
        experts = self.config.experts
        again = {"use_reentrant": False, "preserve_rng_state": experts is not None and experts.jitter > 0}
        if experts is not None:
            again["context_fn"] = keep_routes
        for layer, block in enumerate(self.model.layers):
            if self.recompute and self.training and torch.is_grad_enabled():
                x, record = checkpoint(block, x, table, sight, cache, **again)
            else:
                x, record = block(x, table, sight, cache)
            if record is not None:
                self.records[layer] = record
        if cache is not None:
            cache.advance(t)
        return self.model.norm(x)

    def _table(self, tokens: int, cache: Cache | None, device: torch.device) -> RopeTable:
        if cache is not None:
            return self._table_of(cache.positions(tokens, device))
        start = self.ulysses.rank * tokens if self.ulysses else 0
        if (start, tokens, device) not in self._tables:
            positions = torch.arange(start, start + tokens, device=device)
            if self.config.fot:
                positions = positions % self.config.fot.local_context
            self._tables[start, tokens, device] = self._table_of(positions)
        return self._tables[start, tokens, device]

    def _table_of(self, positions: Tensor) -> RopeTable:
        return RopeTable(*cos_sin(self.config.rope, self.config.head_size, positions), self.scale)

    @property
    def scale(self) -> float:
        return frequencies(self.config.rope, self.config.head_size)[1]


def keep_routes() -> tuple[AbstractContextManager, AbstractContextManager]:
    """Recomputation takes the routes that were taken: a logit that comes out a bit different must not send a token elsewhere."""
    return create_selective_checkpoint_contexts([torch.ops.splice.route.default])


def initial(name: str, shape: torch.Size, config: ModelConfig, seed: int) -> Tensor:
    """The first value of one weight, float32, drawn by (seed, name) alone: the same for any sharding and any order.

    Normal, standard deviation 0.02, that of the two projections into the residual stream over sqrt(2 layers); norms 1.
    Experts and routers: normal cut at two standard deviations of sqrt(0.1 / fan_in) (Krajewski et al. 2024).
    """
    if name.endswith("norm.weight"):
        return torch.ones(shape)
    if name.endswith("norm.bias"):
        return torch.zeros(shape)
    draw = torch.Generator().manual_seed(
        int.from_bytes(hashlib.blake2b(f"{seed} {name}".encode(), digest_size=7).digest())
    )
    if ".mlp.experts." in name or ".mlp.gate." in name:
        std = math.sqrt(EXPERT_INIT_SCALE / shape[-1])
        return nn.init.trunc_normal_(torch.empty(shape), 0.0, std, -2 * std, 2 * std, generator=draw)
    std = INIT_STD / math.sqrt(2 * config.layers) if name.endswith(("o_proj.weight", "down_proj.weight")) else INIT_STD
    return torch.empty(shape).normal_(0.0, std, generator=draw)


PRESETS: dict[str, ModelConfig] = {
    # tiny ones of our own, for CPUs
    "tiny": ModelConfig(32000, 128, 4, 4, 2, 32, 352, 512, Rope(original=512), tied=True),
    "small": ModelConfig(32000, 256, 6, 8, 4, 32, 704, 1024, Rope(original=1024), tied=True),
    # table 5.1 of the SPLiCe paper
    "270m": ModelConfig(32000, 1024, 12, 8, 8, 128, 4096, 2048),
    "3b": ModelConfig(32000, 3200, 26, 32, 32, 100, 8640, 2048),
    "7b": ModelConfig(32000, 4096, 32, 32, 32, 128, 11008, 2048),
    "13b": ModelConfig(32016, 5120, 40, 40, 40, 128, 13824, 16384, Rope(theta=1e6, original=16384), norm_eps=1e-5),
}
