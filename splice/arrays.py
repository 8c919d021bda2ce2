"""An index on disk: a directory of .npy files, and one JSON file, written last, with their checksums and what else is known.

Several such indexes may share a directory, each with a JSON file of its own. Equal contents give equal bytes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from .errors import SpliceError, StoreFailed
from .storage import local


def save_arrays(
    directory: Path, file: str, format: int, arrays: Mapping[str, np.ndarray], facts: Mapping[str, Any]
) -> None:
    """Write the arrays, and `file` with the facts. format: raised when the files change their meaning."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, array in arrays.items():
        np.save(directory / f"{name}.npy", array, allow_pickle=False)
    checksums = {name: _checksum(array) for name, array in arrays.items()}
    text = json.dumps({"format": format, **facts, "checksums": checksums}, indent=1)
    (directory / file).write_text(text + "\n")


def load_arrays(directory: Path, file: str, format: int) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The facts of `file`, and its arrays, memory-mapped. Raises StoreFailed where a file is missing or damaged, SpliceError for another format."""
    path = directory / file
    try:
        facts = json.loads(local(path).read_text())
        if facts["format"] != format:
            raise SpliceError(f"{path}: format {facts['format']}, this version reads {format}; link again")
        arrays = {}
        for name, checksum in facts["checksums"].items():
            path = directory / f"{name}.npy"
            arrays[name] = np.asarray(np.load(local(path), mmap_mode="r", allow_pickle=False))
            if _checksum(arrays[name]) != checksum:
                raise ValueError(f"its checksum is not the one in {file}")
        return facts, arrays
    except (OSError, ValueError, KeyError, TypeError, EOFError) as error:
        raise damaged(path, error) from error


def damaged(path: Path, error: Exception) -> StoreFailed:
    """What to say of a file of an index that cannot be used: WORK/link-FP/index/PPPPP/FILE."""
    remedy = f"the index is not complete or was damaged; remove {path.parent.parent.parent} and build again"
    return StoreFailed(f"{path}: {error}; {remedy}")


def _checksum(array: np.ndarray) -> str:
    return f"{array.dtype.str}:{len(array)}:{xxhash.xxh3_128_hexdigest(np.ascontiguousarray(array))}"
