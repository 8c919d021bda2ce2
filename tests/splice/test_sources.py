"""splice.sources: what is read, under which name, and what becomes of everything that cannot be read."""

import errno
import gzip
import io
import json
import os
import random
import signal
import subprocess
import sys
import textwrap
import zlib
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from splice.errors import BuildFailed, SpliceError
from splice.filters import check
from splice.sources import (
    Document,
    Quarantined,
    Rejected,
    SourceSettings,
    Unit,
    blocks,
    fingerprint,
    jsonl,
    lines,
    plan_units,
    read_unit,
)
from splice.sources.listing import glob_matcher, list_tree
from splice.sources.records import os_path, printable

SETTINGS = SourceSettings()


@pytest.fixture(autouse=True)
def _no_hang():
    """A reader that waits for ever (a FIFO, a bomb) fails its test instead of holding up the run."""

    def stop(signum, frame):
        raise TimeoutError("the test hangs")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(50)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def write(root, files):
    """Files by relative path; the content is str or bytes."""
    for path, content in files.items():
        target = root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content.encode() if isinstance(content, str) else content)
    return root


def read(*specs, target_bytes=16 * 2**20, **fields):
    """All records of the sources, each unit by way of JSON, as a worker gets it."""
    config = SourceSettings(**fields)
    units = plan_units([str(spec) for spec in specs], config, target_bytes)
    return [record for unit in units for record in read_unit(Unit.from_json(unit.to_json()), config)]


def texts(records):
    assert all(isinstance(record, Document) for record in records), records
    return {record.id: record.text for record in records}


def quarantined(records):
    return [(r.file, r.line, r.reason) for r in records if isinstance(r, Quarantined)]


def row(**fields):
    return json.dumps(fields).encode() + b"\n"


# --- trees


def test_tree_one_document_a_file_sorted_by_path(tmp_path):
    files = {
        "b/z.py": "z",
        "b/a.py": "a",
        "a-b/x.c": "x",
        "a/x.c": "y",
        "top.txt": "t",
        "a/b/c/d/e.h": "deep",
    }
    records = read(write(tmp_path, files))
    assert [r.id for r in records] == sorted(files)
    assert texts(records) == {path: content.encode() for path, content in files.items()}
    assert all(r.path == r.id for r in records)


def test_repository_is_the_top_level_directory_unless_git_says_otherwise(tmp_path):
    write(
        tmp_path,
        {
            "README.txt": "r",
            "plain/a.c": "a",
            "plain/deep/b.c": "b",
            "group/loose.c": "l",
            "group/one/.git/HEAD": "ref",
            "group/one/src/c.c": "c",
            "group/one/vendor/.git": "gitdir: ../.git/modules/vendor",
            "group/one/vendor/d.c": "d",
        },
    )
    assert {r.id: r.repo for r in read(tmp_path)} == {
        "README.txt": ".",
        "plain/a.c": "plain",
        "plain/deep/b.c": "plain",
        "group/loose.c": "group",
        "group/one/src/c.c": "group/one",
        "group/one/vendor/d.c": "group/one/vendor",
    }


def test_a_checkout_is_one_repository(tmp_path):
    write(tmp_path, {".git/HEAD": "ref", "a.c": "a", "src/b.c": "b", "sub/.git": "gitdir: x", "sub/c.c": "c"})
    assert {r.id: r.repo for r in read(tmp_path)} == {"a.c": ".", "src/b.c": ".", "sub/c.c": "sub"}


def test_hidden_files_and_directories_are_skipped(tmp_path):
    write(tmp_path, {"a.c": "a", ".hidden.c": "h", ".git/config": "x", "d/.cache/b.c": "b", "d/c.c": "c"})
    assert sorted(texts(read(tmp_path))) == ["a.c", "d/c.c"]


def test_symbolic_links_are_not_followed(tmp_path):
    write(tmp_path / "src", {"a.c": "a", "d/b.c": "b"})
    write(tmp_path / "outside", {"secret.c": "s"})
    (tmp_path / "src/d/loop").symlink_to(tmp_path / "src")
    (tmp_path / "src/self").symlink_to("self")
    (tmp_path / "src/link.c").symlink_to("a.c")
    (tmp_path / "src/dangling.c").symlink_to("nowhere")
    (tmp_path / "src/out").symlink_to(tmp_path / "outside")
    assert sorted(texts(read(tmp_path / "src"))) == ["a.c", "d/b.c"]
    (tmp_path / "named").symlink_to("src")  # the source itself may be one: it is named
    assert sorted(texts(read(tmp_path / "named"))) == ["a.c", "d/b.c"]


def test_a_link_put_in_the_place_of_a_file_is_not_followed(tmp_path):
    write(tmp_path, {"src/a.c": "a", "secret": "s"})
    units = plan_units([str(tmp_path / "src")], SETTINGS)
    (tmp_path / "src/a.c").unlink()
    (tmp_path / "src/a.c").symlink_to("../secret")
    (record,) = read_unit(units[0], SETTINGS)
    assert isinstance(record, Quarantined)


def test_the_fingerprint_is_of_all_that_changes_what_is_read(tmp_path):
    write(tmp_path, {"src/a/a.c": "a", "src/b.c": "b"})
    prints = [fingerprint(plan_units([str(tmp_path / "src")], SETTINGS))]
    assert fingerprint(plan_units([str(tmp_path / "src")], SETTINGS)) == prints[0]
    for change in (
        lambda: (tmp_path / "src/b.c").chmod(0o000),  # it cannot be read any more
        lambda: (tmp_path / "src/.git").mkdir(),  # all of it is one repository now
        lambda: (tmp_path / "src/a/a.c").write_text("longer"),
        lambda: os.utime(tmp_path / "src/a/a.c", ns=(1, 1)),
        lambda: (tmp_path / "src/a/a.c").rename(tmp_path / "src/a/z.c"),
    ):
        change()
        prints.append(fingerprint(plan_units([str(tmp_path / "src")], SETTINGS)))
    assert len(set(prints)) == len(prints)


def test_fifos_and_sockets_are_never_opened(tmp_path):
    import socket

    write(tmp_path, {"a.c": "a", "b.c": "b"})
    os.mkfifo(tmp_path / "pipe.c")
    with socket.socket(socket.AF_UNIX) as server:
        here = os.getcwd()
        os.chdir(tmp_path)  # a socket's path is short
        server.bind("sock.c")
        os.chdir(here)
        assert sorted(texts(read(tmp_path))) == ["a.c", "b.c"]
        units = plan_units([str(tmp_path)], SETTINGS)
        (tmp_path / "b.c").unlink()
        os.mkfifo(tmp_path / "b.c")  # in the place of a file, after the listing
        assert quarantined(read_unit(units[0], SETTINGS)) == [("b.c", None, "Not a regular file")]


def test_an_empty_file_is_a_document(tmp_path):
    assert texts(read(write(tmp_path, {"empty.py": ""}))) == {"empty.py": b""}


@pytest.mark.parametrize(
    ("pattern", "matched"),
    [
        ("*.py", {"a.py", "src/b.py", "src/x/c.py"}),
        ("src/*.py", {"src/b.py"}),
        ("src/**/*.py", {"src/b.py", "src/x/c.py"}),
        ("**/*.py", {"a.py", "src/b.py", "src/x/c.py"}),
        ("src/**", {"src/b.py", "src/x/c.py", "src/x/d.c"}),
        ("./a.py", {"a.py"}),
        ("[bc].p?", {"src/b.py", "src/x/c.py"}),
        ("[!ab].*", {"src/x/c.py", "src/x/d.c"}),
        ("*.{c,h}", {"src/x/d.c"}),
        ("x+y.*", {"x+y.rs"}),
        ("*.PY", set()),
        ("py", set()),
    ],
)
def test_glob(pattern, matched):
    paths = ["a.py", "src/b.py", "src/x/c.py", "src/x/d.c", "x+y.rs"]
    matches = glob_matcher((pattern,))
    assert {path for path in paths if matches(path)} == matched


def test_several_globs_add_up_and_no_glob_takes_all(tmp_path):
    write(tmp_path, {"a.py": "", "b/c.c": "", "b/d.txt": ""})
    assert sorted(texts(read(tmp_path, glob=("*.py", "b/*.c")))) == ["a.py", "b/c.c"]
    assert len(read(tmp_path)) == 3
    with pytest.raises(SpliceError, match="not a pattern"):
        read(tmp_path, glob=("[z-a]",))


def test_a_file_too_long_is_rejected_by_its_first_bytes(tmp_path):
    with open(tmp_path / "huge.bin", "wb") as file:
        file.truncate(10 * 2**30)  # sparse
    write(tmp_path, {"fits.txt": b"a" * 400, "long.txt": b"a" * 401})
    got = {r.id: r for r in read(tmp_path, max_chars=100)}
    assert got["huge.bin"] == Rejected("huge.bin", "too_long")
    assert got["long.txt"] == Rejected("long.txt", "too_long")
    assert got["fits.txt"].text == b"a" * 400
    assert sum(unit.bytes for unit in plan_units([str(tmp_path)], SourceSettings(max_chars=100))) == 400
    assert check(b"a" * 401, SourceSettings(max_chars=100)) == "too_long"


@pytest.mark.parametrize("size", [0, 1, 2**16 - 1, 2**16, 2**16 + 1, 3 * 2**20 + 5])
def test_files_are_read_whole(tmp_path, size):
    content = random.Random(size).randbytes(size)
    write(tmp_path, {"f": content})
    assert texts(read(tmp_path, max_chars=2**20)) == {"f": content}


def test_short_reads_of_a_network_file_system_are_continued(tmp_path, monkeypatch):
    write(tmp_path, {"f": "0123456789" * 50})
    real = os.read
    monkeypatch.setattr(os, "read", lambda fd, n: real(fd, min(n, 7)))
    assert texts(read(tmp_path)) == {"f": b"0123456789" * 50}


@pytest.mark.parametrize("error", [errno.EACCES, errno.EIO, errno.ENOENT, errno.ELOOP])
def test_unreadable_files_are_quarantined_and_the_rest_is_read(tmp_path, monkeypatch, error):
    write(tmp_path, {"a.c": "a", "bad.c": "b", "c.c": "c"})
    units = plan_units([str(tmp_path)], SETTINGS)
    real = os.open

    def refuse(path, *args, **kwargs):
        if str(path).endswith("bad.c"):
            raise OSError(error, os.strerror(error), path)
        return real(path, *args, **kwargs)

    monkeypatch.setattr(os, "open", refuse)
    records = list(read_unit(units[0], SETTINGS))
    assert [type(r) for r in records] == [Document, Quarantined, Document]
    assert records[1] == Quarantined("bad.c", None, os.strerror(error))


def test_vanished_files_and_io_errors_are_quarantined(tmp_path, monkeypatch):
    write(tmp_path, {"a.c": "a", "gone.c": "b"})
    units = plan_units([str(tmp_path)], SETTINGS)
    (tmp_path / "gone.c").unlink()
    assert quarantined(read_unit(units[0], SETTINGS)) == [("gone.c", None, "No such file or directory")]
    open_before = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(os, "read", mock.Mock(side_effect=OSError(errno.EIO, "Input/output error")))
    assert len(quarantined(read_unit(units[0], SETTINGS))) == 2
    assert len(os.listdir("/proc/self/fd")) == open_before


def test_a_directory_that_cannot_be_listed_is_quarantined(tmp_path, monkeypatch):
    write(tmp_path, {"a.c": "a", "locked/b.c": "b", "open/c.c": "c"})
    real = os.scandir

    def refuse(path):
        if "locked" in str(path):
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return real(path)

    monkeypatch.setattr(os, "scandir", refuse)
    records = read(tmp_path)
    assert [r.id for r in records if isinstance(r, Document)] == ["a.c", "open/c.c"]
    assert [file for file, _, _ in quarantined(records)] == ["locked"]


def test_names_that_are_not_utf8_stay_unique_and_valid(tmp_path):
    names = [b"caf\xe9.c", b"caf\xe8.c", "café.c".encode(), rb"caf\xe9.c", b"new\nline.c", b"d\xff/x.c"]
    for name in names:
        path = os.path.join(os.fsencode(tmp_path), name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(name)
    records = read(tmp_path)
    assert sorted(r.text for r in records) == sorted(names)
    assert len({r.id for r in records}) == len(names)
    for record in records:
        record.id.encode()
        record.repo.encode()
    for unit in plan_units([str(tmp_path)], SETTINGS):
        import orjson

        assert Unit.from_dict(orjson.loads(orjson.dumps(unit.to_dict()))) == unit


@given(st.binary(min_size=1, max_size=12).filter(lambda b: 0 not in b), st.binary(min_size=1, max_size=12))
def test_printable_names_lead_back_and_differ(name, other):
    text = os.fsdecode(name)
    assert os_path(printable(text)) == text
    printable(text).encode()
    if 0 not in other and other != name:
        assert printable(os.fsdecode(other)) != printable(text)


@pytest.mark.parametrize("target_bytes", [1, 10, 10**9])
def test_tree_units_of_any_size_hold_the_same_documents(tmp_path, target_bytes):
    files = {f"r{i % 3}/f{i:03}.c": "x" * i for i in range(40)}
    write(tmp_path, files)
    assert texts(read(tmp_path, target_bytes=target_bytes)) == {path: text.encode() for path, text in files.items()}
    units = plan_units([str(tmp_path)], SETTINGS, target_bytes)
    assert sum(unit.bytes for unit in units) == sum(range(40))
    assert all(unit.bytes <= target_bytes or len(unit.items[1][0][1]) == 1 for unit in units)


def test_listing_is_one_pass_without_recursion_limits(tmp_path):
    path = tmp_path
    for _ in range(300):
        path = path / "d"
    os.makedirs(path)
    (path / "f.c").write_text("deep")
    assert [file.path for file in list_tree(str(tmp_path)).files] == ["d/" * 300 + "f.c"]


# --- JSON lines


def test_jsonl_ids_are_file_and_line(tmp_path):
    write(tmp_path, {"n.jsonl": row(text="a", id=7) + b"\n" + row(text="b") + b"  \r\n" + row(text="")})
    assert texts(read(tmp_path / "n.jsonl")) == {"n.jsonl:1": b"a", "n.jsonl:3": b"b", "n.jsonl:5": b""}


def test_jsonl_fields(tmp_path):
    rows = [
        {"body": "a", "k": 7, "r": "org/x", "p": "a.c"},
        {"body": "b", "k": "s", "r": None},
        {"body": "c", "k": 1, "r": 5},
    ]
    write(tmp_path, {"n.jsonl": "\n".join(map(json.dumps, rows))})
    got = read(tmp_path / "n.jsonl", text_field="body", id_field="k", repo_field="r", path_field="p")
    assert got == [
        Document("7", b"a", "org/x", "a.c"),
        Document("s", b"b", None, None),
        Document("1", b"c", "5", None),
    ]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"text": "a"', "malformed JSON"),
        (b'{"text": "a"} x', "malformed JSON"),
        (b'{"text": "a\xff"}', "not UTF-8"),
        (b"[1, 2]", "not a JSON object but a list"),
        (b'"text"', "not a JSON object but a string"),
        (b"null", "not a JSON object but null"),
        (b"[" * 100_000, "malformed JSON"),
        (b'{"text": "a", "n": ' + b"1" * 5000 + b"x}", "malformed JSON"),
        (b'{"id": 1, "body": "x"}', 'no field "text" (found: body, id); name it with --text-field'),
        (b"{}", 'no field "text" (found: none); name it with --text-field'),
        (b'{"text": null}', 'field "text" is null, not a string'),
        (b'{"text": 3.5}', 'field "text" is a number, not a string'),
        (b'{"text": ["a"]}', 'field "text" is a list, not a string'),
        (b'{"text": {"a": 1}}', 'field "text" is an object, not a string'),
    ],
)
def test_a_bad_line_is_quarantined_by_number_and_the_rest_is_read(tmp_path, line, reason):
    write(tmp_path, {"n.jsonl": row(text="a") + line + b"\n" + row(text="c")})
    records = read(tmp_path / "n.jsonl")
    assert [r.id for r in records if isinstance(r, Document)] == ["n.jsonl:1", "n.jsonl:3"]
    ((file, number, why),) = quarantined(records)
    assert (file, number) == ("n.jsonl", 2)
    assert why.startswith(reason)


@pytest.mark.parametrize("value", [{}, {"id": None}, {"id": 1.5}, {"id": True}, {"id": ""}, {"id": [1]}])
def test_a_row_without_its_id_is_quarantined(tmp_path, value):
    write(tmp_path, {"n.jsonl": row(text="a", id=0) + row(text="b", **value)})
    records = read(tmp_path / "n.jsonl", id_field="id")
    assert records[0].id == "0"
    assert len(quarantined(records)) == 1


def test_what_pythons_json_writes_is_read(tmp_path):
    content = b'{"text": "a", "score": NaN, "more": -Infinity}\n' + row(text="b", n=10**400)
    assert texts(read(write(tmp_path, {"n.jsonl": content}) / "n.jsonl")) == {
        "n.jsonl:1": b"a",
        "n.jsonl:2": b"b",
    }


def test_half_a_surrogate_pair_makes_a_document_that_the_filter_refuses(tmp_path):
    write(tmp_path, {"n.jsonl": b'{"text": "a\\ud800", "id": 1}\n{"text": "fine", "id": "\\udc00"}\n'})
    records = read(tmp_path / "n.jsonl", id_field="id")
    assert check(records[0].text, SETTINGS) == "not_utf8"
    assert records[1] == Document("\\udc00", b"fine", None, None)


@pytest.mark.parametrize("ending", [b"\n", b"\r\n"])
@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_byte_order_mark_line_ends_and_last_line(tmp_path, ending, last, mark):
    content = mark + ending.join(row(text=t).strip() for t in "abc") + ending * last
    records = read(write(tmp_path, {"n.jsonl": content}) / "n.jsonl")
    assert texts(records) == {"n.jsonl:1": b"a", "n.jsonl:2": b"b", "n.jsonl:3": b"c"}


LINES = st.lists(
    st.one_of(
        st.text(max_size=30).map(lambda t: json.dumps({"text": t}).encode()),
        st.text(max_size=30).map(lambda t: json.dumps({"text": t}, ensure_ascii=False).encode("utf-8", "replace")),
        st.sampled_from(
            [
                b"",
                b" ",
                b"\r",
                b"{",
                b'{"body": 1}',
                b'{"text": "x"}\r',
                b"\xff",
                b'{"text": "' + b"y" * 90 + b'"}',
            ]
        ),
    ),
    max_size=30,
)


def by_line(content: bytes, name: str, max_line_bytes: int) -> list[tuple[str, bytes | None]]:
    """(id, text) of each line by definition; text None where it is to be quarantined."""
    out = []
    for number, line in enumerate(content.split(b"\n"), 1):
        if len(line) <= max_line_bytes and not line.strip():
            continue
        try:
            text = json.loads(line)["text"].encode() if len(line) <= max_line_bytes else None
        except (ValueError, KeyError):
            text = None
        out.append((f"{name}:{number}", text))
    return out


def seen(records):
    return [(r.id, r.text) if isinstance(r, Document) else (f"{r.file}:{r.line}", None) for r in records]


@settings(max_examples=150, deadline=None)
@given(LINES, st.booleans(), st.integers(1, 300), st.integers(1, 64), st.sampled_from([20, 80, 10**6]))
def test_any_split_gives_the_same_documents_and_line_numbers(
    tmp_path_factory, rows, last, target_bytes, block_bytes, max_line_bytes
):
    content = b"\n".join(rows) + b"\n" * last
    assume(content)  # a source that is an empty file is refused
    path = tmp_path_factory.mktemp("split") / "n.jsonl"
    path.write_bytes(content)
    packed = path.with_name("n.jsonl.gz")
    packed.write_bytes(gzip.compress(content))
    with (
        mock.patch.object(blocks, "BLOCK_BYTES", block_bytes),
        mock.patch.object(jsonl, "BLOCK_BYTES", block_bytes),
    ):
        plain = read(path, target_bytes=target_bytes, max_line_bytes=max_line_bytes)
        unpacked = read(packed, target_bytes=target_bytes, max_line_bytes=max_line_bytes)
    assert seen(plain) == by_line(content, "n.jsonl", max_line_bytes)
    assert seen(unpacked) == by_line(content, "n.jsonl.gz", max_line_bytes)


def test_jsonl_is_split_at_line_ends_near_the_target(tmp_path):
    write(tmp_path, {"n.jsonl": b"".join(row(text="x" * 1000, id=i) for i in range(1000))})
    units = plan_units([str(tmp_path / "n.jsonl")], SETTINGS, target_bytes=100_000)
    assert 9 <= len(units) <= 12
    assert all(unit.bytes < 105_000 for unit in units)
    ranges = [item[2:] for unit in units for item in unit.items]
    assert [start for start, _, _ in ranges[1:]] == [stop for _, stop, _ in ranges[:-1]]
    assert ranges[-1][1] == os.path.getsize(tmp_path / "n.jsonl")


def test_small_files_share_a_unit(tmp_path):
    write(tmp_path, {f"part-{i:03}.jsonl": row(text=str(i)) for i in range(50)})
    units = plan_units([str(tmp_path)], SETTINGS)
    assert len(units) == 1
    assert units[0].source == tmp_path.name
    records = read(tmp_path)
    assert [r.id for r in records] == [f"part-{i:03}.jsonl:1" for i in range(50)]


def test_a_vanished_or_shrunk_jsonl_file_is_quarantined(tmp_path):
    path = write(tmp_path, {"n.jsonl": row(text="a") * 10}) / "n.jsonl"
    (unit,) = plan_units([str(path)], SETTINGS)
    path.write_bytes(row(text="a") * 2 + b'{"te')
    records = list(read_unit(unit, SETTINGS))
    assert [type(r) for r in records] == [Document, Document, Quarantined]
    path.unlink()
    assert quarantined(read_unit(unit, SETTINGS)) == [("n.jsonl", 1, "No such file or directory")]
    os.mkfifo(path)
    assert quarantined(read_unit(unit, SETTINGS)) == [("n.jsonl", 1, "Not a regular file")]


# --- compressed lines

TEN = b"".join(row(text=f"{i}" * 300) for i in range(10))


@pytest.mark.parametrize("ending", [".gz", ".zst", ".GZ", ".zstd"])
def test_compressed_lines_are_read(tmp_path, ending):
    packed = gzip.compress(TEN) if "g" in ending.lower() else zstandard.compress(TEN)
    path = write(tmp_path, {f"n.jsonl{ending}": packed}) / f"n.jsonl{ending}"
    assert [r.text for r in read(path)] == [b"%d" % i * 300 for i in range(10)]


@pytest.mark.parametrize("compress", [gzip.compress, zstandard.compress])
def test_members_one_after_the_other_are_read_through(tmp_path, compress):
    ending = ".gz" if compress is gzip.compress else ".zst"
    # Cut in the middle of lines: a member's end is no line end.
    packed = b"".join(compress(TEN[at : at + 700]) for at in range(0, len(TEN), 700))
    path = write(tmp_path, {f"n.jsonl{ending}": packed}) / f"n.jsonl{ending}"
    assert [r.text for r in read(path)] == [b"%d" % i * 300 for i in range(10)]


def test_zero_padding_after_gzip_is_no_damage_and_garbage_is(tmp_path):
    path = write(tmp_path, {"n.jsonl.gz": gzip.compress(TEN) + bytes(200_000)}) / "n.jsonl.gz"
    assert len(texts(read(path))) == 10
    path.write_bytes(gzip.compress(TEN[:999]) + bytes(10) + gzip.compress(TEN[999:]))
    assert len(texts(read(path))) == 10
    path.write_bytes(gzip.compress(TEN) + b"garbage")
    records = read(path)
    assert len(records) == 11
    assert quarantined(records) == [("n.jsonl.gz", 11, "gzip: incorrect header check")]


def noise(n):
    """Lines that do not compress, so that a cut falls where it is put."""
    rng = random.Random(0)
    return [rng.randbytes(2000).hex() for _ in range(n)]


@pytest.mark.parametrize("ending", [".gz", ".zst"])
@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_all_complete_lines_before_a_cut_are_read(tmp_path, ending, share):
    rows = noise(1000)
    content = b"".join(row(text=t) for t in rows)
    packed = gzip.compress(content) if ending == ".gz" else zstandard.compress(content)
    packed = packed[: int(share * len(packed))]
    path = write(tmp_path, {f"n.jsonl{ending}": packed}) / f"n.jsonl{ending}"
    # What can be decompressed at all, by other means: zlib at once, zstd's stream to a file.
    if ending == ".gz":
        whole = zlib.decompressobj(wbits=31).decompress(packed)
    else:
        out = io.BytesIO()
        zstandard.ZstdDecompressor().copy_stream(io.BytesIO(packed), out)
        whole = out.getvalue()
    complete = whole.count(b"\n")
    assert complete > 50 * share
    *documents, broken = read(path)
    assert [r.text.decode() for r in documents] == rows[:complete]
    assert isinstance(broken, Quarantined)
    assert broken.line == complete + 1
    assert "truncated" in broken.reason


def test_a_cut_loses_no_line_that_zlib_can_still_give(tmp_path):
    packed = gzip.compress(row(text="a") * 40)
    path = tmp_path / "n.jsonl.gz"
    for cut in range(20, len(packed)):
        path.write_bytes(packed[:cut])
        whole = zlib.decompressobj(wbits=31).decompress(packed[:cut])
        with mock.patch.object(blocks, "BLOCK_BYTES", 7):  # zlib is left with output and no input
            records = read(path)
        assert len(records) == whole.count(b"\n") + 1, cut


@pytest.mark.parametrize("ending", [".gz", ".zst"])
def test_any_cut_is_noticed(tmp_path, ending):
    content = b"".join(row(text=t) for t in noise(3)) + row(text="a" * 10_000)
    write_checksum = zstandard.ZstdCompressor(write_checksum=True)
    packed = gzip.compress(content) if ending == ".gz" else write_checksum.compress(content)
    path = tmp_path / f"n.jsonl{ending}"
    for cut in [0, 1, 5, 12, 100, len(packed) // 2, len(packed) - 9, len(packed) - 4, len(packed) - 1]:
        path.write_bytes(packed[:cut])
        assert len(quarantined(read(path))) == 1, cut
    path.write_bytes(packed)
    assert len(texts(read(path))) == 4


@pytest.mark.parametrize("ending", [".gz", ".zst"])
def test_damage_in_the_middle_keeps_what_comes_before(tmp_path, ending):
    rows = noise(2000)
    content = b"".join(row(text=t) for t in rows)
    compressor = zstandard.ZstdCompressor(write_checksum=True)
    packed = bytearray(gzip.compress(content) if ending == ".gz" else compressor.compress(content))
    middle = len(packed) // 2
    packed[middle : middle + 2000] = bytes(b ^ 0x5A for b in packed[middle : middle + 2000])
    path = write(tmp_path, {f"n.jsonl{ending}": bytes(packed)}) / f"n.jsonl{ending}"
    records = read(path)
    good = [r.text.decode() for r in records if isinstance(r, Document)]
    assert sum(a == b for a, b in zip(good, rows, strict=False)) >= 500
    assert isinstance(records[-1], Quarantined)


def test_zstd_skippable_frames_and_too_large_a_window(tmp_path):
    skippable = b"\x50\x2a\x4d\x18" + (5).to_bytes(4, "little") + b"hello"
    packed = skippable + zstandard.compress(TEN) + skippable
    path = write(tmp_path, {"n.jsonl.zst": packed}) / "n.jsonl.zst"
    assert len(texts(read(path))) == 10
    path.write_bytes(packed[:-1])
    assert len(quarantined(read(path))) == 1
    long = zstandard.ZstdCompressionParameters.from_level(3, window_log=28, enable_ldm=True)
    out = io.BytesIO()
    with zstandard.ZstdCompressor(compression_params=long).stream_writer(out, closefd=False) as stream:
        stream.write(TEN)
    path.write_bytes(out.getvalue())
    ((_, _, reason),) = quarantined(read(path))
    assert "--long" in reason


def test_a_compressed_line_without_end_is_given_up(tmp_path, monkeypatch):
    content = row(text="a") + bytes(5_000_000) + b"\n" + row(text="never")
    path = write(tmp_path, {"n.jsonl.gz": gzip.compress(content)}) / "n.jsonl.gz"
    assert [r.id for r in read(path, max_line_bytes=100_000) if isinstance(r, Document)] == [
        "n.jsonl.gz:1",
        "n.jsonl.gz:3",
    ]
    monkeypatch.setattr(lines, "GIVE_UP_FACTOR", 10)
    records = read(path, max_line_bytes=100_000)
    assert [type(r) for r in records] == [Document, Quarantined]
    assert records[1].line == 2
    assert "given up" in records[1].reason


def peak_mb(path, **fields):
    """(records, peak memory of reading in MB beyond that of the imports, seconds) of a subprocess that reads `path`.

    VmHWM, not getrusage: ru_maxrss of a child starts at what its parent had at the fork.
    """
    script = f"""
        import json, time
        from splice.sources import *
        import zstandard
        def peak():
            return int(next(l for l in open("/proc/self/status") if l.startswith("VmHWM")).split()[1]) / 1024
        settings = SourceSettings(**{fields!r})
        before, start = peak(), time.perf_counter()
        records = [r for u in plan_units([{str(path)!r}], settings) for r in read_unit(u, settings)]
        out = [(type(r).__name__, getattr(r, "line", None), len(getattr(r, "text", ""))) for r in records]
        print(json.dumps([out, peak() - before, time.perf_counter() - start]))
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def test_a_line_of_200_mb_is_skipped_in_bounded_memory(tmp_path):
    path = tmp_path / "n.jsonl"
    with open(path, "wb") as file:
        file.write(row(text="a") + b'{"text": "')
        for _ in range(200):
            file.write(b"x" * 2**20)
        file.write(b'"}\n' + row(text="b"))
    records, peak, _ = peak_mb(path, max_line_bytes=8 * 2**20)
    assert records == [["Document", None, 1], ["Quarantined", 2, 0], ["Document", None, 1]]
    assert peak < 40
    records, peak, _ = peak_mb(path)
    assert [kind for kind, _, _ in records] == ["Document", "Quarantined", "Document"]
    assert peak < 100  # of 64 MB allowed


@pytest.mark.parametrize("ending", [".gz", ".zst"])
def test_a_bomb_is_read_in_bounded_memory_and_time(tmp_path, ending):
    path = tmp_path / f"bomb.jsonl{ending}"
    head, tail, zeros = row(text="a"), b"\n" + row(text="b"), bytes(64 * 2**20)
    if ending == ".gz":
        packed = gzip.compress(head) + gzip.compress(zeros) * 16 + gzip.compress(tail)
    else:
        packer = zstandard.ZstdCompressor().compressobj()
        pieces = [head, *[zeros] * 16, tail]
        packed = b"".join(packer.compress(piece) for piece in pieces) + packer.flush()
    path.write_bytes(packed)
    assert len(packed) < 2 * 2**20
    records, peak, seconds = peak_mb(path, max_line_bytes=20 * 2**20)
    assert records == [["Document", None, 1], ["Quarantined", 2, 0], ["Document", None, 1]]
    assert peak < 80
    assert seconds < 20


# --- Parquet


def parquet(path, columns, row_group_size=4, **options):
    pq.write_table(pa.table(columns), path, row_group_size=row_group_size, **options)
    return path


@pytest.mark.parametrize(
    "type_",
    [
        pa.string(),
        pa.large_string(),
        pa.binary(),
        pa.string_view(),
        pa.dictionary(pa.int32(), pa.string()),
        pa.dictionary(pa.int32(), pa.large_string()),
    ],
    ids=str,
)
@pytest.mark.parametrize("target_bytes", [1, 10**9])
def test_parquet_of_any_string_type(tmp_path, type_, target_bytes):
    values = ["a", "é日🎉", "", "a", "b", "c", "", "d", "e", "a"]
    column = pa.array(values).cast(type_)
    path = parquet(tmp_path / "n.parquet", {"text": column, "id": range(10), "embedding": [[0.5]] * 10})
    assert texts(read(path, target_bytes=target_bytes)) == {f"n.parquet:{i}": v.encode() for i, v in enumerate(values)}
    assert len(plan_units([str(path)], SETTINGS, target_bytes)) == (3 if target_bytes == 1 else 1)


def test_parquet_fields_and_nulls(tmp_path):
    columns = {
        "body": ["a", None, "c"],
        "k": [1, 2, None],
        "r": pa.array(["x", None, "y"]).dictionary_encode(),
        "p": ["a.c", "b.c", "c.c"],
    }
    path = parquet(tmp_path / "n.parquet", columns)
    records = read(path, text_field="body", id_field="k", repo_field="r", path_field="p")
    assert records[0] == Document("1", b"a", "x", "a.c")
    assert records[1] == Quarantined("n.parquet", 1, 'field "body" is null, not a string')
    assert records[2] == Quarantined("n.parquet", 2, 'field "k" is null, not a string or an integer')
    assert texts(read(path, text_field="body", id_field="p", target_bytes=1)[::2]) == {
        "a.c": b"a",
        "c.c": b"c",
    }


@pytest.mark.parametrize("type_", [pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())], ids=str)
def test_parquet_text_that_is_not_utf8_or_no_text(tmp_path, type_):
    plain = type_.value_type if pa.types.is_dictionary(type_) else type_
    binary = pa.large_binary() if plain == pa.large_string() else pa.binary()
    bad = pa.Array.from_buffers(plain, 2, pa.array([b"ok", b"\xff\xfe"], binary).buffers())
    if plain != type_:
        bad = pa.DictionaryArray.from_arrays(pa.array([0, 1], pa.int32()), bad)
    records = read(parquet(tmp_path / "n.parquet", {"text": bad, "n": [1, 2]}))
    assert [check(r.text, SETTINGS) for r in records] == [None, "not_utf8"]
    ((_, row_number, reason), _) = quarantined(read(tmp_path / "n.parquet", text_field="n"))
    assert (row_number, reason) == (0, 'field "n" is a number, not a string')


def test_parquet_without_the_text_column(tmp_path):
    parquet(tmp_path / "b.parquet", {"body": ["x", "y"], "id": [1, 2]})
    with pytest.raises(SpliceError, match=r'no field "text" \(found: body, id\); name it with --text-field'):
        read(tmp_path / "b.parquet")
    parquet(tmp_path / "a.parquet", {"text": ["a"]})  # the source is all right, one of its files is not
    records = read(tmp_path)
    assert records[0].text == b"a"
    assert [line for _, line, _ in quarantined(records)] == [0, 1]
    assert "found: body, id" in quarantined(records)[0][2]


@pytest.mark.parametrize("compression", ["zstd", "none"])  # uncompressed damage only the checksum tells
def test_a_damaged_row_group_is_quarantined_and_the_next_is_read(tmp_path, compression):
    rows = noise(30)
    path = parquet(
        tmp_path / "n.parquet",
        {"text": rows},
        10,
        compression=compression,
        use_dictionary=False,
        write_page_checksum=True,
    )
    described = pq.ParquetFile(path).metadata.row_group(1).column(0)
    damaged = bytearray(path.read_bytes())
    at = described.data_page_offset + described.total_compressed_size // 2
    damaged[at : at + 1000] = bytes(1000)
    path.write_bytes(damaged)
    for target_bytes in (1, 10**9):
        records = read(path, target_bytes=target_bytes)
        good = {r.id: r.text.decode() for r in records if isinstance(r, Document)}
        assert good == {f"n.parquet:{i}": rows[i] for i in range(30) if not 10 <= i < 20}
        ((file, line, reason),) = quarantined(records)
        assert (file, line) == ("n.parquet", 10)
        assert "row group 1" in reason
        assert "rows 10 to 19" in reason


def test_a_parquet_file_that_is_none_is_quarantined(tmp_path):
    parquet(tmp_path / "a.parquet", {"text": ["a"]})
    write(
        tmp_path,
        {"b.parquet": (tmp_path / "a.parquet").read_bytes()[:-20], "c.parquet": b"", "d.parquet": b"PAR1"},
    )
    records = read(tmp_path)
    assert [r.id for r in records if isinstance(r, Document)] == ["a.parquet:0"]
    assert [(file, line) for file, line, _ in quarantined(records)] == [(f"{x}.parquet", None) for x in "bcd"]
    units = plan_units([str(tmp_path / "a.parquet")], SETTINGS)
    (tmp_path / "a.parquet").unlink()
    assert len(quarantined(read_unit(units[0], SETTINGS))) == 1


# --- Hugging Face


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    datasets = pytest.importorskip("datasets")
    root = tmp_path_factory.mktemp("saved")
    one = datasets.Dataset.from_dict(
        {"text": [f"t{i}" for i in range(25)], "k": [f"k{i}" for i in range(25)], "x": [[1]] * 25}
    )
    one.save_to_disk(root / "one", num_shards=2)
    one.select([3, 1]).save_to_disk(root / "picked")
    datasets.DatasetDict(train=one, test=one.select(range(2))).save_to_disk(root / "both")
    datasets.DatasetDict(a=one.select([0]), b=one.select([1])).save_to_disk(root / "neither")
    return root


@pytest.mark.parametrize("target_bytes", [1, 100, 10**9])
def test_saved_dataset(saved, target_bytes):
    assert texts(read(saved / "one", target_bytes=target_bytes)) == {f"one:{i}": b"t%d" % i for i in range(25)}
    assert texts(read(saved / "one", target_bytes=target_bytes, id_field="k")) == {
        f"k{i}": b"t%d" % i for i in range(25)
    }
    assert texts(read(saved / "picked")) == {"picked:0": b"t3", "picked:1": b"t1"}


def test_saved_dataset_of_splits(saved):
    assert len(texts(read(saved / "both"))) == 25
    assert texts(read(f"{saved}/both@test")) == {"both:0": b"t0", "both:1": b"t1"}
    with pytest.raises(SpliceError, match="no split dev"):
        read(f"{saved}/both@dev")
    with pytest.raises(SpliceError, match="name one of a, b"):
        read(saved / "neither")
    with pytest.raises(SpliceError, match=r'no field "body" \(found: k, text, x\)'):
        read(saved / "one", text_field="body")


def test_a_damaged_saved_dataset(saved, tmp_path):
    import shutil

    shutil.copytree(saved / "one", tmp_path / "one")
    units = plan_units([str(tmp_path / "one")], SETTINGS)
    before = fingerprint(units)
    for path in (tmp_path / "one").glob("*.arrow"):
        path.write_bytes(b"")
    assert fingerprint(units) != before
    assert len(quarantined(read_unit(units[0], SETTINGS))) == 1
    with pytest.raises(SpliceError, match="cannot be loaded"):
        plan_units([str(tmp_path / "one")], SETTINGS)


@pytest.fixture
def hub_like(tmp_path, monkeypatch):
    """A local directory of JSON lines: `datasets` streams it as it does a dataset of the hub."""
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    data = {f"train-{i}.jsonl": b"".join(row(text=f"{i}{j}", k=j) for j in range(4)) for i in range(2)}
    return write(tmp_path / "corpus", data | {"test-0.jsonl": row(text="held out", k=9)})


def test_hub_streams_by_shard(hub_like):
    records = read(f"hub:{hub_like}")
    assert texts(records) == {f"corpus:{i}:{j}": b"%d%d" % (i, j) for i in range(2) for j in range(4)}
    assert texts(read(f"hub:{hub_like}@test")) == {"corpus:0": b"held out"}
    assert len(plan_units([f"hub:{hub_like}"], SETTINGS)) == 2
    with pytest.raises(SpliceError, match="no split dev"):
        read(f"hub:{hub_like}@dev")
    with pytest.raises(SpliceError, match="cannot be loaded"):
        read(f"hub:{hub_like}:no-such-config")
    with pytest.raises(SpliceError, match="no field"):
        read(f"hub:{hub_like}", text_field="body")


def test_hub_bad_data_is_quarantined_and_a_lost_network_is_not(hub_like, monkeypatch):
    units = plan_units([f"hub:{hub_like}"], SETTINGS)
    before = fingerprint(units)
    write(hub_like, {"train-1.jsonl": row(text="a", k=1) + b"{broken\n"})
    assert fingerprint(plan_units([f"hub:{hub_like}"], SETTINGS)) != before
    records = [record for unit in units for record in read_unit(unit, SETTINGS)]
    assert len([r for r in records if isinstance(r, Document)]) >= 4
    assert isinstance(records[-1], Quarantined)
    import datasets

    monkeypatch.setattr(datasets, "load_dataset", mock.Mock(side_effect=ConnectionError("no route to host")))
    with pytest.raises(BuildFailed, match="no route to host"):
        list(read_unit(units[0], SETTINGS))


@pytest.mark.parametrize("spec", ["hub:x/y", "saved"])
def test_without_the_extra_the_error_says_what_to_install(saved, monkeypatch, spec):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(SpliceError, match=r"pip install 'splice-data\[hub\]'"):
        plan_units([spec if spec.startswith("hub:") else str(saved / "one")], SETTINGS)


# --- what the user names


def test_a_directory_of_shards_is_read_as_shards(tmp_path):
    write(
        tmp_path,
        {
            "a/x.jsonl": row(text="1"),
            "b/x.jsonl.gz": gzip.compress(row(text="2")),
            "README.md": "about",
            "_SUCCESS": "",
        },
    )
    parquet(tmp_path / "c.parquet", {"text": ["3"]})
    assert texts(read(tmp_path)) == {"a/x.jsonl:1": b"1", "b/x.jsonl.gz:1": b"2", "c.parquet:0": b"3"}
    assert {unit.kind for unit in plan_units([str(tmp_path)], SETTINGS)} == {"jsonl", "parquet"}
    assert texts(read(tmp_path, glob=("*.md",))) == {"README.md": b"about"}
    write(tmp_path, {"main.py": "code"})  # one file more, and it is a tree
    assert texts(read(tmp_path))["a/x.jsonl"] == row(text="1")
    assert texts(read(tmp_path, glob=("*.jsonl",))) == {"a/x.jsonl:1": b"1"}


def test_a_quoted_glob_is_what_the_shell_would_make_of_it(tmp_path):
    write(tmp_path, {"a.jsonl": row(text="1"), "b.jsonl": row(text="2"), "c.txt": "no"})
    units = plan_units([f"{tmp_path}/*.jsonl"], SETTINGS)
    assert units == plan_units([f"{tmp_path}/a.jsonl", f"{tmp_path}/b.jsonl"], SETTINGS)
    assert [unit.source for unit in units] == ["a.jsonl", "b.jsonl"]
    write(tmp_path, {"odd[1].jsonl": row(text="3")})  # a name that looks like a glob, and exists
    assert texts(read(tmp_path / "odd[1].jsonl")) == {"odd[1].jsonl:1": b"3"}


def test_json_lines_under_other_names(tmp_path):
    for name in ("n.json", "n.ndjson", "n.JSONL", "n.json.gz"):
        content = row(text="a")
        write(tmp_path, {name: gzip.compress(content) if name.endswith("gz") else content})
        assert texts(read(tmp_path / name)) == {f"{name}:1": b"a"}


def test_display_names_are_unique(tmp_path):
    write(tmp_path, {f"{d}/code/a.c": "x" for d in "abc"} | {"code-2/a.c": "x", "code/n.jsonl": row(text="y")})
    specs = [f"{tmp_path}/{d}/code" for d in "ab"] + [
        f"{tmp_path}/code-2",
        f"{tmp_path}/c/code/",
        f"{tmp_path}/code/n.jsonl",
    ]
    names = [unit.source for unit in plan_units(specs, SETTINGS)]
    assert names == ["code", "code-2", "code-2-2", "code-3", "n.jsonl"]


def test_errors_before_any_work(tmp_path):
    write(
        tmp_path,
        {
            "d/a.py": "",
            "d/b.py": "",
            "d/.hidden": "",
            "n.jsonl": row(text="a"),
            "x.docx": "",
            "empty/.keep": "",
        },
    )
    (tmp_path / "empty/link").symlink_to("nowhere")
    os.mkfifo(tmp_path / "pipe.jsonl")
    for specs, fields, message in [
        ([], {}, "no source given"),
        ([f"{tmp_path}/no/where"], {}, r"no/where: does not exist \(.* does\)"),
        (["allenai/c4"], {}, "does not exist .*hub:allenai/c4"),
        ([f"{tmp_path}/*.nope"], {}, "no file matches"),
        (
            [f"{tmp_path}/d"],
            {"glob": ("*.rs",)},
            r"no file matches --glob \*\.rs \(found: 2 \.py; 1 hidden\)",
        ),
        ([f"{tmp_path}/empty"], {}, r"no file to read \(found: 1 hidden, 1 symbolic link"),
        ([f"{tmp_path}/x.docx"], {}, r"x\.docx: unknown kind of file; supported: .*\.parquet"),
        ([f"{tmp_path}/pipe.jsonl"], {}, "not a regular file"),
        ([f"{tmp_path}/d", f"{tmp_path}/./d/"], {}, "given twice"),
        ([f"{tmp_path}/n.jsonl", f"{tmp_path}/*.jsonl"], {}, "given twice"),
        (["hub:"], {}, "no dataset named"),
    ]:
        with pytest.raises(SpliceError, match=message) as refused:
            plan_units(specs, SourceSettings(**fields))
        assert refused.value.exit_code == 2


def test_a_wrong_field_name_is_an_error_before_the_work_and_not_a_million_bad_rows(tmp_path):
    path = write(tmp_path, {"n.jsonl": row(body="a", id=1) * 100}) / "n.jsonl"
    with pytest.raises(SpliceError, match=r'n.jsonl: no field "text" \(found: body, id\); name it with --text-field'):
        read(path)
    with pytest.raises(SpliceError, match=r'no field "key" .* --id-field'):
        read(path, text_field="body", id_field="key")
    path.write_bytes(row(body="a") * 99 + row(text="b"))
    assert len(quarantined(read(path))) == 99


def test_looking_for_the_fields_does_not_unpack_a_bomb(tmp_path, monkeypatch):
    path = write(tmp_path, {"n.jsonl.gz": gzip.compress(bytes(64 * 2**20))}) / "n.jsonl.gz"
    given = []
    real = jsonl.read_blocks
    monkeypatch.setattr(jsonl, "read_blocks", lambda *a: (given.append(len(b)) or b for b in real(*a)))
    plan_units([str(path)], SETTINGS)
    assert sum(given) <= 17 * 2**20


# --- fingerprint


def test_fingerprint_follows_the_files_and_not_the_place_or_the_cutting(tmp_path):
    write(tmp_path, {"in/a.c": "a", "in/d/b.c": "b", "data/n.jsonl": row(text="x") * 100})
    parquet(tmp_path / "n.parquet", {"text": ["a"] * 100})

    def now(target_bytes=16 * 2**20, base=tmp_path):
        specs = [f"{base}/in", f"{base}/data/n.jsonl", f"{base}/n.parquet"]
        return fingerprint(plan_units(specs, SETTINGS, target_bytes))

    first = now()
    assert now() == first == now(1) == now(50)
    moved = tmp_path.parent / f"{tmp_path.name}-moved"
    tmp_path.rename(moved)
    assert now(base=moved) == first
    moved.rename(tmp_path)
    known = {first}
    for change in [
        lambda: os.utime(tmp_path / "in/a.c", ns=(1, 1)),
        lambda: os.utime(tmp_path / "data/n.jsonl", ns=(1, 1)),
        lambda: os.utime(tmp_path / "n.parquet", ns=(1, 1)),
        lambda: (write(tmp_path, {"in/a.c": "longer"}), os.utime(tmp_path / "in/a.c", ns=(1, 1))),
        lambda: write(tmp_path, {"in/new.c": ""}),
        lambda: os.rename(tmp_path / "in/new.c", tmp_path / "in/newer.c"),
        lambda: os.remove(tmp_path / "in/newer.c"),
    ]:
        change()
        now_ = now()
        assert now_ not in known or change.__code__.co_names[-1] == "remove"
        known.add(now_)


def test_importing_sources_is_light():
    code = "import sys, splice.sources; print([m for m in ('pyarrow', 'datasets', 'zstandard', 'numpy') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
