"""The model class: lm-eval's requests to ids, ids to the reader, what it gives back to answers."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, groupby
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from splice.errors import SpliceError
from splice.files import read_json
from splice.train.hf_read import read_config

from ..models import Model, open_model
from ..settings import EngineSettings, make
from ..tree import grow
from .share import Ids, share

try:
    import lm_eval.models  # noqa: F401 - its own models, which it looks for only while there are none
    from lm_eval.api.instance import Instance
    from lm_eval.api.model import LM
    from lm_eval.api.registry import register_model
    from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
    from tqdm import tqdm
except ModuleNotFoundError as missing:
    raise SpliceError(
        f"splice eval harness needs {str(missing.name).partition('.')[0]}, which is not installed: pip install 'splice-data[harness]'"
    ) from None

A_PASS = {"cpu": 32, "cuda": 1024}  # tokens that could be fed in the time which one forward pass more costs
SLAB = 1024  # contexts that are asked between two steps of the bar
CHARACTERS = 1 << 22  # that are tokenised at a time: transformers holds 100 bytes and more for each token
DEFAULT_TOKENS = 256  # generated at most where a task does not say, as of `hf`
LENGTHS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")  # names of that, the first counts
KNOWN = {*LENGTHS, "until", "do_sample", "temperature", "top_p", "top_k"}  # the last two do nothing to greedy decoding
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
        directory = self.model.directory
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
        return self._collected("loglikelihood", requests, self._scored(requests), disable_tqdm)

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        """Of each (text,): the log-likelihood of all its tokens in nats, in windows of the model's context."""
        read = enumerate(self._read(*request.args) for request in requests)
        return self._collected("loglikelihood_rolling", requests, read, disable_tqdm)

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Of each (context, how): the greedy continuation, up to what `how` says ends it.

        Raises SpliceError for sampling and other settings that are not greedy decoding's, and for prompts as loglikelihood.
        """
        return self._collected("generate_until", requests, self._generated(requests), disable_tqdm)

    def _collected(
        self, kind: str, requests: Sequence[Instance], found: Iterable[tuple[int, Any]], hidden: bool
    ) -> list[Any]:
        """The answers by their requests' numbers; each goes to lm-eval's cache, and to the bar of a terminal, as it comes."""
        answers: list[Any] = [None] * len(requests)
        for number, answer in tqdm(found, f"{kind} requests", len(requests), disable=hidden or None):
            answers[number] = answer
            self.cache_hook.add_partial(kind, requests[number].args, answer)
        return answers

    def _scored(self, requests: Sequence[Instance]) -> Iterator[tuple[int, tuple[float, bool]]]:
        contexts, continuations = {}, []
        for number, (context, continuation) in enumerate(self._pairs([request.args for request in requests])):
            request = requests[number]
            if not len(continuation):
                raise SpliceError(
                    f"{_place(request)}: its continuation {request.args[1]!r} adds no token to the context; the task has to end "
                    "the context elsewhere"
                )
            # the last token is predicted only, and takes no room
            contexts[number] = self._cut(context, len(continuation) - 1, request)
            continuations.append(continuation.tolist())
        for prefix, suffixes, asked in self._runs(contexts, max(map(len, continuations), default=0)):
            trees = [grow(ids, [continuations[n] for n in some]) for ids, some in zip(suffixes, asked, strict=True)]
            for numbers, paths in zip(asked, self._reader.score(prefix, trees), strict=True):
                for number, (likelihoods, greedy) in zip(numbers, paths, strict=True):
                    yield number, (math.fsum(likelihoods), all(greedy))

    def _read(self, text: str) -> float:
        ids, total = self.tok_encode(text), 0.0
        windows = get_rolling_token_windows(ids, self.prefix_token_id, self.max_length or len(ids), 1)
        for context, continuation in map(make_disjoint_window, windows):
            total -= math.fsum(self._reader.losses([*context, *continuation])[len(context) - 1 :].tolist())
        return total

    def _generated(self, requests: Sequence[Instance]) -> Iterator[tuple[int, str]]:
        kinds: dict[Greedy, list[int]] = defaultdict(list)
        eos = self.tokenizer.decode(self.eot_token_id)
        for number, request in enumerate(requests):
            kinds[_greedy(request.args[1], eos, _place(request))].append(number)
        for how, wanted in kinds.items():
            encoded = self._encode([requests[n].args[0] for n in wanted], self.tokenizer.bos_token)
            contexts = {n: self._cut(ids, how.tokens, requests[n]) for n, ids in zip(wanted, encoded, strict=True)}
            for prefix, suffixes, asked in self._runs(contexts, how.tokens):
                said = self._reader.generate(prefix, suffixes, how.tokens, self._ended(how))
                for numbers, ids in zip(asked, said, strict=True):
                    text = self.tokenizer.decode(ids, skip_special_tokens=True)
                    for end in how.until:
                        text = text.split(end)[0]
                    yield from ((number, text) for number in numbers)

    def _ended(self, how: Greedy) -> Callable[[int, list[int]], bool]:
        """Whether a row's tokens end with EOS, or have one of the texts near their end."""
        window = max((len(text.encode()) for text in how.until), default=0) + 4

        def ended(row: int, ids: list[int]) -> bool:
            if ids[-1] in self._ends:
                return True
            text = self.tokenizer.decode(ids[-window:])
            return any(end in text for end in how.until)

        return ended

    def _runs(
        self, contexts: Mapping[int, Ids], tail: int
    ) -> Iterator[tuple[object, list[list[int]], list[list[int]]]]:
        """Read what contexts share; gives what the reader made of a prefix, what contexts have after it, and the numbers of each.

        tail: tokens that follow a context at most. Equal contexts are one.
        """
        equal: dict[bytes, list[int]] = defaultdict(list)
        for number, ids in contexts.items():
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
        first = self.prefix_token_id
        mark = self.tokenizer.decode(first)
        bare = [context.rstrip() for context, _ in texts]
        rest = [context[len(head) :] + more for head, (context, more) in zip(bare, texts, strict=True)]
        heads = list(dict.fromkeys(filter(None, bare)))
        ids = dict(zip(heads, self._encode(heads, mark), strict=True))
        joint = iter(self._encode([a + b for a, b in zip(bare, rest, strict=True) if a], mark))
        alone = iter(self._encode([b for a, b in zip(bare, rest, strict=True) if not a], ""))
        pairs = []
        for head in bare:
            if head:
                pairs.append((ids[head], next(joint)[len(ids[head]) :]))
                continue
            whole = next(alone)
            whole = whole if whole[:1].tolist() == [first] else np.insert(whole, 0, first)
            pairs.append((whole[:1], whole[1:]))
        return pairs

    def _cut(self, context: Ids, more: int, request: Instance) -> Ids:
        """A context that has room for `more` tokens after it, cut where it may be."""
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

    def _encode(self, texts: Sequence[str], mark: str | None) -> list[Ids]:
        """The ids of texts; one that begins with `mark` has its BOS already, or (where that is "") is to have none."""
        encoded: list[Ids] = []

        def kind(sized: tuple[str, int]) -> tuple[bool, int]:
            return mark is not None and sized[0].startswith(mark), sized[1] // CHARACTERS

        for (begun, _), slab in groupby(zip(texts, accumulate(map(len, texts)), strict=True), kind):
            special = False if begun else self._bos
            options = {} if special is None else {"add_special_tokens": special}
            ids = self.tokenizer([text for text, _ in slab], return_attention_mask=False, **options)["input_ids"]
            encoded += [np.array(one, np.int32) for one in ids]
        return encoded

    def tok_encode(self, text: str) -> list[int]:
        """The ids of a text, BOS as the tokenizer has it."""
        return self._encode([text], self.tokenizer.decode(self.prefix_token_id))[0].tolist()

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


class Greedy(NamedTuple):
    """How a request is generated. until: texts that end an answer; tokens: at most."""

    until: tuple[str, ...]
    tokens: int


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


def _place(request: Instance) -> str:
    return f"{request.task_name or 'a request'}, document {request.doc_id}"
