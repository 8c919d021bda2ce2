"""Finding a task's files, knowing them by their sha256, reading them with errors that name the line; the hub."""

import gzip
import hashlib
import json
import sys

import pytest

from splice.errors import SpliceError
from splice.eval import data
from splice.eval.data import Known, csv_rows, field, find, hub, json_array, json_lines, json_object, look, text_lines
from splice.eval.settings import EngineSettings

LINES = b'{"a": 1}\n\n{"a": 2}\n'
SHA256 = hashlib.sha256(LINES).hexdigest()
KNOWN = Known("rows.jsonl", (SHA256,), "half of the rows")


def settings(directory, **more):
    return EngineSettings(data_dir=directory, **more)


def found_in(tmp_path, name, contents, **more):
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(contents)
    return find(settings(tmp_path, unverified_data=True, **more), [Known(name.removesuffix(".gz"))], "get it")


def test_a_known_file_is_found_below_and_says_what_it_is_a_part_of(tmp_path):
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "deep" / "er" / "rows.jsonl").write_bytes(LINES)
    found = find(settings(tmp_path), [KNOWN], "get it")
    assert found.data == LINES
    assert found.record.name == "rows.jsonl"
    assert (found.record.sha256, found.record.known, found.record.subset) == (SHA256, True, "half of the rows")


def test_a_packed_file_is_known_by_what_is_in_it_or_by_itself(tmp_path):
    packed = gzip.compress(LINES, 1)
    (tmp_path / "rows.jsonl.gz").write_bytes(packed)
    found = find(settings(tmp_path), [KNOWN], "get it")
    assert found.data == LINES
    assert found.record.known
    assert (found.record.name, found.record.sha256) == ("rows.jsonl", SHA256), "the same rows are the same data"
    assert find(settings(tmp_path), [Known("rows.jsonl", (found.record.sha256,))], "get it").record.known


def test_another_sha256_is_refused_unless_it_is_asked_for(tmp_path):
    (tmp_path / "rows.jsonl").write_bytes(LINES[:9])
    other = hashlib.sha256(LINES[:9]).hexdigest()
    with pytest.raises(SpliceError) as error:
        find(settings(tmp_path), [KNOWN], "get it")
    assert str(error.value) == (
        f"{tmp_path}/rows.jsonl: its sha256 is {other}, that of rows.jsonl is {SHA256}; download it again, or take it "
        "as it is with --unverified-data (the results will say so)"
    )
    found = find(settings(tmp_path, unverified_data=True), [KNOWN], "get it")
    assert (found.record.sha256, found.record.known) == (other, False)


def test_a_file_no_checksum_is_known_of_must_be_asked_for_too(tmp_path):
    (tmp_path / "rows.jsonl").write_bytes(LINES)
    with pytest.raises(
        SpliceError, match=f"its sha256 is {SHA256}, and none is known here to check it by; take it as it is"
    ):
        find(settings(tmp_path), [Known("rows.jsonl")], "get it")


def test_of_several_copies_the_known_one_is_taken(tmp_path):
    for name, contents in (("a", LINES[:9]), ("b", LINES)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "rows.jsonl").write_bytes(contents)
    assert find(settings(tmp_path), [KNOWN], "get it").path.parent.name == "b"


def test_of_copies_that_are_not_known_the_first_is_taken(tmp_path):
    for name in "hfbdcgae":
        (tmp_path / name).mkdir()
        (tmp_path / name / "rows.jsonl").write_bytes(LINES)
    found = find(settings(tmp_path, unverified_data=True), [Known("rows.jsonl")], "get it")
    assert found.path.parent.name == "a"


def test_the_first_name_goes_before_the_others(tmp_path):
    for name in ("rows.jsonl", "all.jsonl"):
        (tmp_path / name).write_bytes(LINES)
    wanted = [Known("none.jsonl", (SHA256,)), Known("all.jsonl", (SHA256,)), KNOWN]
    assert find(settings(tmp_path), wanted, "get it").path.name == "all.jsonl"


def test_a_name_with_its_directory_is_that_file_alone(tmp_path):
    for name in ("other", "set"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "train.csv").write_bytes(b"1,x\n")
    known = Known("set/train.csv", (hashlib.sha256(b"1,x\n").hexdigest(),))
    assert find(settings(tmp_path), [known], "get it").path.parent.name == "set"
    assert look(settings(tmp_path), [Known("ain.csv")]) is None


def test_what_is_missing_is_named_with_what_is_there(tmp_path):
    (tmp_path / "deep").mkdir()
    for n in range(14):
        (tmp_path / "deep" / f"f{n:02d}").touch()
    with pytest.raises(SpliceError) as error:
        find(settings(tmp_path), [KNOWN, Known("all.jsonl")], "get it from there")
    assert str(error.value) == (
        f"{tmp_path}: no rows.jsonl or all.jsonl (or .gz) below it (found: {', '.join(f'f{n:02d}' for n in range(12))} "
        "and 2 more); get it from there"
    )
    with pytest.raises(SpliceError, match=f"--data-dir {tmp_path}/none: no such directory"):
        find(settings(tmp_path / "none"), [KNOWN], "get it")
    with pytest.raises(SpliceError, match=r"no --data-dir, and rows.jsonl is not on the hub; get it"):
        find(settings(None), [KNOWN], "get it")
    assert look(settings(None), [KNOWN]) is None


def test_a_torn_gzip_names_the_line(tmp_path):
    lines = b"".join(b'{"row": "%064d"}\n' % (n * n**16 % 10**60) for n in range(20000))
    packed = gzip.compress(lines)
    with pytest.raises(
        SpliceError, match=r"rows.jsonl.gz:(\d+): the gzip stream is torn here; download it again"
    ) as error:
        found_in(tmp_path, "rows.jsonl.gz", packed[: len(packed) // 2])
    assert 8000 < int(str(error.value).split(":")[1]) < 12000
    with pytest.raises(SpliceError, match=r"rows.jsonl.gz:1: the gzip stream is torn here"):
        found_in(tmp_path, "rows.jsonl.gz", b"no gzip")


def test_lines_of_json(tmp_path):
    found = found_in(tmp_path, "rows.jsonl", LINES)
    assert list(json_lines(found)) == [(f"{found.path}:1", {"a": 1}), (f"{found.path}:3", {"a": 2})]
    with pytest.raises(SpliceError, match=r"rows.jsonl:2: malformed JSON \(.*\); download it again"):
        list(json_lines(found_in(tmp_path, "rows.jsonl", b'{"a": 1}\n{"a": \n')))
    with pytest.raises(SpliceError, match=r"rows.jsonl:1: not a JSON object but list; download it again"):
        list(json_lines(found_in(tmp_path, "rows.jsonl", b"[1]\n")))


def test_a_json_array_and_object(tmp_path):
    found = found_in(tmp_path, "rows.json", b'[{"a": 1}, {"a": 2}]')
    assert list(json_array(found)) == [(f"{found.path}: item 1", {"a": 1}), (f"{found.path}: item 2", {"a": 2})]
    with pytest.raises(SpliceError, match=r"rows.json: not a JSON object but list"):
        json_object(found)
    with pytest.raises(SpliceError, match=r"rows.json: not a JSON array but dict"):
        list(json_array(found_in(tmp_path, "rows.json", b"{}")))
    with pytest.raises(SpliceError, match=r"rows.json: item 2: not a JSON object but int"):
        list(json_array(found_in(tmp_path, "rows.json", b"[{}, 3]")))


def test_rows_of_csv(tmp_path):
    found = found_in(tmp_path, "rows.csv", b'1,"a ""quoted""\nword"\n2,b\n')
    assert list(csv_rows(found, 2)) == [(f"{found.path}:1", ["1", 'a "quoted"\nword']), (f"{found.path}:3", ["2", "b"])]
    with pytest.raises(SpliceError, match=r"rows.csv:1: 2 columns, expected 3; download it again"):
        list(csv_rows(found, 3))
    with pytest.raises(SpliceError, match=r"rows.csv:2: malformed CSV"):
        list(csv_rows(found_in(tmp_path, "rows.csv", b'1,a\n2,"b" c\n'), 2))
    with pytest.raises(SpliceError, match=r"rows.csv:2: not UTF-8"):
        list(csv_rows(found_in(tmp_path, "rows.csv", b"1,a\n2,\xf0\n"), 2))


def test_lines_of_text_that_are_not_utf8_are_read(tmp_path):
    found = found_in(tmp_path, "rows.label", b"A b\r\n\nC d\xf0e")
    assert list(text_lines(found)) == [(f"{found.path}:1", "A b"), (f"{found.path}:3", "C d\ufffde")]


def test_a_field_that_is_missing_or_of_another_type_is_named():
    assert field("f:1", {"a": "x"}, "a") == "x"
    with pytest.raises(SpliceError, match=r'f:1: no field "b" \(found: a, c\); download it again'):
        field("f:1", {"a": 1, "c": 2}, "b")
    with pytest.raises(SpliceError, match=r'f:1: field "a" is null, expected str'):
        field("f:1", {"a": None}, "a")
    with pytest.raises(SpliceError, match=r'f:1: field "a" is int, expected list or dict'):
        field("f:1", {"a": 3}, "a", (list, dict))


def test_objects_of_lists_are_lists_of_objects():
    assert data.records({"a": [1, 2], "b": ["x", "y"]}) == [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}]
    assert data.records([{"a": 1}]) == [{"a": 1}]


ROWS = [{"text": "Who ?", "label": 3, "more": None}, {"text": "When ?", "label": 5, "more": None}]


def test_rows_of_the_hub_are_recorded_by_their_sha256(monkeypatch):
    datasets = pytest.importorskip("datasets")
    asked = []

    def load_dataset(*arguments, **options):
        asked.append((arguments, options))
        return datasets.Dataset.from_list(ROWS)

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    rows, record = hub("trec", "org/name", "test", ("text", "label"), revision="refs/x", config="small")
    assert asked == [(("org/name", "small"), {"split": "test", "revision": "refs/x"})]
    assert rows == [
        ("org/name:small@test row 1", {"text": "Who ?", "label": 3}),
        ("org/name:small@test row 2", {"text": "When ?", "label": 5}),
    ]
    lines = b"".join(
        json.dumps({"label": r["label"], "text": r["text"]}, separators=(",", ":")).encode() + b"\n" for r in ROWS
    )
    assert (record.name, record.sha256) == ("hub:org/name:small@test", hashlib.sha256(lines).hexdigest())
    assert not record.known


def test_errors_of_the_hub_name_data_dir(monkeypatch):
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: datasets.Dataset.from_list(ROWS))
    with pytest.raises(
        SpliceError,
        match=r"trec: org/name of the hub has no column kind \(found: text, label, more\); give the files with --data",
    ):
        hub("trec", "org/name", "test", ("text", "kind"))

    def fails(*_, **__):
        raise ConnectionError("no network\nand more")

    monkeypatch.setattr(datasets, "load_dataset", fails)
    with pytest.raises(
        SpliceError, match=r"trec: org/name of the hub cannot be loaded: no network; give the files with --data-dir$"
    ):
        hub("trec", "org/name", "test", ("text",))


def test_without_datasets_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(SpliceError, match=r"pip install 'splice-data\[eval\]', or give the files with --data-dir"):
        hub("trec", "org/name", "test", ("text",))
