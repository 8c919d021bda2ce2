"""The expert layer that a config asks for."""

from __future__ import annotations

from torch import nn

from .config import Experts, Routing
from .expert_choice import ExpertChoice
from .mixture_of_tokens import MixtureOfTokens
from .threshold import Threshold
from .token_choice import TokenChoice

LAYERS: dict[Routing, type[nn.Module]] = {
    "token_choice": TokenChoice,
    "expert_choice": ExpertChoice,
    "mixture_of_tokens": MixtureOfTokens,
    "threshold": Threshold,
}


def expert_layer(experts: Experts, hidden_size: int, mlp_size: int) -> nn.Module:
    """A layer that gives (outputs [B, T, D], Record) of x [B, T, D]. mlp_size: d_ff of the dense layer it stands for."""
    return LAYERS[experts.routing](experts, hidden_size, mlp_size)
