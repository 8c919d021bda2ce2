"""Builds whose input, work and output lie in a store (a real S3 server): its faults, the driver's, and several drivers."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import signal
import threading
import time
from collections import Counter
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from flaky import WAYS, flaky
from processes import alive, descendants, kill, start, wait_for

from splice import lock
from splice.errors import BuildFailed, SpliceError
from splice.files import LOCK, read_json, read_jsons, replacing, sweep, write_json
from splice.lock import locked
from splice.storage import create, local, location, names, overwrite, read_ranges

KILLS = 6


def output_of(store, name="out"):
    """The output's URL, and the same place on the server's disk."""
    url, bucket = store
    return f"{url}/{name}", bucket / name


@pytest.fixture
def lines(tmp_path, tree):
    """A directory of shards in four formats: JSON lines plain, .gz and .zst, and Parquet."""
    import gzip

    import pyarrow as pa
    import pyarrow.parquet as pq
    import zstandard

    rows = [{"text": p.read_text(), "repo": p.parts[-3], "path": p.name} for p in sorted(tree.rglob("*.py"))]
    directory = tmp_path / "lines"
    directory.mkdir()

    def packed(rows) -> bytes:
        return "".join(json.dumps(row) + "\n" for row in rows).encode()

    (directory / "a.jsonl.zst").write_bytes(zstandard.compress(packed(rows[:110])))
    (directory / "b.jsonl").write_bytes(packed(rows[110:150]))
    (directory / "c.jsonl.gz").write_bytes(gzip.compress(packed(rows[150:190])))
    pq.write_table(pa.Table.from_pylist(rows[190:]), directory / "d.parquet")
    return directory


def copy_into(store, directory: Path) -> str:
    """The URL of a copy of a directory."""
    url, _ = store
    where = location(f"{url}/{directory.name}")
    where.fs.put(str(directory), where.path, recursive=True)
    return str(where)


def finish(process) -> str:
    _, errors = process.communicate(timeout=240)
    assert process.returncode == 0, errors
    return errors


def test_a_build_from_a_store_into_a_store_has_the_bytes_of_a_local_one(
    store, lines, tokenizer_file, tmp_path, same_dataset, cli
):
    more = ("--repo-field", "repo", "--path-field", "path", "--pack-documents", 90)
    finish(start(lines, tmp_path / "out", tokenizer_file, *more))
    (url, place), source = output_of(store), copy_into(store, lines)
    finish(start(source, url, tokenizer_file, *more))
    same_dataset(tmp_path / "out", place, moved=True)
    assert not list(place.rglob(".tmp-*"))
    again = cli("build", source, "--output", url, "--length", 512, "--shard-tokens", 8192,
                "--tokenizer", tokenizer_file, *more)  # fmt: skip
    assert "complete already" in again.stdout, again.stderr
    validated = cli("validate", url)
    assert validated.returncode == 0, validated.stdout
    assert validated.stdout.count("ok") >= 6
    assert "documents" in cli("inspect", url).stdout
    assert "packed by bm25" in cli("report", url, "--text").stdout


def test_a_tree_and_a_glob_in_a_store_give_the_same_documents(
    store, tree, lines, tokenizer_file, tmp_path, built, same_dataset
):
    finish(start(copy_into(store, tree), tmp_path / "tree", tokenizer_file))
    same_dataset(built, tmp_path / "tree", moved=True)
    some = copy_into(store, lines)
    finish(start(f"{some}/*.jsonl*", tmp_path / "glob", tokenizer_file))
    ledger = json.loads((tmp_path / "glob" / "manifest.json").read_text())["ledger"]
    assert {name: entry["documents_in"] for name, entry in ledger["sources"].items()} == {
        "a.jsonl.zst": 110,
        "b.jsonl": 40,
        "c.jsonl.gz": 40,
    }


def test_a_tree_in_a_store_has_the_repositories_of_one_on_a_disk(store, tmp_path):
    from splice.sources import SourceSettings, plan_units, read_unit

    tree = tmp_path / "projects"
    for name in (
        "a/x.py",
        "a/deep/.git/config",
        "a/deep/y.py",
        "b/z.py",
        "top.py",
        "b/.hidden.py",
        "built/out/v.py",
        "empty.py",
    ):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text("" if name == "empty.py" else f"text of {name}\n")
    (tree / "built" / "out" / LOCK).write_text("")
    (tree / "long.py").write_text("x" * 200)
    settings = SourceSettings(glob=("*.py",), max_chars=40)

    def documents(where: str) -> list[object]:
        return [item for unit in plan_units([where], settings) for item in read_unit(unit, settings)]

    here = documents(str(tree))
    assert [getattr(d, "repo", None) for d in here] == ["a/deep", "a", "b", ".", None, "."]
    assert documents(copy_into(store, tree)) == here


def test_one_request_in_fifty_fails_and_nothing_is_lost(
    store, server, tree, tokenizer_file, tmp_path, monkeypatch, built, same_dataset
):
    url, place = output_of(store)
    source = copy_into(store, tree)
    target = urlsplit(server[0]["AWS_ENDPOINT_URL"])
    with flaky((target.hostname, target.port), 50) as (proxy, endpoint):
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        finish(start(source, url, tokenizer_file))
        assert set(proxy.failed) == set(WAYS), f"{proxy.requests} requests, {proxy.failed}"
    same_dataset(built, place, moved=True)


def test_a_file_that_the_store_cannot_give_is_not_taken_for_bad_input(
    store, server, lines, tokenizer_file, tmp_path, monkeypatch, same_dataset
):
    source = copy_into(store, lines)
    target = urlsplit(server[0]["AWS_ENDPOINT_URL"])
    with flaky((target.hostname, target.port), 10**9) as (proxy, endpoint), monkeypatch.context() as patch:
        proxy.damaged = "c.jsonl.gz"
        patch.setenv("AWS_ENDPOINT_URL", endpoint)
        patch.setenv("AWS_MAX_ATTEMPTS", "2")
        process = start(source, tmp_path / "out", tokenizer_file)
        _, errors = process.communicate(timeout=240)
    assert process.returncode == 1, errors
    assert re.match(
        r"splice: task read/\d+ failed on \S+ \(process \d+\): s3://\S+/c.jsonl.gz: the store failed", errors
    )
    finish(start(source, tmp_path / "out", tokenizer_file))
    finish(start(lines, tmp_path / "local", tokenizer_file))
    same_dataset(tmp_path / "local", tmp_path / "out", moved=True)


def test_shards_of_many_packs_fetch_their_examples_alone(
    store, tree, tokenizer_file, tmp_path, same_dataset, monkeypatch
):
    """Each file of tokens is fetched by the tasks of its pack, and by no shard."""
    more = ("--pack-documents", 20, "--workers", 1)
    finish(start(tree, tmp_path / "out", tokenizer_file, *more))
    url, place = output_of(store)
    finish(start(tree, url, tokenizer_file, *more))
    same_dataset(tmp_path / "out", place)
    assert len(list(place.glob("work/walk-*/done/lay-*"))) == 12
    assert not list(place.glob("work/walk-*/laid/*"))
    copies = [path.name.partition("-")[2] for path in (tmp_path / "cache").iterdir()]
    assert "00000-0000.arrow" in copies  # what later tasks read was kept
    assert "00000" not in copies


def test_pieces_of_files_are_read_where_they_lie(store):
    place = location(store[0])
    for name, data in (("a", b"0123456789"), ("b", b"abcdef")):
        overwrite(place / name, data)
    wanted = [(place / "a", 2, 5), (place / "b", 0, 6), (place / "a", 9, 10)] * 50
    assert read_ranges(wanted) == [b"234", b"abcdef", b"9"] * 50
    with pytest.raises(SpliceError, match="b: damaged"):
        read_ranges([(place / "b", 4, 8)])
    with pytest.raises(FileNotFoundError):
        read_ranges([(place / "c", 0, 1)])


def test_a_copy_that_came_in_part_is_none(store, monkeypatch):
    place = location(store[0]) / "notes.txt"
    overwrite(place, b"all of it")
    monkeypatch.setattr(place.fs, "get_file", lambda source, target: Path(target).write_bytes(b"all"))
    with pytest.raises(BuildFailed, match="3 bytes came of 9"):
        local(place)


def test_a_store_that_goes_away_ends_the_build_with_a_sentence(
    store, tree, tokenizer_file, monkeypatch, built, same_dataset, server
):
    url, place = output_of(store)
    target = urlsplit(server[0]["AWS_ENDPOINT_URL"])
    with flaky((target.hostname, target.port), 10**9) as (_, endpoint), monkeypatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", endpoint)
        patch.setenv("AWS_MAX_ATTEMPTS", "2")
        process = start(tree, url, tokenizer_file)
        wait_for(lambda: list(place.glob("work/*/done/*")))
    _, errors = process.communicate(timeout=240)  # the way to the store is closed now
    assert process.returncode == 1, errors
    assert url.removeprefix("s3://") in errors
    assert "the store failed" in errors
    finish(start(tree, url, tokenizer_file))
    same_dataset(built, place)


def test_the_driver_killed_at_any_moment(store, tree, tokenizer_file, built, same_dataset):
    url, place = output_of(store)
    rng = random.Random(3)
    began = time.monotonic()
    finish(start(tree, output_of(store, "undisturbed")[0], tokenizer_file))
    whole = time.monotonic() - began
    resumed = attempts = 0
    while attempts < KILLS or not resumed:
        assert attempts < 10 * KILLS
        process = start(tree, url, tokenizer_file)
        time.sleep(rng.uniform(0.2, 0.95) * whole)
        family = [process.pid, *descendants(process.pid)]
        kill(family[attempts % 2 if len(family) > 1 else 0])
        attempts += 1
        _, errors = process.communicate(timeout=60)
        assert "another build" not in errors  # a dead driver of this machine holds nothing
        wait_for(lambda family=family: not any(alive(pid) for pid in family))
        if process.returncode == 0:
            continue
        resumed += len(list(place.glob("work/*/done/*"))) > 0
    finish(start(tree, url, tokenizer_file))
    same_dataset(built, place)
    assert not list(place.rglob(".tmp-*"))


def test_a_second_driver_is_refused_with_who_holds_the_output(store, tree, tokenizer_file):
    url, place = output_of(store)
    first = start(tree, url, tokenizer_file)
    wait_for(lambda: list(place.glob("work/*/done/*")))
    second = start(tree, url, tokenizer_file)
    _, errors = second.communicate(timeout=120)
    assert second.returncode == 1
    assert "another build is working here (process" in errors
    finish(first)
    assert not names(location(url) / LOCK)


def lease_of_another_host(store, age_seconds: float) -> Path:
    """An output that a driver of another host holds, whose last sign of life is so old; the directory of its lock."""
    url, place = output_of(store)
    held = location(url) / LOCK
    overwrite(held / "000003.beat", b"7")
    who = {"host": "elsewhere", "process": 11, "since": "2026-01-01 00:00:00", "machine": "another", "started": "1"}
    overwrite(held / "000003.json", json.dumps(who).encode())
    then = time.time() - age_seconds
    os.utime(place / LOCK / "000003.beat", (then, then))
    return place / LOCK


def test_a_lease_that_was_renewed_is_respected(store):
    url, _ = output_of(store)
    lease_of_another_host(store, lock.LEASE_SECONDS / 2)
    with pytest.raises(BuildFailed, match="process 11 on elsewhere since 2026"), locked(location(url)):
        pass


def test_a_lease_that_was_not_renewed_is_taken_over(store, tree, tokenizer_file, built, same_dataset):
    _, place = output_of(store)
    held = lease_of_another_host(store, lock.LEASE_SECONDS + 5)
    process = start(tree, output_of(store)[0], tokenizer_file)
    wait_for(lambda: (held / "000004.json").exists() and not (held / "000003.json").exists())
    finish(process)
    same_dataset(built, place)


def test_of_several_that_take_over_one_does(store):
    url, _ = output_of(store)
    lease_of_another_host(store, lock.LEASE_SECONDS + 5)
    outcome: Counter[str] = Counter()
    ready, over = threading.Barrier(6), threading.Barrier(6)

    def contend() -> None:
        ready.wait()
        try:
            with locked(location(url)):
                outcome["held"] += 1
                over.wait(60)
        except BuildFailed:
            outcome["refused"] += 1
            over.wait(60)

    threads = [threading.Thread(target=contend) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(90)
    assert outcome == {"held": 1, "refused": 5}


def test_who_was_thought_dead_and_comes_back_stops(store, monkeypatch):
    monkeypatch.setattr(lock, "RENEW_SECONDS", 0.1)
    url, _ = output_of(store)
    with locked(location(url)) as held:
        time.sleep(0.5)
        held.check()
        assert int(local(location(url) / LOCK / "000001.beat").read_bytes()) >= 1
        assert create(location(url) / LOCK / "000002.json", b'{"host": "other", "process": 5, "since": "now"}')
        wait_for(lambda: held.lost is not None)
        with pytest.raises(BuildFailed, match="process 5 on other"):
            held.check()


def test_a_driver_that_lost_its_lease_during_a_stage_removes_nothing_after_it(store, tree, tokenizer_file, monkeypatch):
    """It would be the read files, which the other build gathers."""
    from splice.cli import run
    from splice.pipelines import run as driver

    url, place = output_of(store)
    run_tasks = driver.run_tasks

    def lose(tasks, options, threads):
        run_tasks(tasks, options, threads)
        if tasks[0].stage == "gather":
            for held in (place / LOCK, place / "work" / LOCK):
                (held / "000007.json").write_text(json.dumps({"host": "other", "process": 5, "since": "now"}))
            time.sleep(1)

    monkeypatch.setattr(lock, "RENEW_SECONDS", 0.1)
    monkeypatch.setattr(driver, "run_tasks", lose)
    words = ["build", tree, "--output", url, "--length", 512, "--workers", 1, "--tokenizer", tokenizer_file]
    assert run(list(map(str, words))) == 1
    assert len(list(place.glob("work/ingest-*/read/[0-9]*.arrow"))) > 0


def test_a_driver_stopped_while_another_took_over_ends_without_harm(store, tree, tokenizer_file, built, same_dataset):
    """SIGSTOP is what a paused virtual machine looks like from outside."""
    url, place = output_of(store)
    first = start(tree, url, tokenizer_file)
    wait_for(lambda: list(place.glob("work/*/done/read-*")))
    family = [first.pid, *descendants(first.pid)]
    for pid in family:
        os.kill(pid, signal.SIGSTOP)
    then = time.time() - lock.LEASE_SECONDS - 5
    for held in (LOCK, f"work/{LOCK}"):
        holder = json.loads((place / held / "000001.json").read_text())
        elsewhere = json.dumps({**holder, "machine": "another"})
        overwrite(location(url) / held / "000001.json", elsewhere.encode())
        os.utime(place / held / "000001.beat", (then, then))
    finish(start(tree, url, tokenizer_file))
    same_dataset(built, place)
    for pid in family:
        os.kill(pid, signal.SIGCONT)
    first.communicate(timeout=240)
    same_dataset(built, place)


def test_no_secret_is_written_or_said(store, server, tree, tokenizer_file):
    url, place = output_of(store)
    secret = server[0]["AWS_SECRET_ACCESS_KEY"].encode()
    process = start(tree, url, tokenizer_file)
    said = "".join(process.communicate(timeout=240)).encode()
    assert process.returncode == 0
    process = start(tree, url.replace("s3://", "s3://me:hidden-word@"), tokenizer_file)
    said += "".join(process.communicate(timeout=60)).encode()
    assert process.returncode == 2
    assert b"credentials come from the environment" in said
    assert b"hidden-word" not in said
    files = [path for path in place.rglob("*") if path.is_file()]
    assert len(files) > 20
    assert not [path for path in files if secret in path.read_bytes()]
    assert secret not in said


@pytest.mark.parametrize(
    ("options", "refused"),
    [
        (["--runner=FlinkRunner", "--environment_type=EXTERNAL"], True),
        (["--runner=DaskRunner", "--dask_client_address=tcp://there:1"], True),
        (["--runner=FlinkRunner", "--environment_type=LOOPBACK"], False),
        (["--runner=PrismRunner"], False),
        (["--runner=FnApiRunner"], False),
    ],
)
def test_a_source_of_this_machine_is_refused_where_workers_share_a_store_alone(store, tmp_path, options, refused):
    from splice.pipelines.build import check_sources
    from splice.settings import BuildSettings

    url, _ = store
    outcome = pytest.raises(SpliceError, match="lies on this machine") if refused else contextlib.nullcontext()
    with outcome:
        check_sources(BuildSettings(sources=[str(tmp_path)], output=url), options, location(f"{url}/work"))
    check_sources(BuildSettings(sources=[f"{url}/a", "hub:b"], output=url), options, location(f"{url}/work"))
    check_sources(BuildSettings(sources=[str(tmp_path)], output=str(tmp_path)), options, tmp_path)


@pytest.mark.parametrize("which", ["bucket", "key", "nothing"])
def test_a_store_that_refuses_is_said_before_any_work(store, tree, tokenizer_file, monkeypatch, which):
    url, place = output_of(store)
    if which == "bucket":
        url = url.replace("s3://", "s3://no-such-")
    elif which == "key":
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another")
    else:
        monkeypatch.delenv("AWS_ACCESS_KEY_ID")
        monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
        monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    process = start(tree, url, tokenizer_file)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 2, errors
    assert f"{url}: cannot be written to" in errors
    assert "Traceback" not in errors
    assert not place.exists()


def test_a_copy_is_fetched_once_and_anew_when_the_file_changed(store, tmp_path):
    place = location(store[0]) / "notes.txt"
    overwrite(place, b"one")
    first = local(place)
    assert first.read_bytes() == b"one"
    assert local(place) == first
    overwrite(place, b"three")
    assert local(place).read_bytes() == b"three"
    assert first.read_bytes() == b"one"
    (store[1] / "notes.txt").unlink()
    with pytest.raises(FileNotFoundError):
        local(place)


def test_old_copies_make_room_and_open_ones_stay_readable(store, monkeypatch):
    from splice import storage

    where = location(store[0])
    for n in range(5):
        overwrite(where / f"{n}", bytes([n]) * 1000)
    copies = [local(where / f"{n}") for n in range(4)]
    for n, copy in enumerate(copies):
        os.utime(copy, (n, n))
    local(where / "0")  # used again
    opened = copies[1].open("rb")
    usage = type("", (), {"free": 3000})
    monkeypatch.setattr(storage.shutil, "disk_usage", lambda _: usage)
    local(where / "4")  # (3,000 free + 4,000 held) / 2: three copies in all
    assert [copy.exists() for copy in copies] == [True, False, False, True]
    assert opened.read() == b"\1" * 1000


def test_what_is_sent_and_directories_count_among_the_copies(store, tmp_path, monkeypatch):
    from splice import storage

    where = location(store[0])
    usage = type("", (), {"free": 4000})
    for name in ("first", "second", "third"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x").write_bytes(bytes(1000))
        storage.send(tmp_path / name, where / name, keep=False)
    first, second = (storage.local_directory(where / name) for name in ("first", "second"))
    os.utime(first, (1, 1))
    os.utime(second, (2, 2))
    assert storage.local_directory(where / "first") == first  # used again
    monkeypatch.setattr(storage.shutil, "disk_usage", lambda _: usage)
    third = storage.local_directory(where / "third")  # (4,000 free + 2,000 held) / 2: three in all
    assert all(copy.is_dir() for copy in (first, second, third))
    usage.free = 3000
    (tmp_path / "sent").write_bytes(bytes(1000))
    os.utime(third, (3, 3))
    storage.send(tmp_path / "sent", where / "sent", keep=True)
    assert [copy.is_dir() for copy in (first, second, third)] == [True, False, True]
    with replacing(where / "laid", reread=False) as temporary:
        temporary.write_bytes(bytes(1000))
    assert not list(storage._cache().glob("*-laid"))


def test_files_appear_whole_and_directories_with_what_vouches_for_them_last(store, monkeypatch):
    from splice import storage

    where = location(store[0]) / "made"
    with pytest.raises(ZeroDivisionError), replacing(where / "torn") as temporary:
        temporary.write_bytes(b"half" * (1 // 0))
    assert names(where) == set()
    order: list[str] = []
    sent = storage.send
    monkeypatch.setattr(storage, "send", lambda t, p, keep: (order.append(p.name), sent(t, p, keep))[1])
    with replacing(where / "index") as temporary:
        temporary.mkdir()
        (temporary / "a.json").write_text("{}")
        (temporary / "z.npy").write_bytes(b"z")
        (temporary / "b.npy").write_bytes(b"b")
    assert order == ["index", "b.npy", "z.npy", "a.json"]
    assert names(where / "index") == {"a.json", "b.npy", "z.npy"}
    assert sweep(where) == 0


def test_many_receipts_are_read_at_once_and_what_is_not_there_is_none(store):
    where = location(store[0]) / "done"
    for n in range(0, 200, 2):
        write_json(where / f"{n}.json", {"n": n})
    overwrite(where / "torn.json", b'{"n":')
    found = read_jsons([where / f"{n}.json" for n in range(200)] + [where / "torn.json"])
    assert found == [{"n": n} if n % 2 == 0 else None for n in range(200)] + [None]
    assert read_json(where / "none.json") is None


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("ftp://host/x", "no store of kind ftp://"),
        ("s3://", "names no bucket"),
        ("hdfs://host:8020/x", "write hdfs:///PATH"),
        ("gs://me:word@bucket/x", "must not hold a secret"),
    ],
)
def test_a_place_that_cannot_be_used_is_refused(url, words):
    with pytest.raises(SpliceError, match=words) as refused:
        location(url)
    assert "word@" not in str(refused.value)


def test_a_missing_library_is_named_with_the_extra_that_brings_it(monkeypatch):
    from splice import storage

    storage._of_url.cache_clear()
    monkeypatch.setitem(__import__("sys").modules, "gcsfs", None)
    with pytest.raises(SpliceError, match=r"needs gcsfs.*pip install 'splice-data\[gs\]'"):
        location("gs://bucket/x")


def test_training_reads_a_dataset_where_it_lies(store, built, tmp_path, cli):
    pytest.importorskip("torch")
    model = {"hidden-size": 32, "layers": 2, "heads": 4, "kv-heads": 2, "head-size": 16, "mlp-size": 64}
    settings = {f"model.{name}": value for name, value in model.items()} | {
        "context.length": 128, "batch.size": 4, "steps": 2, "evaluation.every": 2, "evaluation.holdout": 1,
    }  # fmt: skip
    words = [word for name, value in settings.items() for word in (f"--{name}", value)]
    figures = []
    for name, data in (("here", built), ("there", copy_into(store, built))):
        done = cli("train", "--data", data, "--output", tmp_path / name, *words)
        assert done.returncode == 0, done.stderr
        lines = [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        figures.append([(line.get("loss"), (line.get("validation") or {}).get("loss")) for line in lines])
    assert figures[0] == figures[1]
    assert any(loss for loss, _ in figures[0])
    assert any(loss for _, loss in figures[0])
