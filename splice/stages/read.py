"""read: one unit of a source -> the documents that pass the filters, those that do not, and bad input."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import SpliceError
from ..files import replacing
from ..packs import binary_arrays, open_table
from ..shared import shared
from ..storage import local, location
from .assign import keys_path

BATCH_BYTES = 16 * 2**20
BATCH_ROWS = 2**16
PROVENANCE = ("repo", "path", "domain")  # what a document may have or not


def run(args: dict[str, Any], directory: Path, threads: int) -> dict[str, Any]:
    """args: number (of units/NNNNN.json, what to read), settings (SourceSettings), strict, shingle_words (None: no
    signatures), contamination (a file, or None), sample_bytes (of text for the stage centroids; 0: none).

    Writes read/NNNNN.arrow (id, repo, path, domain, text), read/NNNNN.keys.arrow (id, repo, hash [16 bytes], bytes), and where
    there are any read/NNNNN.refused.arrow (id, reason, by: the evaluation file), read/NNNNN.quarantine.jsonl,
    read/NNNNN.minhash.npy and read/NNNNN.sample.arrow (text). Raises SpliceError at the first bad input when strict.
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
    with (
        replacing(base.with_suffix(".arrow")) as temporary,
        replacing(keys_path(directory, args["number"])) as keys,
        _Writer(temporary, keys) as writer,
    ):
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
    if args["sample_bytes"]:
        _write_sample(base, directory, args["number"], args["sample_bytes"] / max(1, size))
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
    """Documents into an Arrow file, their keys into another, a record batch per 16 MB of text, so that memory stays bounded."""

    def __init__(self, path: Path, keys: Path) -> None:
        import pyarrow as pa

        provenance = [(name, pa.string()) for name in ("id", "repo", "path", "domain")]
        self._pa = pa
        self._schema = pa.schema([*provenance, ("text", pa.large_binary())])
        self._keys_schema = pa.schema([*provenance[:2], ("hash", pa.binary(16)), ("bytes", pa.uint32())])
        self._file = pa.ipc.new_file(str(path), self._schema)
        self._keys = pa.ipc.new_file(str(keys), self._keys_schema)
        self._clear()

    def _clear(self) -> None:
        self.rows: list[tuple[Any, ...]] = []
        self.bytes = 0

    def add(self, document: Any, digest: bytes) -> None:
        self.rows.append((document.id, document.repo, document.path, document.domain, document.text, digest))
        self.bytes += len(document.text)
        if self.bytes >= BATCH_BYTES or len(self.rows) == BATCH_ROWS:
            self._flush()

    def _flush(self) -> None:
        if self.rows:
            ids, repos, paths, domains, texts, digests = zip(*self.rows, strict=True)
            self._write(self._file, self._schema, ids, repos, paths, domains, texts)
            self._write(self._keys, self._keys_schema, ids, repos, digests, [len(text) for text in texts])
            self._clear()

    def _write(self, file: Any, schema: Any, *columns: Sequence[Any]) -> None:
        arrays = [self._pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
        file.write_batch(self._pa.record_batch(arrays, schema=schema))

    def __enter__(self) -> _Writer:
        return self

    def __exit__(self, kind: Any, *_: object) -> None:
        if kind is None:
            self._flush()
        self._file.close()
        self._keys.close()


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


def _write_sample(base: Path, directory: Path, number: int, share: float) -> None:
    """About this share of the documents, chosen by content hash; of equal documents all or none."""
    import pyarrow as pa

    texts = open_table(base.with_suffix(".arrow")).column("text")
    hashes = open_table(keys_path(directory, number)).column("hash").chunks
    first = [np.frombuffer(chunk.buffers()[1], np.uint64)[: 2 * len(chunk) : 2] for chunk in hashes]
    below = np.uint64(min(share * 2.0**64, 2**64 - 1))
    chosen = [chunk.filter(pa.array(h <= below)) for chunk, h in zip(texts.chunks, first, strict=True)]
    batch = pa.record_batch({"text": pa.chunked_array(chosen, pa.large_binary()).combine_chunks()})
    with replacing(sample_path(directory, number)) as temporary, pa.ipc.new_file(str(temporary), batch.schema) as out:
        out.write_batch(batch)


def sample_path(directory: Path, number: int) -> Path:
    """Where a read file's part of the sample lies that centroids are trained on."""
    return directory / "read" / f"{number:05d}.sample.arrow"


def _write_refused(path: Path, refused: list[tuple[str, str, str | None]]) -> None:
    import pyarrow as pa

    columns = zip(*refused, strict=True)
    table = pa.table([pa.array(column, pa.string()) for column in columns], names=["id", "reason", "by"])
    with replacing(path) as temporary, pa.ipc.new_file(str(temporary), table.schema) as out:
        out.write_table(table)
