"""What an expert layer tells of a forward pass."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Record(NamedTuple):
    """Of one layer and one forward pass; float32, and all but `loss` without gradient.

    loss: the router's losses by their weights, a mean over tokens. load: [E], tokens that each expert computed.
    dropped: assignments beyond an expert's capacity, or tokens that no expert took. assigned: assignments there would be
    with none dropped. entropy: the mean of the router's distributions, nats. balance, z: the losses without weights; of
    threshold, the mean of the gates and 0.
    """

    loss: Tensor
    load: Tensor
    dropped: Tensor
    assigned: Tensor
    entropy: Tensor
    balance: Tensor
    z: Tensor
