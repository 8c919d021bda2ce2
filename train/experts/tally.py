"""What the expert layers told of a step, over its micro-batches and all ranks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..parallel import World
from .record import Record


class Tally:
    """Sums records on the device; they are looked at once a step."""

    def __init__(self) -> None:
        self._layers: list[int] = []
        self._sums: Tensor | None = None  # [layers, E + 6]

    def add(self, records: dict[int, Record]) -> None:
        """Those of one forward pass."""
        if not records:
            return
        rows = [
            torch.cat((r.load, torch.stack((r.dropped, r.assigned, r.entropy, r.balance, r.z, torch.ones_like(r.z)))))
            for r in records.values()
        ]
        self._layers = list(records)
        found = torch.stack(rows).detach().double()
        self._sums = found if self._sums is None else self._sums + found

    def close(self, world: World, tokens: int) -> tuple[dict[str, float], dict[int, dict[str, Any]]]:
        """Figures of the step, of `tokens` on all ranks, over all its layers, and of each layer; empty without experts.

        Shares are of assignments, entropies in nats; load: tokens that each expert computed. Begins the next step.
        """
        if self._sums is None:
            return {}, {}
        table = world.sum_(self._sums).cpu()
        self._sums = None
        layers = {}
        for layer, row in zip(self._layers, table, strict=True):
            load, (dropped, assigned, entropy, balance, z, passes) = row[:-6], row[-6:].tolist()
            layers[layer] = {
                "load": load.tolist(),
                "dropped": dropped / max(1.0, assigned),
                "entropy": entropy / passes,
                "dead": int((load == 0).sum()),
                "balance": balance / passes,
                "z": z / passes,
            }
        mean = {
            name: sum(layer[name] for layer in layers.values()) / len(layers)
            for name in ("dropped", "entropy", "balance", "z")
        }
        scalars = {
            "dropped": mean["dropped"],
            "dead_experts": sum(layer["dead"] for layer in layers.values()),
            "router_entropy": mean["entropy"],
            "balance": mean["balance"],
            "router_z": mean["z"],
            "experts_per_token": sum(sum(layer["load"]) for layer in layers.values()) / (len(layers) * tokens),
        }
        return scalars, layers
