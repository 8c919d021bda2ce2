"""What the expert layers of a model are, in the field's terms (Krajewski et al. 2024, arXiv:2402.07871).

expansion rate R = parameters of the experts / those of a dense layer; granularity G = d_ff / d_expert
experts E = G R, each of d_ff / G; a token goes to G of them, so that it costs what a dense layer does
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Routing = Literal["token_choice", "expert_choice", "mixture_of_tokens", "threshold"]
ACROSS_ROWS: tuple[Routing, ...] = ("expert_choice", "mixture_of_tokens")  # a token's output depends on other rows


@dataclass(frozen=True)
class Experts:
    """layers: which, counted from 0. active: experts a token goes to, or on average is taken by.

    token_choice: capacity, times the mean number of tokens that an expert takes at most in training, None for all
    (dropless); renormalise, the chosen probabilities sum to 1; balance, z, jitter: weights of the two losses, and how far
    the router's input is scaled by chance. expert_choice, mixture_of_tokens: group, sequences that share a position.
    threshold: tau, where a gate is on; sparsity, the weight of the gates' mean.
    """

    routing: Routing
    granularity: int
    expansion: int
    layers: tuple[int, ...]
    active: int
    activation: Literal["swiglu", "relu", "gelu"] = "swiglu"
    capacity: float | None = None
    renormalise: bool = True
    balance: float = 0.01
    z: float = 0.0
    jitter: float = 0.0
    group: int = 1
    tau: float = 0.5
    sparsity: float = 0.0

    @property
    def count(self) -> int:
        """E."""
        return self.granularity * self.expansion

    @property
    def computed(self) -> float:
        """Experts that are computed for a token, on average: a mixture of a group's tokens is computed once for all."""
        return self.count / self.group if self.routing == "mixture_of_tokens" else float(self.active)

    @property
    def alone(self) -> bool:
        """Whether a token's output depends on its own text alone."""
        return self.routing not in ACROSS_ROWS or self.group == 1

    @property
    def matrices(self) -> int:
        """Of an expert: a gate, up and down (SwiGLU), or up and down."""
        return 3 if self.activation == "swiglu" else 2
