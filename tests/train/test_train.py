"""`splice train` as a user runs it: what it leaves, that it learns, that it goes on, that it says no."""

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from splice.cli import run
from splice.store import PackedDataset
from splice.train.checkpoint import checkpoints, stored_weights
from splice.train.model import Llama

TINY = {
    "model.hidden-size": 32,
    "model.layers": 2,
    "model.heads": 4,
    "model.kv-heads": 2,
    "model.head-size": 16,
    "model.mlp-size": 64,
    "context.length": 128,
    "batch.size": 4,
    "batch.micro": 2,
    "steps": 6,
    "checkpoint.every": 2,
    "optimizer.lr": 3e-3,
    "optimizer.warmup": 2,
}


def arguments(data, output, **changes):
    settings = TINY | {"data": data, "output": output} | {k.replace("__", "."): v for k, v in changes.items()}
    listed = ["train"]
    for name, value in settings.items():
        flag = "--" + name.replace("_", "-")
        if value is not False and value is not None:
            listed += [flag] if value is True else [flag, str(value)]
    return listed


def train(data, output, **changes):
    """In this process; the exit code."""
    return run(arguments(data, output, **changes))


def lines(output):
    """metrics.jsonl without what depends on the clock."""
    found = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    for line in found:
        for name in ("seconds", "tokens_per_second", "memory_gib", "mfu"):
            line.pop(name, None)
    return found


def vocabulary_of(data):
    """The model's: the tokenizer's, in whole vectors of 128."""
    return math.ceil(PackedDataset(data).manifest["tokenizer"]["vocab_size"] / 128) * 128


def losses(output):
    return [line["loss"] for line in lines(output) if "loss" in line]


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # other tests run beside this one
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def finished(built, tmp_path_factory):
    """A run of six steps with validation."""
    output = tmp_path_factory.mktemp("runs") / "whole"
    assert train(built, output, evaluation__every=3, evaluation__holdout=2) == 0
    return output


# ------------------------------------------------------------------------------------------------------ what is left


def test_a_run_leaves_its_figures_its_settings_and_its_last_checkpoints(finished, built):
    steps = [line for line in lines(finished) if "loss" in line]
    assert [line["step"] for line in steps] == [1, 2, 3, 4, 5, 6]
    assert [line["tokens"] for line in steps] == [512 * n for n in range(1, 7)]
    assert steps[0]["lr"] == pytest.approx(1.5e-3)
    validations = [line for line in lines(finished) if "validation" in line]
    assert [line["step"] for line in validations] == [3, 6]
    assert (
        sum(b["tokens"] for b in validations[0]["validation"]["by_position"]) == validations[0]["validation"]["tokens"]
    )
    assert [path.name for path in checkpoints(finished)] == ["step-000004", "step-000006"]  # the last two
    about = json.loads((finished / "run.json").read_text())
    assert about["settings"]["model"]["hidden_size"] == 32
    vocabulary = vocabulary_of(built)
    assert about["parameters"] == vocabulary * 32 * 2 + 2 * (32 * 64 * 2 + 32 * 32 * 2 + 3 * 32 * 64) + 5 * 32
    last = finished / "step-000006"
    names = {path.name for path in last.iterdir()}
    assert names == {"weights", "optimizer", "state.json", "config.json", "tokenizer.json", "tokenizer_config.json"}
    assert {path.suffix for path in last.rglob("*") if path.is_file()} == {
        ".safetensors",
        ".json",
    }  # no pickle anywhere


def test_the_loss_falls(built, tmp_path):
    assert train(built, tmp_path / "run", steps=40, checkpoint__every=40) == 0
    found = losses(tmp_path / "run")
    vocabulary = vocabulary_of(built)
    assert found[0] == pytest.approx(math.log(vocabulary), abs=0.1)  # knows nothing
    assert sum(found[-5:]) / 5 < found[0] - 1


def test_the_first_loss_and_gradient_are_the_models_on_the_rows_of_the_first_step(built, finished):
    from splice.store import Rows
    from splice.train.hf_read import read_config
    from splice.train.loop import initial

    config = read_config(finished / "step-000006")
    model = Llama(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(initial(name, parameter.shape, config, 0))
    dataset = PackedDataset(built)
    rows = Rows(dataset, 128, range(len(dataset) - 2))
    batch = next(rows.iterate(seed=0, batch_size=4))
    total, tokens = torch.zeros(()), 0
    for ids, padding in zip(torch.from_numpy(batch.input_ids).long(), batch.padding.tolist(), strict=True):
        end = 128 - padding
        logits = model(ids[None])[0, : end - 1]
        total = total + torch.nn.functional.cross_entropy(logits, ids[1:end], reduction="sum")
        tokens += end - 1
    (total / tokens).backward()
    norm = math.sqrt(sum(float(parameter.grad.square().sum()) for parameter in model.parameters()))
    assert lines(finished)[0]["grad_norm"] == pytest.approx(norm, rel=1e-5)
    assert losses(finished)[0] == pytest.approx(total.item() / tokens, rel=1e-5)


def test_accumulation_changes_no_loss(built, tmp_path, finished):
    for micro in (1, 4):
        output = tmp_path / f"micro{micro}"
        assert train(built, output, batch__micro=micro, steps=6, evaluation__holdout=2) == 0
        assert losses(output) == pytest.approx(losses(finished), abs=1e-5)


def test_recomputing_activations_changes_no_loss(built, tmp_path, finished):
    assert train(built, tmp_path / "run", recompute=True, evaluation__holdout=2) == 0
    assert losses(tmp_path / "run") == losses(finished)


def test_bfloat16_is_near(built, tmp_path, finished):
    assert train(built, tmp_path / "run", dtype="bfloat16", evaluation__holdout=2) == 0
    assert losses(tmp_path / "run") == pytest.approx(losses(finished), abs=0.02)
    weights = dict(stored_weights(tmp_path / "run" / "step-000006"))
    assert {tensor.dtype for tensor in weights.values()} == {torch.float32}  # the masters


@pytest.mark.parametrize(
    "changes",
    [
        {"context__method": "yarn", "context__original": 32},
        {"context__method": "linear", "context__original": 32},
        {"context__method": "codellama"},
        {"fot__layers": "1", "fot__local_context": 32},
        {"fot__layers": "0,1", "fot__local_context": 32, "fot__cross_batch_range": 6},
        {"document_mask": True},
        {"document_mask": True, "fot__layers": "1", "fot__local_context": 32},
        {"skip_document_starts": True, "optimizer__schedule": "wsd"},
    ],
    ids=str,
)
def test_every_method_trains_and_exports_to_a_model_of_the_same_logits(built, tmp_path, changes):
    transformers = pytest.importorskip("transformers")
    assert train(built, tmp_path / "run", **changes) == 0
    checkpoint = tmp_path / "run" / "step-000006"
    assert run(["export", str(checkpoint), "--output", str(tmp_path / "hf")]) == 0
    from splice.train.hf_read import read_config

    config = read_config(checkpoint)
    ours = Llama(config)
    ours.load_state_dict(dict(stored_weights(checkpoint)))
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "hf")
    ids = torch.from_numpy(PackedDataset(built).input_ids(0)[:32].astype("int64"))[None]  # one local context
    with torch.no_grad():
        assert float((ours(ids) - theirs(ids).logits).abs().max()) < 1e-5
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    assert tokenizer.decode(ids[0][:8])


def test_weights_are_the_same_read_in_any_pieces(finished, monkeypatch):
    whole = dict(stored_weights(finished / "step-000006"))
    for piece in (1, 10_000):
        monkeypatch.setattr("splice.train.checkpoint.PIECE", piece)
        cut = dict(stored_weights(finished / "step-000006"))
        assert cut.keys() == whole.keys()
        assert all(torch.equal(cut[name], whole[name]) for name in whole)


def test_training_goes_on_from_an_exported_model_as_from_its_checkpoint(finished, built, tmp_path):
    assert run(["export", str(finished / "step-000006"), "--output", str(tmp_path / "hf")]) == 0
    sizes = {name.replace(".", "__"): None for name in TINY if name.startswith("model.")}
    for name, start in (("a", tmp_path / "hf"), ("b", finished / "step-000006")):
        assert train(built, tmp_path / name, init=start, steps=2, **sizes) == 0
    assert losses(tmp_path / "a") == losses(tmp_path / "b")
    assert losses(tmp_path / "a")[0] < losses(finished)[0]


def test_a_model_with_memory_keeps_it_unless_told(built, tmp_path, capsys):
    fot = {"fot__layers": "1", "fot__local_context": 32}
    assert train(built, tmp_path / "a", steps=1, **fot) == 0
    capsys.readouterr()
    sizes = {name.replace(".", "__"): None for name in TINY if name.startswith("model.")}
    start = tmp_path / "a" / "step-000001"
    assert train(built, tmp_path / "b", init=start, dry_run=True, **sizes) == 0
    assert "memory layers [1], local 32" in " ".join(capsys.readouterr().out.split())
    assert run([*arguments(built, tmp_path / "b", init=start, dry_run=True, **sizes), "--fot.layers", ""]) == 0
    assert "memory layers" not in capsys.readouterr().out


def test_dry_run_says_what_a_run_costs_and_writes_nothing(built, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert train(built, tmp_path / "run", dry_run=True, evaluation__holdout=2) == 0
    said = capsys.readouterr().out
    vocabulary = vocabulary_of(built)
    inner = 2 * (32 * 64 * 2 + 32 * 32 * 2 + 3 * 32 * 64)
    assert "hidden_size: 32" in said
    assert f"{vocabulary * 64 + inner + 160:,}" in said  # parameters
    assert f"{inner + 160:,}" in said  # without the embedding and the head
    assert f"{6 * (inner + vocabulary * 32) + 12 * 2 * 64 * 128:.4g}: 6 N" in said
    assert f"6 of 512 tokens = {6 * 512:,} tokens" in said
    assert not (tmp_path / "run").exists()


def test_figures_of_runs_are_drawn(finished, tmp_path):
    assert run(["plot", str(finished), "--output", str(tmp_path / "figures")]) == 0
    assert {p.name for p in (tmp_path / "figures").glob("*.png")} >= {"loss.png", "perplexity_by_position.png"}


# ------------------------------------------------------------------------------------------------ interrupted, resumed


def test_a_run_that_lost_its_last_steps_goes_on_to_the_same_losses(built, tmp_path, finished):
    output = tmp_path / "run"
    changes = {"evaluation__every": 3, "evaluation__holdout": 2}
    assert train(built, output, **changes) == 0
    shutil.rmtree(output / "step-000006")
    with open(output / "metrics.jsonl", "a") as file:
        file.write('{"step": 7, "lo')  # torn
    assert train(built, output, resume=True, **changes) == 0
    assert lines(output) == lines(finished)
    kept, again = (dict(stored_weights(path / "step-000006")) for path in (finished, output))
    assert all(torch.equal(kept[name], again[name]) for name in kept)


def test_resuming_a_finished_run_changes_nothing(finished, built):
    before = (finished / "metrics.jsonl").read_bytes()
    assert train(built, finished, resume=True, evaluation__every=3, evaluation__holdout=2) == 0
    assert (finished / "metrics.jsonl").read_bytes() == before


def test_resume_without_a_checkpoint_starts(built, tmp_path):
    assert train(built, tmp_path / "run", resume=True, steps=2) == 0
    assert len(losses(tmp_path / "run")) == 2


def start(data, output, **changes):
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "splice.cli", *arguments(data, output, **changes)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment)


def wait_for_steps(output, steps, process):
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        path = output / "metrics.jsonl"
        if path.exists() and path.read_bytes().count(b"\n") >= steps:
            return
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.01)
    raise AssertionError(f"no {steps} steps in two minutes")


@pytest.mark.parametrize("steps_before", [1, 23])
def test_kill_9_loses_nothing(built, tmp_path, steps_before):
    """At any moment: with a checkpoint every step, most of the time one is being written."""
    assert train(built, tmp_path / "whole", steps=40, checkpoint__every=1) == 0
    process = start(built, tmp_path / "killed", steps=40, checkpoint__every=1)
    wait_for_steps(tmp_path / "killed", steps_before, process)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    os.kill(int(children[0]), signal.SIGKILL)
    said = process.communicate(timeout=60)[1]
    assert process.returncode == 1
    assert "the training was killed by SIGKILL" in said
    assert "--resume" in said
    assert train(built, tmp_path / "killed", steps=40, checkpoint__every=1, resume=True) == 0
    assert lines(tmp_path / "killed") == lines(tmp_path / "whole")
    assert not list((tmp_path / "killed").glob(".tmp-*"))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_leaves_a_checkpoint_of_the_step_it_came_at(built, tmp_path, number):
    output = tmp_path / "run"
    process = start(built, output, steps=3000, checkpoint__every=3000)
    wait_for_steps(output, 3, process)
    process.send_signal(number)
    said = process.communicate(timeout=60)[1]
    assert process.returncode == 130, said
    assert "--resume goes on from there" in said
    step = len(losses(output))
    assert [path.name for path in checkpoints(output)] == [f"step-{step:06d}"]


def test_the_number_of_steps_may_change(finished, built, tmp_path, capsys):
    output = tmp_path / "run"
    shutil.copytree(finished, output)
    assert train(built, output, resume=True, steps=8, evaluation__every=3, evaluation__holdout=2) == 0
    assert "steps: 6 there, 8 here; from here on it counts" in capsys.readouterr().out
    assert len(losses(output)) == 8


# ----------------------------------------------------------------------------------------------------- several ranks


def torchrun(data, output, **changes):
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    launcher = [
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        "2",
        "--rdzv-backend",
        "c10d",
        "--rdzv-endpoint",
        "localhost:0",
    ]
    command = [sys.executable, *launcher, "-m", "splice.train", *arguments(data, output, **changes)[1:]]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment, check=False)


HARD = {"fot__layers": "1", "fot__local_context": 32, "document_mask": True, "model__tied": True}


@pytest.mark.parametrize("context_parallel", [1, 2])
def test_two_ranks_train_as_one_and_either_resumes_the_other(built, tmp_path, context_parallel):
    """FSDP2 alone, and with Ulysses; FoT, documents and tied weights on."""
    changes = HARD | {"evaluation__every": 3, "evaluation__holdout": 2, "evaluation__rows": 5}
    assert train(built, tmp_path / "one", **changes) == 0
    together = torchrun(built, tmp_path / "two", context_parallel=context_parallel, **changes)
    assert together.returncode == 0, together.stderr
    assert losses(tmp_path / "two") == pytest.approx(losses(tmp_path / "one"), abs=1e-5)
    for a, b in zip(lines(tmp_path / "one"), lines(tmp_path / "two"), strict=True):
        if "validation" in a:
            assert a["validation"]["loss"] == pytest.approx(b["validation"]["loss"], abs=1e-5)
            assert a["validation"]["tokens"] == b["validation"]["tokens"]
    assert len(list((tmp_path / "two" / "step-000006" / "weights").iterdir())) == 2  # a file a rank
    for run_ in ("one", "two"):
        shutil.rmtree(tmp_path / run_ / "step-000006")
    assert train(built, tmp_path / "two", resume=True, **changes) == 0
    assert losses(tmp_path / "two") == pytest.approx(losses(tmp_path / "one"), abs=1e-5)
    again = torchrun(built, tmp_path / "one", resume=True, context_parallel=context_parallel, **changes)
    assert again.returncode == 0, again.stderr
    assert losses(tmp_path / "one") == pytest.approx(losses(tmp_path / "two"), abs=1e-5)


def test_of_two_ranks_one_says_what_is_wrong(built, tmp_path):
    done = torchrun(built, tmp_path / "run", batch__size=3, batch__micro=1)
    assert done.returncode != 0
    assert done.stderr.count("splice: batch.size 3: not a multiple of batch.micro 1 x 2 data ranks") == 1


def test_validation_is_the_same_in_any_micro_batch_with_negatives_too(built, tmp_path):
    """In training the memory reaches into the micro-batch's other examples; an evaluation is of each example alone."""
    changes = {"fot__layers": "1", "fot__local_context": 32, "fot__cross_batch_range": 6, "optimizer__lr": 1e-9}
    for micro in (1, 4):
        output = tmp_path / str(micro)
        assert (
            train(built, output, batch__micro=micro, steps=1, evaluation__every=1, evaluation__holdout=2, **changes)
            == 0
        )
    one, four = (lines(tmp_path / name)[-1]["validation"]["loss"] for name in "14")
    assert one == pytest.approx(four, abs=1e-6)


def test_a_mixture_is_trained_on_as_a_dataset_is(built, tmp_path):
    mixture = tmp_path / "mix.yaml"
    mixture.write_text(f"tokens: 16384\ndatasets: [{{dataset: {built}, share: 1.0}}]\n")
    assert run(["mix", str(mixture), "--output", str(tmp_path / "mixed")]) == 0
    assert train(tmp_path / "mixed", tmp_path / "run", steps=2) == 0
    assert len(losses(tmp_path / "run")) == 2


CONFIGS = sorted((Path(__file__).parents[2] / "configs" / "train").glob("*.yaml"))


@pytest.mark.parametrize("config", CONFIGS, ids=lambda path: path.stem)
def test_the_configurations_are_valid_and_have_the_papers_sizes(config):
    from splice.train.settings import resolve

    settings = resolve({}, config)
    if "tiny" in config.stem:
        return
    tokens = settings.batch.size * settings.context.length
    assert tokens == (2**19 if config.stem.startswith("13b") else 2**18)  # a step
    budget = {"270m_base": 6.3e9, "270m_moe_g8": 6.3e9, "3b_fot": 5.4e9}.get(
        config.stem, 1e9 if config.stem.startswith("270m") else 2e9
    )
    assert settings.steps * tokens == pytest.approx(budget, rel=1e-3)
    if settings.fot.layers:
        assert settings.context.length == 16 * settings.fot.local_context
