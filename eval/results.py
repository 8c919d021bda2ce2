"""Results on disk: what a run is, its samples as they come, its figures at the end.

    OUTPUT/NAME/plan.json      what is run: task, settings, model, data, versions; its fingerprint decides what a rerun resumes
                samples.jsonl  a line a query, appended a group at a time
                result.json    the plan and the figures; written last, byte-identical on a rerun
                log.json       how it went: seconds, tokens, memory

A sample: id, group, cluster, item, tags, prefix (16 hex digits of its text's sha256) and prefix_tokens, suffix, answers,
prediction, scores {metric: value}; log_likelihoods where labels were scored; for perplexity buckets [[from, to, nats, tokens], ...]
in the place of suffix, answers and prediction.

result.json: task, name, model, settings, data, subset, seed, scorer, versions, fingerprint; groups, clusters, queries, skipped;
check; and what summary.py makes of the samples: metrics, by, buckets, warnings.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import orjson

from splice.errors import SpliceError
from splice.files import flush, read_json, write_json

PLAN, SAMPLES, RESULT, LOG = "plan.json", "samples.jsonl", "result.json", "log.json"


@dataclass(frozen=True)
class Result:
    """A finished run. facts: its result.json."""

    path: Path
    facts: dict[str, Any]

    @property
    def name(self) -> str:
        """Of the run: kv-litm-75, trec-coarse-16384."""
        return self.facts["name"]

    @cached_property
    def samples(self) -> list[dict[str, Any]]:
        """A dictionary a query, in the order they were asked. Raises SpliceError for a line that is torn."""
        return read_samples(self.path / SAMPLES)


def read_results(directory: Path) -> list[Result]:
    """The finished runs in an --output (or in one run's directory), by name.

    Raises SpliceError where there is none, and for a result that was cut or is of another format.
    """
    if not directory.is_dir():
        raise SpliceError(f"{directory}: no such directory; name the --output of a `splice eval`")
    paths = [directory] if (directory / RESULT).is_file() else sorted(p.parent for p in directory.glob(f"*/{RESULT}"))
    if not paths:
        began = sorted(p.parent.name for p in directory.glob(f"*/{PLAN}"))
        state = f"unfinished: {', '.join(began)}; the same command goes on with it" if began else "none was begun"
        raise SpliceError(f"{directory}: no finished evaluation there ({state})")
    results = []
    for path in paths:
        facts = read_json(path / RESULT)
        if not isinstance(facts, dict) or "name" not in facts or "metrics" not in facts:
            raise SpliceError(
                f"{path / RESULT}: torn or no result of splice eval; remove it and run the evaluation again"
            )
        results.append(Result(path, facts))
    return results


def read_samples(path: Path) -> list[dict[str, Any]]:
    """The lines of a samples.jsonl. Raises SpliceError for one that cannot be read."""
    samples = []
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise SpliceError(f"{path}: cannot be read ({error.strerror}); run the evaluation again") from None
    for number, line in enumerate(lines, 1):
        if not line:
            continue
        try:
            samples.append(orjson.loads(line))
        except orjson.JSONDecodeError:
            raise SpliceError(
                f"{path}:{number}: not a line of JSON; remove the run's directory and run it again"
            ) from None
    return samples


class Samples:
    """samples.jsonl as it grows. Whole groups only: what a killed run left of one is cut off at the next start.

    kept: group -> its samples, of the groups that are there already; resumed: how many samples that is.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / SAMPLES
        self.kept: dict[str, list[dict[str, Any]]] = {}
        self._whole = 0  # bytes
        data = self._path.read_bytes() if self._path.exists() else b""
        group: list[dict[str, Any]] = []
        place = 0
        for line in data.split(b"\n")[:-1]:  # what follows the last newline is torn
            place += len(line) + 1
            try:
                sample = orjson.loads(line)
            except orjson.JSONDecodeError:
                break
            group.append(sample)
            if sample.pop("last", False):
                self.kept[sample["group"]] = group
                group, self._whole = [], place
        self.resumed = sum(len(samples) for samples in self.kept.values())
        self._file = open(self._path, "r+b" if self._path.exists() else "wb")  # noqa: SIM115 - closed by close
        self._file.truncate(self._whole)
        self._file.seek(self._whole)

    def add(self, samples: Iterable[dict[str, Any]]) -> None:
        """Append a group's samples; on disk when this returns. The last one is marked, which is how a whole group is known."""
        samples = list(samples)
        lines = [orjson.dumps(s | {"last": True} if s is samples[-1] else s) for s in samples]
        self._file.write(b"".join(line + b"\n" for line in lines))
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


def start(directory: Path, plan: dict[str, Any]) -> Samples | None:
    """Begin or go on with a run; None where it is finished. Raises SpliceError where another run is in its place."""
    directory.mkdir(parents=True, exist_ok=True)
    found = read_json(directory / PLAN)
    if found is not None and found.get("fingerprint") != plan["fingerprint"] and not _asked(directory):
        found = None  # it was refused before it asked anything
    if found is not None and found.get("fingerprint") != plan["fingerprint"]:
        raise SpliceError(
            f"{directory}: holds another run ({_difference(found, plan)}); give another --output, or remove that directory"
        )
    if found is None:
        for name in (SAMPLES, RESULT):
            (directory / name).unlink(missing_ok=True)
        write_json(directory / PLAN, plan, sync=True)
    elif (directory / RESULT).is_file():
        asked = (read_json(directory / RESULT) or {}).get("queries")
        if asked == (directory / SAMPLES).read_bytes().count(b"\n"):
            return None
        (directory / RESULT).unlink()  # its samples are not whole
    return Samples(directory)


def _asked(directory: Path) -> bool:
    """Whether there is a sample, or a result."""
    samples = directory / SAMPLES
    return (directory / RESULT).is_file() or (samples.is_file() and samples.stat().st_size > 0)


def finish(directory: Path, result: dict[str, Any], log: dict[str, Any]) -> None:
    """Write a run's figures, last."""
    write_json(directory / LOG, log)
    write_json(directory / RESULT, result, sync=True)
    flush(directory)


def _difference(found: dict[str, Any], plan: dict[str, Any]) -> str:
    """Which settings, or what else, differ: `settings.pairs: 75 there, 300 here`."""

    def flat(value: Any, at: str = "") -> dict[str, Any]:
        if isinstance(value, dict):
            return {k: v for key, inner in value.items() for k, v in flat(inner, f"{at}.{key}" if at else key).items()}
        return {at: value}

    ours, theirs = flat(plan), flat(found)
    keys = [k for k in {**ours, **theirs} if ours.get(k) != theirs.get(k) and k != "fingerprint"]
    said = [f"{key}: {theirs.get(key)!r} there, {ours.get(key)!r} here" for key in keys[:3]]
    return "; ".join(said) or "of another version"
