"""Everything `splice build` can be told, once: names, types, defaults, help, and the stage a setting first matters to.

The command line and the YAML file are both made from `BuildSettings`, so a name means the same in each. A stage's
fingerprint covers the settings of that stage and of those before it: what has the same fingerprint is reused.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any, Literal, get_args

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from .errors import SpliceError

# Part of every fingerprint: raised when a stage's files change their meaning, so that old ones are never reused.
FORMAT = 3

Stage = Literal["ingest", "tokens", "embed", "link", "walk", "write", "run"]


_BM25 = ("k1", "b", "query_tf", "max_df", "neighbours")
# The retrievers that search, and which of the settings of link each has a use for.
LINK_SETTINGS: dict[str, tuple[str, ...]] = {
    "bm25": _BM25,
    "dense": ("neighbours",),
    "hybrid": (*_BM25, "merge", "bm25_weight", "window"),
}


def setting(default: Any, help: str, stage: Stage, panel: str, **bounds: Any) -> Any:
    """A field with its help text, the stage it first matters to and the panel of `--help` it is listed in."""
    extra = {"stage": stage, "panel": panel}
    if callable(default):
        return Field(default_factory=default, description=help, json_schema_extra=extra, **bounds)
    return Field(default=default, description=help, json_schema_extra=extra, **bounds)


def as_text(value: Any) -> Any:
    """A path as its text: a place may be a URL too."""
    return str(value) if isinstance(value, Path) else value


class BuildSettings(BaseModel):
    """The settings of one build. Raises pydantic's ValidationError; `resolve` turns that into one clear sentence."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    sources: list[str] = setting(list, "directory trees, JSONL (.gz, .zst), Parquet, hub:NAME", "ingest", "Sources")
    output: str | None = setting(None, "where the dataset goes: a directory, s3://, gs://, hdfs:///", "run", "Where")
    work: str | None = setting(
        None, "packs, graph and plans, kept for other builds; default OUTPUT/work", "run", "Where"
    )
    workers: int = setting(0, "tasks at a time; 0: one per core", "run", "Where", ge=0, le=1024)

    retriever: Literal["bm25", "dense", "hybrid", "repo", "domain", "random"] = setting(
        "bm25",
        "how neighbours are found; dense: by an encoder; hybrid: bm25 and dense; repo: by the directory tree; "
        "domain: at random within one; random: the baseline",
        "link",
        "Method",
    )
    domain_field: str = setting(
        "repo",
        "what a domain is: repo, extension (of the path), or the field of a row that names it",
        "ingest",
        "Method",
    )
    k: int = setting(1, "breadth of the walk: documents retrieved at each step", "walk", "Method", ge=1, le=1024)
    length: int = setting(32768, "tokens of one example (L)", "walk", "Method", ge=16, le=2**24)
    order: Literal["identity", "reverse", "shuffle"] = setting(
        "identity", "order of the documents in an example", "walk", "Method"
    )
    exhausted: Literal["restart", "short"] = setting(
        "restart", "no neighbour left: a new root in the same example, or end it short", "walk", "Method"
    )
    tail: Literal["trim", "carry", "whole"] = setting(
        "trim", "what is over the length: dropped, opens the next example, or documents are never cut", "walk", "Method"
    )
    join: Literal["bos_eos", "bos", "eos", "none"] = setting(
        "bos_eos", "special tokens written around each document", "walk", "Method"
    )
    noise: float = setting(
        0.0, "share of the retrieved documents that are replaced by random ones", "walk", "Method", ge=0, le=1
    )
    max_uses: int = setting(1, "examples that one document may be in", "walk", "Method", ge=1, le=1024)
    seed: int = setting(0, "roots, shuffles and the order of examples", "walk", "Method", ge=0, lt=2**63)

    glob: list[str] = setting(list, "take only files whose name or path matches (repeatable)", "ingest", "Sources")
    text_field: str = setting("text", "field of a JSONL, Parquet or hub row that holds the text", "ingest", "Sources")
    id_field: str | None = setting(None, "field that names the document; default FILE:LINE", "ingest", "Sources")
    repo_field: str | None = setting(None, "field that names its repository", "ingest", "Sources")
    path_field: str | None = setting(None, "field that holds its path there", "ingest", "Sources")
    min_chars: int = setting(1, "shorter documents are filtered out", "ingest", "Filters", ge=0)
    max_chars: int = setting(30_000, "longer documents are filtered out", "ingest", "Filters", ge=1)
    max_line_bytes: int = setting(64 * 2**20, "longer JSONL lines are quarantined", "ingest", "Filters", ge=1024)
    dedup: Literal["exact", "near", "none"] = setting(
        "exact", "drop documents with the same bytes; near: also those with almost the same words", "ingest", "Filters"
    )
    near_threshold: float = setting(
        0.8, "near-duplicates share this much of their shingles (Jaccard, by MinHash)", "ingest", "Filters", gt=0, le=1
    )
    shingle_words: int = setting(5, "words of a shingle", "ingest", "Filters", ge=1, le=100)
    decontaminate: list[str] = setting(
        list, "drop documents that share an n-gram with this evaluation file (repeatable)", "ingest", "Filters"
    )
    ngram_words: int = setting(13, "words of such an n-gram", "ingest", "Filters", ge=1, le=1000)
    strict: bool = setting(False, "stop at the first bad line or file instead of quarantining it", "ingest", "Filters")

    tokenizer: str | None = setting(
        None, "tokenizer.json, .model, directory or hub name; default: trained on the corpus", "tokens", "Tokenizer"
    )
    vocab_size: int = setting(
        32_000, "vocabulary of the trained default tokenizer", "tokens", "Tokenizer", ge=300, le=2**20
    )
    pack_documents: int = setting(50_000, "most documents indexed together", "ingest", "Packs", ge=1, le=2**22)
    pack_by: Literal["repository", "source", "hash", "cluster"] = setting(
        "repository",
        "which documents go into one pack, where there are several; repository: those of one, and packs of equal size; "
        "source: of one alone; hash: at random by content; cluster: those that use the same words",
        "ingest",
        "Packs",
    )
    max_repo_bytes: int = setting(
        25_000_000, "larger repositories are split (--pack-by repository)", "ingest", "Packs", ge=1
    )

    k1: float = setting(1.5, "BM25: saturation of a term's frequency", "link", "BM25", ge=0, allow_inf_nan=False)
    b: float = setting(0.75, "BM25: weight of the document's length", "link", "BM25", ge=0, le=1)
    query_tf: Literal["linear", "sqrt", "binary"] = setting(
        "linear", "BM25: how often a query repeats a term counts so", "link", "BM25"
    )
    max_df: float = setting(1.0, "BM25: ignore terms in more than this share of documents", "link", "BM25", gt=0, le=1)
    neighbours: int = setting(
        32,
        "neighbours kept per document; changes speed, not results (but of dense packs of over 262,144)",
        "link",
        "Packs",
        ge=1,
        le=4096,
    )

    encoder: str = setting(
        "facebook/contriever-msmarco",
        "sentence-transformers or transformers model: hub name or directory",
        "embed",
        "Dense, hybrid",
    )
    encoder_tokens: int = setting(
        512,
        "tokens of a document that are embedded, its first, special ones included",
        "embed",
        "Dense, hybrid",
        ge=1,
        le=2**20,
    )
    merge: Literal["rrf", "sum"] = setting(
        "rrf",
        "hybrid: reciprocal ranks, or the weighted sum of scores normalised over the window",
        "link",
        "Dense, hybrid",
    )
    bm25_weight: float = setting(0.5, "hybrid: BM25's share of a score", "link", "Dense, hybrid", ge=0, le=1)
    window: int = setting(256, "hybrid: best documents of each that are merged", "link", "Dense, hybrid", ge=1, le=4096)

    shard_tokens: int = setting(2**24, "tokens in one Parquet shard", "write", "Shards", ge=16)

    _places = field_validator("output", "work", mode="before")(as_text)

    @model_validator(mode="after")
    def _coherent(self) -> BuildSettings:
        if self.min_chars > self.max_chars:
            raise ValueError(f"min_chars ({self.min_chars}) is larger than max_chars ({self.max_chars})")
        if self.shard_tokens < self.length:
            raise ValueError(f"shard_tokens ({self.shard_tokens}) is smaller than one example (length {self.length})")
        if self.max_uses > 1 and self.tail == "carry":
            raise ValueError(
                "max_uses above 1 does not go with tail carry: a carried piece is of one use; choose another tail"
            )
        return self

    @property
    def row_domain(self) -> str | None:
        """The field of a row that names its domain, or None where the domain is the repository or the extension."""
        return None if self.domain_field in ("repo", "extension") else self.domain_field

    @property
    def has_link(self) -> bool:
        """Whether neighbours are searched for beforehand; the other retrievers know them without."""
        return self.retriever in LINK_SETTINGS

    @property
    def has_encoder(self) -> bool:
        """Whether the retriever goes by an encoder's embeddings."""
        return self.retriever in ("dense", "hybrid")

    def of_stage(self, *stages: Stage) -> dict[str, Any]:
        """The settings that first matter to one of `stages`, as JSON values."""
        values = self.model_dump(mode="json")
        return {name: values[name] for name, field in fields().items() if field["stage"] in stages}

    def fingerprint(self, stage: Stage, inputs: str) -> str:
        """16 hex digits over the settings of `stage` and the fingerprint of its inputs.

        What a retriever has no use for is left out, so `--k1` does not undo a random build.
        """
        values = self.of_stage(stage)
        if stage == "ingest":
            for name in ("sources", "decontaminate"):
                values.pop(name)  # what is in them is in `inputs`
            if self.dedup != "near":
                values["near_threshold"] = values["shingle_words"] = None
            if not self.decontaminate:
                values["ngram_words"] = None
            if self.pack_by != "repository":
                values["max_repo_bytes"] = None
        if stage == "ingest":
            values["domain_field"] = self.row_domain
        if stage == "link":
            values = {name: values[name] for name in ("retriever", *LINK_SETTINGS.get(self.retriever, ()))}
        if stage == "embed":
            values.pop("encoder")  # what it is made of is in `inputs`
        if stage == "walk" and self.retriever == "domain":
            values["domain_field"] = self.domain_field
        text = json.dumps({"format": FORMAT, "stage": stage, "settings": values, "inputs": inputs}, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def worker_count(self) -> int:
        """Tasks at a time: `workers`, or the cores this process may use."""
        return self.workers or len(os.sched_getaffinity(0))


def fields() -> dict[str, dict[str, Any]]:
    """Name -> annotation, default, help, stage, panel of every setting."""
    described = {}
    for name, info in BuildSettings.model_fields.items():
        extra = info.json_schema_extra
        assert isinstance(extra, dict)
        described[name] = {
            "annotation": info.annotation,
            "default": info.get_default(call_default_factory=True),
            "help": info.description,
            **extra,
        }
    return described


def resolve(flags: dict[str, Any], config: Path | None) -> BuildSettings:
    """Flags over the YAML file over the defaults, validated once.

    Without sources on the command line and without --config, `splice.yaml` in the current directory is read.
    Raises SpliceError for a file that cannot be read, an option that does not exist, a value out of bounds, no source.
    """
    if config is None and not flags.get("sources") and Path("splice.yaml").is_file():
        config = Path("splice.yaml")
    values = _as_names(read_config(config)) if config else {}
    given = {name: value for name, value in flags.items() if value not in (None, [], ())}
    try:
        settings = BuildSettings.model_validate({**values, **given})
    except ValidationError as error:
        raise SpliceError(_explain(error, values, given, config)) from None
    if not settings.sources:
        raise SpliceError(
            "no source: name a directory, a JSONL or Parquet file or hub:NAME after `splice build`, "
            "or list `sources:` in a file given with --config or in ./splice.yaml"
        )
    if settings.output is None:
        raise SpliceError("no output: say where the dataset goes with --output DIR (or `output:` in the config file)")
    return settings


def read_yaml(path: Path, remedy: str) -> Any:
    """What a YAML file holds. Raises SpliceError, with the remedy, where it cannot be read."""
    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SpliceError(f"{path}: cannot be read ({error.strerror}); {remedy}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise SpliceError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from None


def read_config(path: Path, remedy: str = "give a YAML file with --config") -> dict[str, Any]:
    """The `name: value` lines of a file given with --config, {} for an empty one. Raises SpliceError for anything else."""
    values = read_yaml(path, remedy)
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise SpliceError(f"{path}: expected `name: value` lines, found a {type(values).__name__}")
    return values


def settings_in(values: dict[str, Any], where: str) -> BuildSettings:
    """The settings of a build that stand in another file, at `where`. Raises SpliceError as `resolve`."""
    values = _as_names(values)
    try:
        settings = BuildSettings.model_validate(values)
    except ValidationError as error:
        raise SpliceError(_explain(error, values, {}, Path(where))) from None
    if not settings.sources:
        raise SpliceError(f"{where}: no source; list `sources:`")
    return settings


def _as_names(values: dict[str, Any]) -> dict[str, Any]:
    """What YAML says in the settings' own names, one value standing for a list of one."""
    values = {str(name).replace("-", "_"): value for name, value in values.items()}
    lists = ("sources", "glob", "decontaminate")
    return {name: [v] if name in lists and isinstance(v, str) else v for name, v in values.items()}


def _explain(error: ValidationError, values: dict[str, Any], given: dict[str, Any], config: Path | None) -> str:
    lines = []
    for problem in error.errors():
        name = str(problem["loc"][0]) if problem["loc"] else ""
        where = (
            f"--{name.replace('_', '-')}" if name in given else f"{config}: {name}" if name in values else "settings"
        )
        if problem["type"] == "extra_forbidden":
            close = _closest(name)
            lines.append(f"{where}: no such option" + (f"; did you mean {close}?" if close else ""))
        elif problem["type"] == "value_error":
            lines.append(str(problem["ctx"]["error"]))
        else:
            lines.append(f"{where}: {problem['msg']} (given: {problem['input']!r})")
    return "\n".join(lines)


def _closest(name: str) -> str | None:
    import difflib

    return next(iter(difflib.get_close_matches(name, BuildSettings.model_fields, 1)), None)


def choices(annotation: Any) -> tuple[str, ...]:
    """The values a Literal annotation allows, or () for anything else."""
    return get_args(annotation) if getattr(annotation, "__origin__", None) is Literal else ()
