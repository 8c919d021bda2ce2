"""From settings to a model's expert layers; every mistake is found here, before the first step."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from splice.errors import SpliceError

from .config import ACROSS_ROWS, Experts, Routing

if TYPE_CHECKING:
    from ..model import ModelConfig
    from ..settings import ExpertSettings, TrainSettings

SIZES = ("granularity", "expansion", "activation")
OWN: dict[Routing, tuple[str, ...]] = {
    # what each routing is told beside the sizes
    "token_choice": ("active", "capacity", "renormalise", "balance", "z", "jitter"),
    "expert_choice": ("active", "group"),
    "mixture_of_tokens": ("group",),
    "threshold": ("tau", "sparsity"),
}
GROUP = 256  # sequences that share a position, for expert choice (Krajewski et al. 2024)


def resolve_experts(asked: ExpertSettings, model: ModelConfig, started: bool) -> Experts | None:
    """The experts of a model, as asked for and as it has them.

    started: the model comes with weights. Then its experts stay as large as they are; a mixture of tokens may become token
    choice, a dense model may be cut into the slices of `threshold`. Raises SpliceError for what makes no sense.
    """
    given = {name: value for name, value in asked.model_dump().items() if value is not None}
    old = model.experts
    routing = asked.routing or (old.routing if old else None)
    if routing is None:
        if given:
            raise SpliceError(
                f"model.experts.{next(iter(given))}: the model has no expert layers; choose a routing with "
                f"--model.experts.routing ({', '.join(OWN)}), or leave model.experts out"
            )
        return None
    _check_given(given, routing)
    if started:
        _check_start(old, routing, given)
    same = old is not None and old.routing == routing
    values: dict[str, Any] = {"granularity": 1, "expansion": 8, "activation": "swiglu"}
    if routing == "threshold":
        values |= {"granularity": 8, "expansion": 1}
    if old is not None:
        kept = (field.name for field in fields(Experts)) if same else (*SIZES, "layers")
        values |= {name: getattr(old, name) for name in kept}
    if started and old is not None:
        wrong = [
            f"{name} {given[name]} (the model has {values[name]})"
            for name in SIZES
            if given.get(name, values[name]) != values[name]
        ]
        if wrong or {"layers", "every"} & given.keys():
            raise SpliceError(
                f"model.experts: another shape than the model that --init names: {', '.join(wrong) or 'its layers are given'}; leave the "
                "sizes and the layers out, they come from --init"
            )
    values |= {name: value for name, value in given.items() if name not in ("layers", "every")}
    if not values.get("capacity", 0):
        values["capacity"] = None
    values["routing"] = routing
    values.setdefault("layers", _layers(asked, model.layers))
    return _checked(_with_defaults(values, routing), model)


def _check_given(given: dict[str, Any], routing: Routing) -> None:
    for name in given.keys() - {"routing", "layers", "every", *SIZES, *OWN[routing]}:
        whose = " and ".join(other for other, names in OWN.items() if name in names)
        raise SpliceError(f"model.experts.{name}: {routing} has no use for it, it is for {whose}; leave it out")
    if routing == "threshold" and given.get("granularity") == 1:
        raise SpliceError("model.experts.granularity 1: that is one slice, the whole layer on or off; take 2 or more")
    if routing == "threshold" and given.get("expansion", 1) != 1:
        raise SpliceError(
            f"model.experts.expansion {given['expansion']}: threshold cuts the dense layer into slices and adds none; "
            "leave it out, granularity says how many"
        )
    if "layers" in given and "every" in given:
        raise SpliceError("model.experts: give layers or every, not both")


def _check_start(old: Experts | None, routing: Routing, given: dict[str, Any]) -> None:
    if old is None and given.get("activation", "swiglu") != "swiglu":
        raise SpliceError(
            f"model.experts.activation {given['activation']}: slices of the model that --init names are swiglu, as it is; leave it out"
        )
    if old is None and routing != "threshold":
        raise SpliceError(
            f"model.experts.routing {routing}: the model that --init names is dense, and only threshold can be made of one; leave "
            "--init out to begin with random experts"
        )
    transition = old is not None and (old.routing, routing) == ("mixture_of_tokens", "token_choice")
    if old is not None and routing != old.routing and not transition:
        raise SpliceError(
            f"model.experts.routing {routing}: the model that --init names has {old.routing}, and of routings only mixture_of_tokens "
            "can change, to token_choice; leave it out"
        )


def _layers(asked: ExpertSettings, count: int) -> tuple[int, ...]:
    if asked.layers is not None:
        far = [layer for layer in asked.layers if not 0 <= layer < count]
        if far or not asked.layers:
            what = f"no layer {far[0]}" if far else "none given"
            raise SpliceError(f"model.experts.layers: {what}; the model has layers 0 to {count - 1}")
        return tuple(sorted(set(asked.layers)))
    every = asked.every or 1
    if every > count:
        raise SpliceError(f"model.experts.every {every}: the model has only {count} layers; take a smaller number")
    return tuple(range(every - 1, count, every))


def _check_kernels(settings: TrainSettings, config: ModelConfig) -> None:
    import torch

    assert config.experts is not None
    cuda = settings.device != "cpu" and torch.cuda.is_available()
    if settings.kernels == "triton" and not cuda:
        raise SpliceError("kernels triton: they compute on CUDA only; leave it out, or take plain or grouped")
    half = settings.dtype == "bfloat16" or (settings.dtype == "auto" and cuda)
    size, whole = config.mlp_size // config.experts.granularity, 8 if half else 4
    if settings.kernels == "grouped" and (size % whole or config.hidden_size % whole):
        raise SpliceError(
            f"kernels grouped: torch's product wants rows of whole 16 bytes, and experts of {size} for {config.hidden_size} values are "
            f"no multiples of {whole}; leave it out, or take another model.experts.granularity"
        )


def _with_defaults(values: dict[str, Any], routing: Routing) -> Experts:
    granularity, expansion = values["granularity"], values["expansion"]
    values.setdefault("active", granularity * expansion if routing == "threshold" else granularity)
    if routing == "token_choice":
        values.setdefault("renormalise", values["active"] > 1)
    else:
        values.setdefault("balance", 0.0)
    if routing in ACROSS_ROWS:
        values.setdefault("group", GROUP if routing == "expert_choice" else expansion)
    return Experts(**values)


def _checked(experts: Experts, model: ModelConfig) -> Experts:
    g, count, active = experts.granularity, experts.count, experts.active
    if model.mlp_size % g:
        raise SpliceError(
            f"model.experts.granularity {g}: does not divide model.mlp_size {model.mlp_size}, and an expert is mlp_size / granularity "
            "wide; take one that does"
        )
    if active > count:
        raise SpliceError(
            f"model.experts.active {active}: there are only {count} experts (granularity {g} x expansion {experts.expansion}); take "
            "fewer active ones, or a larger expansion"
        )
    if experts.routing == "token_choice" and experts.renormalise and active == 1:
        raise SpliceError(
            "model.experts.renormalise: the one active expert always has weight 1, and the router learns nothing; take "
            "--model.experts.renormalise no (weights are then probabilities, another model than one to start from had), or "
            "--model.experts.active 2"
        )
    if experts.routing == "expert_choice" and (experts.group * active % count or experts.group * active < count):
        raise SpliceError(
            f"model.experts.group {experts.group}: each of {count} experts takes group x active / {count} = "
            f"{experts.group * active / count:g} tokens of a group, which is no whole number from 1 on; take a group that is a multiple of "
            f"{count // math.gcd(count, active)}"
        )
    return experts


def check_experts(settings: TrainSettings, config: ModelConfig, ranks: int, validation: int | None) -> None:
    """Raise SpliceError where the experts and the rest of a run do not fit together. validation: rows to evaluate on."""
    experts, parts = config.experts, settings.expert_parallel
    if experts is None:
        given = {
            "expert_parallel": parts > 1,
            "kernels": settings.kernels != "auto",
            "tune_kernels": settings.tune_kernels,
        }
        for name in (name for name, is_given in given.items() if is_given):
            raise SpliceError(f"{name}: the model has no experts; leave it out")
        return
    _check_kernels(settings, config)
    if experts.count % parts:
        raise SpliceError(
            f"expert_parallel {parts}: does not divide the model's {experts.count} experts; take a number that does"
        )
    if ranks % parts:
        raise SpliceError(
            f"expert_parallel {parts}: does not divide the number of processes of this run, {ranks}; start a multiple of {parts} "
            "with torchrun --nproc-per-node"
        )
    replicas, size = ranks // parts, config.mlp_size // experts.granularity
    wide = 2 * size if experts.activation == "swiglu" else size
    if parts > 1 and (config.hidden_size % replicas or wide % replicas):
        raise SpliceError(
            f"expert_parallel {parts}: an expert's matrices of {wide} and {config.hidden_size} rows cannot be shared by the {replicas} GPUs "
            "that hold the same experts; take another number of GPUs"
        )
    if experts.alone:
        return
    group, micro = experts.group, settings.batch.micro
    if micro % group:
        raise SpliceError(
            f"model.experts.group {group}: a forward pass has --batch.micro {micro} rows, which do not fill groups of {group} sequences; "
            f"take --batch.micro {group}, or a smaller --model.experts.group"
        )
    if validation is not None and min(validation, settings.evaluation.rows or validation) < group:
        raise SpliceError(
            f"evaluation: {min(validation, settings.evaluation.rows or validation)} rows are less than a group of {group}, among which "
            f"{experts.routing} chooses; evaluate on more, or take a smaller --model.experts.group"
        )
    if settings.document_mask:
        raise SpliceError(
            f"document_mask: {experts.routing} chooses among the tokens of several rows, so documents would meet in the experts; leave it "
            "out, or take --model.experts.routing token_choice"
        )
    if config.fot and config.fot.cross_batch_range >= config.length // config.fot.local_context:
        raise SpliceError(
            f"fot.cross_batch_range {config.fot.cross_batch_range}: memory layers see ends of other rows, which {experts.routing} mixes with "
            f"this row's future; take at most {config.length // config.fot.local_context - 1}, or token_choice"
        )
