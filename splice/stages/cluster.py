"""cluster: one read file -> the cluster of each of its documents."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..files import replacing
from ..packs import binary_arrays, open_table
from ..shared import shared
from ..storage import local, location
from .assign import clusters_path
from .centroids import centroids_path

if TYPE_CHECKING:
    from ..clusters import Clusters


def run(args: dict[str, Any], directory: Path, threads: int) -> dict[str, Any]:
    """args: number (of the read file). Writes read/NNNNN.clusters.npy, uint16."""
    clusters = _saved_clusters(str(directory))
    chunks = open_table(directory / "read" / f"{args['number']:05d}.arrow").column("text").chunks
    found = [np.zeros(0, np.uint16), *(clusters.nearest(*binary_arrays(chunk)) for chunk in chunks)]
    with replacing(clusters_path(directory, args["number"])) as temporary, open(temporary, "wb") as out:
        np.save(out, np.concatenate(found))
    return {"documents": sum(map(len, found))}


@shared(maxsize=1)
def _saved_clusters(directory: str) -> Clusters:
    from ..clusters import Clusters

    return Clusters.load(local(centroids_path(location(directory))))
