"""A prompt's ids are those of its whole text, wherever it is cut; BOS as the files say."""

from __future__ import annotations

import json
import shutil

import pytest

pytest.importorskip("tokenizers")

from splice.errors import SpliceError
from splice.eval.prompts import SHORT, Prompter, bos_of
from splice.eval.task import Group, Query
from splice.tokenizer import load_tokenizer

LINES = [
    f"Question: what is topic{i % 7}_{i % 11} of kana lonas_x?\nType: {'ENTY' if i % 3 else 'NUM'}\n"
    for i in range(400)
]


@pytest.fixture(scope="module")
def prompter(tokenizer_file):
    return Prompter(load_tokenizer(str(tokenizer_file)), None)


def group_of(prefix, queries):
    return Group("g", "g", prefix, tuple(queries))


def labelled(number, text):
    return Query(str(number), str(number), f"Question: {text}\nType:", (" NUM",), (" NUM", " ENTY", " HUM"), "\n")


def whole(prompter, group, number):
    """The ids of a query's text with each answer, and of the query alone, tokenised as one text."""
    query = group.queries[number]
    texts = [group.prefix + query.suffix + answer + query.end for answer in query.labels or query.answers]
    return [prompter.ids(text) for text in texts], prompter.ids(group.prefix + query.suffix)


def paths(prompts, number):
    """What the tree spells: shared prefix, then the tokens fed and predicted."""
    prompt = prompts.queries[number]
    spelled = []
    for path in prompt.tree.paths:
        line, at = [], path[0][0]
        while at >= 0:
            line.append(prompt.tree.tokens[at])
            at = prompt.tree.parents[at]
        spelled.append([*prompts.prefix, *line[::-1], *(token for _, token in path)])
    return spelled, [*prompts.prefix, *prompt.suffix]


@pytest.mark.parametrize("lines", [0, 1, 3, 400])
@pytest.mark.parametrize("texts", [["kana"], ["kana", "lonas_x ruvi9", "kana lo"], ["a" * 50, "\n\nb", "ünïcode ☃"]])
def test_ids_are_those_of_the_whole_text(prompter, lines, texts):
    group = group_of("".join(LINES[:lines]), [labelled(i, text) for i, text in enumerate(texts)])
    prompts = prompter.group(group)
    assert lines < 400 or len(group.prefix) > SHORT
    for number in range(len(texts)):
        assert paths(prompts, number) == whole(prompter, group, number)
        assert len(prompts.queries[number].suffix) >= 1


def test_sentencepiece_files_too(shared_data):
    prompter = Prompter(load_tokenizer(str(shared_data / "tokenizers" / "tokenizer.model")), 1)
    group = group_of("".join(LINES), [labelled(i, text) for i, text in enumerate(["Who was first ?", "When ?", "  x"])])
    prompts = prompter.group(group)
    for number in range(3):
        texts, base = paths(prompts, number)
        wanted, wanted_base = whole(prompter, group, number)
        assert ([[1, *ids] for ids in wanted], [1, *wanted_base]) == (texts, base)


def test_a_long_prefix_is_not_tokenised_with_every_query(prompter, monkeypatch):
    encoded = []
    real = prompter.tokenizer.encode
    monkeypatch.setattr(prompter.tokenizer, "encode", lambda texts: (encoded.extend(map(len, texts)), real(texts))[1])
    group = group_of("".join(LINES), [labelled(i, f"kana{i}") for i in range(50)])
    prompter.group(group)
    assert sum(size > SHORT for size in encoded) == 3  # its beginning, and the whole of the first and of the last


def test_what_cannot_be_cut_is_tokenised_whole(prompter, monkeypatch):
    """A tokenizer to which the place in the text matters: every id shifts with the text's length."""
    real = prompter.tokenizer.encode

    def odd(texts):
        ids, offsets = real(texts)
        return ids + (len(texts[-1]) > SHORT), offsets

    group = group_of("".join(LINES), [labelled(0, "kana"), labelled(1, "lo")])
    wanted = [whole(prompter, group, 0), whole(prompter, group, 1)]
    calls = []
    monkeypatch.setattr(prompter.tokenizer, "encode", lambda texts: (calls.append(len(texts)), odd(texts))[1])
    prompts = prompter.group(group)
    assert len(calls) == 5  # two whole to compare with, three cuts, and all whole
    assert [[i - 1 for i in ids] for ids in paths(prompts, 0)[0]] == wanted[0][0]


def test_lengths_leave_out_what_must_follow(prompter):
    prompts = prompter.group(group_of("x\n", [labelled(0, "kana")]))
    prompt = prompts.queries[0]
    for length, path, label in zip(prompt.lengths, prompt.tree.paths, (" NUM", " ENTY", " HUM"), strict=True):
        assert prompter.decode([token for _, token in path[:length]]) == label
        assert prompter.decode([token for _, token in path]) == label + "\n"
    longest = max(len(ids) for ids in paths(prompts, 0)[0])
    assert len(prompts.prefix) + prompt.longest == longest


def test_queries_keep_a_token_when_they_are_alike(prompter):
    same = [Query(str(i), "0", "", (" kana",)) for i in range(2)]
    prompts = prompter.group(group_of("x lo", same))
    assert [*prompts.prefix, *prompts.queries[0].suffix] == prompter.ids("x lo")
    assert len(prompts.queries[0].suffix) >= 1


def test_empty_prompts(prompter, tokenizer_file):
    begun = Prompter(prompter.tokenizer, 1).group(group_of("", [Query("0", "0", "", ("kana",))]))
    assert (begun.prefix, begun.queries[0].suffix) == ((), (1,))
    with pytest.raises(SpliceError, match="an empty prompt, and no BOS"):
        prompter.group(group_of("", [Query("0", "0", "", ("kana",))]))


@pytest.mark.parametrize(
    ("config", "asked", "has"),
    [({}, "auto", False), ({"add_bos_token": True}, "auto", True), ({"add_bos_token": False}, "auto", False),
     ({"add_bos_token": True}, "no", False), ({}, "yes", True)],
)  # fmt: skip
def test_bos_as_the_files_say(tokenizer_file, tmp_path, config, asked, has):
    for path in tokenizer_file.parent.iterdir():
        shutil.copy(path, tmp_path)
    found = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert found.pop("add_bos_token") is True  # what splice build trains says so
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(found | config))
    tokenizer = load_tokenizer(str(tmp_path))
    assert bos_of(tokenizer, tmp_path, asked) == (tokenizer.bos_id if has else None)
    prompts = Prompter(tokenizer, bos_of(tokenizer, tmp_path, asked)).group(group_of("x\n", [labelled(0, "kana")]))
    assert (prompts.prefix[:1] == (tokenizer.bos_id,)) is has


def test_bos_of_a_template(tokenizer_file, tmp_path):
    from tokenizers import Tokenizer
    from tokenizers.processors import TemplateProcessing

    reference = Tokenizer.from_file(str(tokenizer_file))
    reference.post_processor = TemplateProcessing(
        single="</s> $A", special_tokens=[("</s>", reference.token_to_id("</s>"))]
    )
    reference.save(str(tmp_path / "tokenizer.json"))
    found = json.loads((tokenizer_file.parent / "tokenizer_config.json").read_text())
    del found["add_bos_token"]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(found | {"bos_token": "</s>"}))
    tokenizer = load_tokenizer(str(tmp_path))
    assert bos_of(tokenizer, tmp_path, "auto") == tokenizer.bos_id is not None


def test_no_bos_to_begin_with(tokenizer_file, tmp_path):
    shutil.copy(tokenizer_file.parent / "tokenizer.json", tmp_path)
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    tokenizer = load_tokenizer(str(tmp_path))
    if tokenizer.bos_id is not None:
        tokenizer.bos_id = None
    assert bos_of(tokenizer, tmp_path, "auto") is None
    with pytest.raises(SpliceError, match="its tokenizer has no BOS token; leave out --bos yes"):
        bos_of(tokenizer, tmp_path, "yes")


@pytest.mark.parametrize("alone", [True, False])
def test_an_answer_that_merges_with_its_question(tmp_path, alone):
    """ ": " is one token: the tree begins before it, in a group of one query too."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    letters = ["<s>", "</s>", "<unk>", "\n", ": ", *(chr(i) for i in range(32, 127))]
    tokenizer = Tokenizer(models.WordLevel({letter: i for i, letter in enumerate(letters)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(": |.|\n"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    prompter = Prompter(load_tokenizer(str(tmp_path)), None)
    queries = [Query("0", "0", "kana:", (" x", "y"))]
    if not alone:
        queries.append(Query("1", "1", "lonas:", (" x",)))
    group = group_of("a\n", queries)
    prompts = prompter.group(group)
    for number in range(len(queries)):
        assert paths(prompts, number) == whole(prompter, group, number)
