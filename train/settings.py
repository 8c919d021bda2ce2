"""Everything `splice train` can be told, once: names, types, defaults, help.

The command line and the YAML file are both made from `TrainSettings`: `--optimizer.lr 1e-4` is `optimizer: {lr: 1e-4}`. Values
of the command line win over the file, the file over the defaults.
"""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator

from splice.errors import SpliceError
from splice.options import plain
from splice.settings import as_text, choices, read_config


def _split(value: Any) -> Any:
    """ "6,9" of the command line is a list, and so is one number."""
    if isinstance(value, str):
        return [part for part in value.split(",") if part.strip()]
    return [value] if isinstance(value, int) else value


Layers = Annotated[list[int], BeforeValidator(_split)]


def setting(default: Any, help: str, **bounds: Any) -> Any:
    return Field(default=default, description=help, **bounds)


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class ExpertSettings(Section):
    """Mixture of experts, where a routing is named or --init has it.

    E = granularity x expansion experts, each of mlp_size / granularity.
    """

    routing: Literal["token_choice", "expert_choice", "mixture_of_tokens", "threshold"] | None = setting(
        None,
        "who goes where; threshold: slices of a dense layer (DSMoE), of --init's or of random ones, all computed in training",
    )
    granularity: int | None = setting(None, "G = mlp_size / size of an expert; default 1 (threshold: 8)", ge=1)
    expansion: int | None = setting(None, "R, times the parameters of the dense layer; default 8 (threshold: 1)", ge=1)
    active: int | None = setting(None, "experts that a token goes to, or on average; default: granularity", ge=1)
    every: int | None = setting(None, "the last of every n layers has experts (2: layers 1, 3, 5); default: each", ge=1)
    layers: Layers | None = setting(None, "or these layers, counted from 0: 1,3,5")
    activation: Literal["swiglu", "relu", "gelu"] | None = setting(
        None, "of an expert; relu and gelu have two matrices, not three; default swiglu"
    )
    capacity: float | None = setting(
        None,
        "token_choice: times the mean load that an expert takes at most in training; default 0: all (dropless)",
        ge=0,
    )
    renormalise: bool | None = setting(
        None, "token_choice: weights of a token add up to 1; default: with 2 or more active"
    )
    balance: float | None = setting(None, "token_choice: weight of the load-balancing loss; default 0.01", ge=0)
    z: float | None = setting(None, "token_choice: weight of the router's z-loss; default 0", ge=0)
    jitter: float | None = setting(
        None, "token_choice: the router's input is scaled by 1 +- so much; default 0", ge=0, lt=1
    )
    group: int | None = setting(
        None, "expert_choice (default 256), mixture_of_tokens (default: expansion): rows that share a position", ge=1
    )
    tau: float | None = setting(None, "threshold: a gate above it is on; default 0.5", gt=0, lt=1)
    sparsity: float | None = setting(None, "threshold: weight of the gates' mean in the loss; default 0", ge=0)


class ModelSettings(Section):
    """Sizes of the model; what is not given comes from --init, or from the preset."""

    preset: Literal["tiny", "small", "270m", "3b", "7b", "13b"] | None = setting(
        None, "sizes of a model made here; 270m to 13b are the paper's table 5.1"
    )
    vocab_size: int | None = setting(None, "default: the dataset's tokenizer's", ge=1)
    hidden_size: int | None = setting(None, "D", ge=1)
    layers: int | None = setting(None, "blocks", ge=1)
    heads: int | None = setting(None, "query heads", ge=1)
    kv_heads: int | None = setting(None, "key-value heads; fewer than heads: grouped-query attention", ge=1)
    head_size: int | None = setting(None, "of one head, even", ge=2, multiple_of=2)
    mlp_size: int | None = setting(None, "of the SwiGLU", ge=1)
    rope_theta: float | None = setting(None, "base of the rotary frequencies", gt=0)
    norm_eps: float | None = setting(None, "of RMSNorm", gt=0)
    tied: bool | None = setting(None, "one matrix embeds tokens and predicts them")
    experts: ExpertSettings = Field(default_factory=ExpertSettings)


class ContextSettings(Section):
    """How long the context becomes, and by which method."""

    length: int | None = setting(None, "tokens of a row (T); default: the dataset's; shorter: examples are cut", ge=16)
    method: Literal["naive", "linear", "codellama", "yarn"] = setting("naive", "of extension, by the rotary table")
    original: int | None = setting(
        None, "context the model was trained for (L0); default: what --init or the preset says", ge=16
    )


class FoTSettings(Section):
    """Focused Transformer: on where `layers` names memory layers, or --init has them (an empty list turns it off)."""

    layers: Layers | None = setting(None, "memory layers, counted from 0: 6,9")
    local_context: int = setting(2048, "L, tokens that the other layers see", ge=16)
    cross_batch_range: int | None = setting(
        None, "r, earlier contexts a memory layer sees; default: all of its example; more: other documents too", ge=0
    )
    last_context: int = setting(1024, "tokens at the end of a prompt that stay out of the memory at inference", ge=1)


class BatchSettings(Section):
    size: int = setting(8, "rows of a step, over all GPUs", ge=1)
    micro: int = setting(1, "rows of one forward pass on one GPU; the rest is accumulated", ge=1)


class OptimizerSettings(Section):
    """AdamW."""

    lr: float = setting(3e-4, "highest learning rate", gt=0)
    end_lr: float | None = setting(None, "last learning rate; default: a tenth of lr", ge=0)
    schedule: Literal["cosine", "constant", "wsd"] = setting(
        "cosine", "after warm-up; wsd: constant, then linear decay"
    )
    warmup: int = setting(0, "steps of linear warm-up", ge=0)
    decay: float = setting(0.2, "share of the steps that wsd decays over", gt=0, le=1)
    beta1: float = setting(0.9, "of the first moment", ge=0, lt=1)
    beta2: float = setting(0.95, "of the second moment", ge=0, lt=1)
    weight_decay: float = setting(0.1, "of matrices; norms have none", ge=0)
    clip: float = setting(1.0, "largest norm of the gradient; 0: no clipping", ge=0)


class CheckpointSettings(Section):
    every: int = setting(500, "steps between checkpoints; the last step always leaves one", ge=1)
    keep: int = setting(2, "last checkpoints kept; 0: all", ge=0)


class EvaluationSettings(Section):
    """Loss and perplexity by position, during training."""

    every: int = setting(0, "steps between evaluations; 0: one at the end, if there is something to evaluate on", ge=0)
    data: str | None = setting(None, "a dataset to evaluate on")
    holdout: int = setting(0, "or so many examples of --data, which are then not trained on", ge=0)
    rows: int | None = setting(None, "rows at most; default: all", ge=1)

    _data = field_validator("data", mode="before")(as_text)


class LogSettings(Section):
    experts: int = setting(10, "steps between lines of experts.jsonl, the load of each expert", ge=1)
    tensorboard: bool = setting(False, "also for tensorboard")
    wandb: str | None = setting(None, "also to this project of Weights & Biases")
    peak_tflops: float | None = setting(None, "of one GPU, for MFU, where the device is not known", gt=0)


class TrainSettings(Section):
    """The settings of one run. Raises pydantic's ValidationError; `resolve` turns that into one clear sentence."""

    data: str | None = setting(None, "a dataset of splice build or splice mix: a directory, s3://, gs://, hdfs:///")
    output: Path | None = setting(None, "where the run goes: metrics.jsonl, checkpoints")
    init: str | None = setting(
        None, "start from this model: a Hugging Face Llama directory or hub name, or a checkpoint of ours"
    )
    resume: bool = setting(False, "go on from the last checkpoint in --output, if there is one")
    steps: int = setting(1000, "optimizer steps", ge=1)
    seed: int = setting(0, "of the first weights and of the order of the data", ge=0)
    document_mask: bool = setting(False, "attention stays within documents; default: it crosses them, SPLiCe's point")
    skip_document_starts: bool = setting(
        False, "no loss on the first token of a document, which nothing before it tells"
    )
    device: Literal["auto", "cpu", "cuda"] = setting("auto", "where to compute")
    dtype: Literal["auto", "float32", "bfloat16"] = setting(
        "auto", "of the computation; weights are float32. auto: bfloat16 on CUDA"
    )
    compile: bool | None = setting(None, "torch.compile each block; default: on CUDA")
    recompute: bool = setting(False, "activation checkpointing: keep only what enters a block")
    context_parallel: int = setting(1, "GPUs that share each row by Ulysses all-to-all", ge=1)
    expert_parallel: int = setting(1, "GPUs that share the experts, tokens travelling by all-to-all", ge=1)
    kernels: Literal["auto", "plain", "triton", "grouped"] = setting(
        "auto", "of experts. auto: triton on CUDA, else plain torch; grouped: torch's grouped_mm"
    )
    tune_kernels: bool = setting(
        False, "try a few block sizes of the Triton kernels first, once for each GPU and shape"
    )

    model: ModelSettings = Field(default_factory=ModelSettings)
    context: ContextSettings = Field(default_factory=ContextSettings)
    fot: FoTSettings = Field(default_factory=FoTSettings)
    batch: BatchSettings = Field(default_factory=BatchSettings)
    optimizer: OptimizerSettings = Field(default_factory=OptimizerSettings)
    checkpoint: CheckpointSettings = Field(default_factory=CheckpointSettings)
    evaluation: EvaluationSettings = Field(default_factory=EvaluationSettings)
    log: LogSettings = Field(default_factory=LogSettings)

    _data = field_validator("data", mode="before")(as_text)


def flags() -> dict[str, dict[str, Any]]:
    """Dotted name -> annotation, default, help, panel of every setting, in the order of `--help`."""
    return dict(_flags(TrainSettings, "", "Run"))


def _flags(section: type[BaseModel], prefix: str, panel: str) -> list[tuple[str, dict[str, Any]]]:
    listed = []
    for name, info in section.model_fields.items():
        kind = info.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            listed += _flags(kind, f"{prefix}{name}.", name)
        else:
            described = {"annotation": plain(kind), "default": info.default, "help": info.description, "panel": panel}
            if prefix.count(".") > 1:  # beside so long a name 80 columns have no room for choices, nor for a --no-...
                if described["annotation"] is bool:
                    described["annotation"] = Literal["yes", "no"]
                values = choices(described["annotation"])
                described["metavar"] = "<kind>" if values else f"<{described['annotation'].__name__}>"
                described["help"] = (f"{', '.join(values)}: " if values else "") + str(info.description)
            listed.append((prefix + name, described))
    return listed


def resolve(given: dict[str, Any], config: Path | None) -> TrainSettings:
    """Dotted flags over the YAML file over the defaults, validated once.

    Raises SpliceError for a file that cannot be read, a setting that does not exist, a value out of bounds.
    """
    values = read_config(config) if config else {}
    given = {name: value for name, value in given.items() if value is not None}
    for name, value in given.items():
        *sections, last = name.split(".")
        place = values
        for section in sections:
            if not isinstance(place.get(section), dict):
                place[section] = {}
            place = place[section]
        place[last] = value
    try:
        return TrainSettings.model_validate(values)
    except ValidationError as error:
        raise SpliceError(_explain(error, given, config)) from None


def _explain(error: ValidationError, given: dict[str, Any], config: Path | None) -> str:
    lines = []
    for problem in error.errors():
        name = ".".join(str(part) for part in problem["loc"] if isinstance(part, str) and "[" not in part)
        where = f"--{name}" if any(n == name or n.startswith(f"{name}.") for n in given) else f"{config}: {name}"
        if problem["type"] == "extra_forbidden":
            lines.append(f"{where}: no such setting" + _meant(name))
        elif problem["type"] == "model_type":
            lines.append(f"{where}: expected settings of its own, `{name}: {{...}}` (given: {problem['input']!r})")
        else:
            lines.append(f"{where}: {problem['msg']} (given: {problem['input']!r})")
    return "\n".join(lines)


def _meant(name: str) -> str:
    sections = {flag.split(".")[0] for flag in flags() if "." in flag}
    section, dot, rest = name.partition(".")
    if dot and name in flags():
        return f"; write `{section}: {{{rest}: ...}}`"
    close = difflib.get_close_matches(name, [*flags(), *sections], 1)
    return f"; did you mean {close[0]}?" if close else ""
