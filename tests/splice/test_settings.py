"""Settings: one name in YAML and on the command line, validated once, and what each of them makes anew."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from splice.cli import run
from splice.errors import SpliceError
from splice.pipelines.build import stage_directories
from splice.settings import BuildSettings, fields, resolve

# Stage -> what is made anew with it.
AFTER = {
    "ingest": {"ingest", "tokens", "embed", "link", "walk", "write"},
    "embed": {"embed", "link", "walk", "write"},
    "tokens": {"tokens", "walk", "write"},
    "link": {"link", "walk", "write"},
    "walk": {"walk", "write"},
    "write": {"write"},
    None: set(),
}

# Setting -> (the first stage it is made anew for, or None; a value that is not the default).
MATTERS = {
    "sources": (None, ["b"]),  # what they hold is in the fingerprint's input
    "output": (None, "elsewhere"),
    "work": (None, "elsewhere"),
    "workers": (None, 7),
    "glob": ("ingest", ["*.py"]),
    "text_field": ("ingest", "body"),
    "id_field": ("ingest", "key"),
    "repo_field": ("ingest", "repo"),
    "path_field": ("ingest", "path"),
    "min_chars": ("ingest", 2),
    "max_chars": ("ingest", 29_999),
    "max_line_bytes": ("ingest", 2**20),
    "domain_field": ("ingest", "topic"),
    "dedup": ("ingest", "none"),
    "near_threshold": (None, 0.9),  # with dedup near alone
    "shingle_words": (None, 3),
    "decontaminate": ("ingest", ["eval.jsonl"]),
    "ngram_words": (None, 8),
    "strict": ("ingest", True),
    "tokenizer": ("tokens", "t.json"),
    "vocab_size": ("tokens", 999),
    "pack_documents": ("ingest", 10),
    "pack_by": ("ingest", "cluster"),
    "max_repo_bytes": ("ingest", 10),
    "retriever": ("link", "random"),
    "k1": ("link", 1.2),
    "b": ("link", 0.5),
    "query_tf": ("link", "sqrt"),
    "max_df": ("link", 0.5),
    "neighbours": ("link", 8),
    "encoder": (None, "some/other"),  # what it is made of is in the fingerprint's input
    "encoder_tokens": ("embed", 256),
    "merge": ("link", "sum"),
    "bm25_weight": ("link", 0.3),
    "window": ("link", 100),
    "k": ("walk", 2),
    "length": ("walk", 4096),
    "order": ("walk", "reverse"),
    "exhausted": ("walk", "short"),
    "tail": ("walk", "carry"),
    "join": ("walk", "eos"),
    "seed": ("walk", 1),
    "noise": ("walk", 0.5),
    "max_uses": ("walk", 2),
    "shard_tokens": ("write", 2**20),
}


def directories(inputs: str = "the files", identity: str = "an encoder", **values) -> dict[str, Path]:
    """Stage -> its directory in a work directory, as the pipeline names it; all stages, so of a hybrid retriever."""
    settings = BuildSettings(**{"sources": ["a"], "retriever": "hybrid", **values})
    encoder = SimpleNamespace(identity=identity) if settings.has_encoder else None
    return stage_directories(settings, inputs, Path("work"), encoder)


def changed(before: dict[str, Path], after: dict[str, Path]) -> set[str]:
    return {stage for stage in before if stage in after and before[stage] != after[stage]}


def test_the_table_above_has_every_setting():
    assert set(MATTERS) == set(BuildSettings.model_fields)
    assert all(fields()[name]["default"] != value for name, (_, value) in MATTERS.items())


@pytest.mark.parametrize("name", MATTERS)
def test_a_setting_makes_its_stage_and_those_after_it_anew_and_no_other(name):
    stage, value = MATTERS[name]
    assert changed(directories(), directories(**{name: value})) == AFTER[stage]


@pytest.mark.parametrize("name", ["k1", "b", "query_tf", "max_df", "merge", "window"])
def test_dense_packing_has_no_use_for_what_bm25_is_told(name):
    values = {"retriever": "dense", name: MATTERS[name][1]}
    assert changed(directories(retriever="dense"), directories(**values)) == set()


@pytest.mark.parametrize("name", ["merge", "window", "bm25_weight", "encoder_tokens"])
def test_nor_bm25_for_what_the_others_are(name):
    values = {"retriever": "bm25", name: MATTERS[name][1]}
    assert changed(directories(retriever="bm25"), directories(**values)) == set()


def test_dense_and_hybrid_share_their_embeddings_which_are_those_of_an_encoder():
    dense, hybrid = directories(retriever="dense"), directories()
    assert dense["embed"] == hybrid["embed"]
    assert dense["link"] != hybrid["link"]
    assert changed(directories(), directories(identity="another")) == AFTER["embed"]


@pytest.mark.parametrize("name", ["k1", "b", "query_tf", "max_df", "neighbours"])
def test_random_packing_has_no_use_for_what_bm25_is_told(name):
    values = {"retriever": "random", name: MATTERS[name][1]}
    assert changed(directories(retriever="random"), directories(**values)) == set()


@pytest.mark.parametrize("name", ["k1", "neighbours", "max_df"])
@pytest.mark.parametrize("retriever", ["repo", "domain"])
def test_no_more_have_the_retrievers_that_search_for_nothing(retriever, name):
    values = {"retriever": retriever, name: MATTERS[name][1]}
    assert changed(directories(retriever=retriever), directories(**values)) == set()


def test_what_matters_with_another_setting_alone():
    domain = {"retriever": "domain"}
    assert changed(directories(**domain), directories(**domain, domain_field="extension")) == AFTER["walk"]
    assert changed(directories(), directories(domain_field="extension")) == set()
    for name in ("near_threshold", "shingle_words"):
        near = directories(dedup="near")
        assert changed(near, directories(dedup="near", **{name: MATTERS[name][1]})) == AFTER["ingest"]
    for by in ("source", "hash", "cluster"):
        assert changed(directories(pack_by=by), directories(pack_by=by, max_repo_bytes=10)) == set()
    given = {"decontaminate": ["eval.jsonl"]}
    assert changed(directories(**given), directories(**given, ngram_words=8)) == AFTER["ingest"]


def test_other_input_makes_everything_anew():
    assert changed(directories("these files"), directories("those files")) == AFTER["ingest"]


def test_a_tokenizer_of_the_same_name_with_other_content_is_another(tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_text("{}")
    before = directories(tokenizer=str(path))
    assert changed(before, directories(tokenizer=str(path))) == set()
    path.write_text("{ }")
    assert changed(before, directories(tokenizer=str(path))) == AFTER["tokens"]


def test_stages_of_the_same_settings_and_input_differ():
    prints = [path.name.split("-")[1] for path in directories().values()]
    assert len(set(prints)) == len(prints)
    assert all(len(fingerprint) == 16 for fingerprint in prints)


def test_fingerprints_are_the_same_in_every_process():
    script = "from splice.settings import BuildSettings as B; print(B(sources=['a']).fingerprint('ingest', 'i'))"
    here = BuildSettings(sources=["a"]).fingerprint("ingest", "i")
    for seed in ("1", "2"):
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60,
                              env={"PYTHONHASHSEED": seed})  # fmt: skip
        assert done.stdout.strip() == here


# --- flags over file over defaults


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_flags_win_over_the_file_and_the_file_over_the_defaults(tmp_path):
    config = write(tmp_path / "c.yaml", "sources: src\noutput: out\nk: 3\nlength: 64\nmin-chars: 5\nglob: '*.py'\n")
    settings = resolve({"length": 128, "output": None, "sources": [], "seed": 0}, config)
    assert (settings.k, settings.length, settings.seed, settings.min_chars) == (3, 128, 0, 5)
    assert (settings.sources, settings.glob, settings.output) == (["src"], ["*.py"], "out")
    assert settings.max_chars == 30_000


def test_a_flag_that_is_false_or_zero_is_given(tmp_path):
    config = write(tmp_path / "c.yaml", "sources: [a]\noutput: o\nstrict: true\nworkers: 3\nseed: 4\n")
    settings = resolve({"strict": False, "workers": 0, "seed": 0}, config)
    assert (settings.strict, settings.workers, settings.seed) == (False, 0, 0)


def test_defaults_are_the_issues():
    settings = BuildSettings()
    assert (settings.retriever, settings.k, settings.length, settings.order, settings.seed) == (
        "bm25", 1, 32768, "identity", 0,
    )  # fmt: skip
    assert (settings.k1, settings.b, settings.max_chars, settings.max_repo_bytes, settings.pack_documents) == (
        1.5, 0.75, 30_000, 25_000_000, 50_000,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lenght: 5", r"c\.yaml: lenght: no such option; did you mean length\?"),
        ("max_chr: 5", r"c\.yaml: max_chr: no such option; did you mean max_chars\?"),
        ("zzzzzz: 5", r"c\.yaml: zzzzzz: no such option$"),
        ("k: many", r"c\.yaml: k: .*integer.*given: 'many'"),
        ("k: 0", r"c\.yaml: k: .*greater than or equal to 1.*given: 0"),
        ("order: sideways", r"c\.yaml: order: .*'identity', 'reverse' or 'shuffle'.*given: 'sideways'"),
        ("k: [1", r"c\.yaml: not valid YAML"),
        ("- k", r"c\.yaml: expected `name: value` lines, found a list"),
        ("just words", r"c\.yaml: expected `name: value` lines, found a str"),
        ("min_chars: 9\nmax_chars: 8", r"min_chars \(9\) is larger than max_chars \(8\)"),
        ("length: 64\nshard_tokens: 32", r"shard_tokens \(32\) is smaller than one example \(length 64\)"),
        ("k1: .nan", r"c\.yaml: k1: "),
        ("max_df: 0", r"c\.yaml: max_df: .*greater than 0"),
    ],
)
def test_a_bad_file_is_one_clear_sentence(tmp_path, text, message):
    config = write(tmp_path / "c.yaml", text)
    with pytest.raises(SpliceError, match=message) as caught:
        resolve({"sources": ["a"], "output": Path("o")}, config)
    assert "\n" not in str(caught.value)
    assert "pydantic" not in str(caught.value)


def test_two_mistakes_are_two_sentences(tmp_path):
    config = write(tmp_path / "c.yaml", "lenght: 5\nk: 0\n")
    with pytest.raises(SpliceError) as caught:
        resolve({"sources": ["a"], "output": Path("o"), "b": 7.0}, config)
    lines = str(caught.value).splitlines()
    assert len(lines) == 3
    assert any(line.startswith("--b: ") for line in lines)
    assert sum(f"{config}: " in line for line in lines) == 2


def test_an_empty_file_says_nothing(tmp_path):
    settings = resolve({"sources": ["a"], "output": Path("o")}, write(tmp_path / "c.yaml", "# nothing yet\n"))
    assert settings == BuildSettings(sources=["a"], output=Path("o"))


def test_a_file_that_cannot_be_read(tmp_path):
    with pytest.raises(SpliceError, match=r"nowhere\.yaml: cannot be read \(No such file or directory\)"):
        resolve({}, tmp_path / "nowhere.yaml")
    with pytest.raises(SpliceError, match="cannot be read"):
        resolve({}, tmp_path)
    (tmp_path / "c.yaml").write_bytes(b"k: \xff\n")
    with pytest.raises(SpliceError, match=r"c\.yaml: not valid YAML"):
        resolve({}, tmp_path / "c.yaml")


def test_splice_yaml_is_read_where_nothing_else_names_a_source(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SpliceError, match=r"no source: .* --config or in \./splice\.yaml"):
        resolve({}, None)
    write(tmp_path / "splice.yaml", "sources: here\noutput: o\nk: 5\n")
    assert resolve({}, None).sources == ["here"]
    assert resolve({"k": 2}, None).k == 2
    other = resolve({"sources": ["there"], "output": Path("p")}, None)
    assert (other.sources, other.k) == (["there"], 1)  # not read: the sources are named
    config = write(tmp_path / "c.yaml", "sources: third\noutput: o\n")
    assert (resolve({}, config).sources, resolve({}, config).k) == (["third"], 1)


def test_without_an_output_it_says_so():
    with pytest.raises(SpliceError, match=r"no output: .* --output DIR"):
        resolve({"sources": ["a"]}, None)


# --- the command line


def test_help_lists_every_setting_with_its_default(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    assert run(["build", "--help"]) == 0
    said = capsys.readouterr().out
    for name, setting in fields().items():
        flag = "[SRC]..." if name == "sources" else f"--{name.replace('_', '-')} "
        (line,) = [line for line in said.splitlines() if flag in line and setting["help"] in line]
        default = setting["default"]
        if default not in (None, []) and default is not False:
            assert line.rstrip(" │").endswith(f"({default})")
    for flag in ("--dry-run", "--config"):
        assert flag in said


def test_the_version_and_the_commands(capsys):
    from splice import __version__

    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"splice {__version__}\n"
    assert run(["--help"]) == 0
    said = capsys.readouterr().out
    assert all(command in said for command in ("build", "validate", "inspect"))
    assert run(["bild"]) == 2
    assert "No such command 'bild'" in capsys.readouterr().err


@pytest.fixture
def corpus(tmp_path, monkeypatch):
    """A current directory with a corpus in a directory with a long name."""
    monkeypatch.chdir(tmp_path)
    source = tmp_path / ("a long name " * 12) / "corpus"
    source.mkdir(parents=True)
    for i in range(4):
        (source / f"[{i}].txt").write_text(f"document number {i} " * 20)
    return source


def test_a_dry_run_writes_nothing_and_prints_what_config_takes(corpus, tmp_path, capsys):
    given = ["build", "--dry-run", str(corpus), "--output", "out", "--work", "work", "--k", "3", "--glob", "[[]*.txt"]
    assert run(given) == 0
    said = capsys.readouterr().out
    assert sorted(p.name for p in tmp_path.iterdir()) == [corpus.parent.name]
    values = yaml.safe_load(said)
    assert values == {
        **json.loads(BuildSettings().model_dump_json()),
        "sources": [str(corpus)], "output": "out", "work": "work", "k": 3, "glob": ["[[]*.txt"],
    }  # fmt: skip
    for word in ("documents", "memory", "CPU time", "disk", "runner"):
        assert word in said
    (tmp_path / "again.yaml").write_text(said)
    assert run(["build", "--dry-run", "--config", "again.yaml"]) == 0
    assert capsys.readouterr().out == said


def test_a_dry_run_refuses_what_the_build_would(corpus, tmp_path, capsys):
    for wrong in (["--glob", "*.c"], ["--tokenizer", "nope.json"], ["--k", "0"], ["--", "--nope"]):
        assert run(["build", "--dry-run", str(corpus), "--output", "out", *wrong]) == 2
    assert not (tmp_path / "out").exists()


# --- imports


HEAVY = ("torch", "apache_beam", "numba", "pyarrow", "datasets", "tokenizers", "sentencepiece", "gigatoken")


def loaded_by(code: str) -> tuple[list[str], float]:
    """Heavy modules that are there after `code`, and the CPU seconds it took (other tests run beside this one)."""
    script = f"""
import json, sys, time
start = time.process_time()
{code}
seconds = time.process_time() - start
print(json.dumps([[name for name in {HEAVY!r} if name in sys.modules], seconds]), file=sys.__stdout__)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("module", ["splice", "splice.cli", "splice.settings", "splice.store", "splice.sources"])
def test_importing_is_light_and_takes_under_300_ms(module):
    tries = [loaded_by(f"import {module}") for _ in range(3)]
    assert tries[0][0] == []
    assert min(seconds for _, seconds in tries) < 0.3


@pytest.mark.parametrize("arguments", [["--help"], ["build", "--help"], ["--version"], ["build", "nowhere"]], ids=str)
def test_help_and_refusals_load_nothing_heavy(arguments):
    names, _ = loaded_by(f"from splice.cli import run; run({arguments!r})")
    assert names == []
