"""config.json of a Hugging Face Llama, to and from ModelConfig.

What is written loads as a plain LlamaForCausalLM: in transformers 5, which reads `rope_parameters`, and in transformers 4
and older vLLM, which read `rope_theta` and `rope_scaling` (but transformers 4.46 takes YaRN's original context from
max_position_embeddings; 4.57 does not). What is read may have either form. FoT's keys are LongLLaMA's, with three
differences: `cross_batch_range` is the name of its training code; `fot_local_context` is ours, since its own code takes
the window from max_position_embeddings, where a plain Llama has the longest context; and model_type is llama.
What a checkpoint asks for and train/model.py does not do is refused, never ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from splice.errors import SpliceError

from .fot import FoT
from .model import INIT_STD, ModelConfig
from .rope import Rope

LENGTH = "fot_length"  # tokens of an example with its memory, where max_position_embeddings is the local context
ORIGINAL = "rope_original_context"  # L0 where the rope type has no place for it: a longer length would pass for it
ROPE_FIELDS = {
    # fields of Rope -> keys of Hugging Face, by type; transformers warns of keys that a type does not use
    "default": {},
    "linear": {"factor": "factor"},
    "yarn": {
        "factor": "factor",
        "original": "original_max_position_embeddings",
        "attention_factor": "attention_factor",
        "beta_fast": "beta_fast",
        "beta_slow": "beta_slow",
    },
    "llama3": {
        "factor": "factor",
        "original": "original_max_position_embeddings",
        "low_freq_factor": "low_freq_factor",
        "high_freq_factor": "high_freq_factor",
    },
}
REQUIRED = {"linear": ("factor",), "yarn": ("factor",), "llama3": ("factor", "low_freq_factor", "high_freq_factor")}
PLAIN = {
    # key -> the value that is implemented, which is also Hugging Face's default
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "quantization_config": None,
    "partial_rotary_factor": 1.0,
    "mem_positionals": True,
}
PLAIN_ROPE = {"partial_rotary_factor": 1.0, "mscale": None, "mscale_all_dim": None, "truncate": True}
REMEDY = "start from a plain Llama"


def config_to_hf(
    config: ModelConfig, tokenizer: Mapping[str, Any] | None = None, dtype: torch.dtype = torch.float32
) -> dict[str, Any]:
    """The content of config.json. `config_from_hf` gives the config back.

    tokenizer: the `tokenizer` of a dataset's manifest, for bos_id, eos_id, pad_id; without it the ids are null, since
    transformers would otherwise take 1 and 2. dtype: of the weights beside it.
    """
    name = str(dtype).removeprefix("torch.")
    values: dict[str, Any] = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.mlp_size,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_size,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "attention_dropout": 0.0,
        "rms_norm_eps": config.norm_eps,
        "initializer_range": INIT_STD,
        # to whom FoT's memory is unknown it has the positions of a local context, as LongLLaMA says it too
        "max_position_embeddings": config.fot.local_context if config.fot else config.length,
        "tie_word_embeddings": config.tied,
        "use_cache": True,
        **special_ids(tokenizer),
        "dtype": name,
        "torch_dtype": name,  # transformers 4 and vLLM
    }
    return values | _rope_to_hf(config.rope, config.length) | _fot_to_hf(config.fot, config.length, name)


def special_ids(tokenizer: Mapping[str, Any] | None) -> dict[str, int | None]:
    """bos_token_id, eos_token_id and pad_token_id, None where there is none or no tokenizer is known."""
    return {f"{role}_token_id": (tokenizer or {}).get(f"{role}_id") for role in ("bos", "eos", "pad")}


def config_from_hf(values: Mapping[str, Any], where: str) -> ModelConfig:
    """The ModelConfig of a config.json's content; `where` names it in errors.

    Keys that are absent have Hugging Face's defaults, the five sizes apart, which must be there. Where the legacy
    `rope_scaling` stands beside `rope_parameters` it is what counts, as in transformers.
    Raises SpliceError for what is missing, makes no sense, or is not implemented by train/model.py.
    """
    if values.get("model_type") != "llama":
        raise SpliceError(f"{where}: model_type {values.get('model_type')} is not llama, the one there is; {REMEDY}")
    _refuse(values, PLAIN, where)
    hidden, heads = _size(values, "hidden_size", where), _size(values, "num_attention_heads", where)
    kv_heads = _size(values, "num_key_value_heads", where, heads)
    head_size = _size(values, "head_dim", where, hidden // heads)
    length = _size(values, LENGTH, where, _size(values, "max_position_embeddings", where, 2048))
    if heads % kv_heads:
        raise SpliceError(
            f"{where}: num_attention_heads {heads} is no multiple of num_key_value_heads {kv_heads}; mend it"
        )
    if head_size % 2 or not head_size:
        raise SpliceError(f"{where}: head_dim {head_size} is odd or 0, which cannot be rotated in halves; {REMEDY}")
    return ModelConfig(
        vocab_size=_size(values, "vocab_size", where),
        hidden_size=hidden,
        layers=_size(values, "num_hidden_layers", where),
        heads=heads,
        kv_heads=kv_heads,
        head_size=head_size,
        mlp_size=_size(values, "intermediate_size", where),
        length=length,
        rope=_rope_from_hf(values, length, where),
        fot=_fot_from_hf(values, length, where),
        norm_eps=_number(values, "rms_norm_eps", where, 1e-6),
        tied=bool(values.get("tie_word_embeddings", False)),
    )


def _rope_to_hf(rope: Rope, length: int) -> dict[str, Any]:
    """Both forms say the same. The legacy one has `type`, not `rope_type`: before transformers 4.43 there was only that."""
    found = {key: getattr(rope, field) for field, key in ROPE_FIELDS[rope.type].items()}
    scaling = {key: value for key, value in found.items() if value is not None}
    values: dict[str, Any] = {
        "rope_parameters": {"rope_type": rope.type, "rope_theta": rope.theta, **scaling},
        "rope_theta": rope.theta,
        "rope_scaling": {"type": rope.type, **scaling} if scaling else None,
    }
    if "original" not in ROPE_FIELDS[rope.type] and rope.original != length:
        values[ORIGINAL] = rope.original
    return values


def _rope_from_hf(values: Mapping[str, Any], length: int, where: str) -> Rope:
    found = values.get("rope_scaling") or values.get("rope_parameters") or {}
    if not isinstance(found, Mapping) or any(isinstance(value, Mapping) for value in found.values()):
        raise SpliceError(f"{where}: rope_parameters of each kind of layer are not implemented; {REMEDY}")
    kind = found.get("rope_type") or found.get("type") or "default"
    if kind not in ROPE_FIELDS:
        raise SpliceError(f"{where}: rope type {kind} is not implemented (only {', '.join(ROPE_FIELDS)} are); {REMEDY}")
    _refuse(found, PLAIN_ROPE, f"{where}: rope type {kind}")
    for key in REQUIRED.get(kind, ()):
        if found.get(key) is None:
            raise SpliceError(f"{where}: rope type {kind} has no {key}; add it to rope_parameters")
    # a key beside the rope parameters, as in Phi 3, wins over the one among them: transformers' order
    places = (
        (values, "original_max_position_embeddings"),
        (found, "original_max_position_embeddings"),
        (values, ORIGINAL),
    )
    source, key = next((place for place in places if place[0].get(place[1]) is not None), places[0])
    numbers = {
        field: _number(found, key, f"{where}: rope type {kind}", 0.0)
        for field, key in ROPE_FIELDS[kind].items()
        if field != "original" and found.get(key) is not None
    }
    numbers["theta"] = _number(found, "rope_theta", where, _number(values, "rope_theta", where, 10_000.0))
    return Rope(type=kind, original=_size(source, key, where, length), **numbers)


def _fot_to_hf(fot: FoT | None, length: int, dtype: str) -> dict[str, Any]:
    if fot is None:
        return {}
    return {
        "mem_layers": list(fot.layers),
        "mem_positionals": True,
        "mem_dtype": dtype,
        "mem_attention_grouping": None,
        "last_context_length": fot.last_context,
        "cross_batch_range": fot.cross_batch_range,
        "fot_local_context": fot.local_context,
        LENGTH: length,
    }


def _fot_from_hf(values: Mapping[str, Any], length: int, where: str) -> FoT | None:
    layers = values.get("mem_layers")
    if not layers:
        return None
    last = _size(values, "num_hidden_layers", where) - 1
    if not isinstance(layers, list) or not all(_whole(layer) and 0 <= layer <= last for layer in layers):
        raise SpliceError(f"{where}: mem_layers {layers} is no list of layers, 0 to {last}; mend it")
    return FoT(
        layers=tuple(layers),
        local_context=_size(values, "fot_local_context", where, length),  # LongLLaMA's own: its longest position
        cross_batch_range=_size(values, "cross_batch_range", where, FoT.cross_batch_range, least=0),
        last_context=_size(values, "last_context_length", where, FoT.last_context),
    )


def _refuse(values: Mapping[str, Any], plain: Mapping[str, Any], where: str) -> None:
    """Raise SpliceError where a key has another value than the one that is implemented; null is the default."""
    for key, wanted in plain.items():
        value = values.get(key)
        if value is None or value == wanted:
            continue
        if key == "quantization_config":
            method = value.get("quant_method") if isinstance(value, Mapping) else value
            raise SpliceError(f"{where}: its weights are quantised ({method}); start from the model before that")
        only = "" if wanted is None else f" (only {wanted} is)"
        raise SpliceError(f"{where}: {key} {value} is not implemented{only}; {REMEDY}")


def _size(values: Mapping[str, Any], key: str, where: str, default: int | None = None, least: int = 1) -> int:
    value = values.get(key)
    if value is None and default is not None:
        return default
    if not _whole(value) or value < least:
        raise SpliceError(f"{where}: {key} is {value}, not a whole number from {least} on; set it")
    return value


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _number(values: Mapping[str, Any], key: str, where: str, default: float) -> float:
    value = values.get(key)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise SpliceError(f"{where}: {key} is {value}, not a number above 0; set it")
    return float(value)
