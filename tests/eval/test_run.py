"""`splice eval` as a user runs it: results, reruns, resumption, what does not fit, what is wrong."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from splice.cli import run
from splice.eval.results import RESULT, SAMPLES, Samples, read_results

KV = ["eval", "kv", "--pairs", "20", "--examples", "3", "--check", "5"]


def files(directory):
    return {
        str(p.relative_to(directory)): p.read_bytes()
        for p in sorted(directory.rglob("*"))
        if p.name in (RESULT, SAMPLES)
    }


@pytest.fixture(scope="module")
def done(llama, tmp_path_factory):
    """A finished run of three dictionaries."""
    output = tmp_path_factory.mktemp("done") / "a"
    assert run([*KV, "--model", str(llama), "--output", str(output)]) == 0
    return output


def test_a_run_leaves_its_result_and_its_samples(done, llama):
    (result,) = read_results(done)
    assert (result.name, result.path) == ("kv-dense-20", done / "kv-dense-20")
    facts = result.facts
    assert facts["scorer"] == "greedy exact match by teacher forcing"
    assert facts["check"] == {"generated_too": 5, "agree": 5}
    assert (facts["groups"], facts["queries"], facts["clusters"], facts["unit"]) == (3, 60, 3, "dictionaries")
    assert facts["metrics"]["match"]["mean"] == 0.0
    assert [row["value"] for row in facts["by"]["position"]] == list(range(20))
    assert facts["model"]["name"] == llama.name
    assert facts["model"]["backend"] == "splice"
    assert len(result.samples) == 60
    sample = result.samples[21]
    assert (sample["cluster"], sample["tags"], sample["scores"]) == ("dictionary-0001", {"position": 1}, {"match": 0.0})
    assert sample["suffix"].endswith("Corresponding value:")
    assert "Corresponding value" not in json.dumps(facts), "a result holds no prompt"


def test_a_rerun_has_the_same_bytes_and_a_finished_run_is_left_alone(done, llama, tmp_path, capsys):
    assert run([*KV, "--model", str(llama), "--output", str(tmp_path)]) == 0
    assert files(tmp_path) == files(done)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.json*")}
    assert run([*KV, "--model", str(llama), "--output", str(tmp_path)]) == 0
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.json*")} == before
    assert "finished before" in capsys.readouterr().out


@pytest.mark.parametrize("cut", [0, 1, 700, -1, -30])
def test_a_run_that_was_cut_goes_on_at_its_group(done, llama, tmp_path, cut, capsys):
    shutil.copytree(done, tmp_path / "a")
    (tmp_path / "a" / "kv-dense-20" / RESULT).unlink()
    samples = tmp_path / "a" / "kv-dense-20" / SAMPLES
    data = samples.read_bytes()
    samples.write_bytes(data[: cut % len(data)])
    kept = Samples(samples.parent)
    groups = len(kept.kept)
    kept.close()
    assert groups == (2 if cut < 0 else 0)
    assert run([*KV, "--model", str(llama), "--output", str(tmp_path / "a")]) == 0
    assert files(tmp_path / "a") == files(done)
    assert ("2 groups are there; going on" in capsys.readouterr().out) is (groups == 2)


def test_killed_at_any_moment(llama, tmp_path):
    """kill -9 of the command until it has gone through; the result is that of an undisturbed run."""
    arguments = [*KV[:-2], "--check", "0", "--examples", "25", "--model", str(llama), "--output"]
    assert run([*arguments, str(tmp_path / "whole")]) == 0
    command = [sys.executable, "-m", "splice.cli", *arguments, str(tmp_path / "killed")]
    kills = 0
    while True:
        process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
        began = time.monotonic()
        samples = tmp_path / "killed" / "kv-dense-20" / SAMPLES
        size = samples.stat().st_size if samples.exists() else 0
        while process.poll() is None and time.monotonic() - began < 120:
            if samples.exists() and samples.stat().st_size > size + 40_000 and kills < 2:
                os.killpg(process.pid, signal.SIGKILL)
                kills += 1
            time.sleep(0.01)
        if process.wait() == 0:
            break
    assert kills == 2
    assert files(tmp_path / "killed") == files(tmp_path / "whole")


def test_another_run_in_its_place_is_refused(done, llama, tmp_path, capsys):
    shutil.copytree(done, tmp_path / "a")
    assert run([*KV, "--seed", "1", "--model", str(llama), "--output", str(tmp_path / "a")]) == 2
    assert (
        "holds another run (settings.seed: 0 there, 1 here; seed: 0 there, 1 here); give another --output"
        in capsys.readouterr().err
    )
    assert files(tmp_path / "a") == files(done)


def test_other_weights_of_the_same_name_are_another_model(done, llama, tmp_path, capsys):
    """The same path, one weight changed."""
    from safetensors.torch import load_file, save_file

    model = tmp_path / "model"
    shutil.copytree(llama, model)
    assert run([*KV, "--model", str(model), "--output", str(tmp_path / "a")]) == 0
    weights = load_file(model / "model.safetensors")
    weights["model.embed_tokens.weight"][-1, -1] += 1
    save_file(weights, model / "model.safetensors", metadata={"format": "pt"})
    assert run([*KV, "--model", str(model), "--output", str(tmp_path / "a")]) == 2
    assert "holds another run (model.weights: " in capsys.readouterr().err


def test_a_prompt_over_the_context_is_an_error_or_is_counted(llama, tmp_path, capsys):
    arguments = [
        "eval",
        "kv",
        "--pairs",
        "20",
        "60",
        "--examples",
        "2",
        "--model",
        str(llama),
        "--output",
        str(tmp_path),
    ]
    assert run(arguments) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "dictionary-0000: a prompt of" in said
    assert "over the model's context of 4,096" in said
    assert "--too-long skip" in said
    shutil.rmtree(tmp_path / "kv-dense-20")
    assert run([*arguments, "--too-long", "skip"]) == 0, (
        "in the place of a run that was refused before it asked anything"
    )
    captured = capsys.readouterr()
    assert "left out as too long: kv-dense-60" in " ".join(captured.out.split())
    assert [result.name for result in read_results(tmp_path)] == ["kv-dense-20"]
    arguments[3:5] = ["60"]
    assert run([*arguments, "--too-long", "skip"]) == 1
    assert "every prompt was over the model's context" in " ".join(capsys.readouterr().err.split())
    assert run([*arguments, "--max-context", "100000"]) == 0


def test_some_prompts_over_the_context_are_counted(llama, tmp_path, shared_data):
    """Documents of nq differ in length: the context is put between the shortest and the longest."""
    arguments = ["eval", "nq", "--documents", "3", "--positions", "0", "--examples", "8", "--data-dir", str(shared_data),
                 "--answer-tokens", "4", "--model", str(llama)]  # fmt: skip
    assert run([*arguments, "--max-context", "100000", "--output", str(tmp_path / "a")]) == 0
    lengths = sorted(sample["prefix_tokens"] for sample in read_results(tmp_path / "a")[0].samples)
    between = str((lengths[3] + lengths[4]) // 2 + 6)
    assert run([*arguments, "--max-context", between, "--too-long", "skip", "--output", str(tmp_path / "b")]) == 0
    facts = read_results(tmp_path / "b")[0].facts
    assert facts["queries"] + facts["skipped"]["queries"] == 8
    assert 0 < facts["skipped"]["groups"] < 8
    assert facts["skipped"]["longest"] > int(between)


def test_a_finished_run_with_torn_samples_is_finished_again(done, llama, tmp_path):
    shutil.copytree(done, tmp_path / "a")
    samples = tmp_path / "a" / "kv-dense-20" / SAMPLES
    samples.write_bytes(samples.read_bytes()[:-100])
    assert run([*KV, "--model", str(llama), "--output", str(tmp_path / "a")]) == 0
    assert files(tmp_path / "a") == files(done)


def test_a_checkpoint_is_exported_for_transformers(tmp_path, llama, capsys):
    shutil.copytree(llama, tmp_path / "step-000001")
    (tmp_path / "step-000001" / "state.json").write_text("{}")
    arguments = [
        *KV,
        "--model",
        str(tmp_path / "step-000001"),
        "--output",
        str(tmp_path / "a"),
        "--backend",
        "transformers",
    ]
    assert run(arguments) == 2
    assert "splice export" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("whom", ["process", "group"])
def test_interrupted(llama, tmp_path, whom):
    """SIGINT to the command alone, and to all of its processes as a terminal sends it: a sentence, and the run goes on later."""
    arguments = [*KV[:-2], "--check", "0", "--examples", "400", "--model", str(llama), "--output", str(tmp_path)]
    process = subprocess.Popen([sys.executable, "-m", "splice.cli", *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                               text=True, start_new_session=True)  # fmt: skip
    samples = tmp_path / "kv-dense-20" / SAMPLES
    while process.poll() is None and not (samples.exists() and samples.stat().st_size):
        time.sleep(0.02)
    (os.killpg if whom == "group" else os.kill)(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert "interrupted. What was asked is kept" in " ".join(said.split())
    assert "Traceback" not in said
    kept = Samples(samples.parent)
    assert kept.resumed > 0
    kept.close()


def test_a_second_run_on_the_same_output_is_refused(llama, tmp_path, capsys):
    from splice.lock import locked

    with locked(tmp_path / "kv-dense-20", "evaluation"):
        assert run([*KV, "--model", str(llama), "--output", str(tmp_path)]) == 1
    assert "another evaluation is working here" in " ".join(capsys.readouterr().err.split())


def test_backends_agree(done, llama, tmp_path):
    assert run([*KV, "--model", str(llama), "--backend", "transformers", "--output", str(tmp_path)]) == 0
    (ours,), (theirs,) = read_results(done), read_results(tmp_path)
    assert theirs.facts["model"]["prefix"] == "read once"
    assert [s["scores"] for s in ours.samples] == [s["scores"] for s in theirs.samples]


@pytest.mark.parametrize(
    ("break_it", "said"),
    [
        (lambda d: (d / "model.safetensors").unlink(), "no weights there"),
        (lambda d: (d / "config.json").unlink(), "no config.json there"),
        (lambda d: (d / "tokenizer.json").unlink(), "tokenizer"),
        (lambda d: (d / "model.safetensors").write_bytes(b"torn"), "model.safetensors"),
    ],
    ids=["weights", "config", "tokenizer", "torn"],
)
def test_broken_models(llama, tmp_path, break_it, said, capsys):
    shutil.copytree(llama, tmp_path / "model")
    break_it(tmp_path / "model")
    assert run([*KV, "--model", str(tmp_path / "model"), "--output", str(tmp_path / "a")]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert "Traceback" not in err
    assert not (tmp_path / "a").exists()


def test_a_directory_of_checkpoints_names_the_last(tmp_path, capsys):
    (tmp_path / "run" / "step-000010").mkdir(parents=True)
    (tmp_path / "run" / "step-000010" / "state.json").write_text("{}")
    assert run([*KV, "--model", str(tmp_path / "run"), "--output", str(tmp_path / "a")]) == 2
    assert "a run, not a checkpoint" in " ".join(capsys.readouterr().err.split())
