"""`splice build` on bad input, odd input and wrong commands: what is refused before any work, and what is survived.

Every message names the thing, the place and the remedy; nothing a user can do wrong ends in a traceback or in a hang.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from splice.cli import run
from splice.sources import tree as tree_source
from splice.store import PackedDataset
from splice.tokenizer import load_tokenizer


@pytest.fixture
def build(tokenizer_file, tmp_path, monkeypatch):
    """Run `splice build` in this process, in tmp_path: build(arguments) -> exit code. Output is "out"."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: object, output: str = "out", tokenizer: object = tokenizer_file) -> int:
        given = [*map(str, arguments)]
        beam = given[given.index("--") :] if "--" in given else []
        command = ["build", *given[: len(given) - len(beam)], "--output", output, "--workers", "1"]
        for flag, value in (("--length", "64"), ("--shard-tokens", "8192"), ("--tokenizer", str(tokenizer))):
            if flag not in given and value != "None":
                command += [flag, value]
        return run([*command, *beam])

    return call


@pytest.fixture
def source(tmp_path) -> Path:
    """A directory of four short documents."""
    directory = tmp_path / "src" / "repo"
    directory.mkdir(parents=True)
    for i in range(4):
        (directory / f"f{i}.txt").write_text(f"kana loter misol {i} ruvi topic{i}\n" * 9)
    return directory.parent


def manifest(output: Path) -> dict:
    return json.loads((output / "manifest.json").read_text())


def counts(output: Path, source: str) -> dict:
    """What the ledger says of a source's documents; figures that are 0 left out."""
    ledger = manifest(output)["ledger"]["sources"][source]
    names = ("documents_in", "packed", "left_out", "duplicate", "quarantined", "filtered")
    return {name: ledger[name] for name in names if ledger[name]}


def quarantine(output: Path) -> list[dict]:
    return [json.loads(line) for line in (output / "quarantine.jsonl").read_text().splitlines()]


def lines(*rows: object) -> bytes:
    return b"".join((row if isinstance(row, bytes) else json.dumps(row).encode()) + b"\n" for row in rows)


def said(capsys) -> str:
    """What came on stderr, with the frames that rich draws and its line breaks taken out; never a traceback."""
    text = capsys.readouterr().err
    assert "Traceback" not in text
    return " ".join(re.sub("[│╭╮╰╯─]", " ", text).split())


def text_of(output: Path) -> dict[str, bytes]:
    """Document -> the bytes its tokens decode to, for documents that are whole in an example."""
    dataset = PackedDataset(output)
    tokenizer = load_tokenizer(str(output / "tokenizer"), fast=False)
    found = {}
    for i in range(len(dataset)):
        example = dataset[i]
        for name, start, (a, b) in zip(example.doc_ids, example.doc_offsets, example.doc_spans, strict=True):
            found[name] = tokenizer.decode(example.input_ids[start + 1 : start + 1 + b - a]).encode()
    return found


# --- refused before any work


REFUSED = {
    "k": (["src", "--k", "0"], r"--k: Input should be greater than or equal to 1 \(given: 0\)"),
    "length": (["src", "--length", "3"], r"--length: Input should be greater than or equal to 16 \(given: 3\)"),
    "max-df": (["src", "--max-df", "2"], r"--max-df: Input should be less than or equal to 1 \(given: 2\.0\)"),
    "seed": (["src", "--seed", "-1"], "--seed: Input should be greater than or equal to 0"),
    "vocab": (["src", "--vocab-size", "10"], "--vocab-size: Input should be greater than or equal to 300"),
    "order": (["src", "--order", "sideways"], "'--order': .*'sideways' .*identity.*reverse.*shuffle"),
    "not a number": (["src", "--k", "two"], "'--k': .*valid int"),
    "unknown flag": (["src", "--lenght", "64"], "No such option: --lenght .*--length"),
    "filters that keep nothing": (["src", "--min-chars", "9", "--max-chars", "8"], "min_chars \\(9\\) is larger than"),
    "shard below length": (["src", "--length", "128", "--shard-tokens", "64"], "shard_tokens .64. is smaller than one"),
    "no source": ([], "no source: name a directory, .* --config or in ./splice.yaml"),
    "no such path": (["src/nowhere"], "src/nowhere: does not exist .*src does"),
    "maybe of the hub": (["org/name"], "org/name: does not exist .*of the hub: hub:org/name"),
    "glob of files": (["*.csv"], r"\*.csv: no file matches"),
    "glob in a tree": (["src", "--glob", "*.c"], r"src: no file matches --glob \*.c \(found: 4 .txt\)"),
    "empty directory": (["empty"], "empty: no file to read .found: nothing at all"),
    "an empty file": (["src", "empty.jsonl"], "empty.jsonl: holds no document, it is empty; leave the source out"),
    "a table of no row": (["src", "none.parquet"], "none.parquet: holds no document, it is empty"),
    "given twice": (["src", "./src"], "./src: given twice .as src.; name each source once"),
    "unknown kind": (["src/repo/f0.txt"], "src/repo/f0.txt: unknown kind of file; supported: a directory, .jsonl"),
    "a FIFO": (["fifo.jsonl"], "fifo.jsonl: not a regular file; supported"),
    "a loop": (["loop"], "loop: cannot be read: Too many levels of symbolic links"),
    "no text field": (["rows.parquet"], r'rows.parquet: no field "text" \(found: body, key\); name it with --text-field'),
    "no id field": (["rows.parquet", "--text-field", "body", "--id-field", "name"], 'no field "name" .*--id-field'),
    "no tokenizer": (["src", "--tokenizer", "nope.json"], "nope.json: no such file or directory; name a tokenizer.json"),
    "tokenizer in an empty directory": (["src", "--tokenizer", "empty"], "empty: the directory has neither a tokenizer.json"),
    "not a tokenizer": (["src", "--tokenizer", "src/repo/f0.txt"], "src/repo/f0.txt: not a tokenizer that can be read"),
    "a JSON that is none": (["src", "--tokenizer", "some.json"], 'some.json: not a tokenizer.json: it has no "model"'),
    "no BOS": (["src", "--tokenizer", "plain.json"], "plain.json: the tokenizer has no BOS token, .*'bos_eos' needs"),
    "no EOS": (["src", "--tokenizer", "plain.json", "--join", "eos"], "the tokenizer has no EOS token"),
    "unknown Beam option": (["src", "--", "--direct_num_worker=3"], "after `--`: Beam has no option --direct_num_worker; "
                            "did you mean --direct_num_workers"),
    "own option after --": (["src", "--", "--k=3"], "Beam has no option --k.* .splice's own options go before `--`"),
    "bad Beam value": (["src", "--", "--direct_num_workers=many"], "after `--`: .*direct_num_workers"),
    "no config": (["src", "--config", "nope.yaml"], "nope.yaml: cannot be read .No such file or directory.; give a YAML"),
    "config option": (["src", "--config", "typo.yaml"], "typo.yaml: lenght: no such option; did you mean length"),
    "config value": (["src", "--config", "value.yaml"], "value.yaml: k: .*valid integer.* .given: 'many'."),
    "config of words": (["src", "--config", "words.yaml"], "words.yaml: expected `name: value` lines, found a str"),
    "work is a file": (["src", "--work", "rows.parquet"], "rows.parquet: not a directory that can be written to; give "
                       "another --work"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused_before_any_work(build, source, tmp_path, capsys, case):
    from tokenizers import Tokenizer, models, pre_tokenizers

    (tmp_path / "empty").mkdir()
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    os.mkfifo(tmp_path / "fifo.jsonl")
    (tmp_path / "empty.jsonl").touch()
    pq.write_table(pa.table({"text": pa.array([], pa.string())}), tmp_path / "none.parquet")
    pq.write_table(pa.table({"body": ["a"], "key": [1]}), tmp_path / "rows.parquet")
    plain = Tokenizer(models.BPE({c: i for i, c in enumerate(pre_tokenizers.ByteLevel.alphabet())}, []))
    plain.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    plain.save(str(tmp_path / "plain.json"))
    for name, text in (("typo", "lenght: 64"), ("value", "k: many"), ("words", "packed well")):
        (tmp_path / f"{name}.yaml").write_text(text)
    (tmp_path / "some.json").write_text('{"a": 1}')
    before = sorted(tmp_path.rglob("*"))
    arguments, message = REFUSED[case]
    assert build(*arguments) == 2
    assert re.search(message, said(capsys))
    assert sorted(tmp_path.rglob("*")) == before


def test_the_build_names_the_output_that_it_lacks(source, monkeypatch, capsys):
    monkeypatch.chdir(source.parent)
    assert run(["build", "src"]) == 2
    assert "no output: say where the dataset goes with --output DIR" in said(capsys)


@pytest.mark.parametrize("output", ["file", "file/below"])
def test_an_output_that_is_a_file(build, source, tmp_path, capsys, output):
    (tmp_path / "file").write_text("mine")
    assert build("src", output=output) == 2
    assert f"{tmp_path / 'file'}: not a directory that can be written to; give another --output" in said(capsys)
    assert (tmp_path / "file").read_text() == "mine"


def test_an_output_with_files_of_someone_else(build, source, tmp_path, capsys):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.tex").write_text("mine")
    assert build("src") == 2
    assert "out: not empty (holds thesis.tex) and no build of splice; give another --output" in said(capsys)
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["thesis.tex"]


def test_an_output_with_another_builds_settings(build, source, tmp_path, capsys):
    assert build("src") == 0
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")}
    capsys.readouterr()
    assert build("src", "--length", "128", "--k", "2") == 2
    message = said(capsys)
    assert "out: holds a build with other settings (k: 1 there, 2 asked; length: 64 there, 128 asked)" in message
    assert "Give another --output (--work shares what both have in common), or remove the directory" in message
    (source / "repo" / "f9.txt").write_text("a new file")
    assert build("src") == 2
    assert "out: holds a build with other input: its source (or evaluation) files have changed since" in said(capsys)
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")} == before
    (source / "repo" / "f9.txt").unlink()
    assert build("src", "--workers", "1") == 0


# --- configuration


def test_splice_yaml_and_flags_over_it(build, source, tmp_path, monkeypatch, tokenizer_file):
    (tmp_path / "splice.yaml").write_text(
        f"sources: src\ntokenizer: {tokenizer_file}\nlength: 32\nk: 2\norder: reverse\n"
    )
    assert run(["build", "--output", "out", "--workers", "1", "--order", "shuffle"]) == 0
    settings = manifest(tmp_path / "out")["settings"]
    assert [settings[name] for name in ("length", "k", "order", "seed")] == [32, 2, "shuffle", 0]
    assert settings["sources"] == ["src"]
    assert len(PackedDataset("out").input_ids(0)) == 32


def test_a_config_file_with_an_output_and_a_glob_needs_no_flag(source, tmp_path, monkeypatch, tokenizer_file):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text(
        f"sources: [src]\noutput: there\nglob: f[01].txt\ntokenizer: {tokenizer_file}\nlength: 64\nworkers: 1\n"
    )
    assert run(["build", "--config", "mine.yaml"]) == 0
    assert counts(tmp_path / "there", "src") == {"documents_in": 2, "packed": 2}


# --- bad input


BAD_LINES = {
    "malformed": (b'{"text": "a}', "malformed JSON: Unterminated string at column 10"),
    "missing field": (b'{"body": "a"}', 'no field "text" (found: body); name it with --text-field'),
    "null": (b'{"text": null}', 'field "text" is null, not a string'),
    "not an object": (b"[1, 2]", "not a JSON object but a list"),
    "not UTF-8": (b'{"text": "\xff"}', "not UTF-8 (byte 11 of the line)"),
}


def corpus_with_bad_input(directory: Path) -> dict[tuple[str, int | None], str]:
    """Shards with every kind of bad input beside good rows; (file, line) -> the reason expected, as a pattern."""
    directory.mkdir()
    good = [{"text": f"good line {i} " * 5} for i in range(40)]
    rows = [good[0]]
    bad: dict[tuple[str, int | None], str] = {}
    for line, reason in BAD_LINES.values():
        rows += [line, good[len(rows) + 1]]
        bad["a.jsonl", len(rows) - 1] = re.escape(reason)
    (directory / "a.jsonl").write_bytes(lines(*rows))
    noise = np.random.default_rng(0).integers(97, 123, (400, 300), np.uint8)
    packed = gzip.compress(lines(*[{"text": row.tobytes().decode()} for row in noise]))
    (directory / "cut.jsonl.gz").write_bytes(packed[: len(packed) // 2])
    bad["cut.jsonl.gz", -1] = "gzip: the file ends in the middle of the compressed data .truncated."
    (directory / "none.parquet").write_bytes(b"this is no table")
    bad["none.parquet", None] = "not readable as Parquet: "
    (directory / "z.jsonl").write_bytes(lines(*good[20:]))
    return bad


def test_bad_input_is_quarantined_and_the_build_goes_on(build, tmp_path, capsys):
    bad = corpus_with_bad_input(tmp_path / "shards")
    assert build("shards") == 0
    found = quarantine(tmp_path / "out")
    assert {q["source"] for q in found} == {"shards"}
    by_file = {(q["file"], q["line"]): q["reason"] for q in found}
    (line,) = [q["line"] for q in found if q["file"] == "cut.jsonl.gz"]
    assert 100 < line < 300  # about half of the lines came before the cut
    by_file["cut.jsonl.gz", -1] = by_file.pop(("cut.jsonl.gz", line))
    assert sorted(by_file, key=str) == sorted(bad, key=str)
    for place, pattern in bad.items():
        assert re.match(pattern, by_file[place])
    kept = 6 + (line - 1) + 20
    assert counts(tmp_path / "out", "shards") == {
        "documents_in": kept + len(bad), "packed": kept, "quarantined": len(bad),
    }  # fmt: skip
    capsys.readouterr()
    assert run(["validate", "out"]) == 0
    assert f"{kept + len(bad)} documents in, all accounted for" in capsys.readouterr().out


@pytest.mark.parametrize("kind", [*BAD_LINES, "truncated gzip", "not Parquet"])
def test_strict_stops_at_the_first_and_goes_on_once_it_is_mended(build, tmp_path, capsys, kind):
    good = lines(*[{"text": f"line {i} of the good ones"} for i in range(6)])
    if kind in BAD_LINES:
        line, reason = BAD_LINES[kind]
        path, mended = tmp_path / "a.jsonl", good
        path.write_bytes(good + line + b"\n" + b"{ also bad\n")
        where = f"a.jsonl:7: {reason}"
    elif kind == "truncated gzip":
        path, mended = tmp_path / "a.jsonl.gz", gzip.compress(good)
        path.write_bytes(mended[:-12])
        where = "a.jsonl.gz:"
    else:
        path, mended = tmp_path / "a.parquet", b""
        path.write_bytes(b"no table")
        where = "a.parquet: not readable as Parquet"
    (tmp_path / "more.jsonl").write_bytes(lines({"text": "a second task beside it"}))
    assert build(path.name, "more.jsonl", "--strict") == 2
    message = said(capsys)
    assert message.startswith(f"splice: {where}")
    assert message.endswith("(--strict stops at the first bad input)")
    assert not (tmp_path / "out" / "data").exists()
    assert run(["validate", "out"]) == 2
    if mended:
        path.write_bytes(mended)
        assert build(path.name, "more.jsonl", "--strict") == 0


def test_an_unreadable_file_is_quarantined(build, source, tmp_path, capsys, monkeypatch):
    read = tree_source.read_file

    def refuse(path: str, limit: int) -> bytes:
        if path.endswith("f1.txt"):
            raise PermissionError(13, "Permission denied")
        return read(path, limit)

    monkeypatch.setattr(tree_source, "read_file", refuse)  # root may read everything
    assert build("src") == 0
    assert quarantine(tmp_path / "out") == [
        {"source": "src", "file": "repo/f1.txt", "line": None, "reason": "Permission denied"}
    ]
    assert counts(tmp_path / "out", "src") == {"documents_in": 4, "packed": 3, "quarantined": 1}
    assert run(["validate", "out"]) == 0
    capsys.readouterr()
    assert build("src", "--strict", output="strict") == 2
    assert "splice: repo/f1.txt: Permission denied (--strict stops" in said(capsys)


NOTHING_LEFT = {
    "all too long": (["--max-chars", "20"], "too_long"),
    "all too short": (["--min-chars", "20000"], "too_short"),
}


@pytest.mark.parametrize("case", NOTHING_LEFT)
def test_a_source_that_yields_no_document_is_named_and_the_output_stays_free(build, source, tmp_path, capsys, case):
    flags, _ = NOTHING_LEFT[case]
    (tmp_path / "good.jsonl").write_bytes(lines({"text": "x" * 20}))
    assert build("good.jsonl", "src", *flags) == 2
    message = said(capsys)
    named = "src" if case == "all too long" else "good.jsonl, src"
    assert f"source {named}: no document is left after reading and filtering" in message
    assert all(flag in message for flag in ("--text-field", "--min-chars", "--max-chars"))
    assert not (tmp_path / "out" / "build.json").exists()
    assert build("good.jsonl", "src") == 0  # the same output, with the mistake mended


@pytest.mark.parametrize("content", [b"\n\n  \n", b"{bad\n", b'{"body": 1}\n'])
def test_a_file_of_no_document(build, source, tmp_path, capsys, content):
    (tmp_path / "a.jsonl").write_bytes(content)
    assert build("src", "a.jsonl") == 2
    assert "a.jsonl" in said(capsys)
    assert not (tmp_path / "out" / "data").exists()


def test_filtered_documents_are_counted_by_reason(build, tmp_path):
    directory = tmp_path / "src"
    directory.mkdir()
    files = {
        "ok": b"a document to keep", "latin": "caf\xe9 au lait".encode("latin-1"), "zero": b"ab\0cd", "blank": b" \n\t",
        "nothing": b"", "long": b"x" * 5000, "short": b"abc", "same": b"a document to keep",
    }  # fmt: skip
    for name, content in files.items():
        (directory / f"{name}.txt").write_bytes(content)
    assert build("src", "--min-chars", "5", "--max-chars", "1000") == 0
    assert counts(tmp_path / "out", "src") == {
        "documents_in": 8, "packed": 1, "duplicate": 1,
        "filtered": {"not_utf8": 1, "binary": 1, "empty": 2, "too_long": 1, "too_short": 1},
    }  # fmt: skip
    refused = pq.read_table(tmp_path / "out" / "documents" / "refused.parquet").to_pylist()
    assert {row["id"]: row["reason"] for row in refused} == {
        "latin.txt": "not_utf8", "zero.txt": "binary", "blank.txt": "empty", "nothing.txt": "empty",
        "long.txt": "too_long", "short.txt": "too_short", "same.txt": "duplicate",
    }  # fmt: skip
    assert {row["id"]: row["duplicate_of"] for row in refused if row["duplicate_of"]} == {"same.txt": "src:ok.txt"}
    assert run(["validate", "out"]) == 0


def test_identical_documents(build, tmp_path):
    (tmp_path / "a.jsonl").write_bytes(lines(*[{"text": "the same words again"}] * 30))
    assert build("a.jsonl", output="one") == 0
    assert counts(tmp_path / "one", "a.jsonl") == {"documents_in": 30, "packed": 1, "duplicate": 29}
    assert build("a.jsonl", "--dedup", "none", output="all") == 0
    assert counts(tmp_path / "all", "a.jsonl") == {"documents_in": 30, "packed": 30}
    for output in ("one", "all"):
        assert run(["validate", output]) == 0
    dataset = PackedDataset("all")
    names = [name for i in range(len(dataset)) for name in dataset[i].doc_ids]
    assert sorted(names) == sorted(f"a.jsonl:{i}" for i in range(1, 31))


@pytest.mark.parametrize("text", ["x", "word", "one two\nthree", "a much longer document " * 60], ids=len)
@pytest.mark.parametrize("flags", [[], ["--retriever", "random"], ["--tail", "carry"]], ids=str)
def test_one_document(build, tmp_path, text, flags):
    (tmp_path / "a.jsonl").write_bytes(lines({"text": text}))
    assert build("a.jsonl", *flags) == 0
    dataset = PackedDataset("out")
    assert dataset.manifest["ledger"]["sources"]["a.jsonl"]["packed"] == 1
    assert dataset[0].doc_ids == ["a.jsonl:1"]
    assert len(dataset[0].input_ids) == 64
    assert run(["validate", "out"]) == 0


def test_documents_without_a_word(build, tmp_path):
    """Punctuation alone, single letters: nothing to retrieve by, but documents all the same."""
    texts = ["!!! ???", "+ - * /", "(){}[]", "... ;;;", "a b c", "→ ⇒", "\"'`"]
    (tmp_path / "a.jsonl").write_bytes(lines(*[{"text": text} for text in texts]))
    assert build("a.jsonl", "--length", "16", "--k", "2") == 0
    assert counts(tmp_path / "out", "a.jsonl") == {"documents_in": 7, "packed": 7}
    assert run(["validate", "out"]) == 0


def test_no_document_fits_an_example_that_may_not_cut(build, source, tmp_path, capsys):
    """A dataset of no example is a dataset: it says so wherever it is asked."""
    assert build("src", "--length", "16", "--tail", "whole") == 0
    assert counts(tmp_path / "out", "src") == {"documents_in": 4, "left_out": 4}
    assert run(["validate", "out"]) == 0
    dataset = PackedDataset("out")
    assert len(dataset) == 0
    with pytest.raises(Exception, match="out: holds no example"):
        dataset.iterate(seed=0)
    capsys.readouterr()
    assert run(["inspect", "out"]) == 2
    assert "out: no example 0; it holds 0" in said(capsys)


# --- text comes through as it was


@pytest.mark.parametrize("trained", [False, True], ids=["given", "trained here"])
def test_the_names_of_special_tokens_in_a_text_are_text(build, tmp_path, tokenizer_file, trained):
    texts = [
        f"{a}{i}{b} </s><s> the end</s>" for i, (a, b) in enumerate([("<s>", "</s>"), ("</s>", "<pad>"), ("", "")])
    ]
    texts += ["</s>", "<s>", "<pad>", "<s></s>" * 30, "x</s", "< /s>"]
    (tmp_path / "a.jsonl").write_bytes(lines(*[{"text": text} for text in texts]))
    assert build("a.jsonl", "--length", "512", tokenizer=None if trained else tokenizer_file) == 0
    dataset = PackedDataset("out")
    special = load_tokenizer("out/tokenizer", fast=False)
    (example,) = [dataset[i] for i in range(len(dataset))]
    ids = example.input_ids
    assert (ids == special.bos_id).sum() == (ids == special.eos_id).sum() == len(texts)
    assert (ids == special.pad_id).sum() == example.padding
    assert text_of(tmp_path / "out") == {f"a.jsonl:{i}": text.encode() for i, text in enumerate(texts, 1)}
    assert run(["validate", "out"]) == 0


def test_text_survives_byte_for_byte(build, tmp_path):
    texts = {
        "crlf.txt": b"one\r\ntwo\r\n\r\nthree\r\n", "cr.txt": b"old\rmac\r", "bom.txt": b"\xef\xbb\xbfwith a mark\r\n",
        "tabs.txt": b"\t\ta\t b  c   \n\n\n", "space.txt": b" leading and trailing  ", "end.txt": b"no newline",
        "unicode.txt": "e\u0301 \u00e9 ﬁ ㎏ 漢字 \U0001f469\u200d\U0001f4bb \u2028\u00a0|".encode(),
        "control.txt": b"\x01\x02\x1b[0m\x7f", "lines.txt": b"\n\n\n\nx\n\n",
    }  # fmt: skip
    directory = tmp_path / "src"
    directory.mkdir()
    for name, content in texts.items():
        (directory / name).write_bytes(content)
    assert build("src", "--length", "1024") == 0
    assert text_of(tmp_path / "out") == texts
    rows = tmp_path / "rows.jsonl"
    rows.write_bytes(lines(*[{"text": content.decode()} for content in texts.values()]).replace(b"\n", b"\r\n"))
    assert build("rows.jsonl", "--length", "1024", output="rows") == 0
    assert text_of(tmp_path / "rows") == {f"rows.jsonl:{i}": text for i, text in enumerate(texts.values(), 1)}


# --- input that would hang or fill the memory


def test_a_tree_with_a_loop_a_fifo_and_links(build, source, tmp_path):
    repo = source / "repo"
    (repo / "self").symlink_to(repo)
    (repo / "loop").symlink_to(repo / "loop")
    (repo / "elsewhere.txt").symlink_to("/etc/passwd")
    os.mkfifo(repo / "fifo.txt")
    (repo / ".hidden.txt").write_text("not this")
    started = time.monotonic()
    assert build("src") == 0
    assert time.monotonic() - started < 30
    assert counts(tmp_path / "out", "src") == {"documents_in": 4, "packed": 4}


def test_a_fifo_that_takes_the_place_of_a_file(build, source, tmp_path, monkeypatch):
    from splice.pipelines import build as pipeline
    from splice.sources import plan_units as plan

    def swap(*arguments: object):
        units = plan(*arguments)
        (source / "repo" / "f2.txt").unlink()
        os.mkfifo(source / "repo" / "f2.txt")
        return units

    monkeypatch.setattr(pipeline, "plan_units", swap)
    assert build("src") == 0
    assert [(q["file"], q["line"]) for q in quarantine(tmp_path / "out")] == [("repo/f2.txt", None)]


def tree_peak_mb(arguments: list[object], cwd: Path) -> tuple[float, float]:
    """(most resident memory of a build and all processes below it, seconds); the build must succeed."""
    command = [sys.executable, "-m", "splice.cli", "build", *map(str, arguments)]
    started = time.monotonic()
    process = subprocess.Popen(command, cwd=cwd, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    peak = 0
    while process.poll() is None:
        assert time.monotonic() - started < 120
        peak = max(peak, sum(map(resident, family(process.pid))))
        time.sleep(0.02)
    assert process.returncode == 0, process.stderr.read()
    return peak / 2**20, time.monotonic() - started


def family(pid: int) -> list[int]:
    found = [pid]
    for listing in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found += [p for child in listing.read_text().split() for p in family(int(child))]
        except OSError:
            continue
    return found


def resident(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def test_a_line_of_200_mb_and_a_bomb_need_no_memory(tmp_path, tokenizer_file):
    rows = [{"text": f"an ordinary line {i} " * 3} for i in range(50)]
    (tmp_path / "plain.jsonl").write_bytes(lines(*rows))
    for name in ("a.jsonl", "b.jsonl"):
        (tmp_path / name).write_bytes(lines({"text": name}))
    with open(tmp_path / "line.jsonl", "wb") as file:
        file.write(lines(rows[0]) + b'{"text": "')
        for _ in range(200):
            file.write(b"x" * 2**20)
        file.write(b'"}\n' + lines(*rows[1:]))
    zeros = gzip.compress(b"x" * 2**26) * 8  # 512 MB
    (tmp_path / "bomb.jsonl.gz").write_bytes(
        gzip.compress(lines({"text": "before"}) + b'{"text": "')
        + zeros
        + gzip.compress(b'"}\n' + lines({"text": "after"}))
    )
    assert (tmp_path / "bomb.jsonl.gz").stat().st_size < 2**20
    flags = ["--length", 64, "--tokenizer", tokenizer_file, "--workers", 2, "--max-line-bytes", 2**24, "--output"]
    usual, _ = tree_peak_mb(["plain.jsonl", "a.jsonl", "b.jsonl", *flags, "usual"], tmp_path)
    peak, _ = tree_peak_mb(["plain.jsonl", "line.jsonl", "bomb.jsonl.gz", *flags, "out"], tmp_path)
    assert peak < usual + 120
    reasons = {(q["file"], q["line"]): q["reason"] for q in quarantine(tmp_path / "out")}
    assert reasons == dict.fromkeys([("line.jsonl", 2), ("bomb.jsonl.gz", 2)], f"a line of over {2**24} bytes")
    assert counts(tmp_path / "out", "line.jsonl") == {"documents_in": 51, "duplicate": 50, "quarantined": 1}
    assert counts(tmp_path / "out", "bomb.jsonl.gz") == {"documents_in": 3, "packed": 2, "quarantined": 1}


def test_a_build_does_not_read_what_builds_wrote(build, source, tmp_path):
    """`splice build . --output out` again: the output lies in its own source."""
    assert build("src", "--work", "src/work", output="src/out") == 0
    assert build("src", "--work", "src/work", output="src/out") == 0  # complete already, not "its files have changed"
    assert build("src", "--work", "src/work", "--length", "32", output="src/repo/other") == 0
    assert counts(source / "repo" / "other", "src") == {"documents_in": 4, "packed": 4}
    assert manifest(source / "repo" / "other")["run"]["stages"]["read"]["reused"]


# --- several sources


@pytest.fixture
def four_sources(tmp_path, source):
    """A tree, compressed lines, a Parquet file and a saved dataset; some documents are the tree's own."""
    datasets = pytest.importorskip("datasets")
    same = (source / "repo" / "f0.txt").read_text()

    def rows(kind: str, n: int) -> list[dict]:
        return [
            {"body": f"{kind} row {i} kana loter {kind}{i}", "key": f"{kind}-{i}", "repo": f"{kind}{i % 2}",
             "path": f"{kind}/{i}.md"}
            for i in range(n)
        ]  # fmt: skip

    zst = lines(*rows("line", 5), b"{bad", {"body": same, "key": "copy", "repo": None, "path": None}, {"key": "none"})
    (tmp_path / "rows.jsonl.zst").write_bytes(zstandard.ZstdCompressor().compress(zst))
    table = [*rows("table", 6), {"body": "", "key": "blank", "repo": "table0", "path": "p"}]
    pq.write_table(pa.Table.from_pylist(table), tmp_path / "table.parquet", row_group_size=3)
    saved = [*rows("saved", 4), {"body": "table row 0 kana loter table0", "key": "again", "repo": "x", "path": "y"}]
    datasets.Dataset.from_list(saved).save_to_disk(str(tmp_path / "saved"))
    return ["src", "rows.jsonl.zst", "table.parquet", "saved"]


def provenance(output: Path) -> dict[str, tuple]:
    rows = [
        row for path in sorted((output / "documents").glob("0*.parquet")) for row in pq.read_table(path).to_pylist()
    ]
    return {f"{row['source']} {row['id']}": (row["repo"], row["path"]) for row in rows}


def test_four_sources_in_one_build(build, four_sources, tmp_path, capsys):
    assert build(*four_sources, "--text-field", "body") == 0
    out = tmp_path / "out"
    assert {name: counts(out, name) for name in four_sources} == {
        "src": {"documents_in": 4, "packed": 4},
        "rows.jsonl.zst": {"documents_in": 8, "packed": 5, "duplicate": 1, "quarantined": 2},
        "table.parquet": {"documents_in": 7, "packed": 6, "filtered": {"empty": 1}},
        "saved": {"documents_in": 5, "packed": 4, "duplicate": 1},
    }
    assert [(q["source"], q["file"], q["line"]) for q in quarantine(out)] == [
        ("rows.jsonl.zst", "rows.jsonl.zst", 6), ("rows.jsonl.zst", "rows.jsonl.zst", 8),
    ]  # fmt: skip
    expected = {f"src repo/f{i}.txt": ("repo", f"repo/f{i}.txt") for i in range(4)}
    expected |= {f"rows.jsonl.zst rows.jsonl.zst:{i}": (None, None) for i in range(1, 6)}
    expected |= {f"table.parquet table.parquet:{i}": (None, None) for i in range(6)}
    expected |= {f"saved saved:{i}": (None, None) for i in range(4)}
    assert provenance(out) == expected
    refused = pq.read_table(out / "documents" / "refused.parquet").to_pylist()
    assert {(r["source"], r["id"], r["reason"], r["duplicate_of"]) for r in refused} == {
        ("rows.jsonl.zst", "rows.jsonl.zst:7", "duplicate", "src:repo/f0.txt"),
        ("table.parquet", "table.parquet:6", "empty", None),
        ("saved", "saved:4", "duplicate", "table.parquet:table.parquet:0"),
    }
    capsys.readouterr()
    assert run(["validate", "out"]) == 0
    assert "24 documents in, all accounted for" in capsys.readouterr().out


def test_fields_name_documents_repositories_and_paths(build, four_sources, tmp_path):
    fields = ["--text-field", "body", "--id-field", "key", "--repo-field", "repo", "--path-field", "path"]
    assert build(*four_sources, *fields) == 0
    expected = {f"src repo/f{i}.txt": ("repo", f"repo/f{i}.txt") for i in range(4)}
    for source, kind, n in (("rows.jsonl.zst", "line", 5), ("table.parquet", "table", 6), ("saved", "saved", 4)):
        expected |= {f"{source} {kind}-{i}": (f"{kind}{i % 2}", f"{kind}/{i}.md") for i in range(n)}
    assert provenance(tmp_path / "out") == expected
    assert run(["validate", "out"]) == 0


# --- inspect and validate


def test_inspect_shows_an_example(built, tree, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    dataset = PackedDataset(built)
    index = next(i for i in range(len(dataset)) if len(dataset[i].doc_ids) > 2)
    example = dataset[index]
    assert run(["inspect", str(built), "--example", str(index)]) == 0
    shown = capsys.readouterr().out.splitlines()
    n = len(example.doc_ids)
    assert shown[0] == (
        f"example {index} of {len(dataset)} (number {example.number} of the plan, pack 0): {n} documents, "
        f"{512 - example.padding} tokens, {example.padding} padding"
    )
    assert len(shown) == 2 + 2 * n
    for i, name in enumerate(example.doc_ids):
        row, excerpt = shown[2 + 2 * i], shown[3 + 2 * i]
        number, parent, *rest = row.split()
        score = [] if example.parents[i] < 0 else [f"{example.scores[i]:.1f}"]
        a, b = example.doc_spans[i]
        assert number == str(i)
        assert parent == ("root" if example.parents[i] < 0 else str(example.parents[i]))
        assert rest == [*score, f"{example.doc_offsets[i]}:{example.ends[i]}", f"{a}:{b}", name]
        words = " ".join((tree / name).read_text().split())
        assert words.startswith(excerpt.strip().removesuffix("…")[:20])
    last = len(dataset) - 1
    assert run(["inspect", str(built), "--example", "-1"]) == 0
    assert capsys.readouterr().out.startswith(f"example {last} of {len(dataset)}")


@pytest.mark.parametrize("number", ["100000", "-100000"])
def test_inspect_of_an_example_that_is_not_there_names_the_range(built, capsys, number):
    assert run(["inspect", str(built), "--example", number]) == 2
    assert f"no example {number}; it holds {len(PackedDataset(built))}, numbered from 0" in said(capsys)


@pytest.mark.parametrize("command", ["validate", "inspect"])
def test_what_is_no_dataset_is_said_to_be_none(built, source, tmp_path, capsys, command):
    shutil.copytree(built, tmp_path / "half", ignore=shutil.ignore_patterns("work"))
    (tmp_path / "half" / "manifest.json").unlink()
    for path, message in (
        ("half", "no manifest.json (the build has not finished: run it again and it goes on)"),
        ("src", "no manifest.json (not a dataset of splice build)"),
        ("nowhere", "no such directory; give the --output of a `splice build`"),
    ):
        assert run([command, str(tmp_path / path)]) == 2
        assert f"{path}: {message}" in said(capsys)


# --- retrievers that go by what a document may lack


ROWS = lines(*({"text": f"some words {i}", "where": f"d/{i}.py" if i % 3 else None, "topic": "t"} for i in range(9)))


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--retriever", "repo"), "rows, of which no field is named as the path; --retriever repo goes by it"),
        (("--retriever", "domain"), "no field is named as the repo; --retriever domain goes by it: name another field"),
        (("--retriever", "domain", "--domain-field", "extension"), "named as the path"),
        (("--retriever", "domain", "--domain-field", "nope"), '9 of its 9 documents have no field "nope"'),
        (("--retriever", "repo", "--path-field", "gone"), "9 of its 9 documents have no path"),
        (("--max-uses", "2", "--tail", "carry"), "max_uses above 1 does not go with tail carry"),
        (("--noise", "1.5"), "--noise: Input should be less than or equal to 1 (given: 1.5)"),
    ],
)
def test_a_retriever_that_has_nothing_to_go_by_says_so(build, tmp_path, capsys, flags, message):
    (tmp_path / "rows.jsonl").write_bytes(ROWS)
    assert build("rows.jsonl", *flags) == 2
    assert message in said(capsys)
    assert not (tmp_path / "out" / "build.json").exists()
    assert build("rows.jsonl") == 0


def test_files_have_no_fields(build, source, capsys):
    for flags in ((), ("--dry-run",)):
        assert build("src", "--retriever", "domain", "--domain-field", "topic", *flags) == 2
        assert "source src: its documents are files, and files have no fields" in said(capsys)


def test_a_few_documents_without_a_path_are_counted_and_packed(build, tmp_path, capsys):
    (tmp_path / "rows.jsonl").write_bytes(ROWS)
    assert build("rows.jsonl", "--retriever", "repo", "--path-field", "where") == 0
    assert "source rows.jsonl: 3 of its 9 documents have no path: they are together" in " ".join(
        capsys.readouterr().out.split()
    )
    assert run(["validate", "out"]) == 0
