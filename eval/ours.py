"""Our own model under the reader: Llamas of any origin, with FoT's memory where they have it."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from splice.errors import SpliceError
from splice.train.cache import Cache
from splice.train.hf_read import read_config
from splice.train.loss import token_losses
from splice.train.restore import load_model

from .rows import Rows


class LlamaNet:
    """reader.Net of splice.train's Llama in `directory`. Raises SpliceError as load_model, and where texts are not read alone."""

    def __init__(self, directory: Path, dtype: torch.dtype, device: torch.device) -> None:
        experts = read_config(directory).experts
        if experts and not experts.alone:
            raise SpliceError(
                f"{directory}: its experts ({experts.routing}, groups of {experts.group}) choose among several texts, so that no text has an "
                "answer of its own; evaluate a model of token_choice (a mixture of tokens becomes one: splice train --init "
                "CHECKPOINT --model.experts.routing token_choice)"
            )
        self._model = load_model(directory, dtype, device)
        self.config = self._model.config
        self.vocab_size = self.config.vocab_size
        self.parameters = self.config.parameters
        self.device = device
        self.fot = self.config.fot

    def run(self, ids: Tensor, cache: Cache | Rows, at: Tensor) -> Tensor:
        """As Net's."""
        return self._model.lm_head(self._model.hidden(ids[None], cache=cache)[0, at])  # type: ignore[arg-type]

    def losses(self, ids: Tensor, cache: Cache | Rows, targets: Tensor) -> Tensor:
        """As Net's."""
        hidden = self._model.hidden(ids[None], cache=cache)[0]  # type: ignore[arg-type]
        return token_losses(hidden, self._model.lm_head.weight, targets)
