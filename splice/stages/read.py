"""read: one unit of a source -> the documents that pass the filters, those that do not, and bad input."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import SpliceError
from ..files import replacing
from ..packs import binary_arrays, open_table
from ..shared import shared
from ..storage import local, location

BATCH_BYTES = 16 * 2**20
BATCH_ROWS = 2**16
PROVENANCE = ("repo", "path", "domain")  # what a document may have or not


def run(args: dict[str, Any], directory: Path, threads: int) -> dict[str, Any]:
    """args: number (of units/NNNNN.json, what to read), settings (SourceSettings), strict, shingle_words (None: no
    signatures), contamination (a file, or None).

    Writes read/NNNNN.arrow (id, repo, path, domain, hash [16 bytes], text), and where there are any read/NNNNN.refused.arrow
    (id, reason, by: the evaluation file), read/NNNNN.quarantine.jsonl and read/NNNNN.minhash.npy. Raises SpliceError at the first bad input when strict.
    """
    import xxhash

    from ..filters import check
    from ..sources import Document, Rejected, SourceSettings, Unit, read_unit

    unit = Unit.from_json((directory / "units" / f"{args['number']:05d}.json").read_text(encoding="utf-8"))
    settings = SourceSettings(**{**args["settings"], "glob": tuple(args["settings"]["glob"])})
    base = directory / "read" / f"{args['number']:05d}"
    for stale in (base.with_suffix(".refused.arrow"), base.with_suffix(".quarantine.jsonl")):
        stale.unlink(missing_ok=True)  # of an attempt that found what this one may not
    contamination = args["contamination"] and _contamination(args["contamination"])
    refused: list[tuple[str, str, str | None]] = []
    quarantine: list[dict[str, Any]] = []
    size = kept = 0
    without: Counter[str] = Counter()
    with replacing(base.with_suffix(".arrow")) as temporary, _Writer(temporary) as writer:
        for item in read_unit(unit, settings):
            if isinstance(item, Document):
                reason = check(item.text, settings)
                source = contamination.found_in(item.text) if contamination and reason is None else None
                if source is not None:
                    refused.append((item.id, "contaminated", source))
                elif reason is None:
                    writer.add(item, xxhash.xxh3_128_digest(item.text))
                    kept += 1
                    size += len(item.text)
                    without.update(name for name in PROVENANCE if getattr(item, name) is None)
                else:
                    refused.append((item.id, reason, None))
            elif isinstance(item, Rejected):
                refused.append((item.id, item.reason, None))
            else:
                where = item.file if item.line is None else f"{item.file}:{item.line}"
                if args["strict"]:
                    raise SpliceError(f"{where}: {item.reason} (--strict stops at the first bad input)")
                quarantine.append({"source": unit.source, "file": item.file, "line": item.line, "reason": item.reason})
    if args["shingle_words"] is not None:
        _write_signatures(base, args["shingle_words"])
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
        "without": {name: without[name] for name in PROVENANCE},
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
                ("domain", pa.string()),
                ("hash", pa.binary(16)),
                ("text", pa.large_binary()),
            ]
        )
        self._pa = pa
        self._file = pa.ipc.new_file(str(path), self.schema)
        self._clear()

    def _clear(self) -> None:
        self.rows: tuple[list[Any], ...] = ([], [], [], [], [], [])
        self.bytes = 0

    def add(self, document: Any, digest: bytes) -> None:
        row = (document.id, document.repo, document.path, document.domain, digest, document.text)
        for column, value in zip(self.rows, row, strict=True):
            column.append(value)
        self.bytes += len(document.text)
        if self.bytes >= BATCH_BYTES or len(self.rows[0]) == BATCH_ROWS:
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


@shared(maxsize=1)
def _contamination(path: str) -> Any:
    from ..contamination import Contamination

    return Contamination.load(local(location(path)))


def _write_signatures(base: Path, shingle_words: int) -> None:
    from ..near import PERMUTATIONS, signatures

    chunks = open_table(base.with_suffix(".arrow")).column("text").chunks
    found = [signatures(*binary_arrays(chunk), shingle_words) for chunk in chunks]
    with replacing(base.with_suffix(".minhash.npy")) as temporary, open(temporary, "wb") as out:
        np.save(out, np.concatenate(found) if found else np.zeros((0, PERMUTATIONS), np.uint32))


def _write_refused(path: Path, refused: list[tuple[str, str, str | None]]) -> None:
    import pyarrow as pa

    columns = zip(*refused, strict=True)
    table = pa.table([pa.array(column, pa.string()) for column in columns], names=["id", "reason", "by"])
    with replacing(path) as temporary, pa.ipc.new_file(str(temporary), table.schema) as out:
        out.write_table(table)
