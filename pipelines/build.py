"""`splice build`: the stages in order, each reused where its inputs and settings did not change.

    WORK/ingest-FP/   read/ assign/ packs/             by sources, filters, packs
    WORK/tokens-FP/   tokenizer/ tokens/ documents/    by ingest and tokenizer
    WORK/embed-FP/    embeddings/                      by ingest and encoder (dense, hybrid)
    WORK/link-FP/     index/ graph/                    by ingest, embed and retriever
    WORK/walk-FP/     plan/, laid/ while it is read    by tokens, link, k, length, order, policies, seed
    OUTPUT/data/      the shards                       by walk and shard size
    OUTPUT/report.html

FP is a fingerprint of the settings and of everything before, so several builds share a work directory, and what an
interrupted build left is found again by its markers.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from splice.errors import SpliceError
from splice.files import check_writable, sweep
from splice.lock import locked
from splice.report import REPORT
from splice.settings import BuildSettings
from splice.sources import SourceSettings, Unit, fingerprint, plan_units
from splice.sources.hub import PREFIX as HUB
from splice.stages.tokenizer import receipt_path
from splice.storage import TEMPORARY, exists, is_remote, is_url, location, names, remove
from splice.tokenizer_files import SIDE_FILES

from .beam import load_beam, local_processes
from .claim import claim, finished
from .finish import finish, leave_report
from .link import check_embeddings, encoder_of
from .processes import TaskProcesses
from .run import Run, StageTime, cpu_seconds
from .runners import runner_of, runs_on_this_machine
from .stages import check_retriever, contamination_of, ingest, plan, source_settings, tokenise_and_link, write

if TYPE_CHECKING:
    from splice.encoder import Located


def build(settings: BuildSettings, options: list[str], console: Console, processes: TaskProcesses) -> dict[str, Any]:
    """Build the dataset `settings` describe; gives its manifest. Raises SpliceError, before any work where it can.

    options: Beam's (see runner_options); processes: where tasks that hold the GIL run.
    """
    assert settings.output is not None
    settings = with_threads(settings, options)
    output = absolute(settings.output)
    work = absolute(settings.work) if settings.work else output / "work"
    started = time.monotonic(), cpu_seconds()
    listing = processes.start("prepare", list_inputs, settings.sources, source_settings(settings))
    check_sources(settings, options, work)
    check_writable(output, "--output")
    if work.parent != output:
        check_writable(work, "--work")
    load_beam()
    units, inputs = listing()
    check_retriever(settings, units)
    encoder = encoder_of(settings)
    contamination = contamination_of(settings)
    if contamination is not None:
        inputs += contamination.fingerprint
        if contamination.note:
            console.print(contamination.note, highlight=False, markup=False)
    directories = stage_directories(settings, inputs, work, encoder)
    check_embeddings(encoder, directories.get("embed"))
    check_tokenizer(settings, directories["tokens"])
    with ExitStack() as stack:
        claim(settings, directories["write"], output, write=False)  # a refusal leaves nothing behind
        held = [stack.enter_context(locked(place)) for place in dict.fromkeys((output, work))]
        claim(settings, directories["write"], output, write=True)
        for leftover in names(output):
            if leftover.startswith(TEMPORARY):
                remove(output / leftover)
        manifest = finished(output, directories["write"])
        if manifest is not None:
            console.print(f"{output}: complete already, nothing to do", highlight=False, markup=False, soft_wrap=True)
            leave_report(output, console)
            return manifest
        for directory in (output / "data", output / "plan", output / "graph", *directories.values()):
            sweep(directory)
        stack.enter_context(local_processes(processes))
        run = Run(settings, options, console, processes, held)
        run.stages["prepare"] = StageTime(time.monotonic() - started[0], run.cpu_seconds() - started[1], 1, False)
        if settings.worker_count > 1:  # half a second of imports, while processes read and this one waits
            threading.Thread(target=import_engines, args=(settings,), daemon=True).start()
        try:
            ingested = ingest(run, units, contamination, directories["ingest"])
            tokens, graph = tokenise_and_link(run, ingested, encoder, directories)
        except SpliceError as refusal:
            if refusal.exit_code == SpliceError.exit_code and not names(output / "data"):
                remove(output / "build.json")  # the output is free for what the user mends
            raise
        plans = plan(run, ingested, tokens, graph, directories)
        shards = write(run, ingested, tokens, plans, directories, output)
        remove(output / REPORT)  # of shards that are gone
        manifest = finish(run, ingested, tokens, graph, plans, shards, directories, output, started)
        leave_report(output, console)
        return manifest


def with_threads(settings: BuildSettings, options: Sequence[str]) -> BuildSettings:
    """The settings with the threads that a task may use: elsewhere as many as are given, or one. This machine's cores say nothing."""
    if settings.workers or runs_on_this_machine(options):
        return settings
    return settings.model_copy(update={"workers": 1})


def check_sources(settings: BuildSettings, options: Sequence[str], work: Path) -> None:
    """Raise SpliceError for a source that lies here when the workers are elsewhere, and share nothing but a store.

    They would find no such file, which is bad input and not a failure.
    """
    if not is_remote(work) or runs_on_this_machine(options):
        return
    for source in settings.sources:
        if not is_url(source) and not source.startswith(HUB):
            raise SpliceError(
                f"{source}: lies on this machine, and workers of {runner_of(options)} that share only {work} cannot read it; "
                "copy it into the store, or keep --output and --work in a directory that all of them mount"
            )


def absolute(place: str) -> Path:
    """A place of the settings as the tasks know it, wherever they run."""
    path = location(place)
    return path if is_remote(path) else path.absolute()


def import_engines(settings: BuildSettings) -> None:
    """Import what tokenising and linking need, before their stages do."""
    import awkward  # noqa: F401 - gigatoken's results
    import gigatoken  # noqa: F401
    import matplotlib.backends.backend_svg
    import matplotlib.figure  # noqa: F401 - the report's

    import splice.stages.tokenise

    if settings.has_encoder:
        import faiss  # noqa: F401
        import sentence_transformers  # noqa: F401
    if settings.has_link and settings.retriever != "dense":
        import splice.bm25
        import splice.stages.search  # noqa: F401


def list_inputs(sources: Sequence[str], settings: SourceSettings) -> tuple[list[Unit], str]:
    """The units of the sources, and their fingerprint."""
    units = plan_units(sources, settings)
    return units, fingerprint(units)


def check_tokenizer(settings: BuildSettings, tokens_directory: Path | None = None) -> None:
    """Raise SpliceError, before any work, for a tokenizer that cannot be loaded or lacks what `join` writes."""
    from splice.tokenizer import load_tokenizer

    if settings.tokenizer is not None and not (tokens_directory and exists(receipt_path(tokens_directory))):
        load_tokenizer(settings.tokenizer, fast=False).require(settings.join)


def stage_directories(
    settings: BuildSettings, inputs: str, work: Path, encoder: Located | None = None
) -> dict[str, Path]:
    """Stage -> its directory, named by its fingerprint; "write" names nothing on disk but the whole build.

    "embed" is among them where there is an encoder.
    """
    prints = {"ingest": settings.fingerprint("ingest", inputs)}
    prints["tokens"] = settings.fingerprint("tokens", f"{prints['ingest']} {_tokenizer_hash(settings)}")
    if encoder is not None:
        prints["embed"] = settings.fingerprint("embed", f"{prints['ingest']} {encoder.identity}")
    prints["link"] = settings.fingerprint("link", prints.get("embed", prints["ingest"]))
    prints["walk"] = settings.fingerprint("walk", f"{prints['tokens']} {prints['link']}")
    prints["write"] = settings.fingerprint("write", prints["walk"])
    return {stage: work / f"{stage}-{fingerprint}" for stage, fingerprint in prints.items()}


def _tokenizer_hash(settings: BuildSettings) -> str:
    """A content hash of a tokenizer given by path, so that a changed file is a changed input."""
    if settings.tokenizer is None or not Path(settings.tokenizer).expanduser().exists():
        return settings.tokenizer or ""
    path = Path(settings.tokenizer).expanduser()
    beside = [p for name in SIDE_FILES if (p := path.parent / name).is_file()]  # they say which ids BOS and EOS have
    files = (
        sorted(p for p in path.iterdir() if p.is_file() and p.stat().st_size < 2**28)
        if path.is_dir()
        else [path, *beside]
    )
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()
