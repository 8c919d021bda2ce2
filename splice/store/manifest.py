"""The manifest: what a dataset is, what it was made from, and where every document and token went."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..errors import SpliceError
from ..files import read_json
from ..storage import is_remote, names, sizes

MANIFEST = "manifest.json"


def read_manifest(dataset: Path) -> dict[str, Any]:
    """The manifest of a finished dataset. Raises SpliceError where there is none."""
    manifest = read_json(dataset / MANIFEST)
    if manifest is None:
        there = names(dataset)
        if not there and not (not is_remote(dataset) and dataset.is_dir()):
            raise SpliceError(f"{dataset}: no such directory; give the --output of a `splice build`")
        building = "build.json" in there
        hint = (
            "the build has not finished: run it again and it goes on" if building else "not a dataset of splice build"
        )
        raise SpliceError(f"{dataset}: no {MANIFEST} ({hint})")
    return manifest


def shards_are_whole(dataset: Path, manifest: dict[str, Any]) -> bool:
    """Whether every shard of the manifest is there at its full size."""
    there = sizes(dataset / "data")
    return all(there.get(shard["file"]) == shard["bytes"] for shard in manifest["shards"])
