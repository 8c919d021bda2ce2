"""read: one unit of a source -> the documents that pass the filters, those that do not, and bad input."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from ..errors import SpliceError
from ..files import replacing

BATCH_BYTES = 16 * 2**20


def run(args: dict[str, Any], directory: Path, threads: int) -> dict[str, Any]:
    """args: number (of units/NNNNN.json, what to read), settings (SourceSettings), strict.

    Writes read/NNNNN.arrow (id, repo, path, hash [16 bytes], text), and where there are any read/NNNNN.refused.arrow
    (id, reason) and read/NNNNN.quarantine.jsonl. Raises SpliceError at the first bad input when strict.
    """
    import xxhash

    from ..filters import check
    from ..sources import Document, Rejected, SourceSettings, Unit, read_unit

    unit = Unit.from_json((directory / "units" / f"{args['number']:05d}.json").read_text(encoding="utf-8"))
    settings = SourceSettings(**{**args["settings"], "glob": tuple(args["settings"]["glob"])})
    base = directory / "read" / f"{args['number']:05d}"
    for stale in (base.with_suffix(".refused.arrow"), base.with_suffix(".quarantine.jsonl")):
        stale.unlink(missing_ok=True)  # of an attempt that found what this one may not
    refused: list[tuple[str, str]] = []
    quarantine: list[dict[str, Any]] = []
    size = kept = 0
    with replacing(base.with_suffix(".arrow")) as temporary, _Writer(temporary) as writer:
        for item in read_unit(unit, settings):
            if isinstance(item, Document):
                reason = check(item.text, settings)
                if reason is None:
                    writer.add(item, xxhash.xxh3_128_digest(item.text))
                    kept += 1
                    size += len(item.text)
                else:
                    refused.append((item.id, reason))
            elif isinstance(item, Rejected):
                refused.append((item.id, item.reason))
            else:
                where = item.file if item.line is None else f"{item.file}:{item.line}"
                if args["strict"]:
                    raise SpliceError(f"{where}: {item.reason} (--strict stops at the first bad input)")
                quarantine.append({"source": unit.source, "file": item.file, "line": item.line, "reason": item.reason})
    if refused:
        _write_refused(base.with_suffix(".refused.arrow"), refused)
    if quarantine:
        with replacing(base.with_suffix(".quarantine.jsonl")) as temporary:
            lines = "".join(json.dumps(q, ensure_ascii=False) + "\n" for q in quarantine)
            temporary.write_text(lines, encoding="utf-8")
    return {
        "source": unit.source,
        "documents": kept + len(refused) + len(quarantine),
        "kept": kept,
        "bytes": size,
        "refused": dict(sorted(Counter(reason for _, reason in refused).items())),
        "quarantined": len(quarantine),
    }


class _Writer:
    """Documents into an Arrow file, a record batch per 16 MB of text, so that memory stays bounded."""

    def __init__(self, path: Path) -> None:
        import pyarrow as pa

        self.schema = pa.schema(
            [
                ("id", pa.string()),
                ("repo", pa.string()),
                ("path", pa.string()),
                ("hash", pa.binary(16)),
                ("text", pa.large_binary()),
            ]
        )
        self._pa = pa
        self._file = pa.ipc.new_file(str(path), self.schema)
        self._clear()

    def _clear(self) -> None:
        self.rows: tuple[list[Any], ...] = ([], [], [], [], [])
        self.bytes = 0

    def add(self, document: Any, digest: bytes) -> None:
        row = (document.id, document.repo, document.path, digest, document.text)
        for column, value in zip(self.rows, row, strict=True):
            column.append(value)
        self.bytes += len(document.text)
        if self.bytes >= BATCH_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self.rows[0]:
            arrays = [self._pa.array(rows, f.type) for rows, f in zip(self.rows, self.schema, strict=True)]
            self._file.write_batch(self._pa.record_batch(arrays, schema=self.schema))
            self._clear()

    def __enter__(self) -> _Writer:
        return self

    def __exit__(self, kind: Any, *_: object) -> None:
        if kind is None:
            self._flush()
        self._file.close()


def _write_refused(path: Path, refused: list[tuple[str, str]]) -> None:
    import pyarrow as pa

    ids, reasons = zip(*refused, strict=True)
    table = pa.table({"id": pa.array(ids, pa.string()), "reason": pa.array(reasons, pa.string())})
    with replacing(path) as temporary, pa.ipc.new_file(str(temporary), table.schema) as out:
        out.write_table(table)
