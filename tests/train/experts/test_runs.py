"""`splice train` with experts, as a user runs it: every routing trains, logs, goes on and exports; two ranks train as one."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from splice.cli import run
from splice.train.checkpoint import stored_weights
from splice.train.hf_read import read_config

TINY = {
    "model.hidden-size": 32,
    "model.layers": 2,
    "model.heads": 4,
    "model.kv-heads": 2,
    "model.head-size": 16,
    "model.mlp-size": 64,
    "context.length": 128,
    "batch.size": 4,
    "batch.micro": 4,
    "steps": 6,
    "checkpoint.every": 3,
    "optimizer.lr": 3e-3,
    "log.experts": 2,
}
ROUTINGS = {
    "token_choice": {"granularity": 4, "expansion": 2, "z": 1e-3},
    "switch": {"routing": "token_choice", "capacity": 1.25, "jitter": 0.05, "every": 2},
    "expert_choice": {"granularity": 2, "expansion": 2, "group": 4},
    "mixture_of_tokens": {"granularity": 2, "expansion": 4, "activation": "gelu"},
    "threshold": {"granularity": 4, "sparsity": 0.1, "layers": "1"},
}


def arguments(data, output, routing="token_choice", **changes):
    experts = {"routing": routing} | ROUTINGS[routing] if routing else {}
    settings = (
        TINY | {f"model.experts.{name}": value for name, value in experts.items()} | {"data": data, "output": output}
    )
    settings |= {name.replace("__", "."): value for name, value in changes.items()}
    words = []
    for name, value in settings.items():
        flag = "--" + name.replace("_", "-")
        if value is not None:
            words += [flag] if value is True else [flag, str(value)]
    return words


def train(data, output, routing="token_choice", **changes):
    return run(["train", *arguments(data, output, routing, **changes)])


def lines(path):
    found = [json.loads(line) for line in path.read_text().splitlines()]
    for line in found:
        for name in ("seconds", "tokens_per_second", "memory_gib", "mfu"):
            line.pop(name, None)
    return found


@pytest.fixture(scope="module", params=ROUTINGS)
def finished(request, built, tmp_path_factory):
    output = tmp_path_factory.mktemp("runs") / "whole"
    assert train(built, output, request.param, evaluation__holdout=4) == 0
    return request.param, output


def test_a_run_tells_what_its_experts_did(finished):
    name, output = finished
    steps = [line for line in lines(output / "metrics.jsonl") if "loss" in line]
    assert steps[-1]["loss"] < steps[0]["loss"]
    experts = read_config(output / "step-000006").experts
    told = lines(output / "experts.jsonl")
    assert [line["step"] for line in told] == [2, 4, 6]
    tokens = 4 * 128
    for line in told:
        assert list(line["layers"]) == [str(layer) for layer in experts.layers]
        for layer in line["layers"].values():
            assert len(layer["load"]) == experts.count
            total = sum(layer["load"])
            assert layer["dead"] == layer["load"].count(0)
            if name in ("token_choice", "expert_choice"):
                assert total == tokens * experts.active
            elif name == "switch":
                assert total == pytest.approx(tokens * (1 - layer["dropped"]))
            elif name == "mixture_of_tokens":
                assert total == tokens // experts.group * experts.count
            else:
                assert 0 < total < tokens * experts.count
    shares = [layer["dropped"] for layer in told[0]["layers"].values()]
    assert steps[1]["dropped"] == pytest.approx(sum(shares) / len(shares))
    assert steps[1]["dead_experts"] == sum(layer["dead"] for layer in told[0]["layers"].values())
    assert steps[1]["experts_per_token"] == pytest.approx(
        sum(sum(layer["load"]) for layer in told[0]["layers"].values()) / len(experts.layers) / tokens
    )
    about = json.loads((output / "run.json").read_text())
    assert about["experts"]["active"] == experts.active
    assert about["flops_per_token_by_the_scaling_law"] > 0
    assert about["active_parameters"] <= about["parameters"]


def test_a_run_that_lost_its_last_steps_goes_on_to_the_same(finished, built, tmp_path):
    """Jitter and what the experts did included."""
    name, whole = finished
    output = tmp_path / "run"
    shutil.copytree(whole, output)
    shutil.rmtree(output / "step-000006")
    assert train(built, output, name, resume=True, evaluation__holdout=4) == 0
    for file in ("metrics.jsonl", "experts.jsonl"):
        assert lines(output / file) == lines(whole / file)
    kept, again = (dict(stored_weights(path / "step-000006")) for path in (whole, output))
    assert all(torch.equal(kept[name], again[name]) for name in kept)


def test_a_checkpoint_is_drawn_and_started_from(finished, built, tmp_path):
    _, output = finished
    assert run(["plot", str(output), "--output", str(tmp_path / "figures")]) == 0
    assert (tmp_path / "figures" / "expert_load.png").stat().st_size > 10_000
    start = output / "step-000006"
    sizes = {key.replace(".", "__"): None for key in TINY if key.startswith("model.")}
    assert train(built, tmp_path / "on", None, init=start, steps=1, **sizes) == 0
    assert read_config(tmp_path / "on" / "step-000001").experts == read_config(start).experts
    first = next(line for line in lines(output / "metrics.jsonl") if "loss" in line)["loss"]
    assert lines(tmp_path / "on" / "metrics.jsonl")[0]["loss"] < first


@pytest.mark.parametrize(
    "changes",
    [
        {"context__method": "yarn", "context__original": 32},
        {"fot__layers": "1", "fot__local_context": 32},
        {"fot__layers": "1", "fot__local_context": 32, "fot__cross_batch_range": 6, "document_mask": True},
        {"recompute": True, "dtype": "bfloat16"},
        {"kernels": "grouped"},
    ],
    ids=str,
)
def test_experts_work_with_every_method_and_export(built, tmp_path, changes):
    transformers = pytest.importorskip("transformers")
    assert train(built, tmp_path / "run", **changes) == 0
    assert run(["export", str(tmp_path / "run" / "step-000006"), "--output", str(tmp_path / "hf")]) == 0
    from splice.train.restore import load_model

    ours = load_model(tmp_path / "run" / "step-000006", torch.float32, torch.device("cpu"))
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "hf")
    assert type(theirs).__name__ == "MixtralForCausalLM"
    ids = torch.randint(0, 300, (1, 32), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert float((ours(ids) - theirs(ids).logits).abs().max()) < 1e-5


def test_the_grouped_product_trains_as_the_plain_kernels_do(built, tmp_path):
    for kernels in ("plain", "grouped"):
        assert train(built, tmp_path / kernels, kernels=kernels) == 0
    plain, grouped = (lines(tmp_path / name / "metrics.jsonl") for name in ("plain", "grouped"))
    assert [line["loss"] for line in plain] == pytest.approx([line["loss"] for line in grouped], abs=1e-5)


def test_a_mixture_of_tokens_becomes_token_choice(built, tmp_path):
    """Its controller is the router, its experts are the experts (thesis 4.4.5)."""
    mixture = {"granularity": 2, "expansion": 4, "group": 4}
    assert train(built, tmp_path / "mixed", "mixture_of_tokens", model__experts__activation="swiglu") == 0
    sizes = {key.replace(".", "__"): None for key in TINY if key.startswith("model.")}
    start = tmp_path / "mixed" / "step-000006"
    changes = {"init": start, "model__experts__routing": "token_choice", "optimizer__lr": 1e-12}
    assert train(built, tmp_path / "chosen", None, steps=1, **sizes, **changes) == 0
    found = read_config(tmp_path / "chosen" / "step-000001").experts
    assert (found.routing, found.granularity, found.expansion, found.active) == ("token_choice", 2, 4, 2)
    assert (found.renormalise, found.balance, found.group) == (True, 0.01, 1)
    before, after = (dict(stored_weights(path)) for path in (start, tmp_path / "chosen" / "step-000001"))
    assert before.keys() == after.keys()
    assert all(torch.allclose(before[name], after[name], atol=1e-6) for name in before)
    assert mixture["granularity"] == found.granularity
    assert run(["export", str(tmp_path / "chosen" / "step-000001"), "--output", str(tmp_path / "hf")]) == 0


def test_a_dense_model_is_cut_into_slices(built, tmp_path):
    assert train(built, tmp_path / "dense", None) == 0
    start = tmp_path / "dense" / "step-000006"
    sizes = {key.replace(".", "__"): None for key in TINY if key.startswith("model.")}
    cut = {"init": start, "model__experts__routing": "threshold", "model__experts__granularity": 4}
    # a low threshold: every gate is on, so that the first loss is what the dense model goes on with
    first = {}
    for name, changes in {"dense": {"init": start}, "cut": cut | {"model__experts__tau": 1e-6}}.items():
        assert train(built, tmp_path / f"{name} on", None, steps=1, **sizes, **changes) == 0
        first[name] = lines(tmp_path / f"{name} on" / "metrics.jsonl")[0]["loss"]
    assert first["cut"] == pytest.approx(first["dense"], abs=1e-4)


def torchrun(data, output, processes=2, **changes):
    launcher = [
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        str(processes),
        "--rdzv-backend",
        "c10d",
        "--rdzv-endpoint",
        "localhost:0",
    ]
    command = [sys.executable, *launcher, "-m", "splice.train", *arguments(data, output, **changes)]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=300, env=os.environ | {"OMP_NUM_THREADS": "1"}, check=False
    )


@pytest.mark.parametrize(
    ("routing", "ranks"),
    [
        ("token_choice", {"expert_parallel": 2, "context_parallel": 2, "recompute": True, "batch__micro": 2}),
        ("switch", {}),
        ("mixture_of_tokens", {"expert_parallel": 2, "processes": 4, "batch__size": 16}),
    ],
    ids=str,
)
def test_ranks_train_as_one_and_either_resumes_the_other(built, tmp_path, routing, ranks):
    """Experts exchanged, sharded with the rest, or both; losses, and what is told of the experts."""
    changes = {"batch__micro": 2} | ranks
    if routing == "mixture_of_tokens":
        changes["batch__micro"] = 4
    here = {name: value for name, value in changes.items() if "parallel" not in name and name != "processes"}
    assert train(built, tmp_path / "one", routing, **here) == 0
    together = torchrun(built, tmp_path / "two", routing=routing, **changes)
    assert together.returncode == 0, together.stderr
    one, two = (lines(tmp_path / name / "metrics.jsonl") for name in ("one", "two"))
    assert [line["loss"] for line in two] == pytest.approx([line["loss"] for line in one], abs=1e-5)
    assert [line["grad_norm"] for line in two] == pytest.approx([line["grad_norm"] for line in one], rel=1e-3)
    one, two = (lines(tmp_path / name / "experts.jsonl") for name in ("one", "two"))
    assert one[0]["layers"]["1"]["load"] == two[0]["layers"]["1"]["load"]
    for name in ("one", "two"):
        shutil.rmtree(tmp_path / name / "step-000006")
    assert train(built, tmp_path / "two", routing, resume=True, **here) == 0
    again = torchrun(built, tmp_path / "one", routing=routing, resume=True, **changes)
    assert again.returncode == 0, again.stderr
    one, two = (lines(tmp_path / name / "metrics.jsonl") for name in ("one", "two"))
    assert [line["loss"] for line in two] == pytest.approx([line["loss"] for line in one], abs=1e-5)


def test_dry_run_says_what_experts_cost(built, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "250")
    assert train(built, tmp_path / "run", dry_run=True) == 0
    said = capsys.readouterr().out
    attention = 2 * 32 * 16 * 6
    dense, routers = 2 * (attention + 3 * 32 * 64) + 5 * 32, 2 * 32 * 8
    vocabulary = next(line for line in said.splitlines() if line.startswith("model ")).split("vocabulary ")[1].strip()
    embedding = 2 * 32 * int(vocabulary.replace(",", ""))
    assert f"{dense + routers + 2 * 3 * 32 * 64 + embedding:,}" in said  # R = 2
    assert f"{dense + routers + embedding:,}" in said  # active
    assert "token_choice in every layer: E = G R = 4 x 2 experts of size 16 (swiglu), 4 computed for a token" in said
    assert "active 4, dropless, renormalise True, balance 0.01, z 0.001, jitter 0.0" in said
    assert "as MixtralForCausalLM" in said
    assert f"{2 * (12 * 32**2 * 6 + 32 * 8 * 14):.4g} a token" in said
    assert "experts at work" in said
    assert not (tmp_path / "run").exists()


REFUSED = {
    "granularity": ({"granularity": 3}, "model.experts.granularity 3: does not divide model.mlp_size 64"),
    "active": ({"active": 9}, "model.experts.active 9: there are only 8 experts (granularity 4 x expansion 2)"),
    "layer": ({"layers": "1,2"}, "model.experts.layers: no layer 2; the model has layers 0 to 1"),
    "no layer": ({"layers": "-1"}, "model.experts.layers: no layer -1"),
    "every": ({"every": 3}, "model.experts.every 3: the model has only 2 layers"),
    "both": ({"every": 2, "layers": "1"}, "give layers or every, not both"),
    "switch": ({"active": 1, "renormalise": "yes"}, "the one active expert always has weight 1"),
    "another routing's": ({"group": 4}, "model.experts.group: token_choice has no use for it, it is for expert_choice and mixture_of_tokens"),
    "no routing": ({"routing": None}, "the model has no expert layers; choose a routing with --model.experts.routing"),
    "infinite": ({"capacity": "inf"}, "--model.experts.capacity: Input should be a finite number"),
    "infinite loss": ({"balance": "inf"}, "--model.experts.balance: Input should be a finite number"),
    "bound": ({"jitter": 1}, "--model.experts.jitter: Input should be less than 1"),
    "routing": ({"routing": "hash"}, "hash"),
}  # fmt: skip
REFUSED_ROUTINGS = {
    "group": ("expert_choice", {"batch__micro": 2}, "a forward pass has --batch.micro 2 rows, which do not fill groups of 4 sequences; take --batch.micro 4"),
    "the default group": ("expert_choice", {"model__experts__group": None}, "model.experts.group 256: a forward pass has --batch.micro 4 rows"),
    "tokens of a group": ("expert_choice", {"model__experts__group": 2, "model__experts__expansion": 4}, "each of 8 experts takes group x active / 8 = 0.5 tokens of a group"),
    "documents": ("expert_choice", {"document_mask": True}, "so documents would meet in the experts"),
    "documents of mixtures": ("mixture_of_tokens", {"document_mask": True}, "so documents would meet in the experts"),
    "negatives": ("expert_choice", {"fot__layers": "1", "fot__local_context": 32, "fot__cross_batch_range": 4}, "fot.cross_batch_range 4: memory layers see ends of other rows"),
    "expansion": ("threshold", {"model__experts__expansion": 2}, "threshold cuts the dense layer into slices and adds none"),
    "ranks": ("token_choice", {"expert_parallel": 2, "dry_run": None}, "does not divide the number of processes of this run, 1; start a multiple of 2 with torchrun"),
    "more ranks": ("token_choice", {"expert_parallel": 3, "batch__size": 12}, "expert_parallel 3: does not divide the model's 8 experts"),
    "no experts": (None, {"expert_parallel": 2, "batch__micro": 2}, "expert_parallel: the model has no experts; leave it out"),
    "no kernels": (None, {"kernels": "grouped"}, "kernels: the model has no experts; leave it out"),
    "kernels": ("token_choice", {"kernels": "triton", "device": "cpu"}, "kernels triton: they compute on CUDA only"),
    "rows of grouped": ("token_choice", {"kernels": "grouped", "model__experts__granularity": 32}, "kernels grouped: torch's product wants rows of whole 16 bytes"),
    "one slice": ("threshold", {"model__experts__granularity": 1}, "that is one slice, the whole layer on or off"),
    "evaluation": ("expert_choice", {"evaluation__holdout": 4, "evaluation__rows": 3}, "evaluation: 3 rows are less than a group of 4"),
}  # fmt: skip


@pytest.mark.parametrize("name", [*REFUSED, *REFUSED_ROUTINGS])
def test_experts_that_cannot_be_are_refused_and_nothing_is_written(built, tmp_path, capsys, name):
    if name in REFUSED:
        experts, expected = REFUSED[name]
        routing, changes = "token_choice", {f"model__experts__{key}": value for key, value in experts.items()}
    else:
        routing, changes, expected = REFUSED_ROUTINGS[name]
    code = train(built, tmp_path / "run", routing, **{"dry_run": True} | changes)
    assert code == 2
    assert expected in " ".join(capsys.readouterr().err.replace("│", " ").split())
    assert not list(tmp_path.glob("run/*.json*"))


STARTS = {
    "dense": (None, {"routing": "token_choice"}, "the model that --init names is dense, and only threshold can be made of one"),
    "another routing": ("token_choice", {"routing": "expert_choice"}, "the model that --init names has token_choice, and of routings only"),
    "another size": ("token_choice", {"granularity": 8}, "another shape than the model that --init names: granularity 8 (the model has 4)"),
    "activation": (None, {"routing": "threshold", "activation": "relu"}, "slices of the model that --init names are swiglu"),
    "layers": ("token_choice", {"every": 2}, "its layers are given; leave the sizes and the layers out"),
}  # fmt: skip


@pytest.fixture(scope="module")
def starts(built, tmp_path_factory):
    root = tmp_path_factory.mktemp("starts")
    for routing in (None, "token_choice"):
        assert train(built, root / str(routing), routing, steps=1) == 0
    return root


@pytest.mark.parametrize("name", STARTS)
def test_a_start_that_has_other_experts_is_refused(starts, built, tmp_path, capsys, name):
    routing, experts, expected = STARTS[name]
    sizes = {key.replace(".", "__"): None for key in TINY if key.startswith("model.")}
    changes = {f"model__experts__{key}": value for key, value in experts.items()}
    start = starts / str(routing) / "step-000001"
    assert train(built, tmp_path / "run", None, init=start, dry_run=True, **sizes, **changes) == 2
    assert expected in " ".join(capsys.readouterr().err.split())


def test_what_is_no_size_may_change_with_a_start(starts, built, tmp_path):
    sizes = {key.replace(".", "__"): None for key in TINY if key.startswith("model.")}
    changes = {"model__experts__capacity": 1.5, "model__experts__active": 2, "model__experts__balance": 0.1}
    start = starts / "token_choice" / "step-000001"
    assert train(built, tmp_path / "run", None, init=start, steps=1, **sizes, **changes) == 0
    found = read_config(tmp_path / "run" / "step-000001").experts
    assert (found.capacity, found.active, found.balance, found.granularity, found.z) == (1.5, 2, 0.1, 4, 1e-3)
    start, changes = tmp_path / "run" / "step-000001", {"model__experts__capacity": 0}
    assert train(built, tmp_path / "dropless", None, init=start, steps=1, **sizes, **changes) == 0
    assert read_config(tmp_path / "dropless" / "step-000001").experts.capacity is None


def test_another_expert_setting_is_no_resumption(starts, built, tmp_path, capsys):
    shutil.copytree(starts / "token_choice", tmp_path / "run")
    assert train(built, tmp_path / "run", resume=True, steps=1, model__experts__z=0.5) == 2
    assert "model.experts.z: 0.001 there, 0.5 here" in capsys.readouterr().err


def test_context_ranks_belong_to_a_run_whose_noise_or_capacity_they_share(built, tmp_path):
    from splice.train.plan import make_plan
    from splice.train.settings import resolve

    def identity(**experts):
        given = {name: value for name, value in TINY.items() if not name.startswith("log")}
        given = {name.replace("-", "_"): value for name, value in given.items()} | {
            "data": built,
            "output": tmp_path / "run",
        }
        given |= {f"model.experts.{name}": value for name, value in ({"routing": "token_choice"} | experts).items()}
        return make_plan(resolve(given | {"context_parallel": 2}, None), 2).identity

    assert identity(capacity=1.0)["context_parallel"] == identity(jitter=0.1)["context_parallel"] == 2
    assert "context_parallel" not in identity()


def test_layers_of_a_file_are_a_list_a_number_or_words():
    from splice.train.settings import TrainSettings

    for value, wanted in ((1, [1]), ([1, 3], [1, 3]), ("1,3", [1, 3])):
        assert TrainSettings.model_validate({"model": {"experts": {"layers": value}}}).model.experts.layers == wanted


def test_the_readmes_configuration_is_one(tmp_path, built, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "250")
    config = Path(__file__).parents[3] / "configs" / "train" / "moe_tiny.yaml"
    words = ["train", "--config", str(config), "--data", str(built), "--output", str(tmp_path / "run"), "--dry-run"]
    assert run([*words, "--batch.size", "4", "--evaluation.holdout", "1"]) == 0
    assert "4 x 4 experts of size 88" in capsys.readouterr().out
