"""An untrained model scores at chance; one that is trained on the kv task, here, finds keys wherever they are.

So that two small layers learn it in ten seconds: the tokenizer has the UUIDs of the test's dictionaries as tokens, and the
first layer begins as what such models find first and slowly: a head that looks two tokens back (in `"key": "value` from
the value to its key) and one that looks three back (from where the answer begins to the key that is asked for). What is trained, on
other dictionaries of these UUIDs, is to find the one by the other and to say what stands there.
"""

from __future__ import annotations

import json
import math
import random

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from splice.cli import run
from splice.eval.results import read_results
from splice.eval.tasks.kv import HEAD, dictionary, prompt
from splice.train.hf_write import write_model
from splice.train.loss import IGNORED
from splice.train.model import Llama, ModelConfig, initial
from splice.train.rope import Rope

PAIRS, DICTIONARIES = 8, 10
D, HEADS = 96, 2
HALF, QUARTER, SIZE = D // 2, D // 4, D // HEADS
PARTS = [
    *(part for part in HEAD.split("\n") if part),
    "\n\n",
    "Corresponding value:",
    "Key:",
    '": "',
    '",\n "',
    '"\n',
    ' "',
]


def make_tokenizer(directory):
    """UUIDs and the parts of the prompt as tokens, and all other letters."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    uuids = [text for number in range(DICTIONARIES) for record in dictionary(PAIRS, 0, number) for text in record]
    letters = [chr(i) for i in range(32, 127)] + ["\n"]
    vocabulary = {text: i for i, text in enumerate(["<s>", "</s>", "<unk>", *PARTS, *uuids, *letters])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    parts = "|".join(part.replace(".", "\\.") for part in PARTS)
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(f"{parts}|[0-9a-f-]{{36}}|.|\n"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    directory.mkdir()
    tokenizer.save(str(directory / "tokenizer.json"))
    names = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "add_bos_token": True}
    (directory / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", **names})
    )
    return tokenizer, uuids


def first_model(vocabulary):
    """Embeddings [1 | a token's own | room for what is two back | for what is three back], which are not trained."""
    config = ModelConfig(-(-vocabulary // 128) * 128, D, 2, HEADS, HEADS, SIZE, D, 2048, Rope(original=2048), tied=True)
    model, draw = Llama(config), torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.copy_(initial(name, weight.shape, config, 0))
            if name.startswith("model.layers.1") and weight.ndim > 1:
                weight.mul_(5)
        embedding, look = model.model.embed_tokens.weight.zero_(), model.model.layers[0].self_attn
        own = torch.randn(len(embedding), HALF - 1, generator=draw)
        embedding[:, 1:HALF] = 0.3 * math.sqrt(HALF) * own / own.norm(dim=1, keepdim=True)
        embedding[:, 0] = 0.15 * math.sqrt(HALF)
        angles = 10_000.0 ** (-torch.arange(SIZE // 2) / (SIZE // 2))
        some = torch.linalg.qr(torch.randn(HALF - 1, QUARTER, generator=draw))[0].T
        q, k, v = (p.weight.zero_().view(HEADS, SIZE, D) for p in (look.q_proj, look.k_proj, look.v_proj))
        look.o_proj.weight.zero_()
        for head, back in enumerate((2, 3)):
            q[head, : SIZE // 2, 0] = 1.5
            k[head, :, 0] = 1.5 * torch.cat(((back * angles).cos(), (back * angles).sin()))
            v[head, :QUARTER, 1:HALF] = some
            at = HALF + head * QUARTER
            look.o_proj.weight[at : at + QUARTER, head * SIZE : head * SIZE + QUARTER] = 0.45 * torch.eye(QUARTER)
    return model


def row(tokenizer, uuids, seed):
    """A dictionary and every question about it: ids, and which of them are answers."""
    draw = random.Random(seed)
    chosen = draw.sample(uuids, 2 * PAIRS)
    records = list(zip(chosen[::2], chosen[1::2], strict=True))
    ids = [0, *tokenizer.encode(prompt(records)).ids]
    answers = [False] * len(ids)
    for key, value in draw.sample(records, PAIRS):
        question, answer, next_ = (
            tokenizer.encode(text).ids for text in (f' "{key}"\nCorresponding value:', f' "{value}', '"\n\nKey:')
        )
        ids += question + answer + next_
        answers += [False] * len(question) + [True] * len(answer) + [False] * len(next_)
    return ids, answers


def train(model, tokenizer, uuids, enough=0.02, most=1000, rows=16):
    """To a mean loss below `enough`, or `most` steps; the last one's."""
    weights = [w for n, w in model.named_parameters() if "embed" not in n and "layers.0.self_attn" not in n]
    optimizer = torch.optim.AdamW(weights, 3e-3, betas=(0.9, 0.95), weight_decay=0.0)
    for step in range(most):
        batch = [row(tokenizer, uuids, 10**6 + step * rows + i) for i in range(rows)]
        ids, answers = (torch.tensor(column) for column in zip(*batch, strict=True))
        targets = torch.where(answers[:, 1:], ids[:, 1:], IGNORED)
        loss = model(ids[:, :-1], targets) / answers.sum()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
        model.zero_grad()
        if loss.item() < enough:
            break
    return loss.item()


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Directories of the model before and after its training."""
    directory = tmp_path_factory.mktemp("models")
    tokenizer, uuids = make_tokenizer(directory / "tokenizer")
    model = first_model(tokenizer.get_vocab_size())
    names = {"bos_id": 0, "eos_id": 1, "pad_id": None}
    for name in ("untrained", "trained"):
        if name == "trained":
            assert train(model, tokenizer, uuids) < 0.02
        write_model(
            directory / name, model.config, model.named_parameters(), directory / "tokenizer", names, torch.float32
        )
    return directory


def evaluate(model, output, *more):
    arguments = ["eval", "kv", "--model", str(model), "--pairs", str(PAIRS), "--examples", str(DICTIONARIES)]
    assert run([*arguments, "--output", str(output), *more]) == 0
    return read_results(output)[0].facts


@pytest.mark.parametrize("mode", ["dense", "litm"])
@pytest.mark.parametrize("scorer", ["match", "generate"])
def test_what_is_trained_to_find_keys_finds_them(models, tmp_path, mode, scorer):
    facts = evaluate(
        models / "trained", tmp_path, "--mode", mode, "--scorer", scorer, "--positions", "0 3 7", "--answer-tokens", "8"
    )
    assert facts["metrics"]["match"]["mean"] > 0.95
    assert [row["value"] for row in facts["by"]["position"]] == [0, 3, 7]
    assert facts["check"] == ({"generated_too": 8, "agree": 8} if scorer == "match" else None)


def test_what_is_not_finds_none(models, tmp_path):
    facts = evaluate(models / "untrained", tmp_path)
    assert facts["metrics"]["match"]["mean"] == 0.0
    assert facts["check"] == {"generated_too": 8, "agree": 8}


def test_the_difference_is_compared_and_drawn(models, tmp_path, capsys):
    for name in ("trained", "untrained"):
        evaluate(models / name, tmp_path / name)
    capsys.readouterr()
    assert (
        run(
            ["eval", "compare", str(tmp_path / "trained"), str(tmp_path / "untrained"), "--output", str(tmp_path / "c")]
        )
        == 0
    )
    compared = json.loads((tmp_path / "c" / "compare.json").read_text())
    assert "+" in capsys.readouterr().out
    assert f"kv-dense-{PAIRS}" in json.dumps(compared)
    pictures = tmp_path / "figures"
    assert run(["eval", "plot", str(tmp_path / "trained"), str(tmp_path / "untrained"), "--output", str(pictures)]) == 0
    assert (pictures / f"kv-dense-{PAIRS}_by_position.png").stat().st_size > 10_000


def test_labels_at_chance(llama, tmp_path, shared_data):
    """14 labels, an untrained model: 1 in 14, whatever it prefers, as there are as many of each."""
    arguments = ["eval", "dbpedia", "--model", str(llama), "--shots", "2", "--sets", "3", "--queries", "150", "--max-context", "9999",
                 "--scorer", "likelihood", "--data-dir", str(shared_data), "--output", str(tmp_path)]  # fmt: skip
    assert run(arguments) == 0
    facts = read_results(tmp_path)[0].facts
    assert next(iter(facts["metrics"])) == "likelihood"
    assert 0.02 < facts["metrics"]["likelihood"]["mean"] < 0.14
