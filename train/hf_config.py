"""config.json of a Hugging Face Llama or Mixtral, to and from ModelConfig.

What is written loads as a plain LlamaForCausalLM: in transformers 5, which reads `rope_parameters`, and in transformers 4
and older vLLM, which read `rope_theta` and `rope_scaling` (but transformers 4.46 takes YaRN's original context from
max_position_embeddings; 4.57 does not). What is read may have either form. FoT's keys are LongLLaMA's, with three
differences: `cross_batch_range` is the name of its training code; `fot_local_context` is ours, since its own code takes
the window from max_position_embeddings, where a plain Llama has the longest context; and model_type is llama.
Experts that Mixtral can express make a MixtralForCausalLM; others have a model_type of ours, so that nobody loads them as
what they are not. The key `splice_experts` holds in both all that Experts says and Mixtral has no place for.
What a checkpoint asks for and train/model.py does not do is refused, never ignored.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any, get_args

import torch

from splice.errors import SpliceError

from .experts.config import Experts, Routing
from .fot import FoT
from .kernels import ACTIVATIONS
from .model import INIT_STD, ModelConfig
from .rope import Rope

ARCHITECTURES = {
    # model_type -> the class that transformers loads; of the last name it has none
    "llama": "LlamaForCausalLM",
    "mixtral": "MixtralForCausalLM",
    "splice_moe": "SpliceMoeForCausalLM",
}
LLAMA = {"max_position_embeddings": 2048, "rms_norm_eps": 1e-6, "rope_theta": 10_000.0}
DEFAULTS: dict[str, dict[str, Any]] = {
    # model_type -> what transformers takes for keys that are absent; Mixtral's are those of 8x7B
    "llama": LLAMA,
    "mixtral": {
        "max_position_embeddings": 131_072,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1e6,
        "num_key_value_heads": 8,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "router_aux_loss_coef": 0.001,
        "router_jitter_noise": 0.0,
    },
    "splice_moe": LLAMA,
}
EXPERTS = "splice_experts"
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
PLAIN_MIXTRAL = {"sliding_window": None}
PLAIN_ROPE = {"partial_rotary_factor": 1.0, "mscale": None, "mscale_all_dim": None, "truncate": True}
REMEDY = "start from a plain Llama or Mixtral"


def config_to_hf(
    config: ModelConfig, tokenizer: Mapping[str, Any] | None = None, dtype: torch.dtype = torch.float32
) -> dict[str, Any]:
    """The content of config.json. `config_from_hf` gives the config back.

    tokenizer: the `tokenizer` of a dataset's manifest, for bos_id, eos_id, pad_id; without it the ids are null, since
    transformers would otherwise take 1 and 2. dtype: of the weights beside it.
    """
    name, kind = str(dtype).removeprefix("torch."), model_type(config)
    biases = {} if kind == "mixtral" else {"attention_bias": False, "mlp_bias": False}  # Mixtral has no such keys
    values: dict[str, Any] = {
        "architectures": [ARCHITECTURES[kind]],
        "model_type": kind,
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.mlp_size,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_size,
        "hidden_act": "silu",
        **biases,
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
    values |= _experts_to_hf(config.experts, config.mlp_size, kind)
    return values | _rope_to_hf(config.rope, config.length) | _fot_to_hf(config.fot, config.length, name)


def model_type(config: ModelConfig) -> str:
    """One of ARCHITECTURES."""
    if config.experts is None:
        return "llama"
    return "splice_moe" if beyond_mixtral(config) else "mixtral"


def beyond_mixtral(config: ModelConfig) -> list[str]:
    """What a model's experts are that Mixtral's cannot be. Neither a capacity nor a loss is: they are for training alone."""
    experts = config.experts
    if experts is None:
        return []
    dense = [str(layer) for layer in range(config.layers) if layer not in experts.layers]
    found = {
        f"routing {experts.routing}": experts.routing != "token_choice",
        f"{experts.activation} experts": experts.activation != "swiglu",
        "weights not renormalised": experts.routing == "token_choice" and not experts.renormalise,
        f"layer{'s' * (len(dense) > 1)} {', '.join(dense)} {'are' if len(dense) > 1 else 'is'} dense": bool(dense),
    }
    return [what for what, beyond in found.items() if beyond]


def special_ids(tokenizer: Mapping[str, Any] | None) -> dict[str, int | None]:
    """bos_token_id, eos_token_id and pad_token_id, None where there is none or no tokenizer is known."""
    return {f"{role}_token_id": (tokenizer or {}).get(f"{role}_id") for role in ("bos", "eos", "pad")}


def config_from_hf(values: Mapping[str, Any], where: str) -> ModelConfig:
    """The ModelConfig of a config.json's content; `where` names it in errors.

    Keys that are absent have Hugging Face's defaults, the five sizes apart, which must be there. Where the legacy
    `rope_scaling` stands beside `rope_parameters` it is what counts, as in transformers.
    Raises SpliceError for what is missing, makes no sense, contradicts itself, or is not implemented by train/model.py.
    """
    kind = str(values.get("model_type"))
    if kind not in ARCHITECTURES:
        raise SpliceError(
            f"{where}: model_type {kind} is not one of those there are ({', '.join(ARCHITECTURES)}); {REMEDY}"
        )
    _refuse(values, PLAIN, where)
    if kind == "mixtral":
        _refuse(values, PLAIN_MIXTRAL, where)
    values = DEFAULTS[kind] | dict(values)
    hidden, heads = _size(values, "hidden_size", where), _size(values, "num_attention_heads", where)
    kv_heads = _size(values, "num_key_value_heads", where, heads)
    head_size = _size(values, "head_dim", where, hidden // heads)
    length = _size(values, LENGTH, where, _size(values, "max_position_embeddings", where))
    if heads % kv_heads:
        raise SpliceError(
            f"{where}: num_attention_heads {heads} is no multiple of num_key_value_heads {kv_heads}; mend it"
        )
    if head_size % 2 or not head_size:
        raise SpliceError(f"{where}: head_dim {head_size} is odd or 0, which cannot be rotated in halves; {REMEDY}")
    layers = _size(values, "num_hidden_layers", where)
    experts, mlp_size = _experts_from_hf(values, kind, layers, where)
    config = ModelConfig(
        vocab_size=_size(values, "vocab_size", where),
        hidden_size=hidden,
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_size=head_size,
        mlp_size=mlp_size,
        length=length,
        rope=_rope_from_hf(values, length, where),
        fot=_fot_from_hf(values, length, where),
        experts=experts,
        norm_eps=_number(values, "rms_norm_eps", where),
        tied=bool(values.get("tie_word_embeddings", False)),
    )
    if kind == "mixtral" and (beyond := beyond_mixtral(config)):
        raise SpliceError(
            f"{where}: model_type mixtral, but {', '.join(beyond)} by {EXPERTS}, which Mixtral has not; mend one of the two"
        )
    return config


def _experts_to_hf(experts: Experts | None, mlp_size: int, kind: str) -> dict[str, Any]:
    if experts is None:
        return {}
    values = {"output_router_logits": False, **PLAIN_MIXTRAL} if kind == "mixtral" else {}
    own = asdict(experts) | {"layers": list(experts.layers), "mlp_size": mlp_size}
    return _shown(experts, mlp_size, kind) | values | {EXPERTS: own}


def _shown(experts: Experts, mlp_size: int, kind: str) -> dict[str, Any]:
    """What the keys of others say of the experts.

    Mixtral's balance loss is over all layers at once and `active` with balanced experts; ours is 1 in each layer.
    """
    if kind != "mixtral":
        return {"intermediate_size": mlp_size}
    return {
        "intermediate_size": mlp_size // experts.granularity,
        "num_local_experts": experts.count,
        "num_experts_per_tok": experts.active,
        "router_aux_loss_coef": experts.balance * len(experts.layers) / experts.active,
        "router_jitter_noise": experts.jitter,
    }


def _experts_from_hf(values: Mapping[str, Any], kind: str, layers: int, where: str) -> tuple[Experts | None, int]:
    """The experts, and the size of the dense layer that they stand for."""
    if kind == "llama":
        return None, _size(values, "intermediate_size", where)
    if kind == "mixtral" and values.get(EXPERTS) is None:
        return _plain_mixtral(values, layers, where)
    experts, mlp_size = _own_experts(values.get(EXPERTS), layers, f"{where}: {EXPERTS}")
    for key, value in _shown(experts, mlp_size, kind).items():
        if values.get(key) != value:
            raise SpliceError(f"{where}: {key} is {values.get(key)}, but {value} by {EXPERTS}; mend one of the two")
    return experts, mlp_size


def _plain_mixtral(values: Mapping[str, Any], layers: int, where: str) -> tuple[Experts, int]:
    """As fine as tokens have experts, so that those of a token are together as large as one dense layer."""
    count, active = _size(values, "num_local_experts", where), _size(values, "num_experts_per_tok", where)
    if active > count:
        raise SpliceError(f"{where}: num_experts_per_tok {active} is more than num_local_experts {count}; mend it")
    granularity = 1 if count % active else active
    experts = Experts(
        routing="token_choice",
        granularity=granularity,
        expansion=count // granularity,
        layers=tuple(range(layers)),
        active=active,
        balance=_number(values, "router_aux_loss_coef", where, zero=True) * active / layers,  # see _shown
        jitter=_number(values, "router_jitter_noise", where, zero=True, below=1),
    )
    return experts, granularity * _size(values, "intermediate_size", where)


def _own_experts(found: Any, layers: int, where: str) -> tuple[Experts, int]:
    if not isinstance(found, Mapping):
        raise SpliceError(f"{where} is {found}, not the fields of the model's experts; copy config.json there again")
    known = [*(field.name for field in fields(Experts)), "mlp_size"]
    unknown = [str(key) for key in found if key not in known]
    if unknown:
        raise SpliceError(f"{where}: no field {', '.join(unknown)} (there are {', '.join(known)}); leave it out")
    if not _are_layers(found.get("layers"), layers) or len(set(found["layers"])) < len(found["layers"]):
        raise SpliceError(
            f"{where}: layers {found.get('layers')} is no list of different layers, 0 to {layers - 1}; mend it"
        )
    capacity = None if found.get("capacity") is None else _number(found, "capacity", where)
    experts = Experts(
        routing=_choice(found, "routing", where, get_args(Routing)),
        granularity=_size(found, "granularity", where),
        expansion=_size(found, "expansion", where),
        layers=tuple(found["layers"]),
        active=_size(found, "active", where),
        activation=_choice(found, "activation", where, ACTIVATIONS, Experts.activation),
        capacity=capacity,
        renormalise=_choice(found, "renormalise", where, (True, False), Experts.renormalise),
        balance=_number(found, "balance", where, Experts.balance, zero=True),
        z=_number(found, "z", where, Experts.z, zero=True),
        jitter=_number(found, "jitter", where, Experts.jitter, zero=True, below=1),
        group=_size(found, "group", where, Experts.group),
        tau=_number(found, "tau", where, Experts.tau, below=1),
        sparsity=_number(found, "sparsity", where, Experts.sparsity, zero=True),
    )
    mlp_size = _size(found, "mlp_size", where)
    if experts.active > experts.count:
        raise SpliceError(
            f"{where}: active {experts.active} is more than the {experts.count} experts (granularity x expansion); mend it"
        )
    if mlp_size % experts.granularity:
        raise SpliceError(f"{where}: granularity {experts.granularity} does not divide mlp_size {mlp_size}; mend it")
    return experts, mlp_size


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
        field: _number(found, key, f"{where}: rope type {kind}")
        for field, key in ROPE_FIELDS[kind].items()
        if field != "original" and found.get(key) is not None
    }
    numbers["theta"] = _number(found, "rope_theta", where, _number(values, "rope_theta", where))
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
    if not _are_layers(layers, last + 1):
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


def _are_layers(value: Any, count: int) -> bool:
    return isinstance(value, list) and all(_whole(layer) and 0 <= layer < count for layer in value)


def _number(
    values: Mapping[str, Any],
    key: str,
    where: str,
    default: float | None = None,
    zero: bool = False,
    below: float = math.inf,
) -> float:
    value = values.get(key)
    if value is None and default is not None:
        return default
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not 0 <= value < below or (value == 0 and not zero):  # NaN is not from 0 on
        wanted = ("from 0 on" if zero else "above 0") + (f" and below {below:g}" if below < math.inf else "")
        raise SpliceError(f"{where}: {key} is {value}, not a number {wanted}; set it")
    return float(value)


def _choice(values: Mapping[str, Any], key: str, where: str, choices: tuple[Any, ...], default: Any = None) -> Any:
    value = default if values.get(key) is None else values[key]
    if type(value) is not type(choices[0]) or value not in choices:  # 1 is in (True, False)
        raise SpliceError(f"{where}: {key} is {value}, not one of {', '.join(map(str, choices))}; set it")
    return value
