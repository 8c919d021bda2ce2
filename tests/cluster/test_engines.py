"""A build on every engine: the same bytes as on one machine, through killed workers too, and failures told as there."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from builds import arguments, receipts, started, wait_for
from conftest import absence, no_hosts
from engines import engine_in, listening, separate_hosts
from install import PARTS

SECONDS = 400  # for a build on two busy cores
# By engine, in the order of the stages: the part that is killed once the first task of a stage is done.
KILLED = {
    "flink": {"gather": "task manager 1", "search": "worker pool 0"},
    "spark": {"gather": "worker pool"},
    "prism": {"gather": "worker pool"},
    "dask": {"gather": "worker 1"},
}


def test_the_dataset_has_the_same_bytes_as_one_built_locally(built_there, local, same_dataset):
    done, output = built_there
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""  # nothing of Beam's, grpc's or the engine's
    same_dataset(local, output, moved=True)
    assert json.loads((output / "manifest.json").read_text())["run"]["workers"] is None
    assert "of the driver alone" in " ".join(done.stdout.split())


def test_a_failing_task_is_told_with_its_host_and_cause(engine, place, built_there, cli):
    (ingest,) = (built_there[1] / "work").glob("ingest-*")
    blocked = place.directory / "failing" / "work" / ingest.name / "read"
    blocked.parent.mkdir(parents=True)
    blocked.write_text("a file where the task needs a directory")
    done = cli(*arguments(place.corpus, place.at("failing"), engine.options))
    assert done.returncode == 1
    words = re.match(r"splice: task read/00000 failed on (\S+) \(process ", done.stderr)
    assert words, done.stderr
    assert words[1] in engine.workers
    assert f"{blocked.parent.name}/read" in done.stderr
    assert "run the same command again" in done.stderr
    assert done.stderr.count("\n") == 2  # no stack trace of any language


def test_an_interrupt_is_one_sentence(engine, place):
    with started(place.corpus, place.at("interrupted"), engine.options) as build:
        wait_for(lambda: receipts(place.directory / "interrupted", "gather") or build.poll() is not None)
        (child,) = Path(f"/proc/{build.pid}/task/{build.pid}/children").read_text().split()
        os.kill(int(child), signal.SIGINT)  # a terminal sends it to the command too, which leaves it to its child
        _, errors = build.communicate(timeout=60)
    assert build.returncode == 130, errors
    assert errors.startswith("splice: interrupted. ")
    assert errors.count("\n") == 1


def test_killed_workers_cost_nothing_but_time(engine, place, local, same_dataset, cli, request):
    output = place.directory / "killed"
    with started(place.corpus, place.at("killed"), engine.options) as build:
        for stage, name in KILLED[request.node.callspec.params["engine_and_place"]].items():
            wait_for(lambda stage=stage: receipts(output, stage) or build.poll() is not None)
            assert build.poll() is None, build.stderr.read()
            engine.parts[name].kill()
            assert 0 < receipts(output, stage) < receipts(local, stage)  # it was in the middle
            if name.startswith("worker pool"):  # of the others there is a second
                engine.parts[name].start()
        _, errors = build.communicate(timeout=SECONDS)
    if build.returncode:  # an engine that does not try a task again says so, and a rerun goes on
        assert build.returncode == 1, errors
        assert re.match(
            r"splice: the runner failed, \d+ of \d+ tasks not done \(first: \w+/[\w-]+\): a worker was lost", errors
        )
        assert "run the same command again" in errors
        done = cli(*arguments(place.corpus, place.at("killed"), engine.options))
        assert done.returncode == 0, done.stderr
    same_dataset(local, output, moved=True)


def test_a_job_server_that_the_build_starts_ends_with_it(corpus, local, tmp_path, same_dataset, cli):
    if reason := absence("prism"):
        pytest.skip(f"prism: {reason}")
    program = PARTS["prism"].directory / "prism"
    before = running(program)
    done = cli(*arguments(corpus, tmp_path / "out", ["--runner=PrismRunner", f"--prism_location={program}"]))
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    same_dataset(local, tmp_path / "out")
    assert running(program) == before


def running(program: Path) -> set[str]:
    """Processes of a program."""
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # one that ends while it is looked at
            if (process / "exe").readlink() == program:
                found.add(process.name)
    return found


def test_hosts_of_their_own_share_no_loopback_and_no_files(tmp_path):
    """So what the tests above find of Flink and Dask holds where the workers are machines of their own."""
    if reason := no_hosts():
        pytest.skip(reason)
    (tmp_path / "ours").touch()
    with separate_hosts(2, tmp_path) as (one, other), engine_in(tmp_path) as engine:
        server = engine.start("server", [sys.executable, "-m", "http.server", 8000], one)
        server.wait_for(lambda: listening(one.address, 8000))
        own = engine.directory_of("other")
        ask = "import sys, socket; socket.create_connection((sys.argv[1], 8000), 2)"
        reached = [
            subprocess.run(
                other.command([sys.executable, "-c", ask, address], own), capture_output=True, check=False
            ).returncode
            for address in (one.address, "127.0.0.1")
        ]
        (own / "mine").touch()
        look = ["find", tmp_path, "-type", "f"]
        seen = subprocess.run(other.command(look, own), capture_output=True, text=True, check=True).stdout.split()
    assert reached == [0, 1]
    assert sorted(seen) == [str(own / "hosts"), str(own / "mine")]
