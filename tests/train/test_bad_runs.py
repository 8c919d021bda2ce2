"""What is refused before a run begins, and what ends one: each names the thing, the place and the remedy, and loses nothing."""

import json
import shutil

import pytest

torch = pytest.importorskip("torch")

from splice.cli import run
from splice.train import loop
from splice.train.checkpoint import checkpoints
from splice.train.settings import flags

TINY = ["--model.hidden-size", "32", "--model.layers", "2", "--model.heads", "2", "--context.length", "128"]
SMALL = [*TINY, "--batch.size", "4", "--steps", "3", "--checkpoint.every", "1"]


@pytest.fixture
def refused(capsys):
    """The message of a command that is refused, and its exit code."""

    def check(*words, code=2):
        assert run([str(word) for word in words]) == code
        said = capsys.readouterr().err
        assert said.startswith("splice: ")
        return " ".join(said.split())

    return check


@pytest.fixture(scope="module")
def trained(built, tmp_path_factory):
    output = tmp_path_factory.mktemp("runs") / "run"
    assert run(["train", "--data", str(built), "--output", str(output), *SMALL]) == 0
    return output


REFUSED = {
    "no data": (["--data", ""], "no data: name a dataset"),
    "no dataset": (["--data", "/nowhere"], "/nowhere: no such directory; give the --output of a `splice build`"),
    "no model": (["--model.layers", ""], "no model: name one to start from with --init, a size with --model.preset"),
    "length": (["--context.length", "100"], "examples of 512 tokens cannot be cut into rows of 100"),
    "local context": (["--fot.layers", "1", "--fot.local-context", "48"], "fot.local_context 48: does not divide context.length 128"),
    "memory layer": (["--fot.layers", "7", "--fot.local-context", "32"], "fot.layers: no layer 7; the model has layers 0 to 1"),
    "heads": (["--model.heads", "3", "--model.kv-heads", "2"], "model.heads 3: not a multiple of model.kv_heads 2"),
    "width": (["--model.heads", "5"], "model.hidden_size 32: not a multiple of model.heads 5"),
    "no memory layers": (["--fot.local-context", "32"], "fot.local_context: the model has no memory layers"),
    "nothing to stretch": (["--context.method", "yarn"], "context.method yarn: nothing to stretch"),
    "foreign output": (["--output", "BUILT"], "holds something else than a run"),
    "no output": (["--output", "."], "no output: say where"),
    "output below a file": (["--output", "BUILT/manifest.json/run"], "manifest.json is a file; name another place with --output"),
    "odd head": (["--model.head-size", "5"], "--model.head_size"),
    "batch": (["--batch.size", "3", "--batch.micro", "2"], "batch.size 3: not a multiple of batch.micro 2 x 1 data ranks"),
    "large batch": (["--batch.size", "4000"], "are less than one batch of 4000; take a smaller --batch.size"),
    "evaluation": (["--evaluation.every", "5"], "evaluation.every: nothing to evaluate on"),
    "two evaluations": (["--evaluation.data", "BUILT", "--evaluation.holdout", "2"], "give data or holdout, not both"),
    "holdout": (["--evaluation.holdout", "4000"], "evaluation.holdout 4000: "),
    "vocabulary": (["--model.vocab-size", "100"], "build the data with the model's tokenizer"),
    "hub": (["--init", "no/such model"], "no/such model: no such directory"),
    "bound": (["--optimizer.lr", "-1"], "--optimizer.lr: Input should be greater than 0"),
    "number": (["--steps", "many"], "--steps"),
    "list": (["--fot.layers", "1,x"], "--fot.layers: Input should be a valid integer"),
}  # fmt: skip


def test_ranks_that_are_not_there_are_refused_and_a_dry_run_takes_them_to_be(built, tmp_path, refused, capsys):
    words = ["train", "--data", built, "--output", tmp_path / "run", *SMALL, "--context-parallel", "2"]
    assert "context_parallel 2: does not divide the number of processes of this run, 1" in refused(*words)
    assert not (tmp_path / "run").exists()
    assert run([str(word) for word in [*words, "--dry-run"]]) == 0


@pytest.mark.parametrize("name", REFUSED)
def test_a_run_that_cannot_be_is_refused_and_nothing_is_written(built, tmp_path, capsys, name):
    changes, expected = REFUSED[name]
    words = ["--data", str(built), "--output", str(tmp_path / "run"), *SMALL, "--dry-run"]
    before = sorted(built.iterdir())
    for flag, value in zip(changes[::2], changes[1::2], strict=True):
        if flag in words:
            words[words.index(flag) : words.index(flag) + 2] = []
        if value:
            words += [flag, value.replace("BUILT", str(built))]
    assert run(["train", *words]) == 2
    assert expected in " ".join(capsys.readouterr().err.replace("│", " ").split())
    assert not (tmp_path / "run").exists()
    assert sorted(built.iterdir()) == before


def test_an_unknown_setting_of_the_file_names_the_one_that_was_meant(built, tmp_path, refused):
    config = tmp_path / "run.yaml"
    config.write_text(f"data: {built}\noptimizer: {{lrr: 1}}\n")
    said = refused("train", "--config", config, "--output", tmp_path / "run")
    assert f"{config}: optimizer.lrr: no such setting; did you mean optimizer.lr?" in said
    config.write_text("optimizer: 3\n")
    assert f"{config}: optimizer: expected settings of its own, `optimizer: {{...}}` (given: 3)" in refused(
        "train", "--config", config
    )
    config.write_text("optimiser: {lr: 1}\nbatch.size: 4\n")
    said = refused("train", "--config", config)
    assert "optimiser: no such setting; did you mean optimizer?" in said
    assert "batch.size: no such setting; write `batch: {size: ...}`" in said
    config.write_text("{")
    assert f"{config}: not valid YAML" in refused("train", "--config", config)
    assert "gone.yaml: cannot be read" in refused("train", "--config", tmp_path / "gone.yaml")


def test_flags_win_over_the_file_and_every_setting_has_one(built, tmp_path, capsys):
    config = tmp_path / "run.yaml"
    config.write_text(f"data: {built}\nmodel: {{preset: tiny, layers: 3}}\noptimizer: {{lr: 1.0e-3, warmup: 7}}\n")
    words = ["--model.layers", "2", "--optimizer.lr=2e-3", "--fot.local_context", "64", "--fot.layers", "0,1"]
    assert run(["train", "--config", str(config), "--output", str(tmp_path / "run"), *words, "--dry-run"]) == 0
    said = capsys.readouterr().out
    for line in ("layers: 2", "lr: 0.002", "warmup: 7", "local_context: 64", "preset: tiny"):
        assert f"  {line}\n" in said
    from typer.main import get_command

    from splice.cli import app

    command = get_command(app).commands["train"]
    known = {option for parameter in command.params for option in parameter.opts}
    assert {"--" + name.replace("_", "-") for name in flags()} <= known


# --------------------------------------------------------------------------------------------------- what is there


def test_a_run_is_not_written_over(trained, built, refused):
    before = (trained / "metrics.jsonl").read_bytes()
    said = refused("train", "--data", built, "--output", trained, *SMALL)
    assert f"{trained}: holds a run, its last checkpoint at step-000003; go on with --resume" in said
    assert (trained / "metrics.jsonl").read_bytes() == before


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        (["--context.method", "codellama"], "context.method: naive there, codellama here"),
        (["--seed", "9"], "seed: 0 there, 9 here"),
        (["--batch.size", "8"], "batch.size: 4 there, 8 here"),
        (["--document-mask"], "document_mask: False there, True here"),
    ],
)
def test_a_checkpoint_of_another_run_is_not_resumed(trained, built, refused, changes, named):
    before = (trained / "metrics.jsonl").read_bytes()
    said = refused("train", "--data", built, "--output", trained, *SMALL, "--resume", *changes)
    assert named in said
    assert "--init CHECKPOINT --output ELSEWHERE" in said
    assert (trained / "metrics.jsonl").read_bytes() == before


def test_a_checkpoint_of_another_shape_is_named(trained, built, refused):
    said = refused("train", "--data", built, "--output", trained, *SMALL, "--resume", "--model.layers", "1")
    assert "step-000003: made by a run with other settings" in said
    assert "model.layers: 2 there, 1 here" in said


@pytest.mark.parametrize("part", ["weights", "optimizer"])
@pytest.mark.parametrize("how", ["torn", "missing", "garbled", "state"])
def test_a_damaged_checkpoint_is_named_and_the_one_before_it_serves(trained, built, tmp_path, refused, part, how):
    output = tmp_path / "run"
    shutil.copytree(trained, output)
    step = output / "step-000003"
    for file in (step / part).iterdir():
        data = file.read_bytes()
        if how == "torn":
            file.write_bytes(data[:1000])
        elif how == "garbled":
            file.write_bytes(b"\xff" * len(data))
        elif how == "missing":
            file.unlink()
        else:
            (step / "state.json").write_text("[]")
    said = refused("train", "--data", built, "--output", output, *SMALL, "--resume", "--steps", "4")
    assert f"{step}: damaged (" in said
    assert "remove it and --resume takes the one before it" in said
    if part == "weights":
        assert "damaged (" in refused("export", step, "--output", tmp_path / "hf")
    shutil.rmtree(step)
    words = ["train", "--data", str(built), "--output", str(output), *SMALL, "--resume", "--steps", "4"]
    assert run(words) == 0


def test_another_learning_rate_is_taken_up_and_said(trained, built, tmp_path, capsys):
    """What one wants after a loss that is no number."""
    output = tmp_path / "run"
    shutil.copytree(trained, output)
    words = [
        "train",
        "--data",
        str(built),
        "--output",
        str(output),
        *SMALL,
        "--resume",
        "--steps",
        "4",
        "--optimizer.lr",
        "1e-5",
    ]
    assert run(words) == 0
    assert "optimizer.lr: 0.0003 there, 1e-05 here" in capsys.readouterr().out


def test_a_run_touches_nothing_of_others(built, tmp_path):
    (tmp_path / "run" / "deep").mkdir(parents=True)
    (tmp_path / "run" / "metrics.jsonl").touch()
    others = [
        tmp_path / "run" / "deep" / ".tmp-step-000001",
        tmp_path / "run" / ".tmp-notes",
        tmp_path / "run" / "deep" / ".tmp-x.json",
    ]
    for path in others:
        path.mkdir()
    mine = tmp_path / "run" / ".tmp-step-000009"
    mine.mkdir()
    assert (
        run(["train", "--data", str(built), "--output", str(tmp_path / "run"), *SMALL, "--resume", "--steps", "1"]) == 0
    )
    assert all(path.exists() for path in others)
    assert not mine.exists()


def test_one_training_at_a_time(built, tmp_path, refused):
    from splice.lock import locked

    with locked(tmp_path / "run", "training"):
        said = refused("train", "--data", built, "--output", tmp_path / "run", *SMALL, code=1)
    assert f"{tmp_path / 'run'}: another training is working here (process " in said


def test_a_run_goes_on_without_the_model_it_started_from(trained, built, tmp_path):
    start = tmp_path / "start"
    shutil.copytree(trained / "step-000003", start)
    words = [
        "train",
        "--data",
        str(built),
        "--output",
        str(tmp_path / "run"),
        "--batch.size",
        "4",
        "--context.length",
        "128",
    ]
    assert run([*words, "--init", str(start), "--steps", "2"]) == 0
    shutil.rmtree(start)
    assert run([*words, "--init", str(start), "--steps", "3", "--resume"]) == 0


def test_a_checkpoint_may_hold_no_pickle(trained):
    assert {path.suffix for path in trained.rglob("*") if path.is_file()} == {
        ".safetensors",
        ".json",
        ".jsonl",
        ".lock",
    }


def test_a_start_of_another_shape_or_kind_is_refused(trained, built, tmp_path, refused):
    step = trained / "step-000003"
    words = ["train", "--data", built, "--output", tmp_path / "run", "--batch.size", "4", "--context.length", "128"]
    said = refused(*words, "--init", step, "--model.layers", "3")
    assert f"{step}: another shape than model: says: layers 3 (the model has 2)" in said
    assert "a run, not a checkpoint; name one of its checkpoints" in refused(*words, "--init", trained)
    assert "no config.json there" in refused(*words, "--init", built)


def test_data_of_another_tokenizer_is_refused(trained, built, tmp_path, refused):
    start = tmp_path / "start"
    shutil.copytree(trained / "step-000003", start)
    tokenizer = json.loads((start / "tokenizer.json").read_text())
    model = tokenizer["model"]
    model["merges"] = model["merges"][:-20]  # other ids for what these wrote
    (start / "tokenizer.json").write_text(json.dumps(tokenizer))
    words = ["train", "--data", built, "--output", tmp_path / "run", "--batch.size", "4", "--context.length", "128"]
    said = refused(*words, "--init", start)
    assert "which is not the model's tokenizer" in said
    assert f"build the data with --tokenizer {start}" in said
    same = json.loads((trained / "step-000003" / "tokenizer.json").read_text())
    (start / "tokenizer.json").write_text(json.dumps(same, indent=4))  # the same tokenizer in other bytes
    assert run([*map(str, words), "--init", str(start), "--steps", "1"]) == 0


def test_a_model_with_too_small_a_vocabulary_is_refused(trained, built, tmp_path, refused):
    start = tmp_path / "start"
    shutil.copytree(trained / "step-000003", start)
    config = json.loads((start / "config.json").read_text())
    (start / "config.json").write_text(json.dumps(config | {"vocab_size": 100}))
    words = ["train", "--data", built, "--output", tmp_path / "run", "--batch.size", "4", "--context.length", "128"]
    assert "ids, the model's vocabulary 100; build the data with" in refused(*words, "--init", start)


def test_a_stretched_model_is_not_stretched_again(built, tmp_path, refused):
    yarn = ["--context.method", "yarn", "--context.original", "32"]
    assert run(["train", "--data", str(built), "--output", str(tmp_path / "a"), *SMALL, *yarn]) == 0
    words = ["train", "--data", built, "--output", tmp_path / "b", "--batch.size", "4"]
    said = refused(*words, "--init", tmp_path / "a" / "step-000003", "--context.method", "linear")
    assert "context.method linear: the model's positions are already stretched (yarn, factor 4)" in said


def test_validation_data_of_another_tokenizer_is_refused(built, tmp_path, refused):
    other = tmp_path / "other"
    shutil.copytree(built / "data", other / "data")
    manifest = json.loads((built / "manifest.json").read_text())
    manifest["tokenizer"] |= {"fingerprint": "0" * 64, "name": "another"}
    (other / "manifest.json").write_text(json.dumps(manifest))
    words = ["--evaluation.every", "2", "--evaluation.data", other]
    said = refused("train", "--data", built, "--output", tmp_path / "run", *SMALL, *words)
    assert f"{other}: tokenised with another, the training data with" in said


def test_export_of_what_is_no_checkpoint(trained, tmp_path, refused):
    said = refused("export", trained, "--output", tmp_path / "hf")
    assert f"its last checkpoint is {trained / 'step-000003'}" in said
    assert "not a checkpoint (no state.json)" in refused("export", tmp_path, "--output", tmp_path / "hf")
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "x").touch()
    assert "is there already" in refused("export", trained / "step-000003", "--output", tmp_path / "taken")


# --------------------------------------------------------------------------------------------------- what ends a run


def test_a_loss_that_is_no_number_ends_the_run_and_names_its_examples(built, tmp_path, refused, monkeypatch):
    whole = loop.Llama.forward
    rows = iter(range(100))

    def poisoned(self, ids, *rest, **named):
        loss = whole(self, ids, *rest, **named)
        return loss * float("nan") if next(rows) == 9 else loss  # the second micro-batch of the third step

    monkeypatch.setattr(loop.Llama, "forward", poisoned)
    output = tmp_path / "run"
    said = refused("train", "--data", built, "--output", output, *SMALL, "--batch.micro", "1", code=1)
    from splice.store import PackedDataset, Rows

    reader = Rows(PackedDataset(built), 128)
    batch = next(reader.iterate(seed=0, step=2, batch_size=4))
    example = reader.example_of(int(batch.indices[1]))
    assert f"step 3: the loss is not a number, on example {example} of {built}" in said
    assert f"splice inspect {built} --example {example}" in said
    assert f"the last checkpoint, {output}/step-000002, is good" in said
    assert [path.name for path in checkpoints(output)] == ["step-000001", "step-000002"]
    monkeypatch.undo()
    assert run(["train", "--data", str(built), "--output", str(output), *SMALL, "--batch.micro", "1", "--resume"]) == 0


def test_weights_that_overflow_end_the_run_before_they_are_kept(built, tmp_path, refused):
    said = refused(
        "train", "--data", built, "--output", tmp_path / "run", *SMALL, "--optimizer.lr", "1e30", "--steps", "9", code=1
    )
    assert "is not a number" in said
    assert "--optimizer.lr" in said


def test_a_full_disk_is_said_and_the_last_checkpoint_kept(built, tmp_path, refused, monkeypatch):
    from splice.train import checkpoint

    whole = checkpoint.dcp.save
    saves = iter(range(100))

    def full(*words, **named):
        if next(saves) == 3:  # the second checkpoint's optimizer
            raise OSError(28, "No space left on device")
        return whole(*words, **named)

    monkeypatch.setattr(checkpoint.dcp, "save", full)
    output = tmp_path / "run"
    said = refused("train", "--data", built, "--output", output, *SMALL, code=1)
    assert "No space left on device" in said
    assert "--resume goes on from the last checkpoint" in said
    assert [path.name for path in checkpoints(output)] == ["step-000001"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is one")
def test_a_gpu_that_is_not_there(built, tmp_path, refused):
    assert "device cuda: torch sees no GPU here" in refused(
        "train", "--data", built, "--output", tmp_path / "run", *SMALL, "--device", "cuda"
    )


def test_a_disk_that_fills_while_a_checkpoint_is_written(built, tmp_path):
    """A limit on the size of files, in a process of its own: torch hides the error in one that no `except` takes."""
    import subprocess
    import sys

    words = ["train", "--data", built, "--output", tmp_path / "run", *SMALL, "--checkpoint.every", "3"]
    command = f"ulimit -f 50; exec {sys.executable} -m splice.cli {' '.join(map(str, words))}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert "step-000003: cannot be written (" in done.stderr
    assert "Traceback" not in done.stderr
    assert not list((tmp_path / "run").glob(".tmp-*"))
