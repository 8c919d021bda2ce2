"""The fallback: a model that cannot share a prefix reads every prompt whole, one forward pass for each line of answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from .reader import Path
from .tree import Tree


class WholeReader:
    """As SharedReader, of a transformers model as it comes; a prefix is its ids."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def read(self, ids: Sequence[int], room: int) -> list[int]:
        """The ids."""
        return list(ids)

    @torch.inference_mode()
    def score(self, prefix: list[int], trees: Sequence[Tree]) -> list[list[Path]]:
        """As Reader's."""
        results = []
        for tree in trees:
            wanted = {place for path in tree.paths for place, _ in path}
            logits: dict[int, Tensor] = {}
            for line in tree.lines():
                needed = [place for place in line if place in wanted]
                last = len(line) - line.index(needed[0])
                rows = self._logits(prefix + [tree.tokens[place] for place in line], last)
                logits |= dict(zip(line[-last:], rows, strict=True))
            likelihoods = {place: row.log_softmax(-1) for place, row in logits.items()}
            best = {place: int(row.argmax()) for place, row in logits.items()}
            results.append(
                [([float(likelihoods[p][t]) for p, t in path], [best[p] == t for p, t in path]) for path in tree.paths]
            )
        return results

    def _logits(self, ids: list[int], last: int) -> Tensor:
        """Of the last tokens, float32 [last, V]."""
        prompt = torch.tensor([ids], device=self._model.device)
        return self._model(input_ids=prompt, use_cache=False).logits[0, -last:].float()

    @torch.inference_mode()
    def generate(
        self,
        prefix: list[int],
        suffixes: Sequence[Sequence[int]],
        tokens: int,
        ended: Callable[[int, list[int]], bool],
    ) -> list[list[int]]:
        """As Reader's, through the model's own cache."""
        out = []
        for row, suffix in enumerate(suffixes):
            said: list[int] = []
            fed, past = torch.tensor([prefix + list(suffix)], device=self._model.device), None
            while len(said) < tokens:
                step = self._model(input_ids=fed, past_key_values=past, use_cache=True)
                said.append(int(step.logits[0, -1].argmax()))
                past = getattr(step, "past_key_values", None)
                if ended(row, said):
                    break
                if past is None:  # some state-space models have it under another name, or none
                    fed = torch.tensor([[*prefix, *suffix, *said]], device=self._model.device)
                else:
                    fed = torch.tensor([[said[-1]]], device=self._model.device)
            out.append(said)
        return out

    @torch.inference_mode()
    def losses(self, ids: Sequence[int]) -> np.ndarray:
        """As Reader's; the logits of the whole text exist in the model's dtype."""
        whole = torch.tensor([list(ids)], device=self._model.device)
        logits = self._model(input_ids=whole, use_cache=False).logits[0, :-1]
        pieces = zip(logits.split(256), whole[0, 1:].split(256), strict=True)
        return torch.cat([F.cross_entropy(a.float(), b, reduction="none") for a, b in pieces]).cpu().numpy()
