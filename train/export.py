"""`splice export`: a checkpoint as a Hugging Face directory."""

from __future__ import annotations

from pathlib import Path

import torch
from rich.console import Console

from splice.errors import SpliceError

from .checkpoint import read_state, stored_weights
from .hf_config import ARCHITECTURES, model_type
from .hf_read import read_config
from .hf_write import write_model


def export(checkpoint: Path, output: Path, dtype: str, console: Console) -> None:
    """Write the weights of a checkpoint, rounded to `dtype`, with config.json and tokenizer, for transformers and vLLM.

    Experts make a Mixtral of it. A model with FoT is exported as a plain one with LongLLaMA's extra keys; who does not know
    them has its local context. Raises SpliceError where `checkpoint` is none, `output` is taken, or Mixtral has no such experts.
    """
    state = read_state(checkpoint)
    config = read_config(checkpoint)
    try:
        write_model(output, config, stored_weights(checkpoint), checkpoint, state["tokenizer"], getattr(torch, dtype))
    except OSError as error:
        raise SpliceError(f"{output}: cannot be written ({error.strerror}); name another place with --output") from None
    active = f" ({config.active_parameters / 1e6:,.1f}M active)" if config.experts else ""
    console.print(
        f"{output}: {ARCHITECTURES[model_type(config)]}, {config.parameters / 1e6:,.1f}M parameters{active} in {dtype}, {config.length:,} tokens of context",
        highlight=False, markup=False, soft_wrap=True,
    )  # fmt: skip
    if config.experts and config.experts.capacity is not None:
        console.print(
            f"It was trained with a capacity of {config.experts.capacity:g}; transformers drops no token, as inference here does not",
            highlight=False, markup=False, soft_wrap=True,
        )  # fmt: skip
    if config.fot:
        console.print(
            f"FoT's memory is not known to transformers or vLLM: there it is a model of {config.fot.local_context:,} tokens, and equal to "
            "this one up to there",
            highlight=False, markup=False, soft_wrap=True,
        )  # fmt: skip
