"""gs:// and hdfs:// against servers of their own: what of a store is not the same everywhere."""

from __future__ import annotations

import json
import threading
import time

import pytest
from processes import start

from splice import lock, storage
from splice.errors import BuildFailed, SpliceError
from splice.files import read_jsons, replacing, sweep, write_json
from splice.lock import locked
from splice.storage import (
    create,
    local,
    local_directory,
    location,
    names,
    overwrite,
    read_ranges,
    remove,
    remove_all,
    send,
    sizes,
)

PARTS = {"gcs": "fake-gcs-server", "hdfs": "hdfs"}


@pytest.fixture(scope="module", params=["gcs", "hdfs"])
def server(request, tmp_path_factory):
    import stores
    from install import absent

    if reason := absent(PARTS[request.param]):
        pytest.skip(reason)
    with getattr(stores, request.param)(tmp_path_factory.mktemp(request.param)) as (url, environment):
        yield url, environment


@pytest.fixture
def where(server, tmp_path, monkeypatch):
    """A directory of the test's own in the store."""
    url, environment = server
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("SPLICE_CACHE", str(tmp_path / "cache"))
    storage._of_url.cache_clear()
    storage._cache.cache_clear()
    yield location(f"{url}/{tmp_path.name}")
    storage._of_url.cache_clear()
    storage._cache.cache_clear()


def test_files(where, tmp_path):
    assert names(where) == set()
    write_json(where / "a.json", {"n": 1})
    write_json(where / "a.json", {"n": 2})
    assert read_jsons([where / "a.json", where / "b.json"]) == [{"n": 2}, None]
    with replacing(where / "deep" / "c.bin") as temporary:
        temporary.write_bytes(b"c" * 70_000)
    assert local(where / "deep" / "c.bin").read_bytes() == b"c" * 70_000
    with pytest.raises(ZeroDivisionError), replacing(where / "torn") as temporary:
        temporary.write_bytes(b"half" * (1 // 0))
    assert names(where) == {"a.json", "deep"}
    assert sizes(where / "deep") == {"c.bin": 70_000}
    (tmp_path / "made" / "inner").mkdir(parents=True)
    (tmp_path / "made" / "inner" / "x").write_text("x")
    (tmp_path / "made" / "y").write_text("y")
    send(tmp_path / "made", where / "made", keep=False)
    copy = local_directory(where / "made")
    assert (copy / "inner" / "x").read_text() + (copy / "y").read_text() == "xy"
    remove_all(where / "made", ["y", "not there"])
    assert names(where / "made") == {"inner"}
    assert read_ranges([(where / "a.json", 3, 6), (where / "deep" / "c.bin", 9, 12)]) == [b'"n"', b"ccc"]
    with pytest.raises(SpliceError, match=r"c\.bin: damaged"):
        read_ranges([(where / "deep" / "c.bin", 69_999, 70_001)])
    with pytest.raises(FileNotFoundError):
        read_ranges([(where / "nowhere", 0, 1)])
    sweep(where)
    assert names(where) == {"a.json", "deep", "made"}
    remove(where)
    assert names(where) == set()


def test_what_killed_attempts_left_is_swept(where):
    if where.protocol in storage.WHOLE_AT_ONCE:
        pytest.skip("nothing is ever there in part")
    overwrite(where / "deep" / "kept", b"1")
    where.fs.pipe_file((where / "deep" / ".tmp-0123-torn").path, b"half")
    assert sweep(where) == 1
    assert names(where / "deep") == {"kept"}


def test_of_several_that_create_a_file_one_does(where):
    overwrite(where / "beside", b"")
    barrier = threading.Barrier(8)
    created: list[int] = []

    def contend(n: int) -> None:
        barrier.wait()
        if create(where / "lock", b"%d" % n):
            created.append(n)

    threads = [threading.Thread(target=contend, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(created) == 1
    assert local(where / "lock").read_bytes() == b"%d" % created[0]
    assert names(where) == {"lock", "beside"}


def test_a_lease(where, monkeypatch):
    with locked(where) as held:
        held.check()
        with pytest.raises(BuildFailed, match="another build is working here"), locked(where):
            pass
    assert not names(where / ".splice.lock")
    who = {"host": "elsewhere", "process": 1, "since": "then", "machine": "another", "started": "1"}
    overwrite(where / ".splice.lock" / "000001.beat", b"1")
    overwrite(where / ".splice.lock" / "000001.json", json.dumps(who).encode())
    monkeypatch.setattr(lock, "LEASE_SECONDS", 3600.0)
    with pytest.raises(BuildFailed, match="process 1 on elsewhere"), locked(where):
        pass
    time.sleep(1.5)
    monkeypatch.setattr(lock, "LEASE_SECONDS", 1.0)
    with locked(where):
        assert names(where / ".splice.lock") == {"000002.beat", "000002.json"}


def test_a_build(where, tree, tokenizer_file, tmp_path, same_dataset):
    """Of so many packs that their examples are laid out and fetched one by one."""
    send(tree, where / tree.name, keep=False)
    built = tmp_path / "here"
    for source, output in ((where / tree.name, where / "out"), (tree, built)):
        process = start(source, output, tokenizer_file, "--pack-documents", 20)
        _, errors = process.communicate(timeout=240)
        assert process.returncode == 0, errors
    copy = tmp_path / "copy"
    for folder in ("", "data", "plan", "graph", "documents", "tokenizer"):
        (copy / folder).mkdir(exist_ok=True)
        for name in sizes(where / "out" / folder if folder else where / "out"):
            (copy / folder / name).write_bytes(
                local(where / "out" / folder / name if folder else where / "out" / name).read_bytes()
            )
    same_dataset(built, copy, moved=True)
