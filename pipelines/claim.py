"""Whose an output directory is: one build's, an unfinished build's, or of something that must not be touched."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from splice.errors import SpliceError
from splice.files import LOCK, TEMPORARY, read_json, write_json
from splice.settings import BuildSettings
from splice.storage import names
from splice.store.manifest import MANIFEST, shards_are_whole


def claim(settings: BuildSettings, build_directory: Path, output: Path, write: bool) -> None:
    """Mark `output` as this build's. Raises SpliceError when it holds another build, or files of someone else."""
    path = output / "build.json"
    mine = {
        "build": build_directory.name,
        "settings": settings.model_dump(mode="json", exclude={"output", "work", "workers"}),
    }
    held = read_json(path)
    if held is None:
        strange = [n for n in sorted(names(output)) if n not in ("work", LOCK) and not n.startswith(TEMPORARY)]
        if strange:
            raise SpliceError(f"{output}: not empty (holds {strange[0]}) and no build of splice; give another --output")
        if write:
            write_json(path, mine)
    elif held["build"] != mine["build"]:
        theirs = held["settings"]
        changed = [f"{n}: {theirs.get(n)} there, {v} asked" for n, v in mine["settings"].items() if theirs.get(n) != v]
        raise SpliceError(
            f"{output}: holds a build with other "
            + (
                f"settings ({'; '.join(changed[:4])})"
                if changed
                else "input: its source (or evaluation) files have changed since"
            )
            + ". Give another --output (--work shares what both have in common), or remove the directory"
        )


def finished(output: Path, build_directory: Path) -> dict[str, Any] | None:
    """The manifest of a build that is complete, or None."""
    manifest = read_json(output / MANIFEST)
    if manifest is None or manifest["build"] != build_directory.name:
        return None
    return manifest if shards_are_whole(output, manifest) else None
