"""Documents of a record batch, by column: what Parquet, saved datasets and the hub have in common."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from .records import Document, Quarantined, SourceSettings
from .rows import document, fields

if TYPE_CHECKING:
    import pyarrow as pa


def documents(
    batch: pa.RecordBatch | pa.Table,
    found: Sequence[str],
    name: str,
    first_row: int,
    settings: SourceSettings,
) -> Iterator[Document | Quarantined]:
    """The rows of a batch as documents, numbered in `name` from first_row.

    found: all the columns there are, for the message where a field is not among them.
    """
    columns = {field: _values(batch.column(field)) for field in fields(settings) if field in batch.schema.names}
    for field in columns.keys() - {settings.text_field}:
        columns[field] = [_text(value) for value in columns[field]]
    required = {settings.text_field, settings.id_field or settings.text_field}
    others = {} if required <= columns.keys() else dict.fromkeys(found)
    for i in range(batch.num_rows):
        row = others | {field: values[i] for field, values in columns.items()}
        yield document(row, name, first_row + i, settings)


def _values(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """Python values; strings as bytes, which neither fails on bad UTF-8 nor decodes what is to be bytes again."""
    import pyarrow as pa

    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type) or pa.types.is_string_view(column.type):
        column = column.cast(pa.large_binary())
    return column.to_pylist()


def _text(value: Any) -> Any:
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else value
