"""`splice export`: a checkpoint as a Hugging Face directory."""

from __future__ import annotations

from pathlib import Path

import torch
from rich.console import Console

from .checkpoint import read_state, stored_weights
from .hf_read import read_config
from .hf_write import write_model


def export(checkpoint: Path, output: Path, dtype: str, console: Console) -> None:
    """Write the weights of a checkpoint, rounded to `dtype`, with config.json and tokenizer, for transformers and vLLM.

    FoT models are exported as plain Llamas with LongLLaMA's extra keys: without them the memory layers see local context only
    through ordinary attention. Raises SpliceError where `checkpoint` is none or `output` is taken.
    """
    state = read_state(checkpoint)
    config = read_config(checkpoint)
    write_model(output, config, stored_weights(checkpoint), checkpoint, state["tokenizer"], getattr(torch, dtype))
    console.print(
        f"{output}: LlamaForCausalLM, {config.parameters / 1e6:,.1f}M parameters in {dtype}, {config.length:,} tokens of context",
        highlight=False, markup=False, soft_wrap=True,
    )  # fmt: skip
