"""The corpus that every engine builds, what it is locally, and the engines, each started once."""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # the modules beside this one

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


@pytest.fixture(scope="module", params=ENGINES)
def engine(request, tmp_path_factory):
    """Each engine in turn, for all tests of a module; the workers of Flink and Dask on hosts of their own where that can be."""
    import engines

    name = request.param
    if reason := absence(name):
        pytest.skip(f"{name}: {reason}")
    apart = HOSTS.get(name, 0) if not no_hosts() else 0
    with ExitStack() as stack:
        more = {"hosts": stack.enter_context(engines.separate_hosts(apart))} if apart else {}
        yield stack.enter_context(getattr(engines, name)(tmp_path_factory.mktemp(name), **more))


def absence(name: str) -> str:
    """Why an engine cannot be had here, or ""."""
    from install import absent

    if name == "dask" and find_spec("distributed") is None:
        return "needs dask (pip install 'splice-data[dask]')"
    return absent(*ENGINES[name])


def no_hosts() -> str:
    """Why there cannot be network namespaces here, or ""."""
    return "" if shutil.which("ip") and os.geteuid() == 0 else "needs root and ip (iproute2) for network namespaces"
