"""What a run will do, from its settings: the model, the rows, what must fit together; every mistake is found here, at once."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from splice.errors import SpliceError
from splice.store import PackedDataset, Rows

from .checkpoint import STATE, checkpoints
from .data import Policy
from .fot import FoT
from .hf_read import locate, read_config
from .model import PRESETS, ModelConfig
from .rope import extend
from .settings import ModelSettings, TrainSettings
from .tokenizers import check_tokenizer

# What may differ between a run and its resumption: where and how it is computed and looked at, not what.
FREE = {
    "": ("data", "output", "init", "resume", "device", "compile", "recompute", "context_parallel", "checkpoint", "log"),
    "evaluation": ("every", "data", "rows"),
}  # fmt: skip


@dataclass(frozen=True)
class Plan:
    """A run, resolved. start: the directory of the first weights, None for random ones. identity: what a resumption must equal."""

    settings: TrainSettings
    config: ModelConfig
    start: Path | None
    rows: Rows
    validation: Rows | None
    tokenizer: dict[str, Any]
    identity: dict[str, Any]

    @property
    def policy(self) -> Policy:
        return Policy(self.settings.document_mask, self.settings.skip_document_starts)

    @property
    def output(self) -> Path:
        assert self.settings.output is not None
        return self.settings.output


def make_plan(settings: TrainSettings, ranks: int = 1) -> Plan:
    """Raises SpliceError for whatever does not fit together; nothing is written."""
    if settings.data is None:
        raise SpliceError(
            "no data: name a dataset of `splice build` or `splice mix` with --data (or `data:` in the config file)"
        )
    if settings.output is None:
        raise SpliceError("no output: say where the run goes with --output DIR (or `output:` in the config file)")
    dataset = PackedDataset(settings.data)
    start = _start(settings.init) if settings.init else None
    length = settings.context.length or dataset.length
    tokenizer = dataset.manifest["tokenizer"]
    base = _from_start(settings.model, start) if start else _from_preset(settings.model, tokenizer["vocab_size"])
    if tokenizer["vocab_size"] > base.vocab_size:
        raise SpliceError(
            f"{settings.data}: its tokenizer {tokenizer['name']} has {tokenizer['vocab_size']:,} ids, the model's vocabulary "
            f"{base.vocab_size:,}; build the data with the model's tokenizer (splice build --tokenizer), or take another model"
        )
    if start:
        check_tokenizer(start, dataset)
    config = _extended(settings, base, length)
    rows, validation = _rows(settings, dataset, length)
    _check_sizes(settings, config, rows, length, ranks)
    return Plan(settings, config, start, rows, validation, tokenizer, _identity(settings, config, dataset))


def _start(init: str) -> Path:
    """The directory that --init names: a checkpoint of ours, or a model of Hugging Face's format."""
    path = Path(init)
    if is_checkpoint(path):
        return path
    found = checkpoints(path)
    if found:
        raise SpliceError(f"{init}: a run, not a checkpoint; name one of its checkpoints, such as {found[-1]}")
    return locate(init)


def _from_preset(model: ModelSettings, vocab_size: int) -> ModelConfig:
    given = _given(model)
    if model.preset:
        base = replace(PRESETS[model.preset], vocab_size=vocab_size)
    else:
        needed = ("hidden_size", "layers", "heads")
        missing = [name for name in needed if name not in given]
        if missing:
            raise SpliceError(
                f"no model: name one to start from with --init, a size with --model.preset ({', '.join(PRESETS)}), or the "
                f"sizes (missing: {', '.join('model.' + name for name in missing)})"
            )
        heads, hidden = given["heads"], given["hidden_size"]
        mlp = -(-8 * hidden // 3 // 32) * 32  # SwiGLU's 8/3 D, in whole vectors
        base = ModelConfig(vocab_size, hidden, given["layers"], heads, heads, max(2, hidden // heads), mlp, 2048)
    if "heads" in given and "kv_heads" not in given:
        base = replace(base, kv_heads=given["heads"])
    return _with(base, given)


def _from_start(model: ModelSettings, start: Path) -> ModelConfig:
    """The model of a directory. Settings may repeat its sizes but not contradict them."""
    config = read_config(start)
    wanted = _given(model)
    if model.preset:
        preset = PRESETS[model.preset]
        sizes = ("hidden_size", "layers", "heads", "kv_heads", "head_size", "mlp_size")
        wanted = {name: getattr(preset, name) for name in sizes} | wanted
    wrong = [
        f"{name} {value} (the model has {_get(config, name)})"
        for name, value in wanted.items()
        if value != _get(config, name)
    ]
    if wrong:
        raise SpliceError(
            f"{start}: another shape than model: says: {', '.join(wrong)}; leave the sizes out, they come from --init"
        )
    return config


def _given(model: ModelSettings) -> dict[str, Any]:
    return {name: value for name, value in model.model_dump(exclude={"preset"}).items() if value is not None}


def _get(config: ModelConfig, name: str) -> Any:
    return config.rope.theta if name == "rope_theta" else getattr(config, name)


def _with(config: ModelConfig, given: dict[str, Any]) -> ModelConfig:
    known = {field.name for field in fields(ModelConfig)}
    config = replace(config, **{name: value for name, value in given.items() if name in known})
    if "rope_theta" in given:
        config = replace(config, rope=replace(config.rope, theta=given["rope_theta"]))
    return config


def _extended(settings: TrainSettings, config: ModelConfig, length: int) -> ModelConfig:
    """The model at its new context: FoT's memory layers, the stretched rotary table."""
    fot = config.fot if settings.fot.layers is None else None
    local = fot.local_context if fot else settings.fot.local_context
    if settings.fot.layers:
        reach = settings.fot.cross_batch_range
        own = length // local - 1
        fot = FoT(tuple(settings.fot.layers), local, own if reach is None else reach, settings.fot.last_context)
    if fot and length % local:
        raise SpliceError(
            f"fot.local_context {local}: does not divide context.length {length}; take a length that is a multiple of it"
        )
    rope = config.rope
    if settings.context.original:
        rope = replace(rope, original=settings.context.original)
    elif rope.type == "default":
        rope = replace(rope, original=config.length)
    return replace(config, rope=extend(rope, settings.context.method, length), length=length, fot=fot)


def _rows(settings: TrainSettings, dataset: PackedDataset, length: int) -> tuple[Rows, Rows | None]:
    """What is trained on and what is evaluated on."""
    asked = settings.evaluation
    if asked.every and not asked.data and not asked.holdout:
        raise SpliceError(
            "evaluation.every: nothing to evaluate on; name a dataset with --evaluation.data, or keep some of the training "
            "data's examples for it with --evaluation.holdout"
        )
    if asked.data and asked.holdout:
        raise SpliceError("evaluation: give data or holdout, not both")
    last = len(dataset) - asked.holdout
    if last < 1:
        raise SpliceError(
            f"evaluation.holdout {asked.holdout}: {dataset.path} has only {len(dataset)} examples; hold out fewer"
        )
    rows = Rows(dataset, length, range(last))
    if asked.holdout:
        return rows, Rows(dataset, length, range(last, len(dataset)))
    if not asked.data:
        return rows, None
    other = PackedDataset(asked.data)
    mine, theirs = dataset.manifest["tokenizer"], other.manifest["tokenizer"]
    if mine["fingerprint"] != theirs["fingerprint"]:
        raise SpliceError(
            f"{asked.data}: tokenised with {theirs['name']}, the training data with {mine['name']}; build both with one --tokenizer"
        )
    return rows, Rows(other, length)


def _check_sizes(settings: TrainSettings, config: ModelConfig, rows: Rows, length: int, ranks: int) -> None:
    if config.heads % config.kv_heads:
        raise SpliceError(
            f"model.heads {config.heads}: not a multiple of model.kv_heads {config.kv_heads}; each key-value head serves as many query heads"
        )
    if config.hidden_size % config.heads:
        raise SpliceError(
            f"model.hidden_size {config.hidden_size}: not a multiple of model.heads {config.heads}, which Hugging Face's Llama "
            "asks for; take another number of heads"
        )
    if config.fot:
        far = [layer for layer in config.fot.layers if not 0 <= layer < config.layers]
        if far:
            raise SpliceError(f"fot.layers: no layer {far[0]}; the model has layers 0 to {config.layers - 1}")
    parts = settings.context_parallel
    if parts > 1:
        if config.heads % parts or (config.kv_heads % parts and parts % config.kv_heads):
            raise SpliceError(
                f"context_parallel {parts}: does not divide the model's {config.heads} heads ({config.kv_heads} key-value heads); "
                "Ulysses gives each GPU as many"
            )
        if length % parts:
            raise SpliceError(f"context_parallel {parts}: does not divide context.length {length}")
    if ranks % parts:
        raise SpliceError(f"context_parallel {parts}: does not divide the {ranks} processes of this run")
    size, micro, data_ranks = settings.batch.size, settings.batch.micro, ranks // parts
    if size % (micro * data_ranks):
        raise SpliceError(
            f"batch.size {size}: not a multiple of batch.micro {micro} x {data_ranks} data ranks; take a multiple of {micro * data_ranks}"
        )
    if len(rows) < size:
        raise SpliceError(
            f"{rows.dataset.path}: {len(rows)} rows of {length:,} tokens to train on are less than one batch of {size}; take a smaller "
            "--batch.size, a shorter --context.length, or more data"
        )


def _identity(settings: TrainSettings, config: ModelConfig, dataset: PackedDataset) -> dict[str, Any]:
    """What makes a run the same run: dotted settings that its losses depend on, the model, and the bytes of its data."""
    values: dict[str, Any] = {}
    for name, value in settings.model_dump(mode="json", exclude=set(FREE[""])).items():
        if isinstance(value, dict):
            if name not in ("model", "context", "fot"):  # the model's config says what they came to
                values |= {f"{name}.{k}": v for k, v in value.items() if k not in FREE.get(name, ())}
        else:
            values[name] = value
    if config.fot is None or config.fot.cross_batch_range < config.length // config.fot.local_context:
        del values["batch.micro"]  # without negatives rows do not see each other
    model = {f"model.{name}": value for name, value in asdict(config).items()}
    shards = json.dumps([shard["sha256"] for shard in dataset.manifest["shards"]])
    values |= model | {"data": hashlib.sha256(shards.encode()).hexdigest()[:16]}
    return json.loads(json.dumps(values))  # as it is read from a checkpoint: tuples are lists


def check_resumable(checkpoint: Path, state: dict[str, Any], plan: Plan) -> list[str]:
    """Raises SpliceError where a checkpoint belongs to another run; gives what differs and may (the number of steps)."""
    old, new = state["identity"], plan.identity
    differ = [name for name in sorted(old.keys() | new.keys()) if old.get(name) != new.get(name)]
    wrong = [f"{name}: {old.get(name)} there, {new.get(name)} here" for name in differ if name != "steps"]
    if wrong:
        raise SpliceError(
            f"{checkpoint}: made by a run with other settings, so its losses would not go on:\n  "
            + "\n  ".join(wrong)
            + "\n"
            "Give the same settings, or start a run of its own from it: --init CHECKPOINT --output ELSEWHERE"
        )
    return (
        [f"steps: {old['steps']} before, {new['steps']} now; the learning rate follows the new number"]
        if differ
        else []
    )


def is_checkpoint(directory: Path) -> bool:
    return (directory / STATE).is_file()
