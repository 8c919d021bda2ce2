"""From a group to its answers: matches, likelihoods, generated text, and whether generation agrees with teacher forcing."""

from __future__ import annotations

import json

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from splice.eval.engine import Engine, TooLong
from splice.eval.models import open_model
from splice.eval.settings import EngineSettings
from splice.eval.task import Group, Query

from .conftest import LLAMA, lively

LABELS = (" NUM", " ENTY", " HUM", " ENTYx")
LINES = "".join(f"Question: what is topic{i % 7}_{i % 11}?\nType:{LABELS[i % 3]}\n" for i in range(12))


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    """A model of letters: whatever it says, the tokenizer writes in the same ids."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    directory = tmp_path_factory.mktemp("letters")
    letters = ["<s>", "</s>", "<unk>", "\n", *(chr(i) for i in range(32, 127))]
    tokenizer = Tokenizer(models.WordLevel({letter: i for i, letter in enumerate(letters)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(".|\n"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    config = transformers.LlamaConfig(**LLAMA | {"vocab_size": len(letters)})
    lively(transformers.AutoModelForCausalLM.from_config(config)).save_pretrained(directory)
    tokenizer.save(str(directory / "tokenizer.json"))
    names = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "add_bos_token": True}
    (directory / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", **names})
    )
    return directory


@pytest.fixture(scope="module")
def engine(llama):
    return open_model(str(llama), EngineSettings(chunk=64)).engine


def group_of(*queries):
    return Group("g", "c", LINES, tuple(queries))


def literal(llama, text, continuation):
    """Log-likelihood of a continuation's tokens after a text, and the greedy ones, by transformers and whole prompts."""
    from splice.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(str(llama))
    base, whole = (tokenizer.encode([t.encode()])[0].tolist() for t in (text, text + continuation))
    assert whole[: len(base)] == base
    model = transformers.AutoModelForCausalLM.from_pretrained(llama)
    with torch.no_grad():
        logits = model(torch.tensor([[tokenizer.bos_id, *whole]])).logits[0, len(base) : -1].log_softmax(-1)
    tokens = whole[len(base) :]
    return logits[range(len(tokens)), tokens].sum().item(), (logits.argmax(-1) == torch.tensor(tokens)).all().item()


def said(llama, text, tokens):
    """Greedy continuation by whole prompts."""
    from splice.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(str(llama))
    ids = [tokenizer.bos_id, *tokenizer.encode([text.encode()])[0].tolist()]
    model, start = transformers.AutoModelForCausalLM.from_pretrained(llama), len(ids)
    for _ in range(tokens):
        with torch.no_grad():
            ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
    return ids[start:], tokenizer


@pytest.fixture(scope="module")
def saying(llama):
    """A question, and the ids of its greedy continuation: each another letter."""
    for i in range(50):
        suffix = f"Question: what is kana{i}?\nType:"
        ids, tokenizer = said(llama, LINES + suffix, 4)
        if len(set(ids)) == 4 and min(ids) > 2:
            return suffix, ids, tokenizer
    raise AssertionError("a model that says nothing that can be written")


def test_likelihoods_are_of_the_labels_alone(engine, llama):
    query = Query("0", "0", "Question: what is kana?\nType:", (" HUM",), LABELS, "\n")
    answer = engine.answer(group_of(query), {}).answers[0]
    for label, likelihood in zip(LABELS, answer.log_likelihoods, strict=True):
        assert likelihood == pytest.approx(literal(llama, LINES + query.suffix, label)[0], abs=1e-4)
    assert answer.matched is False
    assert answer.text is None


def test_a_match_is_what_greedy_decoding_says(engine, saying):
    """The right answer is made of what the model will say; with another end it is no match."""
    suffix, ids, tokenizer = saying
    text, first = tokenizer.decode(ids), tokenizer.decode(ids[:2])
    queries = [
        Query("0", "0", suffix, (text,)),
        Query("1", "1", suffix, (" no", text)),
        Query("2", "2", suffix, (first,), end=tokenizer.decode(ids[2:])),
        Query("3", "3", suffix, (first,), end="§"),
        Query("4", "4", suffix, (" no",)),
        Query("5", "5", suffix, (text,), labels=(" no", text)),
        Query("6", "6", suffix, (" no",), labels=(" no", text)),
    ]
    answered = engine.answer(group_of(*queries), {}, check=7)
    assert [answer.matched for answer in answered.answers] == [True, True, True, False, False, True, False]
    assert answered.agrees == dict.fromkeys(range(7), True)


def test_disagreement_is_seen(engine, monkeypatch):
    query = Query("0", "0", "Question: what is kana?\nType:", (" HUM",))
    score = engine.reader.score
    wrong = lambda prefix, trees: [[(a, [True] * len(b)) for a, b in paths] for paths in score(prefix, trees)]  # noqa: E731
    monkeypatch.setattr(engine.reader, "score", wrong)
    assert engine.answer(group_of(query), {}, check=1).agrees == {0: False}


def test_generated_text_ends_where_it_should(engine, llama, saying):
    suffix, ids, tokenizer = saying
    whole, end = tokenizer.decode(ids), tokenizer.decode(ids[2:3])
    queries = [
        Query("0", "0", suffix, ("x",)),
        Query("1", "1", suffix, ("x",), end=end),
        Query("2", "2", "Type:", ("x",)),
    ]
    answers = engine.answer(group_of(*queries), {0: 4, 1: 4, 2: 3}).answers
    assert answers[0].text == whole
    assert answers[1].text == whole.split(end)[0] != whole
    assert answers[2].text == tokenizer.decode(said(llama, LINES + "Type:", 3)[0])
    assert [answer.matched for answer in answers] == [None] * 3


def test_eos_ends_and_is_not_text(engine, llama):
    suffix = "Question: what is kana?\nType:"
    ids, tokenizer = said(llama, LINES + suffix, 6)
    place = next(i for i in range(1, 6) if ids[i] not in ids[:i])
    ending = Engine(engine.reader, engine.prompter, engine.limit, frozenset({ids[place]}))
    answer = ending.answer(group_of(Query("0", "0", suffix, ("x",))), {0: 6}).answers[0]
    assert answer.text == tokenizer.decode(ids[:place])


def test_labels_are_scored_where_text_is_generated_too(engine):
    query = Query("0", "0", "Type:", (" HUM",), LABELS)
    answer = engine.answer(group_of(query), {0: 2}).answers[0]
    assert len(answer.log_likelihoods) == 4
    assert answer.text is not None


@pytest.mark.parametrize("generate", [0, 50])
def test_a_prompt_with_its_answer_has_to_fit(engine, generate):
    """The longest query and answer, to the token."""
    query = Query("0", "0", "Question: what is kana?\nType:", (" HUM" * 5,))
    prompts = engine.prompter.group(group_of(query))
    answer = max(len(prompts.queries[0].tree.paths[0]), generate)
    tokens = len(prompts.prefix) + len(prompts.queries[0].suffix) + answer
    asked = {0: generate} if generate else {}
    Engine(engine.reader, engine.prompter, tokens, frozenset()).answer(group_of(query), asked)
    with pytest.raises(TooLong, match=f"g: a prompt of {tokens} tokens, its answer included, is 1 over") as error:
        Engine(engine.reader, engine.prompter, tokens - 1, frozenset()).answer(group_of(query), asked)
    assert error.value.tokens == tokens


def test_what_is_right_does_not_change_what_is_generated(fot, engine):
    """Not even how much of the prompt is in FoT's memory, nor whether it fits."""
    model = open_model(str(fot), EngineSettings()).engine
    said = [
        model.answer(group_of(Query("0", "0", "Question: what is kana?\nType:", (answer,))), {0: 5}).answers[0].text
        for answer in (" x", " x" * 30)
    ]
    assert said[0] == said[1]
    long = group_of(Query("0", "0", "Type:", ("x" * 9000,)))
    assert engine.answer(long, {0: 5}).answers[0].text is not None
    with pytest.raises(TooLong):
        engine.answer(long, {})


def test_long_queries_of_fot_are_prompts_of_their_own(fot):
    """Local contexts of 64, of which 24 are a prefix's: a query of more than 40 tokens goes to the memory but for its end."""
    from splice.train.cache import Cache, read

    model = open_model(str(fot), EngineSettings()).engine
    short, long = "Question: kana?\nType:", "Question: " + "what is kana lonas_x? " * 12 + "\nType:"
    queries = [Query(str(i), str(i), suffix, (" HUM",)) for i, suffix in enumerate((long, short, long + " x", short))]
    answered = model.answer(group_of(*queries), dict.fromkeys(range(4), 6))
    net, prompter = model.reader._net, model.prompter
    for suffix, answer in ((long, answered.answers[0]), (long + " x", answered.answers[2])):
        ids = torch.tensor([[prompter.bos, *prompter.ids(LINES + suffix)]])
        cache, tokens = Cache(), []
        with torch.no_grad():
            # the last 24 tokens, and the one that generation goes on from, stay local
            read(net._model, ids[:, :-25], cache)
            cache.close()
            logits = read(net._model, ids[:, -25:], cache)[:, -1]
            for _ in range(6):
                tokens.append(int(logits.argmax()))
                logits = read(net._model, torch.tensor([[tokens[-1]]]), cache)[:, -1]
        assert prompter.decode(tokens) == answer.text
    assert (
        answered.answers[1].text
        == answered.answers[3].text
        == model.answer(group_of(queries[1]), {0: 6}).answers[0].text
    )
