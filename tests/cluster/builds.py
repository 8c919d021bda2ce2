"""Builds on an engine as processes of their own, watched by their markers."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

SETTINGS = ("--glob", "*.py", "--length", 2048, "--shard-tokens", 32768, "--pack-documents", 20, "--vocab-size", 2000)


def arguments(corpus: object, output: object, options: Sequence[str] = (), *more: object) -> list[object]:
    """`splice` ... ; options: those for Beam; more: splice's own."""
    return ["build", corpus, "--output", output, *SETTINGS, *more, *(["--", *options] if options else [])]


@contextmanager
def started(corpus: object, output: object, options: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    """A build that goes on while the test does, and ends with it."""
    command = [sys.executable, "-m", "splice.cli", *map(str, arguments(corpus, output, options))]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()  # the build below it dies with it
        process.wait()


def receipts(output: Path, stage: str) -> int:
    """Tasks of a stage that are done."""
    return len(list((output / "work").glob(f"*/done/{stage}-*.json")))


def wait_for(condition: Callable[[], bool], seconds: float = 180.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.005)
