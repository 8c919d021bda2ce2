"""Reading a corpus: what the user names becomes units of work, and a unit becomes documents.

plan_units lists and measures, and refuses before any work; read_unit streams one unit and never fails on bad data: what
cannot be read is Quarantined with its place and reason, and reading goes on.
"""

from __future__ import annotations

from collections.abc import Iterator

from . import disk, hub, jsonl, parquet, tree
from .plan import fingerprint, plan_units
from .records import Document, Quarantined, Rejected, SourceSettings, Unit

READERS = {
    "tree": tree.read,
    "jsonl": jsonl.read,
    "parquet": parquet.read,
    "disk": disk.read,
    "hub": hub.read,
}


def read_unit(unit: Unit, settings: SourceSettings) -> Iterator[Document | Rejected | Quarantined]:
    """The documents of a unit in a fixed order, in memory bounded by the longest line or by a batch of rows.

    Raises BuildFailed where the network fails in a hub dataset; nothing else.
    """
    return READERS[unit.kind](unit, settings)


__all__ = [
    "Document",
    "Quarantined",
    "Rejected",
    "SourceSettings",
    "Unit",
    "fingerprint",
    "plan_units",
    "read_unit",
]
