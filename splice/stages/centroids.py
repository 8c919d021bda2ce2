"""centroids: the samples of all read files -> clusters of documents that use the same words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..files import replacing
from ..packs import binary_arrays, open_table
from .read import sample_path

SAMPLE_BYTES = 128 * 2**20  # of the corpus' text; half of it was measured to keep a twentieth fewer of the neighbours
PACK_CLUSTERS = 16  # of each pack: small ones, so that packs of equal size can be put together of them
MOST_CLUSTERS = 512  # beyond, a document's way to the nearest would cost as much as its search


def run(args: dict[str, Any], directory: Path, threads: int) -> dict[str, Any]:
    """args: files (that were read), clusters. Writes assign/clusters.npz."""
    from ..clusters import Clusters

    tables = [open_table(sample_path(directory, number)) for number in range(args["files"])]
    texts = [binary_arrays(chunk) for table in tables for chunk in table.column("text").chunks]
    clusters = Clusters.train(texts, args["clusters"], threads)
    with replacing(centroids_path(directory)) as temporary:
        clusters.save(temporary)
    return {"documents": sum(table.num_rows for table in tables), "clusters": clusters.centroids.shape[1]}


def centroids_path(directory: Path) -> Path:
    """Where the clusters lie."""
    return directory / "assign" / "clusters.npz"
