"""Builds as processes of their own, to be watched and killed."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path


def command(tree: object, output: object, tokenizer: object, *more: object) -> list[str]:
    words = [sys.executable, "-m", "splice.cli", "build", tree, "--output", output, "--length", 512,
             "--shard-tokens", 8192, "--workers", 2, "--tokenizer", tokenizer, *more]  # fmt: skip
    return list(map(str, words))


def start(tree: object, output: object, tokenizer: object, *more: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command(tree, output, tokenizer, *more), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def descendants(pid: int) -> list[int]:
    """Live processes below `pid`, parents first."""
    found = []
    for listing in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = [int(child) for child in listing.read_text().split()]
        except OSError:
            continue
        for child in children:
            found += [child, *descendants(child)]
    return found


def workers(command_pid: int) -> list[int]:
    """The worker processes of a build: those forked from it and Beam's SDK workers, not their shells and helpers."""
    found = []
    below = descendants(command_pid)
    build = below[0] if below else None
    for pid in below:
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
        forked = b"splice.cli" in words and pid not in (command_pid, build)
        if forked or (b"sdk_worker_main" in words and not words.startswith(b"/bin/sh")):
            found.append(pid)
    return found


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


def kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def wait_for(condition, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)
