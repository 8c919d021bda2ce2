"""The tasks: prompts to the letter, what is drawn by which seed, what fills a context, scores, errors."""

import json
import re
from itertools import pairwise
from pathlib import Path

import pytest

from splice.errors import SpliceError
from splice.eval.demonstrations import MARGIN, asked, fill, halves, order
from splice.eval.task import Answer
from splice.eval.tasks import TASKS, dbpedia, kv, nq, qasper, trec
from splice.eval.tasks.positions import chosen

FIXTURES = Path(__file__).parent / "fixtures"


def words(text: str) -> int:
    """Tokens, for tests: what white space separates, and line ends."""
    return len(text.split()) + text.count("\n")


class Run:
    """The first variant of a task: its name, settings, data and groups. On the fixtures, if not told otherwise."""

    def __init__(self, name, data_dir=FIXTURES, unverified_data=True, count=words, **settings):
        self.task = TASKS[name]
        asked = self.task.settings(data_dir=data_dir, unverified_data=unverified_data, **settings)
        self.name, self.settings = self.task.variants(asked)[0]
        self.loaded = self.task.load(self.settings)
        self.groups = list(self.task.groups(self.settings, self.loaded, count))

    @property
    def prompts(self):
        return [group.prefix + query.suffix for group in self.groups for query in group.queries]

    def score(self, **answer):
        return self.task.score(self.settings, self.groups[0].queries[0], Answer(**answer))


SMALL = {
    "kv": {"pairs": 4, "examples": 2},
    "trec": {"shots": 3, "sets": 2},
    "dbpedia": {"shots": 3, "sets": 2, "queries": 5},
    "hotpotqa": {"shots": 1, "sets": 2, "queries": 2},
    "qasper": {"shots": 1},
    "nq": {"documents": 10, "examples": 2},
}


def variants(name, **settings):
    task = TASKS[name]
    return [variant for variant, _ in task.variants(task.settings(**settings))]


# ---------------------------------------------------------------------------------------------------- of every task


def test_the_registry_is_in_order():
    assert [name for name in TASKS if name != "perplexity"] == ["kv", "trec", "dbpedia", "hotpotqa", "qasper", "nq"]
    assert all(task.name == name for name, task in TASKS.items())


@pytest.mark.parametrize("name", SMALL)
def test_groups_are_the_same_for_the_same_settings(name):
    runs = [Run(name, **SMALL[name]) for _ in range(2)]
    assert runs[0].groups == runs[1].groups


@pytest.mark.parametrize("name", [name for name in SMALL if name != "nq"])
def test_another_seed_gives_other_prompts(name):
    assert Run(name, **SMALL[name]).prompts != Run(name, **SMALL[name], seed=1).prompts


@pytest.mark.parametrize("name", SMALL)
def test_ids_are_unique_and_groups_as_many_as_said(name):
    run = Run(name, **SMALL[name])
    ids = [query.id for group in run.groups for query in group.queries]
    assert len(set(ids)) == len(ids)
    assert len({group.id for group in run.groups}) == len(run.groups) == run.task.size(run.settings, run.loaded)


@pytest.mark.parametrize("name", SMALL)
def test_answers_follow_the_prompt_after_a_space(name):
    for group in Run(name, **SMALL[name]).groups:
        for query in group.queries:
            assert not (group.prefix + query.suffix).endswith((" ", "\n"))
            assert all(answer.startswith(" ") and answer.strip() for answer in query.answers)
            assert not query.labels or set(query.answers) <= set(query.labels)


@pytest.mark.parametrize("name", SMALL)
def test_limit_keeps_the_first_queries_and_changes_no_prompt(name):
    whole, few = Run(name, **SMALL[name]), Run(name, **SMALL[name], limit=1)
    assert [group.prefix for group in whole.groups] == [group.prefix for group in few.groups]
    assert [group.queries[:1] for group in whole.groups] == [group.queries for group in few.groups]


# ------------------------------------------------------------------------------------------------ key-value retrieval

RECORDS = [("k0", "v0"), ("k1", "v1"), ("k2", "v2")]


def test_kv_prompt_is_that_of_lost_in_the_middle():
    assert kv.prompt(RECORDS) + kv._query("q", RECORDS[1], 1, "i").suffix == (
        "Extract the value corresponding to the specified key in the JSON object below.\n"
        "\n"
        "JSON data:\n"
        '{"k0": "v0",\n'
        ' "k1": "v1",\n'
        ' "k2": "v2"}\n'
        "\n"
        'Key: "k1"\n'
        "Corresponding value:"
    )


def test_kv_answers_with_and_without_quotes():
    assert kv._query("q", RECORDS[1], 1, "i").answers == (" v1", ' "v1', ' "v1"')


def test_a_record_is_moved_and_the_others_keep_their_order():
    records = list("abcd")
    assert ["".join(kv.moved(records, 1, position)) for position in range(4)] == ["bacd", "abcd", "acbd", "acdb"]
    assert "".join(records) == "abcd"


def test_dictionaries_are_uuids_drawn_by_seed_and_number():
    records = kv.dictionary(75, 0, 0)
    uuids = [uuid for record in records for uuid in record]
    assert len(records) == 75
    assert len(set(uuids)) == 150
    assert all(re.fullmatch(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}", u) for u in uuids)
    assert kv.dictionary(300, 0, 0)[:75] == records, "a larger dictionary begins with the smaller one"
    others = {kv.dictionary(75, 1, 0)[0], kv.dictionary(75, 0, 1)[0], records[0]}
    assert len(others) == 3
    first = ("5eba5131-2740-4a89-89e0-7b74f2bf9f08", "2f7cc794-db71-4114-aacd-556234c9efcc")
    assert records[0] == first, "the same on every machine"


def test_dense_asks_one_dictionary_for_every_key():
    run = Run("kv", pairs=4, examples=2)
    assert run.name == "kv-dense-4"
    assert [(g.id, g.cluster, len(g.queries)) for g in run.groups] == [
        ("dictionary-0000", "dictionary-0000", 4),
        ("dictionary-0001", "dictionary-0001", 4),
    ]
    for group, number in zip(run.groups, range(2), strict=True):
        records = kv.dictionary(4, 0, number)
        assert group.prefix == kv.prompt(records)
        for position, query in enumerate(group.queries):
            assert query.suffix == f' "{records[position][0]}"\nCorresponding value:'
            assert query.answers[0] == f" {records[position][1]}"
            assert query.tags == {"position": position}
    assert run.loaded.files == (), "drawn, whatever is in --data-dir"


def test_dense_asks_at_some_positions():
    run = Run("kv", pairs=10, examples=1, positions="7,2")
    assert [query.tags["position"] for query in run.groups[0].queries] == [2, 7]
    assert len(Run("kv", pairs=10).groups) == 20


def test_litm_moves_the_record_of_the_published_example():
    run = Run("kv", mode="litm", pairs=4, examples=2, positions="all")
    assert run.name == "kv-litm-4"
    rows = [json.loads(line) for line in (FIXTURES / "kv-retrieval-4_keys.jsonl").read_text().splitlines()]
    assert [(g.id, g.cluster) for g in run.groups] == [
        (f"dictionary-{n:04d}-{p}", f"dictionary-{n:04d}") for n in range(2) for p in (3, 2, 1, 0)
    ], "by example, then by descending position"
    for group, (row, position) in zip(run.groups, ((row, p) for row in rows for p in (3, 2, 1, 0)), strict=True):
        (query,) = group.queries
        shown = re.findall(r'"(.+)": "(.+)"', group.prefix)
        assert shown[position] == (row["key"], row["value"])
        shown.pop(position)
        others = [tuple(record) for record in row["ordered_kv_records"] if record[0] != row["key"]]
        assert shown == others
        assert query.tags == {"position": position}
        assert (query.item, query.answers[0]) == (group.cluster, f" {row['value']}")
        assert f'"{row["key"]}"' in query.suffix
    assert [file.name for file in run.loaded.files] == ["kv-retrieval-4_keys.jsonl"]
    assert len(Run("kv", mode="litm", pairs=4, examples=1).groups) == 4


def test_litm_prompts_begin_as_the_one_before():
    run = Run("kv", data_dir=None, mode="litm", pairs=20, examples=1, positions="all")
    prefixes = [group.prefix for group in run.groups]
    for pair, position in zip(pairwise(prefixes), range(18, -1, -1), strict=True):
        same = next(n for n, (a, b) in enumerate(zip(*pair, strict=True)) if a != b)
        assert pair[0][:same].count('": "') >= position


def test_litm_draws_examples_where_there_are_none():
    run = Run("kv", mode="litm", pairs=5, examples=3)
    assert run.loaded.files == ()
    assert len(run.groups) == 15
    assert run.groups[4].prefix == kv.prompt(kv.dictionary(5, 0, 0)), "the first record is asked for"
    assert run.groups[4].queries[0].tags == {"position": 0}


def test_kv_scores():
    run = Run("kv", pairs=4, examples=1)
    value = run.groups[0].queries[0].answers[0].strip()
    assert run.score(matched=True) == {"match": 1.0}
    assert run.score(matched=False) == {"match": 0.0}
    assert run.score(text=f' The value is "{value.upper()}".') == {"match": 1.0}
    assert run.score(text=f" {value[:-1]}") == {"match": 0.0}
    assert run.settings.answer_tokens == 100


def test_kv_refuses_what_it_cannot_do(tmp_path):
    assert variants("kv", pairs="75 300", mode="litm") == ["kv-litm-75", "kv-litm-300"]
    with pytest.raises(
        SpliceError, match="kv: --scorer likelihood cannot score it: its answers are not among a few labels"
    ):
        variants("kv", scorer="likelihood")
    with pytest.raises(SpliceError, match="kv: --positions 75, but positions are 0 to 74 here"):
        variants("kv", positions=75)
    with pytest.raises(SpliceError, match="kv: --pairs 1, but a dictionary has 2 at least"):
        variants("kv", pairs="4 1")
    with pytest.raises(SpliceError, match=r"kv: --examples 3, but .*4_keys.jsonl has 2; ask for fewer"):
        Run("kv", mode="litm", pairs=4, examples=3)
    row = {"ordered_kv_records": [["a", "b"], ["c", "d"]], "key": "a", "value": "d"}
    (tmp_path / "kv-retrieval-2_keys.jsonl").write_text(json.dumps(row))
    with pytest.raises(
        SpliceError, match=r"kv-retrieval-2_keys.jsonl:1: not 2 records \[key, value\], that of the key among"
    ):
        Run("kv", data_dir=tmp_path, mode="litm", pairs=2)


def test_positions_are_the_published_ones_or_five_by_default():
    published = {10: (0, 4, 9)}
    assert chosen("nq", None, 10, published) == [0, 4, 9]
    assert chosen("nq", None, 20, published) == [0, 4, 9, 14, 19]
    assert chosen("kv", None, 3, published) == [0, 1, 2]
    assert chosen("nq", None, 1, published) == [0]
    assert chosen("nq", "all", 10, published) == list(range(10))
    assert chosen("nq", [2, 0, 2], 10, published) == [0, 2]
    with pytest.raises(SpliceError, match="kv: --positions -1, but positions are 0 to 2 here"):
        chosen("kv", [0, -1], 3, published)
    litm = Run("kv", mode="litm", pairs=75, examples=1).groups
    assert [group.queries[0].tags["position"] for group in litm] == [74, 49, 24, 0]


# --------------------------------------------------------------------------------------------------- demonstrations


def test_sets_are_drawn_without_replacement_by_seed_and_set():
    assert sorted(order(50, 3, 1)) == list(range(50))
    assert order(50, 3, 1) == order(50, 3, 1)
    assert len({tuple(order(50, seed, s)) for seed in range(3) for s in range(3)}) == 9


def test_a_context_is_filled_and_never_exceeded():
    texts = [f"{'word ' * (n % 7 + 1)}\n" for n in range(2000)]
    for context in (64, 200, 1000, 3000):
        places = fill(2000, texts.__getitem__, context, 20, 0, 0, words, "trec")
        taken = words("".join(texts[place] for place in places))
        assert len(set(places)) == len(places)
        assert places == order(2000, 0, 0)[: len(places)]
        assert context - 20 - MARGIN - 8 < taken <= context - 20 - MARGIN


def test_texts_are_counted_once_each_and_the_prompt_again():
    counted = []

    def count(text):
        counted.append(text)
        return words(text) + 1  # a BOS that is no part of any text

    texts = [f"{n} is a number\n" for n in range(100)]
    places = fill(100, texts.__getitem__, 200, 0, 0, 0, count, "trec")
    assert len(places) == (200 - MARGIN - 1) // 5, "a BOS of each text is not counted, that of the prompt is"
    assert sum(map(len, counted)) < 4 * sum(len(texts[place]) for place in places)
    assert sum(text.count("\n") > 2 for text in counted) <= 2


def test_what_is_over_when_texts_are_joined_is_dropped():
    def count(text):
        return len(text.split()) + (20 if text.count("\n") > 2 else 0)  # 20 more in a prompt than its texts say

    texts = [f"{'word ' * (n % 9)}\n" for n in range(100)]
    for room in range(40, 240, 7):
        places = fill(100, texts.__getitem__, room + MARGIN, 0, 0, 0, count, "trec")
        fits = [n for n in range(100) if count("".join(texts[place] for place in order(100, 0, 0)[:n])) <= room]
        assert places == order(100, 0, 0)[: max(fits)]


def test_a_context_that_holds_none_or_all_is_refused():
    with pytest.raises(
        SpliceError,
        match="trec: --context 30 holds no demonstration: a query, its answer and a margin of 8 take up to 30 tokens",
    ):
        fill(5, lambda _: "a b c\n", 30, 22, 0, 0, words, "trec")
    with pytest.raises(
        SpliceError, match="trec: all 5 demonstrations take 20 of the 70 tokens that --context 100 leaves for them"
    ):
        fill(5, lambda _: "a b c\n", 100, 22, 0, 0, words, "trec")


def test_halves_are_split_by_the_seed():
    one, other = halves("abcdefghij", 0)
    assert len(one) == len(other) == 5
    assert sorted(one + other) == list("abcdefghij")
    assert one == sorted(one)
    assert other == sorted(other)
    assert halves("abcdefghij", 1) != (one, other)


def test_queries_are_drawn_by_seed():
    assert asked("trec", 5, None, 0) == [0, 1, 2, 3, 4]
    some = asked("trec", 100, 10, 0)
    assert some == sorted(set(some))
    assert len(some) == 10
    assert some != asked("trec", 100, 10, 1)
    assert asked("trec", 100, 10, 0, 1) != asked("trec", 100, 10, 0, 2)
    with pytest.raises(SpliceError, match="trec: --queries 6, but there are 5 to ask; ask for fewer"):
        asked("trec", 5, 6, 0)


# -------------------------------------------------------------------------------------------------------------- TREC


def test_trec_prompt():
    run = Run("trec", shots=2, sets=1, queries=4)
    (group,) = run.groups
    first, second = (run.loaded.rows.demonstrations[place] for place in order(12, 0, 0)[:2])
    assert (
        group.prefix == f"Question: {first.text}\nType: {first.label}\nQuestion: {second.text}\nType: {second.label}\n"
    )
    query = group.queries[1]
    assert query.suffix == "Question: Who painted the bridge ?\nType:"
    assert query.answers == (" HUM",)
    assert query.labels == (" ABBR", " DESC", " ENTY", " HUM", " LOC", " NUM")
    assert query.end == "\n"
    assert (query.id, query.item, group.cluster) == ("set-0000-q00001", "q00001", "set-0000")


def test_trec_labels_are_what_the_file_says():
    coarse, fine = Run("trec", shots=1, sets=1), Run("trec", shots=1, sets=1, labels="fine")
    assert [query.answers[0] for query in coarse.groups[0].queries] == [" NUM", " HUM", " LOC", " DESC"]
    assert [query.answers[0] for query in fine.groups[0].queries] == [
        " NUM:dist",
        " HUM:ind",
        " LOC:state",
        " DESC:reason",
    ]
    assert len(fine.groups[0].queries[0].labels) == 50
    assert len(set(trec.LABELS["fine"])) == 50
    assert (
        "Question: How many oars does the blue boat have ?\nType: NUM:count\n"
        in Run("trec", shots=12, sets=1, labels="fine").groups[0].prefix
    )


def test_test_questions_are_never_demonstrations_and_none_is_there_twice():
    run = Run("trec", shots=12, sets=3)
    for group in run.groups:
        questions = re.findall("Question: (.*)", group.prefix)
        assert len(set(questions)) == len(questions) == 12
        assert not set(questions) & {test.text for test in run.loaded.rows.test}
    with pytest.raises(
        SpliceError, match="trec: --shots 13, but there are 12 demonstrations to draw from; ask for fewer"
    ):
        Run("trec", shots=13)


def test_sets_do_not_depend_on_how_many_there_are():
    few, many = Run("trec", shots=5, sets=2), Run("trec", shots=5, sets=7)
    assert many.groups[:2] == few.groups
    assert len({group.prefix for group in many.groups}) == 7
    assert len({tuple(q.item for q in group.queries) for group in many.groups}) == 1, "all sets are asked the same"


def test_trec_fills_a_context_whatever_the_scorer():
    runs = [Run("trec", context=120, sets=4, scorer=scorer) for scorer in ("match", "likelihood", "generate")]
    for group in runs[0].groups:
        longest = max(words(query.suffix) for query in group.queries)
        taken = words(group.prefix)
        assert taken + longest + 16 + MARGIN <= 120, "16 tokens of an answer"
        assert taken + longest + 16 + MARGIN > 120 - 14, "14 tokens of a demonstration"
    assert [group.prefix for group in runs[0].groups] == [group.prefix for group in runs[1].groups]
    assert [group.prefix for group in runs[0].groups] == [group.prefix for group in runs[2].groups]


@pytest.mark.parametrize("context", range(90, 130, 3))
def test_the_longest_query_of_a_set_fits(context):
    for group in Run("trec", context=context, sets=3, answer_tokens=1).groups:
        assert words(group.prefix) + max(words(q.suffix) for q in group.queries) + 2 + MARGIN <= context


def test_a_byte_that_is_no_text_is_a_space(tmp_path):
    for name in ("train_5500.label", "TREC_10.label"):
        (tmp_path / name).write_bytes(f"LOC:city Which sister\u00f0city of {name} ?\n".encode("latin-1"))
    run = Run("trec", data_dir=tmp_path, shots=1, sets=1)
    assert run.groups[0].queries[0].suffix == "Question: Which sister city of TREC_10.label ?\nType:"
    (tmp_path / "TREC_10.label").write_text("LOC:city Which sister\u00f0city ?", encoding="utf-8")
    run = Run("trec", data_dir=tmp_path, shots=1, sets=1)
    assert run.groups[0].queries[0].suffix == "Question: Which sister city ?\nType:"


def test_runs_of_trec():
    assert variants("trec") == ["trec-coarse-16384"]
    assert variants("trec", context="16384 32768", labels="fine") == ["trec-fine-16384", "trec-fine-32768"]
    assert variants("trec", shots="90,780") == ["trec-coarse-90shot", "trec-coarse-780shot"]
    assert variants("trec", shots=90, context=8192) == ["trec-coarse-90shot", "trec-coarse-8192"]
    with pytest.raises(SpliceError, match="trec: --shots and --context are positive numbers"):
        variants("trec", shots=0)
    first, second = TASKS["trec"].variants(TASKS["trec"].settings(shots=90, context=8192))
    assert (first[1].shots, first[1].context) == ([90], None)
    assert (second[1].shots, second[1].context) == (None, [8192])


def test_labels_of_another_file_are_refused(tmp_path):
    (tmp_path / "train_5500.label").write_text("NUM:count How many ?\nNUM:many How many ?\n")
    (tmp_path / "TREC_10.label").write_text("NUM:count How many ?\n")
    with pytest.raises(
        SpliceError, match=r"train_5500.label:2: not a label of TREC and a question \('NUM:many'\); download"
    ):
        Run("trec", data_dir=tmp_path)
    (tmp_path / "train_5500.label").write_text("NUM:count \n")
    with pytest.raises(SpliceError, match=r"train_5500.label:1: not a label of TREC and a question"):
        Run("trec", data_dir=tmp_path)


def test_trec_without_its_files_says_where_they_are(tmp_path):
    with pytest.raises(
        SpliceError, match=r"no train_5500.label \(or .gz\) below it \(found: no files\); get both files from"
    ):
        Run("trec", data_dir=tmp_path)


def fake_hub(monkeypatch, splits):
    """datasets.load_dataset that gives the rows of `splits`; the calls it gets."""
    datasets = pytest.importorskip("datasets")
    calls = []

    def load_dataset(name, config=None, split=None, revision=None):
        calls.append((name, config, split, revision))
        return datasets.Dataset.from_list(splits[split])

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    return calls


def test_trec_of_the_hub_is_that_of_the_files(monkeypatch):
    def rows(name):
        lines = (FIXTURES / name).read_text().splitlines()
        return [
            {"text": line.partition(" ")[2], "label_original": line.partition(" ")[0], "label": 1} for line in lines
        ]

    calls = fake_hub(monkeypatch, {"train": rows("train_5500.label"), "test": rows("TREC_10.label")})
    run = Run("trec", data_dir=None, shots=3, sets=2)
    assert calls == [("SetFit/TREC-QC", None, "train", None), ("SetFit/TREC-QC", None, "test", None)]
    assert run.groups == Run("trec", shots=3, sets=2).groups
    assert [file.name for file in run.loaded.files] == ["hub:SetFit/TREC-QC@train", "hub:SetFit/TREC-QC@test"]


# ----------------------------------------------------------------------------------------------------------- DBpedia


def test_dbpedia_labels_are_those_of_the_14_classes():
    assert list(dbpedia.LABELS.values()) == [
        *("company", "school", "artist", "athlete", "politics", "transportation", "building"),
        *("nature", "village", "animal", "plant", "album", "film", "book"),
    ]
    assert dict(enumerate(dbpedia.PERMUTED, 1)) == {
        1: "Artist",
        2: "Company",
        3: "OfficeHolder",
        4: "Building",
        5: "Village",
        6: "Plant",
        7: "EducationalInstitution",
        8: "Animal",
        9: "Album",
        10: "WrittenWork",
        11: "NaturalPlace",
        12: "MeanOfTransportation",
        13: "Athlete",
        14: "Film",
    }


def test_dbpedia_prompt():
    run = Run("dbpedia", shots=1, sets=1, queries=14)
    (group,) = run.groups
    shown = run.loaded.rows.demonstrations[order(28, 0, 0)[0]]
    assert group.prefix == f"Input: {shown.text} Type: {shown.label}\n"
    query = group.queries[5]
    assert query.suffix == 'Input: Cedar "MeanOfTransportation" is a ferry, known since 1816. Type:'
    assert query.answers == (" transportation",)
    assert query.end == "\n"
    assert query.labels == tuple(f" {label}" for label in dbpedia.LABELS.values())
    assert [q.answers[0] for q in group.queries] == list(query.labels), "the files number the classes from 1"


def test_dbpedia_sets_are_asked_items_of_their_own():
    run = Run("dbpedia", shots=2, sets=3, queries=6)
    items = [tuple(query.item for query in group.queries) for group in run.groups]
    assert len(set(items)) == 3
    assert Run("dbpedia", shots=2, sets=1, queries=6).groups == run.groups[:1]
    assert variants("dbpedia", shots="190 380") == ["dbpedia-190shot", "dbpedia-380shot"]
    assert TASKS["dbpedia"].settings().queries == 500


def test_the_subset_of_dbpedia_has_its_own_class_numbers(tmp_path):
    rows = [f'"{n % 14 + 1}","{n} is a {dbpedia.PERMUTED[n % 14]}."' for n in range(56)]
    (tmp_path / "dhim_val.csv").write_text("\n".join(rows))
    run = Run("dbpedia", data_dir=tmp_path, shots=10, sets=1, queries=28)
    for example in (*run.loaded.rows.demonstrations, *run.loaded.rows.test):
        assert dbpedia.LABELS[example.text.rstrip(".").split()[-1]] == example.label
    assert len(run.loaded.rows.demonstrations) == len(run.loaded.rows.test) == 28
    (tmp_path / "dhim_val.csv").write_text("\n".join([*rows, *rows]))
    twice = Run("dbpedia", data_dir=tmp_path, shots=1, queries=28).loaded.rows
    shown, asked = ({example.text for example in part} for part in (twice.demonstrations, twice.test))
    assert not shown & asked
    assert len(twice.demonstrations) == len(shown)
    (tmp_path / "dhim_val.csv").write_text("\n".join(rows))
    assert Run("dbpedia", data_dir=tmp_path, shots=10, queries=28, seed=1).loaded.rows != run.loaded.rows
    (file,) = run.loaded.files
    assert (
        file.subset
        == "5,000-row subset of DBpedia14 (classes permuted, no titles), half for demonstrations and half for tests"
    )


@pytest.mark.parametrize("number", ["0", "15", "x", "-1"])
def test_a_class_that_dbpedia_has_not_is_refused(tmp_path, number):
    (tmp_path / "dbpedia_csv").mkdir()
    (tmp_path / "dbpedia_csv" / "train.csv").write_text(f'1,"a","b"\n{number},"a","b"\n')
    with pytest.raises(SpliceError, match=rf"train.csv:2: class '{number}', expected 1 to 14; download it again"):
        Run("dbpedia", data_dir=tmp_path)


def test_dbpedia_of_the_hub_numbers_classes_from_0(monkeypatch):
    import csv

    def rows(name):
        with (FIXTURES / "dbpedia_csv" / f"{name}.csv").open() as stream:
            return [{"label": int(n) - 1, "title": title, "content": text} for n, title, text in csv.reader(stream)]

    calls = fake_hub(monkeypatch, {"train": rows("train"), "test": rows("test")})
    run = Run("dbpedia", data_dir=None, shots=3, sets=2, queries=5)
    assert [call[0] for call in calls] == ["fancyzhx/dbpedia_14"] * 2
    assert run.groups == Run("dbpedia", shots=3, sets=2, queries=5).groups


# ---------------------------------------------------------------------------------------------------------- HotpotQA


def test_hotpotqa_prompt():
    run = Run("hotpotqa", shots=1, sets=1, queries=3)
    (group,) = run.groups
    demonstrations, test = run.loaded.rows
    shown = demonstrations[order(3, 0, 0)[0]]

    def prompt(example):
        village = example.documents[0][1].split()[3]
        return (
            f"Document [1](Title: Orm) Orm is village {village} It lies on the Lind.\n"
            "Document [2](Title: Ada Oar) Ada Oar built boats. One is a ferry.\n"
            "\n"
            f"Question: {example.question}\n"
            "Answer:"
        )

    assert group.prefix == f"{prompt(shown)} {shown.answer}\n\n"
    assert [query.suffix for query in group.queries] == [prompt(example) for example in test]
    assert group.queries[0].answers == (f" {test[0].answer}",)
    assert group.queries[0].end == "\n"


def test_hotpotqa_splits_the_published_file_by_the_seed():
    run = Run("hotpotqa", shots=2, sets=3, queries=None)
    demonstrations, test = run.loaded.rows
    assert len(demonstrations) == len(test) == 3, "the question without paragraphs is left out"
    assert not {e.question for e in demonstrations} & {e.question for e in test}
    assert Run("hotpotqa", shots=2, queries=None, seed=2).loaded.rows != run.loaded.rows
    assert len({group.prefix for group in Run("hotpotqa", shots=3, sets=6, queries=2).groups}) > 1
    with pytest.raises(SpliceError, match="hotpotqa: --shots 10, but there are 3 demonstrations to draw from"):
        Run("hotpotqa", queries=1)


def test_hotpotqa_never_shows_a_test_question(tmp_path):
    rows = [json.dumps(row) for row in json.loads((FIXTURES / "hotpot_dev_distractor_v1.json").read_text())]
    (tmp_path / "amor_test500.jsonl").write_text("\n".join(rows[:3]))
    (tmp_path / "amor_dev.jsonl").write_text("\n".join(rows[2:6]))
    run = Run("hotpotqa", data_dir=tmp_path, shots=3, sets=4, queries=1)
    assert all(json.loads(rows[2])["question"] not in group.prefix for group in run.groups)
    assert [file.subset for file in run.loaded.files] == [
        "100-question subset of HotpotQA (distractor setting), for demonstrations",
        "500-question subset of HotpotQA (distractor setting); the 2 without paragraphs are left out",
    ]


def hotpot_score(tmp_path, gold, text):
    row = {"question": "Q?", "answer": gold, "context": [["T", ["S."]]]}
    (tmp_path / "amor_test500.jsonl").write_text(json.dumps(row))
    (tmp_path / "amor_dev.jsonl").write_text(json.dumps(row))
    return Run("hotpotqa", data_dir=tmp_path, shots=0, sets=1, queries=1).score(text=text)


@pytest.mark.parametrize(
    ("gold", "text", "f1", "em"),
    [
        ("the Lind", " Lind\nDocument [1]", 1.0, 1.0),
        ("Ivo Reed", " Ivo", 2 / 3, 0.0),
        ("no", " no.", 1.0, 1.0),
        ("no", " no way", 0.0, 0.0),
        ("no way", " no", 0.0, 0.0),
        ("yes", " no", 0.0, 0.0),
        ("no way", " no chance", 0.5, 0.0),
        ("Ivo", "\nIvo", 0.0, 0.0),
    ],
)
def test_hotpotqa_scores(tmp_path, gold, text, f1, em):
    assert hotpot_score(tmp_path, gold, text) == {"f1": pytest.approx(f1), "em": em}


def test_hotpotqa_is_generated():
    assert variants("hotpotqa", shots=4) == ["hotpotqa-4shot"]
    run = Run("hotpotqa", shots=1, sets=1, queries=1)
    assert run.task.generates(run.settings, run.groups[0].queries[0]) == 32
    assert run.task.scorer(run.settings) == "greedy generation"
    with pytest.raises(
        SpliceError, match="hotpotqa: --scorer match cannot score it: F1 is of words that are generated"
    ):
        variants("hotpotqa", scorer="match")


def test_hotpotqa_of_the_hub_is_that_of_the_file(monkeypatch):
    rows = json.loads((FIXTURES / "hotpot_dev_distractor_v1.json").read_text())
    columns = [
        {
            "id": row["_id"],
            "question": row["question"],
            "answer": row["answer"],
            "context": {"title": [c[0] for c in row["context"]], "sentences": [c[1] for c in row["context"]]},
        }
        for row in rows
    ]
    calls = fake_hub(monkeypatch, {"validation": columns})
    run = Run("hotpotqa", data_dir=None, shots=1, sets=2, queries=2)
    assert calls == [("hotpotqa/hotpot_qa", "distractor", "validation", None)]
    assert run.groups == Run("hotpotqa", shots=1, sets=2, queries=2).groups


def test_a_context_that_is_none_is_refused(tmp_path):
    (tmp_path / "amor_dev.jsonl").write_text('{"question": "q", "answer": "a", "context": [["T", ["S"]]]}')
    (tmp_path / "amor_test500.jsonl").write_text('{"question": "q", "answer": "a", "context": ["T"]}')
    with pytest.raises(
        SpliceError, match=r'amor_test500.jsonl:1: field "context" is no list of \[title, sentences\]; download'
    ):
        Run("hotpotqa", data_dir=tmp_path)
    (tmp_path / "amor_test500.jsonl").write_text('{"question": "q", "answer": ["a"], "context": []}')
    with pytest.raises(SpliceError, match=r'amor_test500.jsonl:1: field "answer" is list, expected str'):
        Run("hotpotqa", data_dir=tmp_path)


# ------------------------------------------------------------------------------------------------------------ Qasper

OARS = "Oars in corpora\n\nWe study oars in corpora.\n\nIntroduction\n\n{}\n\nResults ::: Ablation\n\nIt works.\n\nEnd."


def test_qasper_prompt():
    run = Run("qasper", shots=3, context=1000)
    assert run.name == "qasper-3shot-1000"
    first, second = run.groups
    oars = OARS.format(" ".join(f"oars{n}" for n in range(20)))
    assert f"{oars}\n\nQuestion: How many oars?\nAnswer: two, four\n\n" in first.prefix
    assert "\n\nQuestion: Which parser?\nAnswer: A chart parser\n\n" in first.prefix
    assert "\n\nQuestion: Is it fast?\nAnswer: Yes\n\n" in first.prefix
    herons = OARS.replace("Oars", "Herons").replace("oars", "herons").replace("in corpora", "as taggers")
    assert first.prefix.endswith(f"\n\n{herons.format(' '.join(f'herons{n}' for n in range(30)))}\n\n")
    assert first.queries[2].suffix == "Question: What is the baseline?\nAnswer:"
    assert (first.id, first.cluster, first.queries[2].id) == ("2002.00001", "2002.00001", "2002.00001-q02")
    assert second.id == "2002.00002", "a paper without questions is left out"
    assert len(run.groups) == 2


def test_qasper_answers_and_labels():
    public, agree, baseline, paid, is_open = Run("qasper", shots=1).groups[0].queries
    assert (public.answers, public.labels) == ((" No",), (" Yes", " No"))
    assert (agree.answers, agree.labels) == ((" Yes", " No"), (" Yes", " No"))
    assert (baseline.answers, baseline.labels) == ((" a wren, a gull", " a small bird"), ())
    assert (paid.answers, paid.labels) == ((" Unanswerable",), ())
    assert (is_open.answers, is_open.labels) == ((" Yes", " Unanswerable"), ()), "not all annotators say yes or no"
    assert Run("qasper", shots=1).groups[1].queries[0].answers == (" Unanswerable",)
    assert [q.tags for q in (public, baseline)] == [{"type": "yes_no", "shots": 1}, {"type": "free", "shots": 1}]


def test_qasper_scores_yes_and_no_by_likelihood_and_words_by_f1():
    run = Run("qasper", shots=0)
    public, _, baseline, paid, _ = run.groups[0].queries

    def f1(query, **answer):
        return run.task.score(run.settings, query, Answer(**answer))["f1"]

    assert f1(public, log_likelihoods=(-2.0, -1.0)) == 1.0
    assert f1(public, log_likelihoods=(-1.0, -2.0), matched=True) == 0.0
    assert f1(baseline, text=" a small gull\nQuestion:") == pytest.approx(1 / 2)  # "small" of small gull, small bird
    assert f1(paid, text=" \n") == 1.0, "nothing said is that it cannot be answered"
    assert f1(baseline, text="") == 0.0
    assert run.task.generates(run.settings, public) == 0
    assert run.task.generates(run.settings, baseline) == 64
    assert run.task.scorer(run.settings) == "greedy generation; yes or no by label log-likelihood"


@pytest.mark.parametrize("paper", [0, 1])
def test_qasper_takes_as_many_shots_as_fit(paper):
    def group(**settings):
        return Run("qasper", answer_tokens=1, **settings).groups[paper]

    alone = group(shots=0)
    rest = max(words(query.suffix) for query in alone.queries) + 1 + MARGIN
    for shots in range(4):
        whole = group(shots=shots)
        needed = words(whole.prefix) + rest
        assert group(shots=3, context=needed) == whole
        fewer = group(shots=3, context=needed - 1)
        assert fewer == group(shots=max(shots - 1, 0))
        assert fewer.prefix.endswith(alone.prefix), "the paper itself is never cut"
        assert {query.tags["shots"] for query in whole.queries} == {shots}


def test_qasper_draws_demonstrations_for_each_paper():
    drawn = [
        [re.findall("We study ([a-z]+)", group.prefix)[:2] for group in Run("qasper", shots=2, seed=seed).groups]
        for seed in range(8)
    ]
    assert any(first != second for first, second in drawn), "of their own"
    assert len({tuple(first) for first, _ in drawn}) > 2
    assert all(len(set(papers)) == 2 for run in drawn for papers in run)
    with pytest.raises(SpliceError, match="qasper: --shots 4, but there are 3 papers to draw; ask for fewer"):
        Run("qasper", shots=4)
    assert len(Run("qasper", papers=1).groups) == 1


def test_qasper_shows_no_paper_to_itself_and_one_of_its_questions(tmp_path):
    papers = json.loads((FIXTURES / "qasper-dev-v0.3.json").read_text())
    for name in ("qasper-dev-v0.3.json", "qasper-train-v0.3.json"):
        (tmp_path / name).write_text(json.dumps(papers))
    for group in Run("qasper", data_dir=tmp_path, shots=1).groups:
        assert group.prefix.count(f"We study {papers[group.id]['title'].lower()}.") == 1
    asked = {Run("qasper", data_dir=tmp_path, shots=1, seed=seed).groups[1].prefix for seed in range(8)}
    assert len(asked) > 2


def test_qasper_drops_shots_that_are_over_when_texts_are_joined():
    def count(text):
        return len(text.split()) + 2 * text.count("next")

    drawn = ["a b next ", "c d next "]
    assert qasper._shots(drawn, "e f", 100, count) == drawn
    assert qasper._shots(drawn, "e f", 12, count) == drawn
    assert qasper._shots(drawn, "e f", 11, count) == drawn[:1]

    def more(text):
        return len(text.split()) + (3 if text.count("next") > 1 else 0)

    assert qasper._shots(drawn, "e f", 11, more) == drawn
    assert qasper._shots(drawn, "e f", 10, more) == drawn[:1], "8 by themselves, 11 together"
    assert qasper._shots(drawn, "e f", 1, more) == []


def test_limit_changes_no_demonstration_of_qasper(tmp_path):
    for split in ("train", "dev"):
        text = (FIXTURES / f"qasper-{split}-v0.3.json").read_text()
        (tmp_path / f"qasper-{split}-v0.3.json").write_text(text.replace("Is it open?", "Is it open to all who ask?"))
    whole = Run("qasper", data_dir=tmp_path, shots=3, answer_tokens=1).groups[0]
    context = words(whole.prefix) + max(words(query.suffix) for query in whole.queries) + 1 + MARGIN - 1
    cut, few = (
        Run("qasper", data_dir=tmp_path, shots=3, answer_tokens=1, context=context, limit=limit).groups[0]
        for limit in (None, 2)
    )
    assert few.prefix == cut.prefix != whole.prefix


def test_qasper_needs_papers_to_draw_from(tmp_path):
    (tmp_path / "qasper-dev-v0.3.json").write_text((FIXTURES / "qasper-dev-v0.3.json").read_text())
    with pytest.raises(SpliceError, match=r"no qasper-train-v0.3.json .* below it .*, or ask for --shots 0"):
        Run("qasper", data_dir=tmp_path)
    assert len(Run("qasper", data_dir=tmp_path, shots=0).groups) == 2
    (tmp_path / "qasper-dev-v0.3.json").write_text('{"2002.1": {"title": "t", "abstract": "a", "full_text": []}}')
    with pytest.raises(
        SpliceError, match=r"qasper-dev-v0.3.json: 2002.1: not a paper of Qasper \(KeyError: 'qas'\); download"
    ):
        Run("qasper", data_dir=tmp_path, shots=0)
    with pytest.raises(SpliceError, match="qasper: --scorer likelihood cannot score it: most answers are free text"):
        variants("qasper", scorer="likelihood")


def columns(rows):
    return {key: [row[key] for row in rows] for key in rows[0]} if rows else {"answer": [], "question": []}


def test_qasper_of_the_hub_is_that_of_the_files(monkeypatch):
    def rows(name):
        papers = json.loads((FIXTURES / name).read_text())
        return [
            {
                "id": paper,
                "title": row["title"],
                "abstract": row["abstract"],
                "full_text": columns(row["full_text"]),
                "qas": columns([qa | {"answers": columns(qa["answers"])} for qa in row["qas"]]),
            }
            for paper, row in papers.items()
            if row["qas"]
        ]

    calls = fake_hub(monkeypatch, {"train": rows("qasper-train-v0.3.json"), "validation": rows("qasper-dev-v0.3.json")})
    run = Run("qasper", data_dir=None, shots=2)
    assert set(calls) == {("allenai/qasper", None, split, "refs/convert/parquet") for split in ("train", "validation")}
    assert run.groups == Run("qasper", shots=2).groups
    calls.clear()
    assert Run("qasper", data_dir=None, shots=0).groups == Run("qasper", shots=0).groups
    assert len(calls) == 1


# ------------------------------------------------------------------------------------------- multi-document questions


def test_nq_prompt_is_that_of_lost_in_the_middle():
    run = Run("nq", documents=10, examples=1, positions=[1])
    (group,) = run.groups
    (query,) = group.queries
    others = "".join(f"Document [{n + 2}](Title: Port {n}) Port {n} has no such thing.\n" for n in range(1, 9))
    assert group.prefix + query.suffix == (
        "Write a high-quality answer for the given question using only the provided search results (some of which "
        "might be irrelevant).\n"
        "\n"
        "Document [1](Title: Port 0) Port 0 has no such thing.\n"
        "Document [2](Title: Orm (lighthouse)) The lighthouse is kept by Ivo Reed.\n"
        f"{others}"
        "\n"
        "Question: who keeps the lighthouse of orm\n"
        "Answer:"
    )
    assert query.answers == (" Ivo Reed",)
    assert (query.id, query.item, group.cluster) == ("question-0000-1", "question-0000", "question-0000")
    assert query.tags == {"position": 1}


def test_nq_puts_the_gold_document_everywhere():
    run = Run("nq", documents=10, examples=2, positions="all")
    assert [group.id for group in run.groups] == [f"question-{n:04d}-{p}" for n in range(2) for p in range(9, -1, -1)]
    for group in run.groups:
        titles = re.findall(r"Document \[\d+\]\(Title: (.*)\) ", group.prefix)
        gold = titles.pop(group.queries[0].tags["position"])
        assert gold in ("Orm (lighthouse)", "Lind Mill")
        assert titles == [f"Port {n}" for n in range(9)]
    assert [file.name for file in run.loaded.files] == ["nq-open-10_total_documents_gold_at_4.jsonl"]


def test_nq_draws_distractors_without_an_answer():
    run = Run("nq", documents=14, examples=2)
    for group in run.groups:
        documents = re.findall(r"Document \[\d+\]\(Title: (.*?)\) (.*)", group.prefix)
        assert len(set(documents)) == 14
        answers = [answer.strip() for answer in group.queries[0].answers]
        holding = [
            at for at, document in enumerate(documents) if any(answer in " ".join(document) for answer in answers)
        ]
        assert not any(title == "Ivo Reed" for title, _ in documents) or answers != ["Ivo Reed"]
        assert holding == [group.queries[0].tags["position"]]
    oracle, pool = run.loaded.files
    assert oracle.subset is None
    assert pool.subset == (
        "distractors are passages of Wikipedia drawn at random, not the documents that Lost in the Middle retrieved"
    )
    assert Run("nq", documents=14, examples=2, seed=1).prompts != run.prompts
    assert Run("nq", documents=14, examples=1).prompts == run.prompts[:5]
    assert "Ivo Reed paints bridges." in run.groups[5].prefix
    few, many = (Run("nq", documents=n, examples=1, positions=0).groups[0].prefix for n in (3, 8))
    assert many.startswith(few.rstrip()), "more documents are the same and more"
    with pytest.raises(SpliceError, match=r"nq: 14 passages without an answer to 'who keeps .*'; lower --documents"):
        Run("nq", documents=16, examples=1)


def test_nq_distractors_are_drawn_for_each_question():
    passages = [(f"Ferry {n}", "") for n in range(20)]
    example = nq.Example("who", ("Ivo Reed",), ("Orm", "Ivo Reed"), ())
    first, second = nq._distracted([example, example], passages, 6, 0)
    assert first != second
    (only,) = nq._distracted([example], [("The Ivo Reed", "paints"), ("Ferry", "floats")], 1, 0)
    assert only.distractors == (("Ferry", "floats"),), "a title may hold the answer"


def test_nq_with_one_document_is_the_oracle():
    run = Run("nq", documents=1, examples=2)
    assert [group.id for group in run.groups] == ["question-0000-0", "question-0001-0"]
    assert run.groups[1].prefix.endswith(").\n\nDocument [1](Title: Lind Mill) The mill burned in 1871.\n\n")
    assert [file.name for file in run.loaded.files] == ["nq-open-oracle.jsonl"]


def test_nq_scores_the_first_line():
    run = Run("nq", documents=10, examples=1)
    assert run.score(text=" It is the Ivo Reed.") == {"best_subspan_em": 1.0}
    assert run.score(text=" I do not know\nIvo Reed") == {"best_subspan_em": 0.0}
    assert run.task.generates(run.settings, run.groups[0].queries[0]) == 100


def test_nq_refuses_what_it_cannot_do(tmp_path):
    assert variants("nq", documents="10 20") == ["nq-10", "nq-20"]
    with pytest.raises(SpliceError, match="nq: --positions 20, but positions are 0 to 19 here"):
        variants("nq", positions="4 20")
    with pytest.raises(SpliceError, match="nq: --documents 0, but a prompt has 1 at least"):
        variants("nq", documents=0)
    with pytest.raises(SpliceError, match="nq: --scorer match cannot score it"):
        variants("nq", scorer="match")
    with pytest.raises(
        SpliceError,
        match=r"no --data-dir, and nq-open-oracle.jsonl is not on the hub; give the files of qa_data/ of "
        r"https://github.com/nelson-liu/lost-in-the-middle with --data-dir",
    ):
        Run("nq", data_dir=None)
    with pytest.raises(SpliceError, match=r"nq: --examples 500, but .*gold_at_4.jsonl has 2; ask for fewer"):
        Run("nq", documents=10)
    line = (FIXTURES / "nq-open-oracle.jsonl").read_text().splitlines()[0]
    (tmp_path / "nq-open-10_total_documents_gold_at_0.jsonl").write_text(line)
    with pytest.raises(
        SpliceError,
        match=r"gold_at_0.jsonl:1: 1 documents, 1 of them gold, and 1 answers; expected 10, 1 and some; download it",
    ):
        Run("nq", data_dir=tmp_path, documents=10, examples=1)


# --------------------------------------------------------------------------------------------------------- real files


def test_real_trec(shared_data):
    run = Run("trec", data_dir=shared_data, unverified_data=False, shots=780, sets=2)
    rows = run.loaded.rows
    assert (len(rows.test), len(rows.demonstrations)) == (500, 5371), "of 5,452: 71 repeated, 10 of the test"
    assert len(run.groups[0].queries) == 500
    assert [(file.name, file.known, file.subset) for file in run.loaded.files] == [
        ("train_5500.label", True, None),
        ("TREC_10.label", True, None),
    ]
    assert any("a sister city with Los Angeles" in example.text for example in rows.demonstrations)
    assert run.groups[0].queries[0].suffix == "Question: How far is it from Denver to Aspen ?\nType:"
    fine = Run("trec", data_dir=shared_data, unverified_data=False, labels="fine", context=16384, sets=1)
    assert {example.label for example in fine.loaded.rows.demonstrations} == set(trec.LABELS["fine"])
    assert 16384 - 200 < words(fine.groups[0].prefix) < 16384


def test_the_publishers_trec_is_known_and_the_same(shared_data, tmp_path):
    for name in ("train_5500.label", "TREC_10.label"):
        text = (shared_data / "trec" / name).read_bytes()
        (tmp_path / name).write_bytes(text.replace("\ufffd".encode(), b"\xf0") + b"\n")
    ours = Run("trec", data_dir=tmp_path, unverified_data=False, shots=90, sets=2)
    assert ours.groups == Run("trec", data_dir=shared_data, unverified_data=False, shots=90, sets=2).groups
    assert all(file.known for file in ours.loaded.files)


def test_real_dbpedia(shared_data):
    run = Run("dbpedia", data_dir=shared_data, unverified_data=False, shots=380, sets=2)
    (file,) = run.loaded.files
    assert (file.name, file.known) == ("dhim_val.csv", True)
    assert file.subset.startswith("5,000-row subset of DBpedia14")
    rows = run.loaded.rows
    assert len(rows.test) == 2500
    assert len(rows.demonstrations) >= 2499, "one text is there twice"
    assert [len(group.queries) for group in run.groups] == [500, 500]
    keyword = {"village": " village", "album": " album", "film": " film", "plant": " plant", "school": " school"}
    for label, word in keyword.items():
        texts = [example.text.lower() for example in rows.test if example.label == label]
        assert sum(word in text for text in texts) > 0.25 * len(texts) > 20


def test_real_hotpotqa(shared_data):
    run = Run("hotpotqa", data_dir=shared_data, unverified_data=False, sets=2)
    demonstrations, test = run.loaded.rows
    assert (len(demonstrations), len(test)) == (100, 498)
    assert all(file.known and file.subset for file in run.loaded.files)
    assert [len(group.queries) for group in run.groups] == [100, 100]
    assert run.groups[0].prefix.count("\nAnswer: ") == 10
    assert 8000 < words(run.groups[0].prefix) < 14000


def test_real_kv(shared_data):
    run = Run("kv", data_dir=shared_data, unverified_data=False, mode="litm", examples=3)
    (file,) = run.loaded.files
    assert (file.name, file.known, file.subset) == ("kv-retrieval-75_keys.jsonl", True, None)
    assert [group.queries[0].tags["position"] for group in run.groups] == [74, 49, 24, 0] * 3
    query = run.groups[0].queries[0]
    assert query.suffix == ' "2a8d601d-1d69-4e64-9f90-8ad825a74195"\nCorresponding value:'
    assert query.answers[0] == " bb3ba2a5-7de8-434b-a86e-a88bb9fa7289"
    assert run.groups[0].prefix.endswith(
        '"2a8d601d-1d69-4e64-9f90-8ad825a74195": "bb3ba2a5-7de8-434b-a86e-a88bb9fa7289"}\n\nKey:'
    )
    assert len(Run("kv", data_dir=shared_data, mode="litm", positions="0").loaded.rows) == 500


def test_real_nq(shared_data):
    run = Run("nq", data_dir=shared_data, unverified_data=False, examples=5)
    assert [(file.name, file.known) for file in run.loaded.files] == [
        ("nq-open-oracle.jsonl", True),
        ("2wikimultihopqa_corpus.json", True),
    ]
    assert [group.queries[0].tags["position"] for group in run.groups] == [19, 14, 9, 4, 0] * 5
    for group in run.groups:
        assert group.prefix.count("Document [") == 20
    assert (
        run.groups[4]
        .prefix.split("\n")[2]
        .startswith("Document [1](Title: List of Nobel laureates in Physics) The first")
    )
    assert run.groups[0].queries[0].answers == (" Wilhelm Conrad Röntgen",)


def test_the_fixture_of_qasper(shared_data):
    run = Run("qasper", data_dir=shared_data, unverified_data=False, shots=0)
    (file,) = run.loaded.files
    assert (file.known, file.subset) == (
        True,
        "one shortened paper that shows Qasper's format, not its development set",
    )
    assert [query.answers for query in run.groups[0].queries] == [
        (" a vocabulary", " using seed lexicon"),
        (" Yes",),
        (" Unanswerable",),
        (" Conclusion paragraph",),
    ]
