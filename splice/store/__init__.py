"""The dataset on disk: sharded Parquet with a manifest, and the reader that trainers use."""

from .dataset import PackedDataset
from .rows import Batch, Rows

__all__ = ["Batch", "PackedDataset", "Rows"]
