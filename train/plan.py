"""What a run will do, from its settings: the model, the rows, what must fit together; every mistake is found here, at once."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from splice.errors import SpliceError
from splice.files import LOCK, TEMPORARY
from splice.storage import local_directory, names
from splice.store import PackedDataset, Rows

from .checkpoint import checkpoints, read_state
from .data import Policy
from .experts.resolve import check_experts, resolve_experts
from .fot import FoT
from .hf_read import read_config
from .log import METRICS, require_trackers
from .model import PRESETS, ModelConfig
from .restore import find_model
from .rope import extend
from .settings import FoTSettings, ModelSettings, TrainSettings
from .tokenizers import check_tokenizer

# What may differ between a run and its resumption: where and how it is computed and looked at, not what.
FREE = (
    "data", "output", "init", "resume", "device", "compile", "recompute", "context_parallel", "expert_parallel", "kernels",
    "tune_kernels", "checkpoint", "log",
)  # fmt: skip
FREE_EVALUATION = ("every", "data", "rows")
# And what may too, though losses will follow it: after a loss that is no number one wants another learning rate.
TOLD = ("steps", "dtype", "optimizer.")
RUN = "run.json"  # what a run was told, for people
VOCABULARY_MULTIPLE = 128  # the products with the head are slow for other sizes


@dataclass(frozen=True)
class Plan:
    """A run, resolved.

    start: the directory of the first weights, None for random ones. last: the checkpoint to go on from, None for a new run.
    tokenizer: what the data's manifest says of it; tokenizer_files: its files by name. identity: what a resumption must equal.
    """

    settings: TrainSettings
    config: ModelConfig
    start: Path | None
    rows: Rows
    validation: Rows | None
    last: Path | None
    tokenizer: dict[str, Any]
    tokenizer_files: dict[str, bytes]
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
    output = _output(settings)
    require_trackers(settings.log.tensorboard, settings.log.wandb)
    dataset = PackedDataset(settings.data)
    length = settings.context.length or dataset.length
    tokenizer = dataset.manifest["tokenizer"]
    last = _last_checkpoint(output, settings.resume)
    start = None
    if last:
        config = read_config(last)  # it is the model, whatever it was made from and whether that is still there
    else:
        start = find_model(settings.init) if settings.init else None
        base = (
            _from_start(settings.model, start)
            if start
            else _from_preset(settings.model, tokenizer["vocab_size"], length)
        )
        base = replace(base, experts=resolve_experts(settings.model.experts, base, start is not None))
        config = _extended(settings, base, length)
    if tokenizer["vocab_size"] > config.vocab_size:
        raise SpliceError(
            f"{settings.data}: its tokenizer {tokenizer['name']} has {tokenizer['vocab_size']:,} ids, the model's vocabulary "
            f"{config.vocab_size:,}; build the data with the model's tokenizer (splice build --tokenizer), or take another model"
        )
    if start:
        check_tokenizer(start, dataset)
    rows, validation = _rows(settings, dataset, length)
    _check_sizes(settings, config, rows, length, ranks)
    check_experts(settings, config, ranks, None if validation is None else len(validation))
    identity = _identity(settings, config, dataset)
    if last:
        differences(last, identity)
    files = _tokenizer_files(dataset)
    return Plan(settings, config, start, rows, validation, last, tokenizer, files, identity)


def _output(settings: TrainSettings) -> Path:
    """Where the run goes: a directory that is new, empty or a run's, and that can be made."""
    if settings.output is None or str(settings.output) in ("", "."):
        raise SpliceError(
            "no output: say where the run goes with --output DIR, one of its own (or `output:` in the config file)"
        )
    output = settings.output
    above = next((path for path in (output, *output.absolute().parents) if path.exists()), Path("/"))
    if not above.is_dir() or not os.access(above, os.W_OK):
        why = "cannot be written to" if above.is_dir() else "is a file"
        raise SpliceError(f"{output}: cannot be made, {above} {why}; name another place with --output")
    names = {path.name for path in output.iterdir()} - {LOCK} if output.is_dir() else set()
    names = {name for name in names if not name.startswith(TEMPORARY)}
    if names and not names & {METRICS, RUN} and not checkpoints(output):
        found = ", ".join(sorted(names)[:4])
        raise SpliceError(f"{output}: holds something else than a run ({found}); name another --output")
    return output


def _last_checkpoint(output: Path, resume: bool) -> Path | None:
    """Where to go on from, or None. A run is never written over unasked."""
    found = checkpoints(output)
    if resume:
        return found[-1] if found else None
    if found or (output / METRICS).exists():
        what = f"a run, its last checkpoint at {found[-1].name}" if found else "a run that has no checkpoint yet"
        raise SpliceError(f"{output}: holds {what}; go on with --resume, or name another --output")
    return None


def _tokenizer_files(dataset: PackedDataset) -> dict[str, bytes]:
    """Read now, since the data may be gone when the last checkpoint is written."""
    place = dataset.path / "tokenizer"
    directory = local_directory(place) if names(place) else None
    files = sorted(path for path in directory.iterdir() if path.is_file()) if directory else []
    if not files:
        raise SpliceError(f"{place}: no tokenizer there, which checkpoints are to hold; build the dataset again")
    return {path.name: path.read_bytes() for path in files}


def _from_preset(model: ModelSettings, vocab_size: int, length: int) -> ModelConfig:
    given = _given(model)
    vocab_size = -(-vocab_size // VOCABULARY_MULTIPLE) * VOCABULARY_MULTIPLE
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
        base = ModelConfig(vocab_size, hidden, given["layers"], heads, heads, max(2, hidden // heads), mlp, length)
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
    sizes = model.model_dump(exclude={"preset", "experts"})
    return {name: value for name, value in sizes.items() if value is not None}


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
    fot = _fot(settings.fot, config, length)
    rope, original, method = config.rope, settings.context.original, settings.context.method
    if original and rope.type != "default" and original != rope.original:
        raise SpliceError(
            f"context.original {original}: the model's positions are stretched from {rope.original} ({rope.type}), and another "
            "number would change what it has learnt; leave it out"
        )
    if rope.type == "default":
        # the context it was trained with last, however it got there; with FoT that of its positions
        rope = replace(rope, original=original or (config.fot.local_context if config.fot else config.length))
        if method in ("linear", "yarn") and length <= rope.original:
            raise SpliceError(
                f"context.method {method}: nothing to stretch, the context of {length:,} is not longer than the {rope.original:,} that "
                "the model is for; say what it was trained for with --context.original, or take a longer --context.length"
            )
    return replace(config, rope=extend(rope, method, length), length=length, fot=fot)


def _fot(asked: FoTSettings, config: ModelConfig, length: int) -> FoT | None:
    """FoT as asked for; what is not given is that of the model it starts from, or the default."""
    given = {name: getattr(asked, name) for name in asked.model_fields_set if getattr(asked, name) is not None}
    old = config.fot
    if asked.layers == []:
        return None
    if not asked.layers and old is None:
        if given:
            raise SpliceError(
                f"fot.{next(iter(given))}: the model has no memory layers; name some with --fot.layers, or leave fot out"
            )
        return None
    values = {name: getattr(asked, name) for name in ("local_context", "last_context")}
    if old:
        values = {"local_context": old.local_context, "last_context": old.last_context}
    values |= {"layers": old.layers if old else (), "cross_batch_range": None} | given
    local, layers = values["local_context"], tuple(sorted(set(values["layers"])))
    far = [layer for layer in layers if not 0 <= layer < config.layers]
    if far:
        raise SpliceError(f"fot.layers: no layer {far[0]}; the model has layers 0 to {config.layers - 1}")
    if length % local:
        raise SpliceError(
            f"fot.local_context {local}: does not divide context.length {length}; take a length that is a multiple of it"
        )
    reach = values["cross_batch_range"]
    if reach is None:  # all of its example, unless the model saw less or more of its own
        every = old is None or old.cross_batch_range == config.length // old.local_context - 1
        reach = length // local - 1 if every or old is None else old.cross_batch_range
    return FoT(layers, local, reach, min(values["last_context"], local))


def _rows(settings: TrainSettings, dataset: PackedDataset, length: int) -> tuple[Rows, Rows | None]:
    """What is trained on and what is evaluated on."""
    asked = settings.evaluation
    if asked.every and not asked.data and not asked.holdout:  # without `every`, at the end
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
        raise SpliceError(f"context_parallel {parts}: does not divide the number of processes of this run, {ranks}")
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
    for name, value in settings.model_dump(mode="json", exclude=set(FREE)).items():
        if isinstance(value, dict):
            values |= {f"{name}.{k}": v for k, v in value.items() if name != "evaluation" or k not in FREE_EVALUATION}
        else:
            values[name] = value
    alone = config.fot is None or config.fot.cross_batch_range < config.length // config.fot.local_context
    if alone and config.experts is None:
        del values["batch.micro"]  # without negatives rows do not see each other, nor share experts
    del values["model.experts"]
    given = settings.model.experts.model_dump(mode="json", exclude_none=True)
    values |= {f"model.experts.{name}": value for name, value in given.items()}
    if config.experts and (config.experts.jitter or config.experts.capacity):
        values["context_parallel"] = settings.context_parallel  # each rank's noise and capacity are its own
    shards = json.dumps([shard["sha256"] for shard in dataset.manifest["shards"]])
    return {**values, "the dataset": hashlib.sha256(shards.encode()).hexdigest()[:16]}


def differences(checkpoint: Path, identity: dict[str, Any]) -> list[str]:
    """What is another than in the run that made a checkpoint, where that may be.

    Raises SpliceError for what may not: a resumption with it would be no resumption.
    """
    old = read_state(checkpoint)["identity"]
    names = [name for name in sorted(old.keys() | identity.keys()) if old.get(name) != identity.get(name)]
    said = {name: f"{name}: {old.get(name)} there, {identity.get(name)} here" for name in names}
    wrong = [text for name, text in said.items() if not name.startswith(TOLD)]
    if wrong:
        raise SpliceError(
            f"{checkpoint}: made by a run with other settings, so its losses would not go on:\n  "
            + "\n  ".join(wrong)
            + "\n"
            "Give the same settings, or start a run of its own from it: --init CHECKPOINT --output ELSEWHERE"
        )
    return [f"{text}; from here on it counts" for text in said.values()]
