"""What fault tests share: builds as processes, a store, and a directory whose modules they import by name."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent / "cluster")]


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    """A running S3 server: the environment by which clients find it, the directory that holds its buckets, its process."""
    from engines import s3
    from install import absent

    if reason := absent("versitygw"):
        pytest.skip(reason)
    directory = tmp_path_factory.mktemp("store")
    with s3(directory) as environment:
        yield environment, directory / "buckets"


@pytest.fixture
def store(server, tmp_path, monkeypatch):
    """A bucket of the test's own, (URL, the directory that holds its objects); this process and those it starts find it."""
    environment, buckets = server
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("SPLICE_CACHE", str(tmp_path / "cache"))
    _forget_connections()
    name = f"b{os.getpid()}-{abs(hash(tmp_path.name)) % 10**8}"
    (buckets / name).mkdir()
    yield f"s3://{name}", buckets / name
    _forget_connections()


def _forget_connections() -> None:
    """The next test has other credentials, another server or another cache."""
    from splice import storage

    storage._of_url.cache_clear()
    storage._cache.cache_clear()
    if "s3fs" in sys.modules:
        sys.modules["s3fs"].S3FileSystem.clear_instance_cache()
