"""The dataset on disk: sharded Parquet with a manifest, and the reader that trainers use."""

from .dataset import Batch, PackedDataset

__all__ = ["Batch", "PackedDataset"]
