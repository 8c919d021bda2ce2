"""`splice plan --measure`: a sample of the user's own source, built in a temporary directory, and what it says of the rates.

Whole units are taken in a seeded order, so that documents that lie together stay together, until there are enough.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from splice.errors import BuildFailed, SpliceError
from splice.seeded import permutation
from splice.settings import BuildSettings

from . import rates
from .capacity import Corpus, EncoderSize, stage_costs

SAMPLE_DOCUMENTS = 20_000
SAMPLE_BYTES = 100 * 10**6  # of text: half a minute on a core
LEAST_SECONDS = 0.1  # a stage that takes less says nothing of its rate


@dataclass(frozen=True)
class Sample:
    """corpus: the sample's own size and what its text is like; basis: what was measured, in words."""

    corpus: Corpus
    basis: str

    @property
    def mean_bytes(self) -> float:
        return self.corpus.text_bytes / self.corpus.documents


def measure(s: BuildSettings, source: str, encoder: EncoderSize | None, console: Console) -> Sample:
    """Build a sample of `source` on one core. Raises SpliceError where the source cannot be read, BuildFailed where the build
    fails. Embedding is not measured: its rate goes by the encoder's size."""
    with tempfile.TemporaryDirectory(prefix="splice-plan-") as scratch:
        rows, output = Path(scratch) / "sample.jsonl", Path(scratch) / "out"
        taken = _take(s, source, rows)
        console.print(f"building a sample of {taken:,} documents of {source} ...", highlight=False, markup=False)
        retriever = "bm25" if s.has_encoder else s.retriever
        flags = ["--retriever", retriever, "--length", s.length, "--neighbours", s.neighbours, "--dedup", s.dedup]
        fields = ["--repo-field", "repo", "--path-field", "path"]
        command = [
            sys.executable,
            "-m",
            "splice.cli",
            "build",
            rows,
            "--output",
            output,
            "--workers",
            1,
            *flags,
            *fields,
        ]
        done = subprocess.run(
            [*map(str, command), "--shard-tokens", str(s.shard_tokens)], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise BuildFailed(f"the sample of {source} could not be built: {done.stderr.strip()}")
        as_built = {"retriever": retriever, "pack_documents": BuildSettings().pack_documents}
        return _sample(s.model_copy(update=as_built), source, output, taken)


def _take(s: BuildSettings, source: str, target: Path) -> int:
    """Write documents of `source` as rows, some thousands; gives how many."""
    from splice.filters import check
    from splice.sources import Document, plan_units, read_unit

    from .stages import source_settings

    settings = source_settings(s)
    units = plan_units([source], settings)
    taken = size = 0
    with open(target, "w", encoding="utf-8") as out:
        for number in permutation(len(units), 0, "sample"):
            for document in read_unit(units[number], settings):
                if not isinstance(document, Document) or check(document.text, settings) is not None:
                    continue
                text = document.text.decode("utf-8", "replace")
                row = {"text": text, "repo": document.repo, "path": document.path}
                out.write(json.dumps({name: value for name, value in row.items() if value is not None}) + "\n")
                taken, size = taken + 1, size + len(document.text)
                if taken == SAMPLE_DOCUMENTS or size >= SAMPLE_BYTES:
                    return taken
    if not taken:
        raise SpliceError(f"{source}: no document is left after reading and filtering; look at --text-field and --glob")
    return taken


def _sample(s: BuildSettings, source: str, output: Path, taken: int) -> Sample:
    manifest = json.loads((output / "manifest.json").read_text(encoding="utf-8"))
    parts = [json.loads(p.read_text(encoding="utf-8")) for p in output.glob("work/tokens-*/done/tokenise-*.json")]
    text, tokens = sum(part["bytes"] for part in parts), sum(part["tokens"] for part in parts)
    data = sum(path.stat().st_size for path in (output / "data").iterdir())
    corpus = Corpus(sum(part["documents"] for part in parts), text, 0, tokens / text, data / tokens)
    factors = _factors(s, corpus, manifest["run"]["stages"])
    seconds = manifest["run"]["cpu_seconds"]
    basis = (
        f"{taken:,} documents of {source}, built here on one core in {seconds:.0f} CPU seconds; over the table's rates: "
        + (", ".join(f"{name} {factor:.2g} times" for name, factor in factors.items()) or "none long enough to tell")
    )
    return Sample(Corpus(corpus.documents, text, 0, tokens / text, data / tokens, factors), basis)


def _factors(s: BuildSettings, corpus: Corpus, stages: dict[str, Any]) -> dict[str, float]:
    """What the stages of the sample took over what the rates say of it."""
    factors = {}
    for cost in stage_costs(s, corpus, apart=False):
        took = stages[cost.name]["cpu_seconds"] - (rates.FIRST_INDEX if cost.name == "index" else 0.0)
        if (
            min(took, cost.cpu_seconds) >= LEAST_SECONDS and cost.name != "tokenizer"
        ):  # which is trained on so much, not more
            factors[cost.name] = took / cost.cpu_seconds
    return factors
