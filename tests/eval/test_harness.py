"""Our engine as lm-eval's model: answers are those of lm-eval's own hf model; what prompts share is read once."""

from __future__ import annotations

import contextlib
import functools
import io
import json
import math
import random
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("lm_eval")

from lm_eval import simple_evaluate
from lm_eval.api.instance import Instance
from lm_eval.api.registry import get_model
from lm_eval.tasks import TaskManager
from rich.console import Console

from splice.cli import run
from splice.errors import SpliceError
from splice.eval.compare import compare
from splice.eval.harness import SpliceLM, find_tasks, open_tasks, run_harness
from splice.eval.harness import run as harness_run
from splice.eval.harness.share import share
from splice.eval.models import open_model
from splice.eval.results import RESULT, read_results
from splice.eval.screen import Screen
from splice.eval.settings import EngineSettings

WORDS = [
    "kana",
    "loter",
    "misol",
    "ruvi_x",
    "kater",
    "lovi9",
    "misols",
    "runa",
    "topic1_3",
    "x\n",
    "É",
    "topic7_11",
    "  ",
]
CHOICE = """
task: choices
dataset_path: json
dataset_kwargs: {data_files: {test: TEST, validation: SHOTS}}
test_split: test
fewshot_split: validation
fewshot_config: {sampler: first_n}
num_fewshot: 3
output_type: multiple_choice
doc_to_text: "Question: {{question}}\\nA. {{choices[0]}}\\nB. {{choices[1]}}\\nAnswer:"
doc_to_choice: CHOICES
doc_to_target: answer
metric_list: [{metric: acc}, {metric: acc_norm}]
"""
TASKS = {
    "letters": CHOICE.replace("task: choices", "task: letters").replace("CHOICES", '["A", "B", "C", "D"]'),
    "texts": CHOICE.replace("task: choices", "task: texts").replace("CHOICES", "choices").replace("fewshot: 3", "fewshot: 0"),
    "spaced": CHOICE.replace("task: choices", "task: spaced").replace("CHOICES", "choices").replace("Answer:", "Answer:  "),
    "bare": CHOICE.replace("task: choices", "task: bare").replace("CHOICES", "choices").replace(
        '"Question: {{question}}\\nA. {{choices[0]}}\\nB. {{choices[1]}}\\nAnswer:"', '""').replace("fewshot: 3", "fewshot: 0"),
    "lines": """
task: lines
dataset_path: json
dataset_kwargs: {data_files: {test: TEST, validation: SHOTS}}
test_split: test
fewshot_split: validation
num_fewshot: 2
output_type: generate_until
doc_to_text: "Question: {{question}}\\nAnswer:"
doc_to_target: "{{choices[answer]}}"
generation_kwargs: {until: ["\\n", "topic"], max_gen_toks: 24, do_sample: false}
metric_list: [{metric: exact_match}]
""",
    "endless": """
task: endless
dataset_path: json
dataset_kwargs: {data_files: {test: TEST}}
test_split: test
output_type: generate_until
doc_to_text: "{{question}}"
doc_to_target: "{{choices[answer]}}"
generation_kwargs: {max_gen_toks: 40, temperature: 0.0, until: []}
metric_list: [{metric: exact_match}]
""",
    "cloze": """
task: cloze
dataset_path: json
dataset_kwargs: {data_files: {test: TEST}}
test_split: test
output_type: loglikelihood
doc_to_text: "{{question}}"
doc_to_target: "{{choices[0]}}"
metric_list: [{metric: perplexity}, {metric: acc}]
""",
    "rolling": """
task: rolling
dataset_path: json
dataset_kwargs: {data_files: {test: TEST}}
test_split: test
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{text}}"
metric_list: [{metric: word_perplexity}, {metric: byte_perplexity}, {metric: bits_per_byte}]
""",
}  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def _offline(tmp_path_factory):
    import datasets

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")
        patch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("datasets"))
        yield


def words(rng, count):
    return " ".join(rng.choice(WORDS) for _ in range(count)).strip() or "kana"


@pytest.fixture(scope="module")
def tasks(tmp_path_factory):
    """A directory with TASKS, over 24 documents and 6 examples."""
    directory = tmp_path_factory.mktemp("tasks")
    rng = random.Random(5)
    for name, count in (("test", 24), ("shots", 6)):
        rows = [
            {
                "question": words(rng, rng.randrange(3, 20)),
                "choices": [words(rng, rng.randrange(1, 6)) for _ in range(4)],
                "answer": rng.randrange(4),
                "text": words(rng, rng.randrange(1, 400)),
            }
            for _ in range(count)
        ]
        (directory / f"{name}.json").write_text("\n".join(map(json.dumps, rows)))
    for name, text in TASKS.items():
        text = text.replace("TEST", str(directory / "test.json")).replace("SHOTS", str(directory / "shots.json"))
        (directory / f"{name}.yaml").write_text(text)
    return directory


@pytest.fixture(scope="module")
def manager(tasks):
    return TaskManager(include_path=str(tasks), include_defaults=False)


SETTINGS = EngineSettings(dtype="float32", device="cpu", chunk=64, batch_tokens=512)


def hf(directory, **options):
    models = pytest.importorskip("lm_eval.models.huggingface", exc_type=ImportError)
    return models.HFLM(pretrained=str(directory), device="cpu", dtype="float32", **options)


def ours(directory, settings=SETTINGS, **options):
    return SpliceLM(open_model(str(directory), settings), settings, **options)


def evaluated(lm, names, manager):
    """Of each task its figures, and each document's answers."""
    with contextlib.redirect_stdout(io.StringIO()):
        found = simple_evaluate(lm, tasks=list(names), task_manager=manager, bootstrap_iters=0)
    answers = {
        task: [row["resps"] for row in sorted(rows, key=lambda row: row["doc_id"])]
        for task, rows in found["samples"].items()
    }
    return found["results"], answers


def near(one, other, tolerance=1e-4):
    """Equal, numbers but for rounding."""
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(near(a, b, tolerance) for a, b in zip(one, other, strict=True))
    if isinstance(one, float):
        return math.isclose(one, other, rel_tol=1e-6, abs_tol=tolerance)
    return one == other


@pytest.fixture(scope="module")
def of_hf(llama, manager):
    return evaluated(hf(llama), TASKS, manager)


@pytest.mark.parametrize("backend", ["splice", "transformers"])
def test_answers_are_those_of_hf(llama, manager, of_hf, backend):
    figures, answers = evaluated(ours(llama, SETTINGS.model_copy(update={"backend": backend})), TASKS, manager)
    wanted_figures, wanted = of_hf
    for task in TASKS:
        assert near(answers[task], wanted[task]), task
        assert near(list(figures[task].values()), list(wanted_figures[task].values())), task
    flags = [flag for task in ("letters", "texts") for row in wanted[task] for ((_, flag),) in row]
    assert len(flags) == 2 * 24 * 4
    assert len({text for row in wanted["lines"] for ((text,),) in [row]}) > 1


def test_greedy_flags_are_those_of_hf(llama):
    """Continuations that the model generates, as they are and with another word after them."""
    model, other, rng = ours(llama), hf(llama), random.Random(6)
    contexts = [words(rng, 10) for _ in range(40)]
    said = model.generate_until([request("generate_until", c, {"max_gen_toks": 1}) for c in contexts])
    asked = [
        request("loglikelihood", c, text + more)
        for c, text in zip(contexts, said, strict=True)
        for more in ("", " kana")
        if text
    ]
    found, wanted = model.loglikelihood(asked), other.loglikelihood(asked)
    assert near(found, wanted)
    assert {flag for _, flag in found} == {True, False}


def request(kind, *arguments):
    return Instance(kind, {}, arguments, 0, ("a task", 7, 1))


def test_a_model_without_a_shared_prefix(make_model, manager):
    import transformers

    config = transformers.MistralConfig(
        vocab_size=640, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
        intermediate_size=96, max_position_embeddings=4096, sliding_window=16,
    )  # fmt: skip
    directory = make_model(config)
    model = ours(directory)
    assert model.model.note is not None
    _, answers = evaluated(model, ["letters", "lines", "rolling"], manager)
    _, wanted = evaluated(hf(directory), ["letters", "lines", "rolling"], manager)
    assert all(near(answers[task], wanted[task]) for task in wanted)


@pytest.fixture(scope="module")
def with_bos(llama, tmp_path_factory):
    """The same model, whose tokenizer begins texts with BOS, and whose eos ids are two."""
    directory = tmp_path_factory.mktemp("bos") / "model"
    shutil.copytree(llama, directory)
    path = directory / "tokenizer.json"
    facts = json.loads(path.read_text())
    bos = {"SpecialToken": {"id": "<s>", "type_id": 0}}
    text = {"Sequence": {"id": "A", "type_id": 0}}
    facts["post_processor"] = {
        "type": "TemplateProcessing", "single": [bos, text], "pair": [bos, text, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [0], "tokens": ["<s>"]}},
    }  # fmt: skip
    path.write_text(json.dumps(facts))
    config = json.loads((directory / "generation_config.json").read_text())
    (directory / "generation_config.json").write_text(json.dumps(config | {"eos_token_id": [1, *range(300, 330)]}))
    return directory


def test_bos_and_several_eos(with_bos, llama, manager):
    names = ["letters", "bare", "lines", "endless", "rolling"]
    model = ours(with_bos)
    assert model.tok_encode("kana")[0] == 0
    assert model.tok_encode("<s>kana") == model.tok_encode("kana")
    _, answers = evaluated(model, names, manager)
    _, wanted = evaluated(hf(with_bos), names, manager)
    assert all(near(answers[task], wanted[task]) for task in names)
    assert evaluated(ours(llama), ["endless"], manager)[1] != {"endless": answers["endless"]}


def test_bos_as_asked(llama, manager):
    _, answers = evaluated(ours(llama, SETTINGS.model_copy(update={"bos": "yes"})), ["letters", "lines"], manager)
    _, wanted = evaluated(hf(llama, add_bos_token=True), ["letters", "lines"], manager)
    assert all(near(answers[task], wanted[task]) for task in wanted)


def fed(model):
    """The tokens of each forward pass from here on."""
    net = model.model.engine.reader._net
    run, sizes = net.run, []
    net.run = lambda ids, cache, at: (sizes.append(len(ids)), run(ids, cache, at))[1]
    return sizes


def test_examples_are_read_once_for_each_subject(llama):
    """As MMLU: subjects with examples of their own, questions of four labels."""
    model, rng = ours(llama), random.Random(1)
    asked = []
    for subject in range(6):
        examples = f"About topic{subject}.\n\n" + "\n\n".join(f"{words(rng, 40)}\nAnswer: A" for _ in range(5))
        for _ in range(30):
            context = f"{examples}\n\n{words(rng, 20)}\nAnswer:"
            asked += [request("loglikelihood", context, f" {label}") for label in "ABCD"]
    random.Random(2).shuffle(asked)
    whole = sum(len(model.tok_encode("".join(r.args))) for r in asked)
    suffixes = sum(len(model.tok_encode(c[c.rindex("A\n\n") :])) for c in {r.args[0] for r in asked})
    prefixes = len({r.args[0][: r.args[0].rindex("A\n\n")] for r in asked})
    sizes = fed(model)
    model.loglikelihood(asked)
    assert prefixes == 6
    assert sum(sizes) < whole / 20
    assert sum(sizes) < 1.5 * suffixes + whole / len(asked) * 6


def test_one_prefix_is_read_once_for_generation_too(llama):
    model, rng = ours(llama), random.Random(1)
    prefix = words(rng, 600)
    asked = [
        request("generate_until", f"{prefix}\n{words(rng, 5)}", {"until": ["\n"], "max_gen_toks": 4}) for _ in range(50)
    ]
    tokens = len(model.tok_encode(prefix))
    sizes = fed(model)
    model.generate_until(asked)
    assert tokens > 1000
    assert sum(sizes) < 2 * tokens + 50 * 40


def test_generation_stops_at_its_text(llama):
    """Within a token of it, though the text is of several."""
    model = ours(llama)

    def said(until):
        return model.generate_until([request("generate_until", "kana loter", {"until": until, "max_gen_toks": 60})])[0]

    whole = said([])
    ends = [whole[at : at + 3] for at in range(5, 40)]
    tokens = [model.tokenizer.decode(token) for token in range(len(model.tokenizer))]
    end = next(e for e in ends if "\ufffd" not in e and not any(e in token for token in tokens))  # no torn letters
    sizes = fed(model)
    assert said([end]) == whole[: whole.index(end)]
    assert len(sizes) < 50


def test_choices_share_their_context(llama):
    """As HellaSwag: nothing in common but the choices of one context, which is fed once; few passes for all."""
    model, rng = ours(llama, SETTINGS.model_copy(update={"batch_tokens": 4096})), random.Random(1)
    contexts = [words(rng, 30) for _ in range(20)]
    asked = [request("loglikelihood", c, f" {words(rng, 3)}") for c in contexts for _ in range(4)]
    once = sum(len(model.tok_encode(c)) for c in contexts)
    choices = sum(len(model.tok_encode(r.args[1])) for r in asked)
    sizes = fed(model)
    model.loglikelihood(asked)
    assert sum(sizes) < 1.6 * (once + choices)
    assert len(sizes) < 6


def cost(contexts, runs, a_pass):
    """Tokens that runs feed, by the definition. Asserts that they are a cut of the list, and share what they say."""
    assert [number for first, last, _ in runs for number in range(first, last)] == list(range(len(contexts)))
    for first, last, shared in runs:
        assert len({tuple(ids[:shared]) for ids in contexts[first:last]}) == 1
        assert all(len(ids) > shared for ids in contexts[first:last])
    return sum(a_pass + shared + sum(len(ids) - shared for ids in contexts[first:last]) for first, last, shared in runs)


def every_cut(count):
    for cuts in range(1 << (count - 1)):
        ends = [i + 1 for i in range(count - 1) if cuts >> i & 1] + [count]
        yield list(zip([0, *ends], ends, strict=False))


@pytest.mark.parametrize("seed", range(20))
def test_sharing_feeds_least(seed):
    draw = random.Random(seed)
    texts = {tuple(draw.choices((1, 2), (4, 1), k=draw.randrange(1, 14))) for _ in range(9)}
    contexts = [np.array(ids, np.int32) for ids in sorted(texts)]
    a_pass, room = draw.choice((0, 3, 10)), draw.choice((2, 5, 99))

    def shared(first, last):
        if last - first == 1:
            return len(contexts[first]) - 1
        some = contexts[first:last]
        most = min(map(len, some)) - 1
        return next((i for i in range(most) if len({ids[i] for ids in some}) > 1), most)

    def fits(runs):
        longest = [max(map(len, contexts[first:last])) - depth for first, last, depth in runs if last - first > 1]
        return max(longest, default=0) <= room

    best = min(
        cost(contexts, runs, a_pass)
        for cut in every_cut(len(contexts))
        if fits(runs := [(first, last, shared(first, last)) for first, last in cut])
    )
    runs = share(contexts, room, a_pass)
    assert cost(contexts, runs, a_pass) == best
    assert fits(runs)


def test_sharing_by_examples_and_by_nothing():
    subject = [np.array([0, s, *range(100), q, 5], np.int32) for s in range(3) for q in range(4)]
    assert share(subject, 4096, 32) == [(0, 4, 102), (4, 8, 102), (8, 12, 102)]
    assert share(subject, 4096, 1024) == [(0, 12, 1)]
    assert share([], 10, 1) == []
    assert share([np.array([4], np.int32)], 10, 1) == [(0, 1, 0)]


def test_what_is_too_long(llama):
    settings = SETTINGS.model_copy(update={"max_context": 32})
    model = ours(llama, settings)
    context = " ".join(["kana"] * 100)
    tokens = len(model.tok_encode(context))
    message = rf"a task, document 7: a prompt of {tokens} tokens and 2 for its answer is {tokens + 2 - 32} over the model's context of 32; .*truncate"
    three = model.tokenizer.decode(model.tok_encode(context)[:3])
    with pytest.raises(SpliceError, match=message):
        model.loglikelihood([request("loglikelihood", context, three)])
    with pytest.raises(SpliceError, match="5 for its answer"):
        model.generate_until([request("generate_until", context, {"max_gen_toks": 5})])
    whole = model.tokenizer.decode(model.tok_encode(context)[:32])
    model.loglikelihood(
        [request("loglikelihood", whole, " kana")]
    )  # fed: 32 tokens and more of the continuation but its last


def test_what_fits_to_the_token(llama):
    model = ours(llama, SETTINGS.model_copy(update={"max_context": 32}))
    one = next(i for i in range(3, 600) if len(model.tok_encode(model.tokenizer.decode(i) * 33)) == 33)
    text = model.tokenizer.decode(one)
    assert model.loglikelihood([request("loglikelihood", text * 32, text)])
    with pytest.raises(SpliceError, match="is 1 over the model's context of 32"):
        model.loglikelihood([request("loglikelihood", text * 33, text)])


def test_what_is_cut_is_cut_as_by_hf_and_counted(llama):
    model, other = (
        ours(llama, SETTINGS.model_copy(update={"max_context": 48}), too_long="truncate"),
        hf(llama, max_length=48),
    )
    rng = random.Random(3)
    contexts = [words(rng, count) for count in (100, 60, 5)]
    asked = [request("loglikelihood", c, f" {words(rng, 3)}") for c in contexts]
    assert near(model.loglikelihood(asked), other.loglikelihood(asked))
    assert model.truncated == 2
    asked = [request("generate_until", c, {"until": ["\n"], "max_gen_toks": 8}) for c in contexts]
    assert model.generate_until(asked) == other.generate_until(asked)
    assert model.truncated == 4
    asked = [request("loglikelihood_rolling", c) for c in contexts]
    assert near(model.loglikelihood_rolling(asked), other.loglikelihood_rolling(asked))
    assert model.truncated == 4
    with pytest.raises(SpliceError, match="over the model's context of 48"):
        model.loglikelihood([request("loglikelihood", "kana", words(rng, 200))])


def test_memory(fot):
    """A prompt longer than the local context of 64 goes to the memory, all but its end."""
    model, rng = ours(fot), random.Random(4)
    asked = [request("loglikelihood", f"{words(rng, 120)}\nAnswer:", f" {label}") for label in "AB"]
    asked += [request("loglikelihood", words(rng, 50), " kana"), request("loglikelihood", "kana", " kana")]
    for (likelihood, _), one in zip(model.loglikelihood(asked), asked, strict=True):
        context, continuation = model._pairs([one.args])[0]
        prefix = model._reader.read(context[:-1].tolist(), len(continuation) + 1)
        alone = model._reader.score(prefix, [model_tree(context, continuation)])[0][0][0]
        assert math.isclose(sum(alone), likelihood, abs_tol=1e-4)
    assert model.generate_until([request("generate_until", words(rng, 90), {"max_gen_toks": 10})])


def model_tree(context, continuation):
    from splice.eval.tree import grow

    return grow(context[-1:].tolist(), [continuation.tolist()])


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"do_sample": True, "temperature": 0.7}, "do_sample=True, temperature=0.7"),
        ({"temperature": 0.5}, "temperature=0.5"),
        ({"num_beams": 4}, "num_beams=4"),
    ],
)
def test_only_greedy(llama, how, said):
    with pytest.raises(SpliceError, match=f"a task, document 7: generated with {said}, and only greedy"):
        ours(llama).generate_until([request("generate_until", "kana", how)])


def test_sampling_that_is_switched_off(llama):
    how = {"do_sample": False, "temperature": 0.7, "top_p": 0.9, "num_beams": 1, "until": "\n", "max_tokens": 3}
    assert ours(llama).generate_until([request("generate_until", "kana", how)])


def test_empty_prompts(llama):
    model = ours(llama)
    with pytest.raises(SpliceError, match="an empty prompt, and no BOS"):
        model.generate_until([request("generate_until", "", {})])
    with pytest.raises(SpliceError, match="its continuation '' adds no token"):
        model.loglikelihood([request("loglikelihood", "kana", "")])


def test_chat_templates(llama, tmp_path):
    with pytest.raises(SpliceError, match="has no chat template; leave out --apply-chat-template"):
        ours(llama).apply_chat_template([{"role": "user", "content": "kana"}])
    directory = tmp_path / "chat"
    shutil.copytree(llama, directory)
    (directory / "chat_template.jinja").write_text(
        "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
        "[{{ m.role }}]{{ m.content }}{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
    )
    model = ours(directory)
    history = [{"role": "user", "content": "kana"}]
    assert model.apply_chat_template(history) == hf(directory).apply_chat_template(history) == "[user]kana[assistant]"
    assert "raise_exception" in model.chat_template(True)
    with pytest.raises(SpliceError, match=r"refuses a conversation of system, user .*no system"):
        model.apply_chat_template([{"role": "system", "content": "x"}, *history])


def test_lm_eval_opens_it_by_name(llama, manager):
    found = simple_evaluate(
        "splice",
        model_args=f"pretrained={llama},dtype=float32,chunk=64",
        tasks=["letters"],
        task_manager=manager,
        device="cpu",
    )
    assert found["config"]["backend"] == "splice"
    assert get_model("hf").__name__ == "HFLM"
    assert found["results"]["letters"]["sample_len"] == 24


def test_runs_and_their_results(llama, manager, tmp_path):
    model, text = open_model(str(llama), SETTINGS), io.StringIO()
    screen = Screen(Console(file=text, width=200))

    def run(output, names=("letters", "lines", "rolling", "cloze"), **options):
        return run_harness(model, names, SETTINGS, tmp_path / output, screen, manager, **options)

    found = run("a")
    assert "|letters|" in text.getvalue().replace(" ", "")
    directory = tmp_path / "a" / "harness-letters-lines-rolling-cloze"
    assert json.loads((directory / RESULT).read_text()) == found
    letters = next(row for row in found["by"]["task"] if row["value"] == "letters")
    assert found["harness"]["results"]["letters"]["acc,none"] == letters["acc,none"]["mean"]
    assert (letters["n"], found["metrics"]["acc,none"]["n"]) == (24, 48)
    assert set(found["metrics"]) == {"acc,none", "acc_norm,none", "exact_match,none"}
    assert found["harness"]["results"]["rolling"]["word_perplexity,none"] > 1
    assert found["harness"]["results"]["cloze"]["perplexity,none"] > 1
    assert not {"date", "pretty_env_info", "samples"} & found["harness"].keys()
    assert found["queries"] == 96
    before = (directory / RESULT).read_bytes()
    run("a")
    assert "finished before" in text.getvalue()
    run("b")
    assert (tmp_path / "b" / directory.name / RESULT).read_bytes() == before
    with pytest.raises(SpliceError, match="holds another run"):
        run("a", limit=3)
    assert run("c", limit=3)["subset"] == "the first 3 documents of each task"
    (result,), (other,) = read_results(tmp_path / "a"), read_results(tmp_path / "b")
    assert compare(result, other, 0).metrics["acc,none"]["mean"] == 0
    only = run("d", ["rolling"])
    assert only["metrics"] == {}
    shots = run("e", ["letters"], num_fewshot=0)
    assert shots["harness"]["n-shot"] == {"letters": 0}


def test_a_failed_run_leaves_its_place(llama, manager, tmp_path):
    settings = SETTINGS.model_copy(update={"max_context": 64})
    model, screen = open_model(str(llama), settings), Screen(Console(file=io.StringIO(), width=200))
    with pytest.raises(SpliceError, match=r"letters, document .* over the model's context of 64"):
        run_harness(model, ["letters"], settings, tmp_path, screen, manager)
    found = run_harness(model, ["letters"], settings, tmp_path, screen, manager, too_long="truncate")
    assert found["truncated"] > 0
    assert f"{found['truncated']:,} prompts were over" in screen.console.file.getvalue()


def test_names_of_tasks(manager):
    assert find_tasks(["l*", "letters"], manager) == ["letters", "lines"]
    with pytest.raises(SpliceError, match="leters: lm-evaluation-harness has no such task; did you mean letters"):
        find_tasks(["leters"], manager)
    with pytest.raises(SpliceError, match="--include-path no/where: no such directory"):
        open_tasks(Path("no/where"))


@pytest.fixture
def quick(monkeypatch):
    """Only the tasks of --include-path: lm-eval's own take seconds to list."""
    monkeypatch.setattr(harness_run, "TaskManager", functools.partial(TaskManager, include_defaults=False))


def test_the_command(llama, tasks, tmp_path, quick, capsys):
    """One model and two; what is run is what run_harness runs."""
    asked = [
        "eval",
        "harness",
        "--tasks",
        "letters,cloze",
        "--include-path",
        str(tasks),
        "--limit",
        "4",
        "--device",
        "cpu",
    ]
    asked += [
        "--model",
        str(llama),
        "--num-fewshot",
        "1",
        "--dtype",
        "float32",
        "--chunk",
        "64",
        "--batch_tokens",
        "512",
    ]
    assert run([*asked, "--output", str(tmp_path / "one")]) == 0
    assert "|letters|" in capsys.readouterr().out.replace(" ", "")
    (result,) = read_results(tmp_path / "one")
    assert result.name == "harness-letters-cloze"
    assert result.facts["settings"] == {
        "tasks": ["letters", "cloze"], "num_fewshot": 1, "limit": 4, "too_long": "error", "apply_chat_template": False,
        "batch_tokens": 512, "chunk": 64, "bos": "auto", "max_context": None,
    }  # fmt: skip
    assert len(result.samples) == 8
    other = tmp_path / "other"
    shutil.copytree(llama, other)
    assert run([*asked, "--model", str(other), "--output", str(tmp_path / "two")]) == 0
    assert len(list((tmp_path / "two").glob(f"*/{result.name}/{RESULT}"))) == 2
    assert (tmp_path / "two" / "other" / result.name / RESULT).is_file()


def test_the_command_in_words(capsys):
    assert run(["eval", "harness", "--help"]) == 0
    said = " ".join(capsys.readouterr().out.replace("│", " ").split())
    flags = (
        "--model",
        "--tasks",
        "--output",
        "--num-fewshot",
        "--limit",
        "--include-path",
        "--too-long",
        "--apply-chat-template",
    )
    assert all(flag in said for flag in (*flags, "--batch-tokens", "--max-context", "--dtype", "--backend"))
    assert "--data-dir" not in said


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ("leters", "leters: lm-evaluation-harness has no such task; did you mean letters"),
        (",", "--tasks: names none"),
        ("gone", "nowhere.json"),
        ("needy", "the code of a task in needy needs more than is installed: No module named 'not_installed'"),
    ],
)
def test_what_is_wrong_is_a_sentence(llama, tasks, tmp_path, quick, capsys, names, said):
    shutil.copytree(tasks, tmp_path / "tasks")
    lines = (tasks / "lines.yaml").read_text().replace(str(tasks / "test.json"), "nowhere.json")
    (tmp_path / "tasks" / "gone.yaml").write_text(lines.replace("task: lines", "task: gone"))
    (tmp_path / "tasks" / "needy.py").write_text("import not_installed\n\ndef one(doc): return ''\n")
    (tmp_path / "tasks" / "needy.yaml").write_text(
        "include: lines.yaml\ntask: needy\ndoc_to_text: !function needy.one\n"
    )
    asked = ["eval", "harness", "--include-path", str(tmp_path / "tasks"), "--model", str(llama), "--tasks", names]
    assert run([*asked, "--output", str(tmp_path / "out")]) in (1, 2)
    (line,) = (line for line in capsys.readouterr().err.splitlines() if line.startswith("splice: "))
    assert said in line
    assert not list(tmp_path.glob("out/*/plan.json"))


def test_lm_evals_own_command_line(llama, tasks, monkeypatch, capsys):
    monkeypatch.setattr("lm_eval.tasks.TaskManager", functools.partial(TaskManager, include_defaults=False))

    def called(model):
        asked = ["--tasks", "letters", "--include_path", str(tasks), "--limit", "2", "--device", "cpu"]
        asked += ["--model", "splice", "--model_args", f"pretrained={model},dtype=float32"]
        monkeypatch.setattr(sys, "argv", ["lm_eval", "run", *asked])
        runpy.run_module("splice.eval.harness", run_name="__main__")

    called(llama)
    assert "|letters|" in capsys.readouterr().out.replace(" ", "")
    with pytest.raises(SystemExit, match="no/where"):
        called("no/where")


def test_without_lm_eval():
    code = "import sys; sys.modules['lm_eval'] = None; import splice.eval.harness"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (
        "SpliceError: splice eval harness needs lm_eval, which is not installed: pip install 'splice-data[harness]'"
        in done.stderr
    )
