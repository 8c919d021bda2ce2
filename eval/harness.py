"""The engine as a model of lm-evaluation-harness: MMLU, GSM8K and the rest, with every prefix that prompts share read once.

    requests  ->  ids  ->  runs of contexts with a common prefix  ->  the reader  ->  answers

The ids are those of lm-eval's own `hf` model (the tokenizer is transformers'), and so are the answers: log-likelihoods but for
rounding, greedy flags, generated text. Two things differ. A prompt over the model's context is an error, where `hf` cuts it on the
left; and only greedy decoding is done. With FoT a prompt's prefix lies in the memory, which `hf` does not have.

    splice eval harness --model M --tasks mmlu,gsm8k --num-fewshot 5 --output DIR     results as of every evaluation
    python -m splice.eval.harness --model splice --model_args pretrained=M ...        lm-eval's own command line
"""

from __future__ import annotations

import difflib
import hashlib
import json
import math
import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from splice.errors import EvaluationFailed, SpliceError
from splice.files import read_json
from splice.lock import locked
from splice.train.hf_read import read_config
from splice.train.restore import find_model

from .models import Model, open_model
from .results import PLAN, RESULT, finish, start
from .run import FORMAT, LIBRARIES
from .screen import Screen
from .settings import EngineSettings, make
from .summary import summarise
from .tree import grow

try:
    import lm_eval.models  # noqa: F401 - its own models, which it looks for only while there are none
    from lm_eval import simple_evaluate
    from lm_eval.api.instance import Instance
    from lm_eval.api.model import LM
    from lm_eval.api.registry import register_model
    from lm_eval.tasks import TaskManager
    from lm_eval.utils import get_rolling_token_windows, handle_non_serializable, make_disjoint_window, make_table
    from tqdm import tqdm
except ModuleNotFoundError as missing:
    raise SpliceError(
        f"splice eval harness needs {str(missing.name).partition('.')[0]}, which is not installed: pip install 'splice-data[harness]'"
    ) from None

A_PASS = {"cpu": 32, "cuda": 1024}  # tokens that could be fed in the time which one forward pass more costs
WIDEST = 8192  # contexts of a run at most
SLAB = 1024  # contexts that are asked between two steps of the bar
CHARACTERS = 1 << 22  # that are tokenised at a time: transformers holds 100 bytes and more for each token
DEFAULT_TOKENS = 256  # generated at most where a task does not say, as of `hf`
LENGTHS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")  # names of that, the first counts
KNOWN = {*LENGTHS, "until", "do_sample", "temperature", "top_p", "top_k"}  # the last two do nothing to greedy decoding
ENVIRONMENT = ("samples", "date", "git_hash", "upper_git_hash", "pretty_env_info", "total_evaluation_time_seconds")
Ids = np.ndarray  # int32 [T]
TooLongRule = Literal["error", "truncate"]


@register_model("splice")
class SpliceLM(LM):
    """A model of ours for lm-eval.

    pretrained a model as open_model gives it, or the name of one to open with `settings`, or with `flags`: the settings that
               --model_args names
    too_long   a prompt over the model's context: "error", or "truncate": cut it on the left, as `hf` does, and count it
    truncated  how many requests that were

    Raises SpliceError as open_model, and where transformers has no tokenizer for the model.
    """

    def __init__(
        self,
        pretrained: str | Model,
        settings: EngineSettings | None = None,
        too_long: TooLongRule = "error",
        batch_size: object = None,  # lm-eval's; here a batch is so many tokens
        max_batch_size: object = None,
        **flags: Any,
    ) -> None:
        super().__init__()
        settings = settings or make(EngineSettings, flags)
        self.model = pretrained if isinstance(pretrained, Model) else open_model(pretrained, settings)
        directory = find_model(self.model.facts["name"])
        self._bos = {"auto": None, "yes": True, "no": False}[settings.bos]
        self.tokenizer = _tokenizer(directory, self._bos)
        self.too_long = too_long
        self.truncated = 0
        self._reader = self.model.engine.reader
        self._batch_tokens = settings.batch_tokens
        self._fot = read_config(directory).fot if self.model.facts["backend"] == "splice" else None
        self._ends = _ends(directory, self.tokenizer)

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """Of each (context, continuation): the continuation's log-likelihood in nats, and whether greedy decoding gives it.

        Raises SpliceError for a prompt over the context, and for one that the tokenizer leaves empty.
        """
        pairs = self._pairs([request.args for request in requests])
        pairs = [self._fitting(*pair, request) for pair, request in zip(pairs, requests, strict=True)]
        answers: list[tuple[float, bool]] = [(math.nan, False)] * len(requests)
        tail = max((len(continuation) for _, continuation in pairs), default=0)
        with _bar(requests, "loglikelihood", disable_tqdm) as bar:
            for prefix, suffixes, asked in self._runs([context for context, _ in pairs], tail):
                trees = [
                    grow(s, [pairs[n][1].tolist() for n in numbers]) for s, numbers in zip(suffixes, asked, strict=True)
                ]
                for numbers, paths in zip(asked, self._reader.score(prefix, trees), strict=True):
                    for number, (likelihoods, greedy) in zip(numbers, paths, strict=True):
                        answers[number] = (math.fsum(likelihoods), all(greedy))
                        self.cache_hook.add_partial("loglikelihood", requests[number].args, answers[number])
                        bar.update()
        return answers

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        """Of each (text,): the log-likelihood of all its tokens in nats, in windows of the model's context."""
        answers = []
        with _bar(requests, "loglikelihood_rolling", disable_tqdm) as bar:
            for request in requests:
                ids = self.tok_encode(request.args[0])
                windows = get_rolling_token_windows(ids, self.prefix_token_id, self.max_length or len(ids), 1)
                total = 0.0
                for context, continuation in map(make_disjoint_window, windows):
                    losses = self._reader.losses([*context, *continuation])
                    total -= math.fsum(losses[len(context) - 1 :].tolist())
                answers.append(total)
                self.cache_hook.add_partial("loglikelihood_rolling", request.args, total)
                bar.update()
        return answers

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Of each (context, how): the greedy continuation, up to what `how` says ends it.

        Raises SpliceError for sampling and other settings that are not greedy decoding's, and for prompts as loglikelihood.
        """
        kinds: dict[Greedy, list[int]] = defaultdict(list)
        for number, request in enumerate(requests):
            kinds[_greedy(request.args[1], self._said(self.eot_token_id), _place(request))].append(number)
        answers = [""] * len(requests)
        with _bar(requests, "generate_until", disable_tqdm) as bar:
            for how, numbers in kinds.items():
                encoded = self._encode([requests[n].args[0] for n in numbers], self.tokenizer.bos_token)
                contexts = [self._cut(ids, how.tokens, requests[n]) for ids, n in zip(encoded, numbers, strict=True)]
                for prefix, suffixes, asked in self._runs(contexts, how.tokens):
                    said = self._reader.generate(prefix, suffixes, how.tokens, self._ended(how))
                    for places, ids in zip(asked, said, strict=True):
                        text = how.kept(self.tokenizer.decode(ids, skip_special_tokens=True))
                        for number in (numbers[place] for place in places):
                            answers[number] = text
                            self.cache_hook.add_partial("generate_until", requests[number].args, text)
                            bar.update()
        return answers

    def _ended(self, how: Greedy) -> Callable[[int, list[int]], bool]:
        """Whether a row's tokens end with EOS, or have one of the texts near their end."""
        window = max(len(text.encode()) for text in how.until) + 4 if how.until else 1

        def ended(row: int, ids: list[int]) -> bool:
            if ids[-1] in self._ends:
                return True
            text = self._said(ids[-window:]) if how.until else ""
            return any(end in text for end in how.until)

        return ended

    def _runs(self, contexts: Sequence[Ids], tail: int) -> Iterator[tuple[object, list[list[int]], list[list[int]]]]:
        """Read what contexts share; gives what the reader made of a prefix, what contexts have after it, and which each is.

        tail: tokens that follow a context at most. Equal contexts are one.
        """
        equal: dict[bytes, list[int]] = defaultdict(list)
        for number, ids in enumerate(contexts):
            equal[ids.tobytes()].append(number)
        known = [equal[key] for key in sorted(equal)]  # as bytes too, those that begin alike are neighbours
        ordered = [contexts[numbers[0]] for numbers in known]
        room = self._fot.local_context - self._fot.last_context - tail if self._fot else self._batch_tokens
        for first, last, shared in share(ordered, max(1, room), A_PASS[self.model.facts["device"]]):
            longest = max(len(ids) for ids in ordered[first:last]) - shared
            prefix = self._reader.read(ordered[first][:shared].tolist(), longest + tail)
            for at in range(first, last, SLAB):
                some = slice(at, min(at + SLAB, last))
                yield prefix, [ids[shared:].tolist() for ids in ordered[some]], known[some]

    def _pairs(self, texts: Sequence[tuple[str, str]]) -> list[tuple[Ids, Ids]]:
        """Contexts and continuations in ids, as `hf` has them: spaces at a context's end belong to what follows, and the
        continuation is what the ids of both together have beyond as many as the context's."""
        moved = []
        for context, continuation in texts:
            bare = context.rstrip()
            moved.append((bare, context[len(bare) :] + continuation) if context else ("", continuation))
        mark = self._said(self.prefix_token_id)
        heads = list(dict.fromkeys(context for context, _ in moved if context))
        ids = dict(zip(heads, self._encode(heads, mark), strict=True))
        alone = iter(self._encode([b for a, b in moved if not a], None, special=False))
        joint = iter(self._encode([a + b for a, b in moved if a], mark))
        pairs = []
        for context, _ in moved:
            if context:
                pairs.append((ids[context], next(joint)[len(ids[context]) :]))
                continue
            rest, begin = next(alone), np.array([self.prefix_token_id], np.int32)
            pairs.append((rest[:1], rest[1:]) if rest[:1].tolist() == begin.tolist() else (begin, rest))
        return pairs

    def _fitting(self, context: Ids, continuation: Ids, request: Instance) -> tuple[Ids, Ids]:
        """The pair, cut where it may be. The last token is predicted only, and takes no room."""
        if not len(continuation):
            raise SpliceError(
                f"{_place(request)}: its continuation {request.args[1]!r} adds no token to the context; the task has to end the "
                "context elsewhere"
            )
        return self._cut(context, len(continuation) - 1, request), continuation

    def _cut(self, context: Ids, more: int, request: Instance) -> Ids:
        """A context that has room for `more` tokens after it."""
        if not len(context):
            raise SpliceError(f"{_place(request)}: an empty prompt, and no BOS to begin with; take --bos yes")
        over = 0 if self.max_length is None else len(context) + more - self.max_length
        if over <= 0:
            return context
        if self.too_long == "error" or over >= len(context):
            remedy = ", or have prompts cut on the left with --too-long truncate" if over < len(context) else ""
            raise SpliceError(
                f"{_place(request)}: a prompt of {len(context):,} tokens and {more:,} for its answer is {over:,} over the model's "
                f"context of {self.max_length:,}; ask for fewer examples (--num-fewshot), go beyond the context that the model "
                f"names with --max-context{remedy}"
            )
        self.truncated += 1
        return context[over:]

    def _encode(self, texts: Sequence[str], mark: str | None, special: bool | None = None) -> list[Ids]:
        """The ids of texts; one that begins with `mark` has its BOS already. special: add BOS, or not; None: as ever."""
        special = self._bos if special is None else special
        bare = [special is not False and bool(mark) and text.startswith(mark) for text in texts]
        encoded: list[Ids] = [np.zeros(0, np.int32)] * len(texts)
        for kind in (False, True):
            given = False if kind else special
            options = {} if given is None else {"add_special_tokens": given}
            for numbers in _slabs(texts, [n for n, is_bare in enumerate(bare) if is_bare == kind]):
                ids = self.tokenizer([texts[n] for n in numbers], return_attention_mask=False, **options)["input_ids"]
                for number, one in zip(numbers, ids, strict=True):
                    encoded[number] = np.array(one, np.int32)
        return encoded

    def tok_encode(self, text: str) -> list[int]:
        """The ids of a text, BOS as the tokenizer has it."""
        return self._encode([text], self._said(self.prefix_token_id))[0].tolist()

    def _said(self, ids: int | list[int]) -> str:
        return self.tokenizer.decode(ids)

    @property
    def prefix_token_id(self) -> int:
        """What stands before a text that nothing else does: BOS, else EOS. Raises SpliceError where there is neither."""
        bos = self.tokenizer.bos_token_id
        return self.eot_token_id if bos is None else bos

    @property
    def eot_token_id(self) -> int:
        """EOS. Raises SpliceError where there is none."""
        if self.tokenizer.eos_token_id is None:
            raise SpliceError(
                f"{self.tokenizer.name_or_path}: its tokenizer has no EOS token; name it in tokenizer_config.json (eos_token)"
            )
        return self.tokenizer.eos_token_id

    @property
    def max_length(self) -> int | None:
        """The model's context, tokens; None where it has no limit."""
        return self.model.engine.limit

    @property
    def tokenizer_name(self) -> str:
        """What lm-eval calls its cache of templated requests by."""
        return self.tokenizer.name_or_path.replace("/", "__")

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        """The tokenizer's template, by name where it has several. Raises SpliceError where it has none."""
        if not chat_template:
            return None
        try:
            return self.tokenizer.get_chat_template(chat_template if isinstance(chat_template, str) else None)
        except ValueError:
            raise SpliceError(
                f"{self.tokenizer.name_or_path}: its tokenizer has no chat template; leave out --apply-chat-template"
            ) from None

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """A conversation as text. Raises SpliceError where there is no template, and where it refuses the conversation."""
        from jinja2 import TemplateError

        self.chat_template(True)
        try:
            return self.tokenizer.apply_chat_template(
                chat_history,
                tokenize=False,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=not add_generation_prompt,
            )
        except TemplateError as error:
            raise SpliceError(
                f"{self.tokenizer.name_or_path}: its chat template refuses a conversation of "
                f"{', '.join(turn['role'] for turn in chat_history)} ({error}); leave out the system instruction or "
                "--apply-chat-template"
            ) from None

    def get_model_info(self) -> dict[str, Any]:
        """What lm-eval's results say of the model."""
        return self.model.facts


def share(contexts: Sequence[Ids], room: int, a_pass: int) -> list[tuple[int, int, int]]:
    """Cut a list of contexts into runs that share a prefix: (first, last + 1, tokens shared), so that least is fed.

    A run feeds its prefix once and the rest of each context, and costs `a_pass` tokens more for its forward passes; of all ways to
    cut the list the cheapest is found, by how much each run saves. Two nested levels are not made: the reader goes on from the
    last prefix by itself. Few-shot prompts come out by their examples, questions about one text by the text, and prompts that have
    nothing in common but BOS as one run.

    contexts: each once, those that begin alike side by side. room: tokens of a context beyond the prefix, at most; a longer one is
    a run of its own, all but its last token the prefix.
    """
    lengths = np.array([len(ids) for ids in contexts])
    common = np.array([_common(a, b) for a, b in pairwise(contexts)], int)
    saved, begin = np.zeros(len(contexts) + 1), np.zeros(len(contexts), int)
    prefix = np.zeros(len(contexts), int)
    for last in range(len(contexts)):
        low = max(0, last + 1 - WIDEST)
        # of the runs from each place back to `low` up to `last`, the shortest run first
        depth = np.minimum.accumulate(np.append(lengths[last] - 1, common[low:last][::-1]))
        longest = np.maximum.accumulate(lengths[low : last + 1][::-1])
        found = np.arange(len(depth)) * depth - a_pass + saved[low : last + 1][::-1]
        found[1:][longest[1:] - depth[1:] > room] = -np.inf
        best = int(found.argmax())
        saved[last + 1], begin[last], prefix[last] = found[best], last - best, depth[best]
    runs, end = [], len(contexts)
    while end:
        runs.append((int(begin[end - 1]), end, int(prefix[end - 1])))
        end = runs[-1][0]
    return runs[::-1]


def _common(a: Ids, b: Ids) -> int:
    """How many first ids are equal, of which each context keeps one for itself."""
    size = min(len(a), len(b))
    differ = np.flatnonzero(a[:size] != b[:size])
    return int(differ[0]) if len(differ) else size - 1


def run_harness(
    model: Model,
    tasks: Sequence[str],
    settings: EngineSettings,
    output: Path,
    screen: Screen,
    manager: TaskManager,
    num_fewshot: int | None = None,
    limit: int | None = None,
    too_long: TooLongRule = "error",
    apply_chat_template: bool = False,
) -> dict[str, Any]:
    """Evaluate a model on tasks of lm-eval into OUTPUT/harness-TASKS; shows lm-eval's table, gives the result.

    The result is one of results.py, so that `splice eval compare` takes it: a sample is a document, each a cluster of its own; the
    metrics are those that lm-eval averages over documents. All of lm-eval's own figures are under "harness".
    manager: as open_tasks gives it. num_fewshot: None is each task's own. limit: documents of each task, the first.
    Raises SpliceError for tasks that do not exist, and as SpliceLM.
    """
    names = find_tasks(tasks, manager)
    asked = {
        "tasks": names,
        "num_fewshot": num_fewshot,
        "limit": limit,
        "too_long": too_long,
        "apply_chat_template": apply_chat_template,
    }
    name = re.sub(r"[^\w.+-]+", "-", f"harness-{'-'.join(tasks)}").strip("-")[:100]
    plan = _plan(model, name, asked, settings)
    directory = output / name
    with locked(directory, "evaluation"):
        samples = start(directory, plan)
        if samples is None:
            screen.say(f"{name}: finished before, in {directory}")
            return read_json(directory / RESULT)
        try:
            began = time.monotonic()
            lm = SpliceLM(model, settings, too_long)
            found = _evaluate(lm, names, manager, asked)
            rows = list(_samples(found))
            metrics = list(dict.fromkeys(metric for row in rows for metric in row["scores"]))
            figures = summarise(rows, metrics, settings.seed, plan["unit"]) if metrics else NOTHING
            samples.add(rows)
        except BaseException:
            (directory / PLAN).unlink()  # nothing is kept, so other settings may have the place
            raise
        finally:
            samples.close()
        harness = {key: value for key, value in found.items() if key not in ENVIRONMENT}
        result = (
            plan
            | {"queries": len(rows), "clusters": len(rows), "truncated": lm.truncated}
            | figures
            | {"harness": json.loads(json.dumps(harness, default=handle_non_serializable, sort_keys=True))}
        )
        finish(directory, result, {"seconds": round(time.monotonic() - began, 3)})
    screen.say(make_table(found))
    if "groups" in found:
        screen.say(make_table(found, "groups"))
    if lm.truncated:
        screen.say(f"{lm.truncated:,} prompts were over the context of {lm.max_length:,} tokens and cut on the left")
    screen.say(f"{name}: {len(rows):,} documents; {directory}")
    return result


NOTHING: dict[str, Any] = {"metrics": {}, "by": {}, "buckets": [], "warnings": []}  # averaged over documents


def open_tasks(include_path: Path | None) -> TaskManager:
    """lm-eval's tasks and those of a directory of YAML files; reading them takes seconds. Raises SpliceError for no directory."""
    if include_path and not include_path.is_dir():
        raise SpliceError(f"--include-path {include_path}: no such directory; name the one of the tasks' YAML files")
    return TaskManager(include_path=str(include_path) if include_path else None)


def find_tasks(tasks: Sequence[str], manager: TaskManager) -> list[str]:
    """The tasks, groups and tags that names and patterns (mmlu_*) mean. Raises SpliceError for one that means none."""
    names = []
    for task in tasks:
        matched = [task] if Path(task).is_file() else manager.match_tasks([task])
        if not matched:
            close = ", ".join(difflib.get_close_matches(task, manager.all_tasks, 3))
            raise SpliceError(
                f"{task}: lm-evaluation-harness has no such task{close and f'; did you mean {close}?'}; `lm_eval ls tasks` lists "
                "them, and --include-path names a directory with more"
            )
        names += matched
    return list(dict.fromkeys(names))


def _evaluate(lm: SpliceLM, names: list[str], manager: TaskManager, asked: Mapping[str, Any]) -> dict[str, Any]:
    """lm-eval's results. Its seeds stay its own: they choose the examples, and published figures are by them."""
    try:
        found = simple_evaluate(
            lm,
            tasks=names,
            num_fewshot=asked["num_fewshot"],
            limit=asked["limit"],
            apply_chat_template=asked["apply_chat_template"],
            task_manager=manager,
        )
    except torch.OutOfMemoryError as error:
        held = str(error).split(". ")[0]
        raise EvaluationFailed(
            f"out of GPU memory ({held}); a smaller --batch-tokens or --chunk needs less. Then run it again"
        ) from error
    assert found is not None  # None is of other processes than the first
    return found


def _samples(found: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Of each document of each task a sample in results.py's form, without its prompt, of which a hash is kept."""
    for task, rows in found["samples"].items():
        documents: dict[int, list[Mapping[str, Any]]] = defaultdict(list)  # a row a filter of the answers
        for row in rows:
            documents[row["doc_id"]].append(row)
        averaged = _averaged(rows, found["results"][task])
        for document, filtered in documents.items():
            name = f"{task}/{document}"
            sample = {
                "id": name,
                "group": task,
                "cluster": name,
                "item": name,
                "tags": {"task": task},
                "prefix": filtered[0]["prompt_hash"][:16],
                "answers": [str(filtered[0]["target"])],
                "document": filtered[0]["doc_hash"][:16],
                "responses": filtered[0]["resps"],
                "prediction": {row["filter"]: row["filtered_resps"] for row in filtered},
                "scores": {
                    metric: value for row in filtered for metric, value in _scores(row).items() if metric in averaged
                },
            }
            yield json.loads(json.dumps(sample, default=handle_non_serializable))


def _averaged(rows: Iterable[Mapping[str, Any]], reported: Mapping[str, Any]) -> set[str]:
    """The metrics whose mean over documents is what lm-eval reports; others (an F1, a perplexity) have no score a document."""
    values: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        for name, value in _scores(row).items():
            values[name].append(value)
    means = {name: math.fsum(some) / len(some) for name, some in values.items()}
    return {
        name
        for name, mean in means.items()
        if isinstance(reported.get(name), (int, float)) and math.isclose(mean, reported[name], abs_tol=1e-9)
    }


def _scores(row: Mapping[str, Any]) -> dict[str, float]:
    """Of the metrics that are numbers, by the names of lm-eval's results: acc,none."""
    numbers = {metric: row[metric] for metric in row["metrics"] if isinstance(row[metric], (int, float, np.number))}
    return {f"{metric},{row['filter']}": float(value) for metric, value in numbers.items()}


def _plan(model: Model, name: str, asked: dict[str, Any], settings: EngineSettings) -> dict[str, Any]:
    """What a run is, as run.make_plan's."""
    engine = settings.model_dump(mode="json", include={"batch_tokens", "chunk", "bos", "max_context"})
    plan: dict[str, Any] = {
        "format": FORMAT,
        "task": "harness",
        "name": name,
        "model": model.facts,
        "settings": asked | engine,
        "data": [],
        "subset": f"the first {asked['limit']} documents of each task" if asked["limit"] else None,
        "seed": settings.seed,
        "scorer": "lm-evaluation-harness",
        "unit": "documents",
        "versions": {library: version(library) for library in (*LIBRARIES, "lm_eval", "datasets")},
    }
    plan["fingerprint"] = hashlib.sha256(json.dumps(plan, sort_keys=True).encode()).hexdigest()[:16]
    return plan


@dataclass(frozen=True)
class Greedy:
    """How a request is generated. until: texts that end an answer; tokens: at most."""

    until: tuple[str, ...]
    tokens: int

    def kept(self, text: str) -> str:
        """What is before the first of the texts that end it."""
        for end in self.until:
            text = text.split(end)[0]
        return text


def _greedy(wanted: Mapping[str, Any], eos: str, place: str) -> Greedy:
    """Raises SpliceError for what is not greedy decoding."""
    other = sorted(name for name in wanted.keys() - KNOWN if not (name == "num_beams" and wanted[name] == 1))
    sampled = wanted.get("do_sample") or (wanted.get("do_sample") is None and float(wanted.get("temperature") or 0) > 0)
    if other or sampled:
        what = ", ".join(f"{name}={wanted[name]}" for name in (other or ("do_sample", "temperature")) if name in wanted)
        raise SpliceError(
            f"{place}: generated with {what}, and only greedy decoding is done here; take lm-eval's own hf model, or set "
            "do_sample: false in the task's generation_kwargs"
        )
    until = wanted.get("until") or []
    until = [until] if isinstance(until, str) else until
    tokens = next((int(wanted[name]) for name in LENGTHS if wanted.get(name) is not None), DEFAULT_TOKENS)
    return Greedy(tuple(dict.fromkeys(end for end in (*until, eos) if end)), tokens)


def _tokenizer(directory: Path, bos: bool | None) -> Any:
    """transformers' tokenizer, whose ids are the harness's."""
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(directory, **({} if bos is None else {"add_bos_token": bos}))
    except Exception as error:  # whatever a tokenizer's files make it raise
        raise SpliceError(
            f"{directory}: transformers cannot load its tokenizer ({str(error).splitlines()[0] if str(error) else error!r}), and "
            "lm-evaluation-harness takes ids from there; put the model's tokenizer.json and tokenizer_config.json beside it"
        ) from None


def _ends(directory: Path, tokenizer: Any) -> set[int]:
    """The ids that end a generation: the tokenizer's EOS, and those that the model's files name."""
    files = (read_json(directory / name) or {} for name in ("generation_config.json", "config.json"))
    named = next((file["eos_token_id"] for file in files if file.get("eos_token_id") is not None), [])
    return {*([named] if isinstance(named, int) else named), tokenizer.eos_token_id} - {None}


def _slabs(texts: Sequence[str], numbers: Sequence[int]) -> Iterator[list[int]]:
    """The numbers in lists of about CHARACTERS of their texts."""
    slab: list[int] = []
    size = 0
    for number in numbers:
        slab.append(number)
        size += len(texts[number])
        if size >= CHARACTERS:
            yield slab
            slab, size = [], 0
    if slab:
        yield slab


def _place(request: Instance) -> str:
    return f"{request.task_name or 'a request'}, document {request.doc_id}"


def _bar(requests: Sequence[Instance], kind: str, hidden: bool) -> tqdm:
    where_no_terminal = None
    return tqdm(total=len(requests), desc=f"{kind} requests", disable=hidden or where_no_terminal)


if __name__ == "__main__":
    from lm_eval.__main__ import cli_evaluate

    try:
        cli_evaluate()
    except SpliceError as error:
        raise SystemExit(str(error)) from None
