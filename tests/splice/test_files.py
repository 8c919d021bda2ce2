"""Files appear whole or not at all, and what killed attempts leave is swept away."""

from __future__ import annotations

import errno
import os

import pytest

from splice.files import link_or_copy, read_json, replacing, sweep, write_json


def names(directory):
    return sorted(path.name for path in directory.iterdir())


@pytest.mark.parametrize("sync", [False, True])
def test_a_file_appears_at_the_end_and_replaces_what_was_there(tmp_path, sync):
    path = tmp_path / "deep" / "er" / "f"
    for content in ("first", "second, longer"):
        with replacing(path, sync) as temporary:
            before = path.read_text() if path.exists() else None
            temporary.write_text(content)
            assert temporary.parent == path.parent
            assert (path.read_text() if path.exists() else None) == before
        assert path.read_text() == content
    assert names(path.parent) == ["f"]


def test_a_directory_appears_at_the_end_and_a_second_attempt_leaves_the_first(tmp_path):
    for name in ("a", "b"):
        with replacing(tmp_path / "d") as temporary:
            temporary.mkdir()
            (temporary / name).write_text(name)
    assert names(tmp_path) == ["d"]
    assert names(tmp_path / "d") == ["a"]


@pytest.mark.parametrize("failure", [RuntimeError, KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("kind", ["file", "directory", "nothing"])
def test_an_error_leaves_what_was_there_and_nothing_else(tmp_path, kind, failure):
    (tmp_path / "f").write_text("old")

    def fail():
        with replacing(tmp_path / "f") as temporary:
            if kind == "file":
                temporary.write_text("half")
            elif kind == "directory":
                temporary.mkdir()
                (temporary / "x").write_text("half")
            raise failure

    with pytest.raises(failure):
        fail()
    assert names(tmp_path) == ["f"]
    assert (tmp_path / "f").read_text() == "old"


def test_attempts_at_the_same_file_do_not_meet(tmp_path):
    with replacing(tmp_path / "f") as one, replacing(tmp_path / "f") as two:
        assert one != two
        one.write_text("same")
        two.write_text("same")
    assert names(tmp_path) == ["f"]


def test_sweep_removes_leftovers_at_any_depth_and_nothing_else(tmp_path):
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "kept").write_text("x")
    (tmp_path / "tmp-not").write_text("x")
    for place in (tmp_path, tmp_path / "a" / "b"):
        (place / ".tmp-12-ab-f").write_text("half")
        (place / ".tmp-12-ab-d").mkdir()
        (place / ".tmp-12-ab-d" / ".tmp-13-cd-inner").write_text("half")
    assert sweep(tmp_path) >= 4
    assert not list(tmp_path.rglob(".tmp-*"))
    assert names(tmp_path) == ["a", "tmp-not"]
    assert (tmp_path / "a" / "b" / "kept").exists()
    assert sweep(tmp_path) == 0
    assert sweep(tmp_path / "nowhere") == 0


def test_what_a_killed_attempt_leaves_is_swept(tmp_path):
    """The name that `replacing` gives is one that `sweep` knows."""
    context = replacing(tmp_path / "f")
    temporary = context.__enter__()
    temporary.write_text("half")
    assert sweep(tmp_path) == 1
    assert names(tmp_path) == []


def test_a_link_is_the_same_file_and_twice_is_once(tmp_path):
    (tmp_path / "f").write_text("content")
    for _ in range(2):
        link_or_copy(tmp_path / "f", tmp_path / "out" / "f")
        assert os.path.samefile(tmp_path / "f", tmp_path / "out" / "f")
        assert names(tmp_path / "out") == ["f"]


def test_a_link_replaces_another_file(tmp_path):
    (tmp_path / "f").write_text("new")
    (tmp_path / "g").write_text("old")
    link_or_copy(tmp_path / "f", tmp_path / "g")
    assert (tmp_path / "g").read_text() == "new"


def test_where_links_are_not_to_be_had_it_copies(tmp_path, monkeypatch):
    def refuse(*_: object) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    (tmp_path / "f").write_text("content")
    monkeypatch.setattr(os, "link", refuse)
    for _ in range(2):
        link_or_copy(tmp_path / "f", tmp_path / "out" / "f")
        assert (tmp_path / "out" / "f").read_text() == "content"
        assert not os.path.samefile(tmp_path / "f", tmp_path / "out" / "f")
        assert names(tmp_path / "out") == ["f"]


def test_json_comes_back_in_the_order_given(tmp_path):
    value = {"z": 1, "a": ["ü", None, 1.5], "m": {"nested": True}}
    write_json(tmp_path / "v.json", value, sync=True)
    assert read_json(tmp_path / "v.json") == value
    assert list(read_json(tmp_path / "v.json")) == ["z", "a", "m"]
    assert "ü" in (tmp_path / "v.json").read_text(encoding="utf-8")


@pytest.mark.parametrize("content", [None, b"", b'{"a": 1', b"\xff\xfe\x00", b'"a\xc3'])
def test_absent_or_torn_json_is_none(tmp_path, content):
    if content is not None:
        (tmp_path / "v.json").write_bytes(content)
    assert read_json(tmp_path / "v.json") is None


def test_what_cannot_be_json_leaves_nothing(tmp_path):
    with pytest.raises(TypeError):
        write_json(tmp_path / "v.json", {"a": object()})
    assert names(tmp_path) == []
