"""Mixtures: one dataset of examples from several, with target shares by tokens.

    tokens: 2_000_000_000            # of the mixture; default: as many as the datasets have for these shares
    datasets:
      - {dataset: built/redpajama, share: 0.5}
      - {dataset: built/c, share: 0.5, repeat: 2}

From each dataset the first examples in stored order are taken, which is a random draw, since every build shuffles. Whole
shards are hard links to the datasets' own; only the last one taken of a dataset is written anew, when it is not taken
whole. The paper trains on 50/50 and 50/25/25 mixtures of web text, questions and code.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from . import __version__
from .errors import SpliceError
from .files import LOCK, TEMPORARY, link_or_copy, read_json, replacing, sweep, write_json
from .seeded import permutation
from .settings import BuildSettings, read_yaml, settings_in
from .store import PackedDataset
from .store.manifest import MANIFEST, shards_are_whole
from .store.shards import file_sha256, read_rows, write_shard

KIND = "mixture"
PREFIX = "mix-"  # of the name of a mixture in build.json, where a build has its own
PRECISION = 0.001  # of the mixture's tokens, by which a share may be off


class Part(BaseModel):
    """One dataset of a mixture: a built one, or what `splice build` is to be told to make it first."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    dataset: Path | None = None
    build: dict[str, Any] | None = None
    name: str | None = Field(default=None, pattern=r"^\w[\w.-]*$")
    share: float = Field(gt=0, le=1)
    repeat: int = Field(default=1, ge=1)


class MixSettings(BaseModel):
    """The settings of a mixture, of which `mix` makes the dataset."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    datasets: list[Part] = Field(min_length=1)
    tokens: int | None = Field(default=None, ge=1)
    seed: int = Field(default=0, ge=0, lt=2**63)


def resolve_mix(config: Path, tokens: int | None = None, seed: int | None = None) -> MixSettings:
    """The settings in a YAML file, flags over them.

    Raises SpliceError for a file that cannot be read, an unknown name, shares that do not add up to 1, a part that names
    neither or both of `dataset` and `build`, two parts of one name.
    """
    values = read_yaml(config, "give the YAML file of a mixture")
    if not isinstance(values, dict):
        raise SpliceError(f"{config}: not a mixture; it needs `datasets:`, a list of `dataset:` and `share:`")
    values |= {name: value for name, value in (("tokens", tokens), ("seed", seed)) if value is not None}
    try:
        settings = MixSettings.model_validate(values)
    except ValidationError as error:
        problems = (f"{'.'.join(map(str, e['loc']))}: {e['msg']} (given: {e['input']!r})" for e in error.errors())
        raise SpliceError(f"{config}: " + "; ".join(problems)) from None
    total = sum(part.share for part in settings.datasets)
    if abs(total - 1) > 1e-6:
        shares = " + ".join(f"{part.share:g}" for part in settings.datasets)
        raise SpliceError(f"{config}: the shares add up to {total:g} ({shares}); they must add up to 1")
    for number, part in enumerate(settings.datasets, 1):
        if (part.dataset is None) == (part.build is None):
            raise SpliceError(
                f"{config}: dataset {number} needs one of `dataset:` (a directory) and `build:` (settings)"
            )
    names = [name_of(part, number) for number, part in enumerate(settings.datasets)]
    if repeated := next((name for name in names if names.count(name) > 1), None):
        raise SpliceError(f"{config}: two datasets are called {repeated}; give one a `name:`")
    return settings


def name_of(part: Part, number: int) -> str:
    """What a part is called in the mixture's manifest and in errors."""
    return part.name or (part.dataset.absolute().name if part.dataset else f"build-{number}")


def resolve_builds(settings: MixSettings, config: Path, output: Path) -> dict[int, BuildSettings]:
    """Part number -> the build that makes it, below OUTPUT/built, packed at random where it does not say otherwise.

    Without a tokenizer of its own a build takes that of the first dataset, or of the first build, which trains one.
    Raises SpliceError for settings that `splice build` would refuse, and for an `output` or `work` of its own.
    """
    builds: dict[int, BuildSettings] = {}
    first = next((part.dataset / "tokenizer" for part in settings.datasets if part.dataset), None)
    for number, part in enumerate(settings.datasets):
        if part.build is None:
            continue
        where = f"{config}, build of {name_of(part, number)}"
        if own := {"output", "work"} & set(part.build):
            raise SpliceError(f"{where}: no {min(own)} here; what a mixture builds lies below its own output")
        target = output / "built" / name_of(part, number)
        values = {"retriever": "random", "tokenizer": first and str(first), **part.build, "output": str(target)}
        builds[number] = settings_in(values, where)
        first = first or target / "tokenizer"
    return builds


@dataclass(frozen=True)
class Like:
    """What the datasets of a mixture must have in common. join: the option; tokenizer: its name and fingerprint."""

    name: str
    length: int
    join: str
    tokenizer: tuple[str, str]


def check_alike(settings: MixSettings, builds: dict[int, BuildSettings]) -> None:
    """Raise SpliceError, before anything is built, for a dataset that is missing or none to mix, and for those that do not go
    together: other lengths, tokenizers or joins."""
    likes, trained = [], {}
    for number, part in enumerate(settings.datasets):
        name = name_of(part, number)
        if part.dataset:
            likes.append(_like(name, PackedDataset(part.dataset)))
            continue
        build = builds[number]
        tokenizer = trained.get(build.tokenizer or "") or _tokenizer_of(build, name)
        trained[str(_target(build) / "tokenizer")] = tokenizer
        likes.append(Like(name, build.length, build.join, tokenizer))
    _require_same(likes)


def _tokenizer_of(build: BuildSettings, name: str) -> tuple[str, str]:
    from .tokenizer import load_tokenizer

    if build.tokenizer is None:
        return "trained on the way", f"for {name}"
    tokenizer = load_tokenizer(build.tokenizer, fast=False)
    return tokenizer.name, tokenizer.fingerprint


def _target(build: BuildSettings) -> Path:
    assert build.output is not None
    return Path(build.output)


def _like(name: str, dataset: PackedDataset) -> Like:
    manifest = dataset.manifest
    if manifest.get("kind") == KIND:
        raise SpliceError(f"{name}: is a mixture itself; name the datasets it is made of")
    if len(dataset) == 0:
        raise SpliceError(f"{name}: holds no example; leave it out")
    tokenizer = manifest["tokenizer"]
    return Like(name, dataset.length, manifest["settings"]["join"], (tokenizer["name"], tokenizer["fingerprint"]))


def _require_same(likes: list[Like]) -> None:
    first = likes[0]
    for like in likes[1:]:
        if like.length != first.length:
            raise SpliceError(
                f"{like.name}: examples of {like.length} tokens, {first.name} has {first.length}; build one of them "
                "again with the other's --length (--work keeps its graph)"
            )
        if like.tokenizer[1] != first.tokenizer[1]:
            theirs, ours = (f"{name}, {fingerprint[:8]}" for name, fingerprint in (like.tokenizer, first.tokenizer))
            raise SpliceError(
                f"{like.name}: made with another tokenizer ({theirs}) than {first.name} ({ours}); build one of them "
                "again with the other's --tokenizer (OUT/tokenizer is one)"
            )
        if like.join != first.join:
            raise SpliceError(
                f"{like.name}: its documents are joined by other special tokens than those of {first.name}; build one of "
                "them again with the other's --join"
            )


@dataclass(frozen=True)
class Taken:
    """What a mixture takes of one dataset: `passes` times all of it, and then its first `examples`."""

    passes: int
    examples: int
    tokens: int


def plan_mixture(settings: MixSettings, datasets: list[PackedDataset]) -> list[Taken]:
    """What is taken of each dataset (one for each part). Tokens are those that are no padding.

    Raises SpliceError for datasets of different lengths or tokenizers, a dataset that runs out, and shares that examples of
    this length cannot meet.
    """
    names = [name_of(part, number) for number, part in enumerate(settings.datasets)]
    _require_same([_like(name, dataset) for name, dataset in zip(names, datasets, strict=True)])
    counts = [_tokens_of_examples(dataset) for dataset in datasets]
    total = settings.tokens or min(
        int(part.repeat * n.sum() / part.share) for part, n in zip(settings.datasets, counts, strict=True)
    )
    taken = [_take(part, name, n, total) for part, name, n in zip(settings.datasets, names, counts, strict=True)]
    if empty := next((name for name, t in zip(names, taken, strict=True) if not t.tokens), None):
        raise SpliceError(
            f"{empty}: its share of {total:,} tokens is less than an example of {datasets[0].length}; ask for more --tokens"
        )
    reached = sum(t.tokens for t in taken)
    for part, name, t in zip(settings.datasets, names, taken, strict=True):
        if abs(t.tokens / reached - part.share) > PRECISION:
            length = datasets[0].length
            raise SpliceError(
                f"{name}: its share would be {t.tokens / reached:.4f} instead of {part.share:g}, since one example of "
                f"{length} tokens is {length / reached:.2%} of the mixture; ask for at least {length * 1000:,} --tokens"
            )
    return taken


def mix(settings: MixSettings, datasets: list[PackedDataset], taken: list[Taken], output: Path) -> dict[str, Any]:
    """Write what `plan_mixture` takes of the datasets to `output`; gives the manifest. Run again, it goes on.

    Raises SpliceError, before anything is written, for an output that holds something else.
    """
    reached = sum(t.tokens for t in taken)
    names = [name_of(part, number) for number, part in enumerate(settings.datasets)]
    fingerprint = _fingerprint(settings, names, datasets)
    _claim(output, fingerprint)
    manifest = read_json(output / MANIFEST)
    if manifest is not None and shards_are_whole(output, manifest):
        return manifest
    for directory in ("data", "tokenizer", "datasets"):
        sweep(output / directory)
    shards = _write(settings, datasets, taken, output)
    first = datasets[0].manifest
    for path in sorted((datasets[0].path / "tokenizer").iterdir()):
        link_or_copy(path, output / "tokenizer" / path.name)
    for name, dataset in zip(names, datasets, strict=True):
        link_or_copy(dataset.path / MANIFEST, output / "datasets" / name / MANIFEST)
    manifest = {
        "splice": __version__,
        "kind": KIND,
        "build": fingerprint,
        "settings": {"length": datasets[0].length, "seed": settings.seed, "tokens": settings.tokens},
        "tokenizer": first["tokenizer"],
        "join": first["join"],
        "mixture": [
            {
                "name": name,
                "retriever": dataset.manifest["settings"].get("retriever"),
                "build": dataset.manifest["build"],
                "share": part.share,
                "share_reached": t.tokens / reached,
                "tokens": t.tokens,
                "examples": t.passes * len(dataset) + t.examples,
                "of_examples": len(dataset),
                "repeat": part.repeat,
            }
            for part, name, dataset, t in zip(settings.datasets, names, datasets, taken, strict=True)
        ],
        "tokens": reached,
        "shards": shards,
    }
    write_json(output / MANIFEST, manifest, sync=True)
    return manifest


def _tokens_of_examples(dataset: PackedDataset) -> np.ndarray:
    """int64 [N]: tokens of each example that are no padding."""
    import pyarrow.parquet as pq

    columns = [pq.read_table(dataset.path / "data" / name, columns=["padding"]).column(0) for name in dataset.shards]
    return dataset.length - np.concatenate([column.to_numpy() for column in columns]).astype(np.int64)


def _take(part: Part, name: str, counts: np.ndarray, total: int) -> Taken:
    """As many examples as come closest to the share of `total` tokens. counts: int64 [N], tokens of each example."""
    wanted = part.share * total
    one_pass = int(counts.sum())
    passes = int(wanted // one_pass)
    ends = np.append(0, np.cumsum(counts))
    examples = int(np.abs(ends - (wanted - passes * one_pass)).argmin())
    if examples == len(counts):
        passes, examples = passes + 1, 0
    if passes > part.repeat or (passes == part.repeat and examples):
        again = f" {part.repeat} times" if part.repeat > 1 else ""
        raise SpliceError(
            f"{name}: runs out: {part.share:g} of {total:,} tokens are {round(wanted):,}, and it holds {one_pass:,}{again}; "
            f"let it `repeat: {-(-round(wanted) // one_pass)}`, or ask for at most "
            f"{int(part.repeat * one_pass / part.share):,} --tokens"
        )
    return Taken(passes, examples, passes * one_pass + int(ends[examples]))


def _fingerprint(settings: MixSettings, names: list[str], datasets: list[PackedDataset]) -> str:
    parts = [
        [name, part.share, part.repeat, [shard["sha256"] for shard in dataset.manifest["shards"]]]
        for name, part, dataset in zip(names, settings.datasets, datasets, strict=True)
    ]
    text = json.dumps({"tokens": settings.tokens, "seed": settings.seed, "parts": parts})
    return PREFIX + hashlib.sha256(text.encode()).hexdigest()[:16]


def refuse_foreign(output: Path) -> None:
    """Raise SpliceError for an output that is no directory, or that holds something else than a mixture."""
    if output.exists() and not output.is_dir():
        raise SpliceError(f"{output}: not a directory; give another --output")
    names = [path.name for path in output.iterdir()] if output.is_dir() else []
    strange = [name for name in names if name not in ("built", LOCK) and not name.startswith(TEMPORARY)]
    if strange and "build.json" not in names:
        raise SpliceError(f"{output}: not empty (holds {min(strange)}) and no mixture; give another --output")
    held = read_json(output / "build.json")
    if held is not None and not held["build"].startswith(PREFIX):
        raise SpliceError(f"{output}: holds a build; give another --output, or remove the directory")


def _claim(output: Path, fingerprint: str) -> None:
    """Mark `output` as this mixture's. Raises SpliceError when it holds anything else."""
    refuse_foreign(output)
    held = read_json(output / "build.json")
    if held is not None and held["build"] != fingerprint:
        raise SpliceError(f"{output}: holds another mixture; give another --output, or remove the directory")
    for leftover in output.glob(f"{TEMPORARY}*"):
        leftover.unlink()
    if held is None:
        write_json(output / "build.json", {"build": fingerprint})


def _write(
    settings: MixSettings, datasets: list[PackedDataset], taken: list[Taken], output: Path
) -> list[dict[str, Any]]:
    """Link the shards, write the last of each dataset where it is not taken whole, in an order drawn by the seed."""
    pieces: list[tuple[int, dict[str, Any], int]] = []  # dataset, its shard, examples taken of it
    for number, (dataset, t) in enumerate(zip(datasets, taken, strict=True)):
        shards = dataset.manifest["shards"]
        pieces += [(number, shard, shard["examples"]) for _ in range(t.passes) for shard in shards]
        ends = np.cumsum([0] + [shard["examples"] for shard in shards]).tolist()
        rest = [min(t.examples, stop) - start for start, stop in pairwise(ends) if start < t.examples]
        pieces += [(number, shard, n) for shard, n in zip(shards, rest, strict=False)]
    order = permutation(len(pieces), settings.seed, "mixture").tolist()
    written = []
    for place, piece in enumerate(order):
        number, shard, examples = pieces[piece]
        name = f"train-{place:05d}-of-{len(pieces):05d}.parquet"
        source, target = datasets[number].path / "data" / shard["file"], output / "data" / name
        entry = {"file": name, "examples": examples, "bytes": shard["bytes"], "sha256": shard["sha256"]}
        if examples == shard["examples"]:
            link_or_copy(source, target)
        else:
            with replacing(target, sync=True) as temporary:
                _write_first(datasets[number], source, examples, temporary)
                entry |= {"bytes": temporary.stat().st_size, "sha256": file_sha256(temporary)}
        written.append({**entry, "dataset": number})
    return written


def _write_first(dataset: PackedDataset, source: Path, examples: int, target: Path) -> None:
    """The first examples of a shard as a shard of their own."""
    import pyarrow.parquet as pq

    def rows() -> Any:
        left = examples
        file = pq.ParquetFile(source, memory_map=True)
        for group in range(file.num_row_groups):
            table = file.read_row_group(group)
            yield from read_rows(table, range(min(left, table.num_rows)))
            left -= min(left, table.num_rows)
            if not left:
                return

    write_shard(target, rows(), dataset.length, dataset.manifest["settings"]["retriever"])
