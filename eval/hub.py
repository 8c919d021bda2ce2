"""Any causal LM of transformers under the reader, where its attention can be asked for; whole prompts where not.

transformers lets a model's attention be a function of ours (AttentionInterface). It is handed the queries, keys and values of the tokens that are
fed and asks the cache at hand, so the model needs no cache of its own. What a layer wants beyond plain attention (a window, a cap on its
scores, sinks) comes as an argument, and is refused; models that do something else than attention (state spaces, linear attention) or bias it
by position are found out by a probe. Those read every prompt whole (whole.py), and the run says so.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from splice.errors import SpliceError
from splice.train.cache import Cache

from .reader import SharedReader
from .rows import Rows
from .tree import grow

ATTENTION = "splice_cache"
BEYOND = ("sliding_window", "softcap", "s_aux", "position_bias", "block_indices")  # arguments we do not honour
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 0.03, torch.float16: 0.01}  # relative to the largest log-probability
_cache: ContextVar[Cache | Rows | None] = ContextVar("cache", default=None)


class Unsupported(Exception):
    """A model whose attention is not plain; says what it wants."""


class HubNet:
    """reader.Net of a transformers model in a directory. Nothing in it is run as code. Raises SpliceError where it cannot be loaded."""

    fot = None

    def __init__(self, directory: Path, dtype: torch.dtype, device: torch.device) -> None:
        self.model = _load(directory, dtype, device)
        self.vocab_size = int(self.model.config.get_text_config().vocab_size)
        self.parameters = sum(p.numel() for p in self.model.parameters())
        self.device = device
        self.dtype = dtype

    def run(self, ids: Tensor, cache: Cache | Rows, at: Tensor) -> Tensor:
        """As Net's."""
        token = _cache.set(cache)
        try:
            positions = cache.positions(len(ids), ids.device)[None]
            out = self.model(input_ids=ids[None], position_ids=positions, use_cache=False, logits_to_keep=at)
        finally:
            _cache.reset(token)
        cache.advance(len(ids))
        return out.logits[0]

    def losses(self, ids: Tensor, cache: Cache | Rows, targets: Tensor) -> Tensor:
        """As Net's. The chunk's logits exist in the model's dtype; in float32 a piece of them at a time."""
        logits = self.run(ids, cache, torch.arange(len(ids), device=ids.device))
        pieces = zip(logits.split(256), targets.split(256), strict=True)
        return torch.cat([F.cross_entropy(piece.float(), target, reduction="none") for piece, target in pieces])


def why_whole(net: HubNet) -> str | None:
    """Why a model cannot share a prefix; None where it can. Decided by its config, then by a probe: its own logits beside ours.

    After None the model's attention is ours; otherwise it is as it was.
    """
    config = net.model.config.get_text_config()
    kinds = set(getattr(config, "layer_types", None) or ())
    if kinds - {"full_attention"}:
        return f"its layers are {', '.join(sorted(kinds - {'full_attention'}))}"
    if not kinds and getattr(config, "sliding_window", None) and getattr(config, "use_sliding_window", True):
        return f"its attention slides over a window of {config.sliding_window:,} tokens"
    moving = _rope_types(config) & {"dynamic", "longrope"}
    if moving:
        return f"its positions depend on the length of what is read at once ({', '.join(sorted(moving))} RoPE)"
    if net.model.config.is_encoder_decoder:
        return "it is an encoder and a decoder"
    before = net.model.config._attn_implementation
    try:
        with _quiet():
            wanted = _probe_whole(net)
            net.model.set_attn_implementation(ATTENTION)
            error = _probe_shared(net, wanted)
        why = None if error is None else f"its logits differ by {error:.1e} of the largest"
    except Unsupported as unsupported:
        why = f"its attention takes {unsupported}"
    except Exception as other:  # whatever a model does with what it does not expect
        why = f"it fails under ours: {type(other).__name__}: {str(other).splitlines()[0] if str(other) else ''}".rstrip(
            ": "
        )
    if why is not None:
        net.model.set_attn_implementation(before)
    return why


def _rope_types(config: Any) -> set[str]:
    """Of all kinds of layers."""
    found = [getattr(config, "rope_parameters", None), getattr(config, "rope_scaling", None)]
    found += [inner for outer in found if isinstance(outer, dict) for inner in outer.values()]
    return {str(one.get("rope_type") or one.get("type")) for one in found if isinstance(one, dict)}


def _probe(net: HubNet) -> tuple[list[int], list[list[int]]]:
    draw = torch.Generator().manual_seed(0)
    ids = torch.randint(net.vocab_size, (75,), generator=draw).tolist()
    return ids[:48], [ids[48:51], ids[51:62], ids[62:]]


@torch.inference_mode()
def _probe_whole(net: HubNet) -> list[Tensor]:
    """The logits of each query's last token, by the model alone."""
    prefix, queries = _probe(net)
    prompts = [torch.tensor([prefix + query], device=net.device) for query in queries]
    return [net.model(input_ids=prompt, use_cache=False).logits[0, -1].float() for prompt in prompts]


@torch.inference_mode()
def _probe_shared(net: HubNet, wanted: list[Tensor]) -> float | None:
    """The largest difference, relative; None where all are within the tolerance."""
    prefix, queries = _probe(net)
    reader = SharedReader(net, chunk=16, batch_tokens=64)
    cache = reader.read(prefix, 0)
    paths = reader.score(cache, [grow(query, [[token] for token in range(0, net.vocab_size, 97)]) for query in queries])
    worst = 0.0
    for logits, some in zip(wanted, paths, strict=True):
        ours = torch.tensor([likelihoods[0] for likelihoods, _ in some])
        theirs = logits.log_softmax(-1)[::97].cpu()
        worst = max(worst, ((ours - theirs).abs().max() / theirs.abs().max()).item())
    return None if worst <= TOLERANCE[net.dtype] else worst


def _attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """What transformers calls in each layer: query [1, H, T, D], key and value [1, G, T, D] -> [1, T, H, D]."""
    beyond = [name for name in BEYOND if others.get(name) is not None]
    if beyond:
        raise Unsupported(", ".join(beyond))
    cache = _cache.get()
    if cache is None or attention_mask is not None:
        raise Unsupported("a mask of its own")
    return cache.attend(module.layer_idx, query, key, value, None, scaling).transpose(1, 2), None  # type: ignore[arg-type]


@contextmanager
def _quiet() -> Iterator[None]:
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def _load(directory: Path, dtype: torch.dtype, device: torch.device) -> Any:
    from transformers import AttentionInterface, AutoModelForCausalLM

    AttentionInterface.register(ATTENTION, _attention)
    try:
        with _quiet():
            model = AutoModelForCausalLM.from_pretrained(
                directory, dtype=dtype, trust_remote_code=False, use_safetensors=None, attn_implementation="sdpa"
            )
    except ValueError as error:  # of models without SDPA
        if "scaled_dot_product_attention" not in str(error):
            raise SpliceError(f"{directory}: {_sentence(error)}") from None
        with _quiet():
            model = AutoModelForCausalLM.from_pretrained(directory, dtype=dtype, trust_remote_code=False)
    except (OSError, KeyError, RuntimeError, ImportError) as error:
        raise SpliceError(
            f"{directory}: transformers cannot load it ({_sentence(error)}); name another model"
        ) from None
    return model.to(device).eval().requires_grad_(False)


def _sentence(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if len(text) <= 300 else text[:300] + "..."
