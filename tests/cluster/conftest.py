"""The corpus that every engine builds, what it is locally, and the engines, each started once."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # the modules beside this one

from install import absent

PACKAGES = ("asyncio", "concurrent", "email", "http", "importlib", "json", "logging", "multiprocessing", "unittest",
            "urllib", "xml")  # fmt: skip
# What has to be fetched for each.
ENGINES = {"flink": ("flink", "flink-job-server"), "spark": ("spark-job-server",), "prism": ("prism",), "dask": ()}
HOSTS = {"flink": 2, "dask": 3}  # one for each TaskManager; one for the scheduler and for each worker


@pytest.fixture(scope="session")
def corpus(tmp_path_factory):
    """Some packages of this Python's standard library."""
    root = tmp_path_factory.mktemp("corpus") / "stdlib"
    for package in PACKAGES:
        source = Path(sysconfig.get_path("stdlib")) / package
        shutil.copytree(source, root / package, ignore=shutil.ignore_patterns("__pycache__", "test*"))
    return root


@pytest.fixture(scope="session")
def local(corpus, tmp_path_factory, cli):
    """The dataset as it is built on one machine, its work directory inside."""
    from builds import arguments

    output = tmp_path_factory.mktemp("local") / "out"
    done = cli(*arguments(corpus, output))
    assert done.returncode == 0, done.stderr
    return output


@dataclass(frozen=True)
class Place:
    """Where builds read and write: a directory of this host, which may be a bucket that only the server's host sees as one."""

    directory: Path
    url: str = ""  # of the bucket

    @property
    def corpus(self) -> object:
        return self.at("stdlib")

    def at(self, name: str) -> object:
        """What a build is told for a name in the directory."""
        return f"{self.url}/{name}" if self.url else self.directory / name


@pytest.fixture(scope="module", params=ENGINES)
def engine_and_place(request, corpus, tmp_path_factory):
    """Each engine in turn, for all tests of a module. Workers of Flink and Dask share nothing but a store where that can be."""
    import engines

    name = request.param
    apart = HOSTS.get(name, 0)
    if reason := absence(name):
        pytest.skip(f"{name}: {reason}")
    with ExitStack() as stack:
        directory = tmp_path_factory.mktemp(name)
        more = {}
        place = Place(directory / "shared")
        if apart and not no_hosts():
            hosts = stack.enter_context(engines.separate_hosts(apart, tmp_path_factory.getbasetemp()))
            place = Place(directory / "store" / "buckets" / "shared", "s3://shared")
            environment = stack.enter_context(engines.s3(directory / "store", hosts[0].gateway))
            environment["SPLICE_CACHE"] = str(directory / "cache")  # where a host has none of the test's files, its own
            stack.enter_context(_environment(environment))
            more = {"hosts": hosts}
        shutil.copytree(corpus, place.directory / "stdlib")
        yield stack.enter_context(getattr(engines, name)(directory / "parts", **more)), place


@contextmanager
def _environment(variables: dict[str, str]) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        yield


@pytest.fixture
def engine(engine_and_place):
    return engine_and_place[0]


@pytest.fixture
def place(engine_and_place):
    return engine_and_place[1]


@pytest.fixture(scope="module")
def built_there(engine_and_place, cli):
    """What a build on the engine said, and its dataset."""
    from builds import arguments

    engine, place = engine_and_place
    return cli(*arguments(place.corpus, place.at("built"), engine.options)), place.directory / "built"


def absence(name: str) -> str:
    """Why an engine cannot be had here, or ""."""
    if name == "dask" and find_spec("distributed") is None:
        return "needs dask (pip install 'splice-data[dask]')"
    return absent(*ENGINES[name])


def no_hosts() -> str:
    """Why there cannot be hosts with an address and files of their own here, or ""."""
    if reason := absent("versitygw"):
        return reason
    if shutil.which("ip") is None or os.geteuid() != 0:
        return "needs root and ip (iproute2) for network namespaces"
    try:  # root of a container may not
        subprocess.run(["unshare", "--net", "--mount", "--uts", "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        return f"no namespaces here: {error}"
    return ""
