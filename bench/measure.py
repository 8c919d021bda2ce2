"""Whole-process figures for the benchmarks: wall and CPU seconds and peak memory of a command and all below it."""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

SAMPLE_SECONDS = 0.5  # each sample holds the process up while its pages are counted


@dataclass(frozen=True)
class Measured:
    """One run. peak_bytes: the largest sum of proportional set sizes (PSS) of the process tree, sampled."""

    wall_seconds: float
    cpu_seconds: float
    peak_bytes: int


def run(command: Sequence[object]) -> Measured:
    """Run a command to its end; its output goes to stderr. Raises CalledProcessError where it fails."""
    started = time.monotonic()
    process = subprocess.Popen(list(map(str, command)), stdout=sys.stderr)
    peak = [0]
    stop = threading.Event()

    def sample() -> None:
        while not stop.wait(SAMPLE_SECONDS):
            peak[0] = max(peak[0], sum(_pss_bytes(pid) for pid in [process.pid, *_below(process.pid)]))

    sampler = threading.Thread(target=sample, daemon=True)
    sampler.start()
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.monotonic() - started
    stop.set()
    sampler.join()
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return Measured(wall, usage.ru_utime + usage.ru_stime, peak[0])


def median(runs: Sequence[Measured]) -> Measured:
    """Figure by figure."""
    return Measured(*(statistics.median(asdict(r)[name] for r in runs) for name in asdict(runs[0])))


def machine(*packages: str) -> dict[str, str]:
    """What the figures were measured on."""
    cpu = next((line.split(":")[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")), "?")
    memory = next((int(line.split()[1]) for line in _lines("/proc/meminfo") if line.startswith("MemTotal")), 0)
    found = {"cpu": cpu, "cores": str(len(os.sched_getaffinity(0))), "memory": f"{memory / 2**20:.0f} GiB",
             "python": platform.python_version()}  # fmt: skip
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []


def _below(pid: int) -> list[int]:
    found = []
    for listing in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = [int(child) for child in listing.read_text().split()]
        except OSError:
            continue
        for child in children:
            found += [child, *_below(child)]
    return found


def _pss_bytes(pid: int) -> int:
    line = next((line for line in _lines(f"/proc/{pid}/smaps_rollup") if line.startswith("Pss:")), None)
    return int(line.split()[1]) * 1024 if line else 0
