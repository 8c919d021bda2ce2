"""The fallback: a model that cannot share a prefix reads every prompt whole, once for each query."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from .reader import Path, require_finite
from .tree import Tree


class WholeReader:
    """As SharedReader, of a transformers model as it comes; a prefix is its ids."""

    most = None

    def __init__(self, model: Any) -> None:
        self._model = model
        self._keeps = "logits_to_keep" in inspect.signature(model.forward).parameters

    def read(self, ids: Sequence[int], room: int) -> list[int]:
        """The ids."""
        return list(ids)

    @torch.inference_mode()
    def score(self, prefix: list[int], trees: Sequence[Tree]) -> list[list[Path]]:
        """As Reader's: a prompt is read once, its branches go on from copies of the model's own cache."""
        return [self._paths(prefix, tree) for tree in trees]

    def _paths(self, prefix: list[int], tree: Tree) -> list[Path]:
        trunk = next((n for n, parent in enumerate(tree.parents) if parent != n - 1), len(tree.tokens))
        trunk = min([trunk, *(parent + 1 for parent in tree.parents[trunk:])])  # the first fork ends it
        first = min(place for path in tree.paths for place, _ in path)
        kept = trunk - min(first, trunk - 1)
        rows, past = self._feed([*prefix, *tree.tokens[:trunk]], None, kept)
        logits = dict(zip(range(trunk - kept, trunk), rows, strict=True))
        for line in tree.lines():
            branch = line[trunk:]
            copied = copy.deepcopy(past) if branch else None
            for n, place in enumerate(branch):
                if copied is None:  # no cache to go on from
                    fed = [*prefix, *(tree.tokens[p] for p in line[: trunk + n + 1])]
                    rows, _ = self._feed(fed, None, 1)
                else:
                    rows, copied = self._feed([tree.tokens[place]], copied, 1)
                logits[place] = rows[-1]
        likelihoods = {place: row.log_softmax(-1) for place, row in logits.items()}
        best = {place: int(row.argmax()) for place, row in logits.items()}
        return [([float(likelihoods[p][t]) for p, t in path], [best[p] == t for p, t in path]) for path in tree.paths]

    def _feed(self, ids: Sequence[int], past: Any, last: int) -> tuple[Tensor, Any]:
        """Logits of the last tokens, float32 [last, V], and the model's cache; None where it has none of that name."""
        prompt = torch.tensor([list(ids)], device=self._model.device)
        few = {"logits_to_keep": last} if self._keeps else {}
        out = self._model(input_ids=prompt, past_key_values=past, use_cache=True, **few)
        logits = out.logits[0, -last:].float()
        require_finite(logits)
        return logits, getattr(out, "past_key_values", None)

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
            fed, past = [*prefix, *suffix], None
            while len(said) < tokens:
                logits, past = self._feed(fed, past, 1)
                said.append(int(logits[0].argmax()))
                if ended(row, said):
                    break
                fed = [said[-1]] if past is not None else [*prefix, *suffix, *said]
            out.append(said)
        return out

    @torch.inference_mode()
    def losses(self, ids: Sequence[int]) -> np.ndarray:
        """As Reader's; the logits of the whole text exist in the model's dtype."""
        whole = torch.tensor([list(ids)], device=self._model.device)
        logits = self._model(input_ids=whole, use_cache=False).logits[0, :-1]
        pieces = zip(logits.split(256), whole[0, 1:].split(256), strict=True)
        losses = torch.cat([F.cross_entropy(a.float(), b, reduction="none") for a, b in pieces])
        require_finite(losses)
        return losses.cpu().numpy()
