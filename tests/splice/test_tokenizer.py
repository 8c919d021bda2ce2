"""The tokenizer: the reference's ids whatever runs, no special token from text, the same bytes from the same training."""

import hashlib
import io
import itertools
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import sentencepiece
import tokenizers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import splice.tokenizer
import splice.tokenizer_backend
import splice.tokenizer_proof
from splice.errors import SpliceError
from splice.tokenizer import load_tokenizer, train_tokenizer
from splice.tokenizer_proof import cut_sample, probes

ROOT = Path(__file__).parents[2]
DATA = Path(os.environ.get("SPLICE_DATA", ROOT.parent / "shared" / "data"))

# Every code point but surrogates, and more of what tokenizers trip over than chance would give.
TEXT = st.lists(
    st.one_of(
        st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
        st.text(" \t\r\n\x00\ufeff▁", max_size=5),
        st.sampled_from(
            [
                "<s>",
                "</s>",
                "<pad>",
                "<unk>",
                "<|endoftext|>",
                "<0x0A>",
                "é",
                "e\u0301",
                "👩🏾‍💻",
                "the ",
                "int x;",
            ]
        ),
        st.text("abcdefgh  _(){};=0123456789\n", max_size=12),
    ),
    max_size=12,
).map("".join)
EXAMPLES = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def corpus() -> list[bytes]:
    """Some 200 kB of source and prose that lie in every checkout's interpreter and repository."""
    library = Path(json.__file__).parent
    files = [
        *sorted(library.glob("*.py")),
        library.parent / "argparse.py",
        library.parent / "ast.py",
        ROOT / "pyproject.toml",
    ]
    return [file.read_bytes() for file in files]


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    directory = tmp_path_factory.mktemp("trained-2000")
    train_tokenizer(corpus(), 2000, directory)
    return directory


@pytest.fixture(scope="session")
def bytelevel(trained):
    return load_tokenizer(str(trained), corpus()[:2])


def train_model(**options) -> bytes:
    """A tiny SentencePiece model of OpenLLaMA v2's kind: BPE, byte fallback, white space kept."""
    model = io.BytesIO()
    lines = [line for text in corpus() for line in text.decode().splitlines()]
    defaults = {
        "vocab_size": 600,
        "model_type": "bpe",
        "byte_fallback": True,
        "split_digits": True,
        "num_threads": 1,
        "minloglevel": 2,
    }
    white_space = {"normalization_rule_name": "identity", "remove_extra_whitespaces": False}
    options = defaults | white_space | options
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(lines), model_writer=model, **options)
    return model.getvalue()


@pytest.fixture(scope="session")
def model_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("sp") / "small.model"
    path.write_bytes(train_model())
    return path


@pytest.fixture(scope="session")
def sp_fast(model_file):
    return load_tokenizer(str(model_file), corpus()[:2])


def write_json(directory: Path, tokenizer: dict, /, **beside: dict) -> str:
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer))
    for name, content in beside.items():
        (directory / f"{name}.json").write_text(json.dumps(content))
    return str(directory)


def changed(trained: Path, **changes) -> dict:
    return json.loads((trained / "tokenizer.json").read_text()) | changes


def added_token(i: int, content: str, **flags) -> dict:
    default = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": False}
    return {"id": i, "content": content} | default | flags


def encode_one(tokenizer, text: str) -> list[int]:
    return tokenizer.encode([text.encode()])[0].tolist()


def same(a, b) -> bool:
    return all(x.dtype == y.dtype and np.array_equal(x, y) for x, y in zip(a, b, strict=True))


# ids


@EXAMPLES
@given(TEXT)
def test_ids_are_those_of_tokenizers_and_give_the_text_back(trained, bytelevel, text):
    reference = tokenizers.Tokenizer.from_file(str(trained / "tokenizer.json"))
    reference.encode_special_tokens = True
    ids = encode_one(bytelevel, text)
    assert bytelevel.backend == "gigatoken"
    assert ids == reference.encode(text, add_special_tokens=False).ids
    assert ids == bytelevel.encode_reference([text.encode()])[0].tolist()
    assert bytelevel.decode(ids) == text


@EXAMPLES
@given(TEXT)
def test_ids_are_those_of_sentencepiece(model_file, sp_fast, text):
    reference = sentencepiece.SentencePieceProcessor(model_file=str(model_file))
    assert sp_fast.backend == "gigatoken"
    assert encode_one(sp_fast, text) == reference.encode(text)


@EXAMPLES
@given(st.lists(TEXT, max_size=6))
def test_documents_stay_apart(bytelevel, texts):
    ids, offsets = bytelevel.encode([text.encode() for text in texts])
    assert (ids.dtype, offsets.dtype, offsets.shape) == (np.uint32, np.int64, (len(texts) + 1,))
    assert [ids[a:b].tolist() for a, b in itertools.pairwise(offsets)] == [encode_one(bytelevel, t) for t in texts]


@pytest.mark.parametrize("fast", [True, False])
def test_nothing_and_empty_documents(trained, fast):
    tokenizer = load_tokenizer(str(trained), fast=fast)
    for texts in ([], [b""], [b"", b"", b""]):
        ids, offsets = tokenizer.encode(texts)
        assert ids.dtype == np.uint32
        assert ids.shape == (0,)
        assert offsets.dtype == np.int64
        assert offsets.tolist() == [0] * (len(texts) + 1)
    ids, offsets = tokenizer.encode([b"", b"a", b""])
    assert offsets.tolist() == [0, 0, 1, 1]


@pytest.mark.parametrize("fast", [True, False])
def test_one_buffer_groups_and_threads_change_nothing(trained, monkeypatch, fast):
    texts = [*corpus(), b"", b"x" * 5000, "żółw".encode()] * 2
    tokenizer = load_tokenizer(str(trained), fast=fast)
    expected = tokenizer.encode(texts)
    assert same(tokenizer.encode(texts, threads=2), expected)
    assert same(tokenizer.encode([memoryview(text) for text in texts]), expected)

    data = np.frombuffer(b"skipped" + b"".join(texts) + b"rest", np.uint8)
    offsets = np.cumsum([7, *map(len, texts)])
    assert same(tokenizer.encode_arrow(data, offsets), expected)
    assert same(tokenizer.encode_arrow(data, offsets.astype(np.int32), threads=2), expected)

    monkeypatch.setattr(splice.tokenizer, "GROUP_BYTES", 10_000)
    monkeypatch.setattr(splice.tokenizer_backend, "REFERENCE_GROUP_BYTES", 3_000)
    monkeypatch.setattr(splice.tokenizer_backend, "RENEW_BYTES", 50_000)
    assert same(tokenizer.encode(texts), expected)
    with ThreadPoolExecutor(4) as pool:
        assert all(same(result, expected) for result in pool.map(lambda k: tokenizer.encode(texts, k), [1, 2, 1, 2]))


def test_the_fast_path_is_renewed_before_its_memory_grows(trained, monkeypatch):
    tokenizer = load_tokenizer(str(trained))
    load = splice.tokenizer_backend.Gigatoken._load
    loads = []
    monkeypatch.setattr(splice.tokenizer_backend.Gigatoken, "_load", lambda self: (loads.append(1), load(self)))
    monkeypatch.setattr(splice.tokenizer_backend, "RENEW_BYTES", 600_000)  # more than the proof has taken
    for _ in range(4):
        tokenizer.encode([b"a" * 400_000])
    assert len(loads) == 2


def test_text_that_is_not_utf8_is_refused_by_the_reference(bytelevel):
    with pytest.raises(SpliceError, match="not UTF-8 at byte 2"):
        bytelevel.encode_reference([b"ok\xff"])


# special tokens


@pytest.mark.parametrize("which", ["bytelevel", "sp_fast"])
def test_a_special_tokens_name_is_text(which, request):
    tokenizer = request.getfixturevalue(which)
    for text in ("</s>", "<s>", "<pad>", "a</s>b <s> </s></s>", "<s>a</s>\n"):
        for ids in (encode_one(tokenizer, text), tokenizer.encode_reference([text.encode()])[0].tolist()):
            assert not {tokenizer.bos_id, tokenizer.eos_id, tokenizer.pad_id} & set(ids)
            assert tokenizer.decode(ids) == text
        assert tokenizer.decode([tokenizer.bos_id, *encode_one(tokenizer, text), tokenizer.eos_id]) == text


def test_an_end_that_is_not_flagged_as_special_is_text_too(trained, tmp_path):
    config = changed(trained, added_tokens=[added_token(0, "<s>"), added_token(1, "</s>")])
    raw = tokenizers.Tokenizer.from_str(json.dumps(config))
    raw.encode_special_tokens = True
    assert 1 in raw.encode("a</s>b").ids  # what has to be prevented
    tokenizer = load_tokenizer(write_json(tmp_path, config))
    assert (tokenizer.bos_id, tokenizer.eos_id) == (0, 1)
    for ids in (encode_one(tokenizer, "a</s>b"), tokenizer.encode_reference([b"a</s>b"])[0].tolist()):
        assert 1 not in ids
        assert tokenizer.decode([0, *ids, 1]) == "a</s>b"


@pytest.mark.parametrize("which", ["bytelevel", "sp_fast"])
def test_a_special_tokens_name_needs_no_reference(which, request, monkeypatch):
    tokenizer = request.getfixturevalue(which)
    monkeypatch.setattr(splice.tokenizer, "encode_by_reference", lambda *_: pytest.fail("the slow way"))
    assert tokenizer.decode(encode_one(tokenizer, "a</s>b <s>")) == "a</s>b <s>"


def unigram(*names: str) -> dict:
    pieces = [["<unk>", 0.0], *([name, 0.0] for name in names), *([c, -5.0] for c in "abc<>/s|")]
    added = [added_token(i, name, special=True) for i, name in enumerate(["<unk>", *names])]
    model = {"type": "Unigram", "unk_id": 0, "vocab": pieces, "byte_fallback": False}
    return {"version": "1.0", "added_tokens": added, "model": model}


def test_a_model_that_holds_its_own_end_as_a_word_does_not_give_it(tmp_path):
    config = unigram("<s>", "</s>")
    raw = tokenizers.Tokenizer.from_str(json.dumps(config))
    raw.encode_special_tokens = True
    assert raw.encode("a</s>b").ids == [3, 2, 4]  # what has to be prevented
    tokenizer = load_tokenizer(write_json(tmp_path, config))
    assert tokenizer.backend == "tokenizers"
    assert tokenizer.backend_reason.startswith("gigatoken cannot load it")
    assert (tokenizer.eos_id, tokenizer.vocab_size) == (2, 11)
    assert encode_one(tokenizer, "a</s>b") == [3, 6, 8, 9, 7, 4]


def test_names_given_to_special_tokens_survive_a_normalizer(tmp_path):
    """A silenced token whose new name a normalizer shortens to a digit must not come out of that digit."""
    config = unigram("<s>", "</s>")
    config["added_tokens"] = [added_token(i, name, normalized=True) for i, name in ((1, "<s>"), (2, "</s>"))]
    config["model"]["vocab"] += [["0", -5.0], ["1", -5.0]]
    config["normalizer"] = {"type": "Replace", "pattern": {"Regex": "[^ -~]"}, "content": ""}
    tokenizer = load_tokenizer(write_json(tmp_path, config))
    assert encode_one(tokenizer, "01</s>") == [11, 12, 6, 8, 9, 7]


def test_unknown_words_keep_their_token(tmp_path):
    vocab = {"[UNK]": 0, "known": 1}
    model = {"type": "WordLevel", "vocab": vocab, "unk_token": "[UNK]"}
    config = {"version": "1.0", "added_tokens": [added_token(0, "[UNK]", special=True)], "model": model}
    tokenizer = load_tokenizer(write_json(tmp_path, config))
    assert (encode_one(tokenizer, "known"), encode_one(tokenizer, "never seen")) == ([1], [0])


@pytest.mark.parametrize(
    ("options", "bos", "eos"),
    [
        ({}, 1, 2),
        ({"bos_id": -1, "eos_id": -1, "unk_id": 0}, None, None),
        ({"bos_id": -1, "eos_id": 1, "unk_id": 0, "eos_piece": "<|endoftext|>"}, None, 1),
        ({"bos_id": -1, "eos_id": -1, "user_defined_symbols": ["<s>", "</s>"]}, 1, 2),
        ({"pad_id": 3}, 1, 2),
    ],
)
def test_ends_of_a_sentencepiece_model(tmp_path, options, bos, eos):
    (tmp_path / "tokenizer.model").write_bytes(train_model(**options))
    tokenizer = load_tokenizer(str(tmp_path))
    assert (tokenizer.bos_id, tokenizer.eos_id) == (bos, eos)
    assert tokenizer.pad_id == options.get("pad_id", eos or 0)
    text = "a</s>b <s> <|endoftext|>"
    for ids in (encode_one(tokenizer, text), tokenizer.encode_reference([text.encode()])[0].tolist()):
        assert not {bos, eos} & set(ids)
        assert tokenizer.decode(ids) == text


def test_documents_with_a_token_that_is_parsed_otherwise_go_to_the_reference(trained, tmp_path):
    tokens = [added_token(0, "<s>", special=True), added_token(1, "</s>", special=True)]
    config = changed(
        trained, added_tokens=[*tokens, added_token(2000, "zqx", single_word=True)]
    )  # gigatoken ignores single_word
    tokenizer = load_tokenizer(write_json(tmp_path, config))
    assert tokenizer.backend == "gigatoken"
    assert tokenizer.backend_reason.endswith("documents with an added token go to tokenizers")
    texts = [b"azqx", b"a zqx", b"", b"zqxs zqx", b"none", b"azqxfish"]
    assert same(tokenizer.encode(texts), tokenizer.encode_reference(texts))
    assert 2000 in encode_one(tokenizer, "a zqx")
    assert 2000 not in encode_one(tokenizer, "azqx")


def test_documents_with_a_user_defined_piece_go_to_the_reference(tmp_path):
    (tmp_path / "tokenizer.model").write_bytes(train_model(user_defined_symbols=["<sep>"]))
    tokenizer = load_tokenizer(str(tmp_path))
    reference = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "tokenizer.model"))
    assert tokenizer.backend == "gigatoken"
    assert tokenizer.backend_reason.endswith("documents with an added token go to sentencepiece")
    for text in ("a<sep>b", "<sep><sep> b", "plain text\n", "<se p>"):
        assert encode_one(tokenizer, text) == reference.encode(text)


def test_added_white_space_is_part_of_the_text(trained, tmp_path):
    tokens = [added_token(0, "<s>", special=True), added_token(1, "</s>", special=True)]
    runs = [added_token(2000 + i, " " * n, normalized=True) for i, n in enumerate((16, 8, 4))]  # as GPT-NeoX has them
    config = changed(trained, added_tokens=[*tokens, *runs])
    raw = tokenizers.Tokenizer.from_str(json.dumps(config))
    tokenizer = load_tokenizer(write_json(tmp_path, config))
    text = "a" + " " * 30 + "b        c"
    assert tokenizer.vocab_size == 2003
    assert encode_one(tokenizer, text) == raw.encode(text).ids
    assert tokenizer.decode(encode_one(tokenizer, text)) == text


def test_truncation_padding_and_templates_are_off(trained, tmp_path):
    raw = tokenizers.Tokenizer.from_file(str(trained / "tokenizer.json"))
    raw.enable_truncation(4)
    raw.enable_padding(length=50, pad_id=2, pad_token="<pad>")
    raw.post_processor = tokenizers.processors.TemplateProcessing(
        "<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)]
    )
    (tmp_path / "tokenizer.json").write_text(raw.to_str())
    text = "one two three four five six seven"
    assert len(raw.encode(text).ids) == 50  # what has to be prevented
    tokenizer, plain = load_tokenizer(str(tmp_path)), load_tokenizer(str(trained))
    assert encode_one(tokenizer, text) == encode_one(plain, text)
    assert same(tokenizer.encode_reference([text.encode()]), plain.encode([text.encode()]))


@pytest.mark.parametrize(
    ("names", "beside", "expected"),
    [
        (["<s>", "</s>", "<pad>"], {}, (0, 1, 2)),
        (["<s>", "</s>", "x"], {}, (0, 1, 1)),
        (["<|endoftext|>", "y", "x"], {}, (0, 0, 0)),
        (["<|begin_of_text|>", "<|end_of_text|>", "x"], {}, (0, 1, 1)),
        (["<bos>", "<eos>", "x"], {}, (0, 1, 1)),
        (["[BOS]", "[EOS]", "[PAD]"], {}, (0, 1, 2)),
        (["x", "y", "z"], {}, (None, None, 0)),
        (
            ["<s>", "</s>", "x"],
            {"tokenizer_config": {"bos_token": "x", "eos_token": {"content": "<s>"}}},
            (2, 0, 0),
        ),
        (["<s>", "</s>", "x"], {"special_tokens_map": {"eos_token": "x", "pad_token": "<s>"}}, (0, 2, 0)),
        (["<s>", "</s>", "x"], {"config": {"bos_token_id": 2, "eos_token_id": [0, 1]}}, (2, 0, 0)),
        (
            ["<s>", "</s>", "x"],
            {"tokenizer_config": {"eos_token": "x"}, "config": {"eos_token_id": 0}},
            (0, 2, 2),
        ),
        (["<s>", "</s>", "x"], {"tokenizer_config": {"bos_token": None}}, (None, 1, 1)),
        (
            ["<s>", "</s>", "x"],
            {"tokenizer_config": {"bos_token": None}, "config": {"bos_token_id": 2}},
            (2, 1, 1),
        ),
        (["<s>", "</s>", "x"], {"config": {"eos_token_id": 999_999, "pad_token_id": -1}}, (0, 1, 1)),
        (["<s>", "</s>", "x"], {"tokenizer_config": {"eos_token": "not there"}}, (0, 1, 1)),
    ],
)
def test_ends_of_a_tokenizer_json(tmp_path, names, beside, expected):
    model = {
        "type": "WordLevel",
        "vocab": {name: i for i, name in enumerate([*names, "[UNK]"])},
        "unk_token": "[UNK]",
    }
    config = {
        "version": "1.0",
        "added_tokens": [added_token(i, name, special=True) for i, name in enumerate(names)],
        "model": model,
    }
    tokenizer = load_tokenizer(write_json(tmp_path, config, **beside), fast=False)
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.pad_id) == expected


def test_a_missing_end_matters_only_where_it_is_asked_for(tmp_path):
    config = unigram("<s>")
    tokenizer = load_tokenizer(write_json(tmp_path, config), fast=False)
    tokenizer.require("bos")
    tokenizer.require("none")
    for join in ("eos", "bos+eos", "EOS"):
        with pytest.raises(SpliceError, match="no EOS token"):
            tokenizer.require(join)


# the proof


def tamper(monkeypatch, hits) -> None:
    """Give the fast path a fault: where `hits(text)`, its last id is another."""
    honest = splice.tokenizer_backend.Gigatoken.encode

    def encode(self, data, offsets, threads):
        ids, ends = honest(self, data, offsets, threads)
        ids = ids.copy()
        for i in range(len(offsets) - 1):
            if ends[i + 1] > ends[i] and hits(data[offsets[i] : offsets[i + 1]].tobytes()):
                ids[ends[i + 1] - 1] ^= 1
        return ids, ends

    monkeypatch.setattr(splice.tokenizer_backend.Gigatoken, "encode", encode)


@pytest.mark.parametrize(
    ("hits", "reason"),
    [
        (lambda text: text == b"word\n", "differs from tokenizers on probe "),
        (lambda text: b"\r\n" in text, "differs from tokenizers on probe 'C, CRLF'"),
        (lambda text: text.startswith(b"\xef\xbb\xbf"), "differs from tokenizers on probe 'BOM first'"),
        (lambda text: text.endswith(b"\x00") and len(text) == 1, "differs from tokenizers on probe 'NUL'"),
        (
            lambda text: b"seen in the corpus alone" in text,
            "differs from tokenizers on document 1 of the sample",
        ),
        (lambda text: 1 / 0, "gigatoken fails on the probes: ZeroDivisionError"),
    ],
)
def test_a_fast_path_with_a_fault_is_found_out(trained, monkeypatch, hits, reason):
    tamper(monkeypatch, hits)
    texts = [b"a", b"seen in the corpus alone", b"word\n", b"a\r\nb", b"\xef\xbb\xbfx", b"\x00"]
    tokenizer = load_tokenizer(str(trained), [b"one", b"seen in the corpus alone"])
    assert tokenizer.backend == "tokenizers"
    assert reason in tokenizer.backend_reason
    assert same(tokenizer.encode(texts), tokenizer.encode_reference(texts))


def test_an_honest_fast_path_says_what_was_compared(bytelevel, sp_fast):
    assert (
        bytelevel.backend_reason
        == f"equal to tokenizers on {len(probes(['<s>', '</s>', '<pad>']))} probes and 2 documents"
    )
    assert sp_fast.backend_reason.startswith("equal to sentencepiece on ")


def test_probes_are_many_distinct_and_cover_every_plane():
    names, texts = zip(*probes(["<|mine|>"]), strict=True)
    assert len(names) == len(set(names)) > 200
    assert {ord(c) >> 16 for c in "".join(texts)} >= {0, 1, 2, 3, 14, 15, 16}
    assert set(map(chr, range(128))) <= set("".join(texts))
    assert {"", " ", "\n", "\r\n", "\x00", "<|mine|>", "<s>", "</s>", "<|endoftext|>"} <= set(texts)
    assert max(map(len, texts)) >= 5000
    assert {ord(c) >> 8 for c in "".join(texts)} >= {*range(0xD8), *range(0xE0, 0x200)}


def test_the_sample_is_cut_between_characters(monkeypatch):
    monkeypatch.setattr(splice.tokenizer_proof, "SAMPLE_BYTES", 10)
    assert cut_sample([b"abc", "żółw".encode(), b"never"]) == [b"abc", "żółw".encode()]
    assert cut_sample([b"12345678", "żółw".encode(), b"never"]) == [b"12345678", "ż".encode()]
    assert cut_sample([b"123456789", "żółw".encode(), b"never"])[:2] == [b"123456789", b""]
    assert cut_sample([]) == []


def test_a_special_id_from_the_fast_path_sends_the_document_to_the_reference(trained, monkeypatch):
    tokenizer = load_tokenizer(str(trained))
    assert tokenizer.backend == "gigatoken"
    honest = splice.tokenizer_backend.Gigatoken.encode

    def leaking(self, data, offsets, threads):
        ids, ends = honest(self, data, offsets, threads)
        ids = ids.copy()
        ids[ends[2]] = tokenizer.eos_id
        return ids, ends

    monkeypatch.setattr(splice.tokenizer_backend.Gigatoken, "encode", leaking)
    texts = [b"one", b"two", b"three three three", b"", b"four"]
    assert same(tokenizer.encode(texts), tokenizer.encode_reference(texts))


# training and saving


def digest(directory: Path) -> dict[str, str]:
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(directory.iterdir())}


def test_training_gives_the_same_bytes_for_any_hash_seed_and_threads(trained, tmp_path):
    script = (
        "import sys; sys.path.insert(0, sys.argv[2]); from pathlib import Path\n"
        "from splice.tokenizer import train_tokenizer\n"
        "train_tokenizer(eval(sys.stdin.read()), 2000, Path(sys.argv[1]))"
    )
    running = []
    for seed, threads in (("1", "1"), ("2", "2"), ("3", "5")):
        out = tmp_path / seed
        environment = os.environ | {
            "PYTHONHASHSEED": seed,
            "RAYON_NUM_THREADS": threads,
            "TOKENIZERS_PARALLELISM": "true",
        }
        process = subprocess.Popen(
            [sys.executable, "-c", script, out, ROOT], env=environment, stdin=subprocess.PIPE, text=True
        )
        process.stdin.write(repr(corpus()))
        process.stdin.close()
        running.append((process, out))
    for process, out in running:
        assert process.wait() == 0
        assert digest(out) == digest(trained)


def test_what_training_gives(trained, bytelevel, tmp_path):
    assert (bytelevel.bos_id, bytelevel.eos_id, bytelevel.pad_id, bytelevel.vocab_size) == (0, 1, 2, 2000)
    train_tokenizer([b"tiny corpus"], 32000, tmp_path)
    tiny = load_tokenizer(str(tmp_path))
    assert tiny.vocab_size == 259  # no pair occurs twice
    assert tiny.decode(encode_one(tiny, "nothing of this was seen: żółw 🐢")) == "nothing of this was seen: żółw 🐢"
    with pytest.raises(SpliceError, match="259"):
        train_tokenizer([b"x"], 258, tmp_path)


def test_a_saved_tokenizer_is_the_same_one(trained, model_file, tmp_path):
    for spec, name in (
        (trained, trained.name),
        (model_file, "small.model"),
        (trained / "tokenizer.json", "tokenizer.json"),
    ):
        tokenizer = load_tokenizer(str(spec), fast=False)
        assert tokenizer.name == name
        first, second = tmp_path / f"{name}-a", tmp_path / f"{name}-b"
        tokenizer.save(first)
        tokenizer.save(first)
        again = load_tokenizer(str(first), fast=False)
        again.save(second)
        assert digest(first) == digest(second)
        for attribute in ("fingerprint", "bos_id", "eos_id", "pad_id", "vocab_size"):
            assert getattr(again, attribute) == getattr(tokenizer, attribute)
        assert same(again.encode(corpus()), tokenizer.encode(corpus()))
    assert tokenizer.fingerprint == hashlib.sha256((trained / "tokenizer.json").read_bytes()).hexdigest()


def test_a_saved_tokenizer_carries_its_ends_and_no_remote_code(trained, tmp_path):
    user = {
        "tokenizer_class": "MyTokenizer",
        "auto_map": {"AutoTokenizer": ["mine.MyTokenizer", None]},
        "chat_template": "{{ x }}",
    }
    spec = write_json(tmp_path, changed(trained), tokenizer_config=user, config={"eos_token_id": 300})
    tokenizer = load_tokenizer(spec, fast=False)
    tokenizer.save(tmp_path / "saved")
    config = json.loads((tmp_path / "saved" / "tokenizer_config.json").read_text())
    raw = tokenizers.Tokenizer.from_file(str(trained / "tokenizer.json"))
    assert config["eos_token"] == raw.id_to_token(300)
    assert (config["bos_token"], config["pad_token"], config["chat_template"]) == ("<s>", "<pad>", "{{ x }}")
    assert "auto_map" not in config
    assert config["tokenizer_class"] == "PreTrainedTokenizerFast"
    assert load_tokenizer(str(tmp_path / "saved"), fast=False).eos_id == 300


# what cannot be loaded


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("missing/tokenizer.json", None, "no such file"),
        ("missing.model", None, "no such file"),
        ("tokenizer.json", b'{"bos_token": "<s>"}', 'it has no "model"'),
        ("tokenizer.json", b"{", "not a tokenizer that can be read"),
        ("tokenizer.json", b'{"model": {"type": "Nonsense"}}', "not a tokenizer that can be read"),
        ("garbage.model", b"nothing of the kind", "not a tokenizer that can be read"),
        ("empty.model", b"", "not a tokenizer that can be read"),
        ("empty", "directory", "neither a tokenizer.json nor a tokenizer.model"),
    ],
)
def test_what_is_not_a_tokenizer_is_named(tmp_path, name, content, message):
    path = tmp_path / name
    if content == "directory":
        path.mkdir()
    elif content is not None:
        path.write_bytes(content)
    with pytest.raises(SpliceError, match=message) as caught:
        load_tokenizer(str(path))
    assert str(path) in str(caught.value)


def test_a_file_beside_it_that_is_not_json_is_named(trained, tmp_path):
    spec = write_json(tmp_path, changed(trained))
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(SpliceError, match=r"tokenizer_config\.json: not JSON"):
        load_tokenizer(spec)


def test_a_hub_name_without_the_hub(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(
        SpliceError, match=r"org/name: no such file or directory here, and the hub .* name a tokenizer\.json"
    ):
        load_tokenizer("org/name")


def test_a_hub_name_with_the_hub(monkeypatch, tmp_path, trained):
    """The hub replaced by a directory that has a tokenizer.json, a config.json and nothing else."""
    from huggingface_hub.errors import EntryNotFoundError

    (tmp_path / "tokenizer.json").write_bytes((trained / "tokenizer.json").read_bytes())
    (tmp_path / "config.json").write_text('{"eos_token_id": 7}')

    def download(repo, file):
        assert repo == "org/name"
        if not (tmp_path / file).exists():
            raise EntryNotFoundError(file)
        return str(tmp_path / file)

    monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
    tokenizer = load_tokenizer("org/name", fast=False)
    assert (tokenizer.name, tokenizer.eos_id) == ("org/name", 7)


def test_importing_it_is_light():
    script = "import sys, splice.tokenizer; print({'tokenizers', 'sentencepiece', 'gigatoken', 'awkward', 'huggingface_hub'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


# tokenizers of real models, where they are at hand


@pytest.mark.parametrize(
    ("file", "backend"), [("tokenizer_ol_v2.model", "gigatoken"), ("tokenizer.model", "sentencepiece")]
)
def test_open_llama(file, backend):
    path = DATA / "tokenizers" / file
    if not path.exists():
        pytest.skip(f"{path} is not there")
    tokenizer = load_tokenizer(str(path), corpus())
    reference = sentencepiece.SentencePieceProcessor(model_file=str(path))
    assert tokenizer.backend == backend, tokenizer.backend_reason
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.pad_id, tokenizer.vocab_size) == (1, 2, 2, 32000)
    for text in (
        "a\n",
        "<s>",
        "</s>",
        "x <s></s> <unk>\n",
        " a  b ",
        "\x00\ufeff\r\n",
        *(c.decode() for c in corpus()),
    ):
        assert encode_one(tokenizer, text) == reference.encode(text)
