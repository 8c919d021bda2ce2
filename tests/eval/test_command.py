"""The command line and files of runs: lists as words, what is wrong is said with its place, models each in their directory."""

from __future__ import annotations

import re
import shutil

import pytest

from splice.cli import run
from splice.errors import SpliceError
from splice.eval.command import gathered
from splice.eval.paper import read_runs
from splice.eval.settings import flags, lists, make
from splice.eval.tasks import TASKS


def words(capsys):
    captured = capsys.readouterr()
    return " ".join(re.sub(r"[│╭╮╰╯─]", " ", captured.out + captured.err).split())


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("eval kv --positions 0 37 74 --pairs 75", "eval kv --positions 0,37,74 --pairs 75"),
        ("eval kv --positions 0,37 74 --mode litm", "eval kv --positions 0,37,74 --mode litm"),
        ("eval kv --positions all --examples 3", "eval kv --positions all --examples 3"),
        ("eval kv --model a b --pairs 3", "eval kv --model a --model b --pairs 3"),
        ("eval run f.yaml --model a --output b", "eval run f.yaml --model a --output b"),
        ("eval trec --context 16384 32768", "eval trec --context 16384,32768"),
        ("eval kv --mode litm dense", "eval kv --mode litm dense"),
        ("eval compare a b", "eval compare a b"),
        ("eval", "eval"),
    ],
)
def test_values_of_a_list_are_gathered(given, wanted):
    assert gathered(given.split()) == wanted.split()


@pytest.mark.parametrize("task", TASKS)
def test_every_setting_is_an_option_with_help(task, capsys):
    assert run(["eval", task, "--help"]) == 0
    shown = words(capsys)
    described = flags(TASKS[task].settings)
    assert all(one["help"] for one in described.values())
    for name in described:
        assert f"--{name.replace('_', '-')}"[:18] in shown
    assert lists(TASKS[task].settings) <= set(described)


def test_lists_are_known():
    assert lists(TASKS["kv"].settings) == {"pairs", "positions"}
    assert lists(TASKS["trec"].settings) == {"shots", "context"}


def test_flags_make_settings():
    settings = make(TASKS["kv"].settings, {"pairs": "75,140", "positions": "0 37", "mode": "litm", "examples": None})
    assert (settings.pairs, settings.positions, settings.mode, settings.examples) == ([75, 140], [0, 37], "litm", None)
    assert make(TASKS["kv"].settings, {"positions": "all"}).positions == "all"


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"pairs": "seven"}, "--pairs: .*given: 'seven'"),
        ({"examples": 0}, "--examples: .*greater than or equal to 1"),
        ({"mode": "sparse"}, "--mode: .*'dense' or 'litm'"),
        ({"positions": "first"}, "--positions: "),
        ({"positons": 1}, "--positons: no such setting; did you mean positions?"),
    ],
)
def test_settings_that_do_not_do(values, said):
    with pytest.raises(SpliceError, match=said):
        make(TASKS["kv"].settings, values)


FILE = """
defaults: {seed: 3, sets: 7}
runs:
  - {task: kv, mode: litm, pairs: [75, 140]}
  - {task: trec, shots: 90, sets: 50}
  - {task: dbpedia, shots: 190}
"""


def test_a_file_of_runs(tmp_path):
    (tmp_path / "f.yaml").write_text(FILE)
    runs = read_runs(tmp_path / "f.yaml", None, tmp_path)
    assert [task.name for task, _ in runs] == ["kv", "trec", "dbpedia"]
    assert [settings.seed for _, settings in runs] == [3, 3, 3]
    assert [getattr(settings, "sets", None) for _, settings in runs] == [None, 50, 7]
    assert all(settings.data_dir == tmp_path for _, settings in runs)
    assert [task.name for task, _ in read_runs(tmp_path / "f.yaml", "trec, kv", None)] == ["kv", "trec"]


@pytest.mark.parametrize(
    ("text", "only", "said"),
    [
        ("runs: 3", None, "no list of `runs`; it has `runs`, each with a `task`"),
        ("tasks: []\nruns: []", None, "no such key: tasks"),
        ("runs: [{task: triviaqa}]", None, "run 1: task 'triviaqa' is none of kv, trec"),
        ("runs: [kv]", None, "run 1: task None is none of"),
        ("runs: [{task: kv}, {task: kv, pair: 3}]", None, "run 2: pair: no such setting; did you mean pairs?"),
        ("runs: [{task: kv, pairs: many}]", None, "run 1: pairs: "),
        ("defaults: {shot: 3}\nruns: [{task: kv}]", None, "defaults: no task has a setting shot"),
        ("runs: [{task: kv}]", "trec", "no run of trec in it"),
        ("runs: [{task: kv}]", "trek", "--only: no task trek"),
    ],
)
def test_files_that_do_not_do(tmp_path, text, only, said):
    (tmp_path / "f.yaml").write_text(text)
    with pytest.raises(SpliceError) as error:
        read_runs(tmp_path / "f.yaml", only, None)
    assert said in str(error.value)


@pytest.mark.parametrize("name", ["paper", "tiny"])
def test_the_files_of_the_repository(name):
    from pathlib import Path

    runs = read_runs(Path(__file__).parents[2] / "configs" / "eval" / f"{name}.yaml", None, None)
    named = [variant for task, settings in runs for variant, _ in task.variants(settings)]
    assert len(named) == len(set(named)) >= 4


def test_models_each_in_their_directory(llama, tmp_path, capsys):
    pytest.importorskip("torch")
    from splice.eval.results import read_results

    shutil.copytree(llama, tmp_path / "one")
    shutil.copytree(llama, tmp_path / "two")
    (tmp_path / "f.yaml").write_text("defaults: {check: 1}\nruns: [{task: kv, pairs: [3, 4], examples: 2}]")
    arguments = ["eval", "run", str(tmp_path / "f.yaml"), "--output", str(tmp_path / "out")]
    assert run([*arguments, "--model", str(tmp_path / "one"), "--model", str(tmp_path / "two")]) == 0
    for name in ("one", "two"):
        assert [result.name for result in read_results(tmp_path / "out" / name)] == ["kv-dense-3", "kv-dense-4"]
    capsys.readouterr()
    assert run(["eval", "compare", str(tmp_path / "out" / "one"), str(tmp_path / "out" / "two")]) == 0
    assert "kv-dense-3 over 2 dictionaries" in words(capsys)


def test_what_is_wrong_is_said_before_a_model_is_loaded(tmp_path, capsys):
    assert run(["eval", "kv", "--model", "nowhere", "--output", str(tmp_path), "--scorer", "likelihood"]) == 2
    assert "kv: --scorer likelihood cannot score it" in words(capsys)
    assert run(["eval", "kv", "--model", str(tmp_path / "nowhere"), "--output", str(tmp_path)]) == 2
    assert "nowhere: no such directory" in words(capsys)
    kv = ["eval", "kv", "--model", str(tmp_path / "nowhere"), "--output"]
    assert run([*kv, str(tmp_path), "--data-dir", "nowhere"]) == 2
    assert "--data-dir nowhere: no such directory" in words(capsys)
    (tmp_path / "file").write_text("")
    assert run([*kv, str(tmp_path / "file" / "below")]) == 2
    assert "file: not a directory that can be written to; give another --output" in words(capsys)
    (tmp_path / "f.yaml").write_text("runs: [{task: kv}, {task: kv, positions: 0}]")
    models = ["--model", str(tmp_path / "nowhere"), "--output", str(tmp_path)]
    assert run(["eval", "run", str(tmp_path / "f.yaml"), *models]) == 2
    assert "two runs are called kv-dense-75" in words(capsys)
    (tmp_path / "f.yaml").write_text(
        f"defaults: {{data_dir: {tmp_path}}}\nruns: [{{task: kv}}, {{task: trec, bos: yes}}]"
    )
    assert run(["eval", "run", str(tmp_path / "f.yaml"), *models]) == 2
    assert "no train_5500.label" in words(capsys), "of the second run, before the first is asked"
    assert run(["eval", "run", str(tmp_path / "nofile.yaml"), *models]) == 2
    assert "nofile.yaml: cannot be read (No such file or directory); name a YAML file of runs" in words(capsys)
