"""The report of finished datasets: figures equal the manifest's, text is only text, small and odd datasets have a page too."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from splice import __version__
from splice.errors import SpliceError
from splice.report import show_report, write_report
from splice.report.content_charts import composition
from splice.report.facts import distinct_names, read_facts
from splice.report.figures import headline
from splice.report.windows import own_tokens
from splice.store.shards import Example, write_shard
from splice.tokenizer import load_tokenizer

LENGTH = 64


class Page(HTMLParser):
    """What a page holds: cells with a key, tags with their attributes, text, and what ids there are."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.cells: list[tuple[dict[str, str], str]] = []
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.texts: list[str] = []
        self.rows: list[list[str]] = []
        self._open: dict[str, str] | None = None
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        found = {name: value or "" for name, value in attributes}
        self.tags.append((tag, found))
        self._open = found if "data-key" in found else self._open
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th") and self.rows:
            self.rows[-1].append("")

    def handle_endtag(self, tag):
        self._open = None if tag == "td" else self._open

    def handle_data(self, data):
        self.texts.append(data)
        if self.rows and self.rows[-1]:
            self.rows[-1][-1] += data.strip()
        if self._open is not None:
            self.cells.append((self._open, data))

    @property
    def text(self) -> str:
        return " ".join("".join(self.texts).split())

    def charts(self) -> list[str]:
        return [a["id"] for tag, a in self.tags if tag == "figure"]


def page_of(tmp_path: Path, *datasets: Path) -> Page:
    write_report(datasets, tmp_path / "report.html")
    return Page((tmp_path / "report.html").read_text(encoding="utf-8"))


def text_of(*datasets: Path, width: int = 150) -> str:
    console = Console(file=io.StringIO(), width=width)
    show_report(datasets, console)
    return console.file.getvalue()


def made(
    path: Path,
    examples: list[list[np.ndarray]],
    *,
    tokenizer: Path | None = None,
    ids: list[str] | None = None,
    source: str = "made",
    scored: bool = False,
    scale: float = 1.0,
    shards: int = 1,
    **settings: object,
) -> Path:
    """A dataset of examples given as the tokens of their documents, each a root or retrieved by the one before it."""
    (path / "data").mkdir(parents=True)
    rows = []
    for number, documents in enumerate(examples):
        n = len(documents)
        own = np.concatenate([np.zeros(0, np.int32), *documents])
        offsets = np.cumsum([0, *map(len, documents)])[:-1] if n else np.zeros(0, np.int64)
        rows.append(
            Example(
                number=number,
                pack=0,
                input_ids=np.append(own, np.full(LENGTH - len(own), 2)).astype(np.int32),
                padding=LENGTH - len(own),
                doc_ids=[(ids or [f"{number}/{i}" for i in range(n)])[i] for i in range(n)],
                sources=[source] * n,
                doc_offsets=offsets.astype(np.int32),
                doc_spans=np.array([[0, len(d)] for d in documents], np.int32).reshape(-1, 2),
                parents=np.array([i - 1 if scored else -1 for i in range(n)], np.int32),
                scores=np.array([scale * (10.0 + i) if scored and i else np.nan for i in range(n)], np.float32),
            )
        )
    entries, padding = [], 0
    for i in range(shards):
        name = f"train-{i:05d}-of-{shards:05d}.parquet"
        receipt = write_shard(path / "data" / name, rows[i::shards], LENGTH, "bm25")
        padding += receipt["padding"]
        size = (path / "data" / name).stat().st_size
        entries.append({"file": name, "examples": receipt["examples"], "bytes": size, "sha256": ""})
    documents, written = sum(map(len, examples)), sum(len(d) for e in examples for d in e)
    counts = {
        "documents_in": documents, "packed": documents, "left_out": 0, "duplicate": 0, "near_duplicate": 0, "quarantined": 0,
        "filtered": {}, "tokens_in": written, "written": written, "trimmed": 0, "left_out_tokens": 0, "separators": 0,
        "split_documents": 0, "reuses": 0, "reused_tokens": 0,
    }  # fmt: skip
    manifest = {
        "splice": __version__,
        "build": "made",
        "settings": {
            "sources": [source], "retriever": "bm25" if scored else "random", "k": 1, "length": LENGTH, "order": "identity",
            "exhausted": "restart", "tail": "trim", "join": "none", "noise": 0.0, "max_uses": 1, "seed": 0, "dedup": "exact",
            **settings,
        },
        "tokenizer": {"name": "made", "vocab_size": 70_000},
        "join": {"bos_id": None, "eos_id": None},
        "packs": [{"documents": documents, "parts": 1, "examples": len(examples)}],
        "scores": {"steps": 0, "mean_step": None, "control_pairs": 0, "mean_control": None, "fallbacks": 0, "renewed": 0},
        "ledger": {
            "examples": len(examples), "tokens": len(examples) * LENGTH, "padding": padding, "sources": {source: counts},
        },
        "shards": entries,
    }  # fmt: skip
    (path / "manifest.json").write_text(json.dumps(manifest))
    if tokenizer:
        shutil.copytree(tokenizer, path / "tokenizer")
    return path


def change(path: Path, how: Callable[[dict], object]) -> None:
    """Write a dataset's manifest anew, changed by `how`."""
    manifest = json.loads((path / "manifest.json").read_text())
    how(manifest)
    (path / "manifest.json").write_text(json.dumps(manifest))


def documents(n: int, size: int = 16, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.integers(3, 500, size).astype(np.int32) for _ in range(n)]


def at(manifest: object, key: str) -> float:
    """A figure of the manifest by its key, written anew: * for every entry, + between sums."""
    if " + " in key:
        return sum(at(manifest, part) for part in key.split(" + "))
    values = [manifest]
    for name in key.split("."):
        if name == "*":
            values = [x for v in values for x in (v.values() if isinstance(v, dict) else v)]
        else:
            values = [v[int(name)] if isinstance(v, list) else v[name] for v in values]
    return sum(values)


@pytest.fixture(scope="module")
def mixed(tmp_path_factory, cli, built) -> Path:
    folder = tmp_path_factory.mktemp("mixed")
    config = folder / "mix.yaml"
    config.write_text(
        f"datasets:\n- {{dataset: {built}, share: 0.5, name: one}}\n- {{dataset: {built}, share: 0.5, name: two}}\n"
    )
    done = cli("mix", config, "--output", folder / "mixed")
    assert done.returncode == 0, done.stderr
    return folder / "mixed"


@pytest.mark.parametrize("which", ["built", "mixed"])
def test_figures_are_the_manifests(which, request, tmp_path):
    path = request.getfixturevalue(which)
    manifest = json.loads((path / "manifest.json").read_text())
    cells = page_of(tmp_path, path).cells
    keys = [attributes["data-key"] for attributes, _ in cells]
    wanted = {
        "built": {"ledger.examples", "ledger.sources.*.documents_in", "ledger.sources.*.filtered.*", "scores.mean_step", "fill"},
        "mixed": {"shards.*.examples", "tokens", "mixture.0.tokens", "mixture.1.tokens", "fill"},
    }  # fmt: skip
    assert wanted[which] <= set(keys)
    for attributes, text in cells:
        key, value = attributes["data-key"], float(attributes["data-value"])
        shown = float(text.split()[0].replace(",", "").rstrip("%"))
        if key == "fill":
            tokens = at(manifest, "shards.*.examples") * at(manifest, "settings.length")
            filled = manifest["tokens"] if which == "mixed" else tokens - manifest["ledger"]["padding"]
            assert value == pytest.approx(filled / tokens)
            assert shown == pytest.approx(100 * value, abs=0.006)
        else:
            assert value == at(manifest, key), key
            assert shown == pytest.approx(value, abs=0.06)


def test_page_of_a_build_has_every_chart(built, tmp_path):
    page = page_of(tmp_path, built)
    assert page.charts() == [
        "related-zipf", "related-slope", "related-types", "related-related", "related-copied", "related-compression",
        "scores", "score-by-step", "score-through-walk", "roots-through-walk", "documents-per-example", "document-length",
        "fill", "fate", "tree-0", "strip-0", "flow-documents-0", "flow-tokens-0",
    ]  # fmt: skip
    assert "relatedness from 64 of" in page.text
    assert "bm25" in page.text


def test_page_asks_for_nothing_and_its_ids_are_its_own(built, mixed, tmp_path):
    page = page_of(tmp_path, built, mixed)
    for tag, attributes in page.tags:
        assert tag not in ("img", "iframe", "object", "embed"), tag
        assert "src" not in attributes
        for name in ("href", "xlink:href"):
            assert attributes.get(name, "#").startswith(("#", "data:,")), attributes
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    source = (tmp_path / "report.html").read_text()
    used = {part.split(")")[0].split('"')[0] for cut in ("url(#", 'href="#') for part in source.split(cut)[1:]}
    assert used <= set(ids)
    assert "http" not in source.replace("http://www.w3.org", "")
    assert "#fe0" not in source  # every colour is the page's


def test_the_users_own_matplotlibrc_does_not_matter(built, tmp_path):
    import matplotlib

    write_report([built], tmp_path / "a")
    theirs = {
        "text.usetex": True,
        "savefig.bbox": "tight",
        "lines.linewidth": 9,
        "svg.fonttype": "path",
        "axes.grid": False,
    }
    with matplotlib.rc_context(theirs):
        write_report([built], tmp_path / "b")
        assert matplotlib.rcParams["lines.linewidth"] == 9  # what they set stays theirs
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_same_dataset_same_bytes(built, tmp_path):
    for name in ("a", "b"):
        write_report([built], tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["a", "b"]


def test_documents_cannot_write_the_page(built, tmp_path):
    script = "<script>document.title='taken'</script>"
    name = '"><img src=x onerror=alert(1)>$\\frac{1}{2}$\x00 ${{ 7*7 }}'
    tokenizer = load_tokenizer(str(built / "tokenizer"), fast=False)
    ids = tokenizer.encode([script.encode()])[0].astype(np.int32)[:40]
    path = made(tmp_path / "made", [[ids]] * 3, tokenizer=built / "tokenizer", ids=[name], source=name)
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["settings"]["sources"] = [name]
    manifest["tokenizer"]["name"] = name
    counts = manifest["ledger"]["sources"][name]
    manifest["ledger"]["sources"] = {name: counts, "</text></svg><script>x": counts}
    (path / "manifest.json").write_text(json.dumps(manifest))
    page = page_of(tmp_path, path)
    assert sum(tag == "script" for tag, _ in page.tags) == 1
    assert not any(tag == "img" for tag, _ in page.tags)
    assert script[:20] in page.text
    assert "<img src=x onerror=alert(1)>$\\frac{1}{2}$\ufffd ${{ 7*7 }}" in page.text
    assert "\x00" not in (tmp_path / "report.html").read_text()
    assert script[:20] not in text_of(path)  # the terminal shows no texts
    assert "onerror" not in text_of(path)
    with pytest.MonkeyPatch.context() as patch:  # as it is with the texts, so that the two lines above can fail
        patch.setattr("splice.report.text.sampled_words", lambda f: f.words[0] + f.example.doc_ids[0])
        assert script[:20] in text_of(path)
        assert "onerror" in text_of(path)


def test_terminal_markup_in_a_name_is_text(tmp_path):
    path = made(tmp_path / "[bold]a\x1b[1m", [documents(3)] * 2)
    assert "[bold]a\ufffd[1m" in text_of(path)


def test_several_datasets_side_by_side(built, mixed, tmp_path):
    small = made(tmp_path / "small", [documents(3, seed=i) for i in range(20)], scored=True)
    page = page_of(tmp_path, built, mixed, small)
    cells = {(a["data-dataset"], a["data-key"]): float(a["data-value"]) for a, _ in page.cells}
    manifest = json.loads((built / "manifest.json").read_text())
    assert cells["0", "ledger.examples"] == manifest["ledger"]["examples"]
    assert cells["2", "ledger.examples"] == 20
    assert ("1", "ledger.examples") not in cells
    charts = page.charts()
    assert {"tree-0", "tree-1", "tree-2", "flow-tokens-1", "flow-documents-2"} <= set(charts)
    assert len(charts) == len(set(charts))
    drawings = (tmp_path / "report.html").read_text().split("<figure")
    lengths = next(part for part in drawings if 'id="document-length"' in part)
    for i in range(3):
        assert f"var(--series-{i})" in lengths
    assert len({line.split(";")[0] for line in lengths.split("stroke-dasharray: ")[1:]}) >= 2


def test_scores_of_two_retrievers_are_not_drawn_together(tmp_path):
    a = made(tmp_path / "a", [documents(3, seed=i) for i in range(9)], scored=True)
    b = made(tmp_path / "b", [documents(3, seed=i) for i in range(9)], scored=True, retriever="dense", encoder="e")
    assert {"scores-0", "scores-1", "roots-through-walk"} <= set(page_of(tmp_path, a, b).charts())
    assert "scores" in page_of(tmp_path, a, a).charts()
    assert [line.split("  ")[0] for line in text_of(a, b).splitlines() if line.startswith("score of")] == [
        "score of an edge, bm25",
        "score of an edge, dense",
    ]


@pytest.mark.parametrize(
    ("retriever", "one", "other"),
    [
        ("dense", {"encoder": {"name": "MiniLM"}}, {"encoder": {"name": "gte"}}),
        ("hybrid", {"merge": "rrf"}, {"merge": "sum"}),
    ],
)
def test_scores_of_another_encoder_or_merge_are_of_another_kind(tmp_path, retriever, one, other):
    paths = []
    for name, told in (("a", one), ("b", other), ("c", one)):
        settings = {"merge": "rrf", "encoder": "MiniLM"} | {k: v for k, v in told.items() if k == "merge"}
        path = made(
            tmp_path / name, [documents(3, seed=i) for i in range(9)], scored=True, retriever=retriever, **settings
        )
        change(path, lambda m, told=told: m.update({k: v for k, v in told.items() if k == "encoder"}))
        paths.append(path)
    page = page_of(tmp_path, *paths)
    assert {"scores-0", "scores-1"} <= set(page.charts())
    assert "scores" in page_of(tmp_path, paths[0], paths[2]).charts()
    for value in (*one.values(), *other.values()):
        assert (value["name"] if isinstance(value, dict) else value) in page.text


@pytest.mark.parametrize("retriever", ["repo", "domain"])
def test_scores_that_do_not_rank_are_not_drawn(tmp_path, retriever):
    path = made(
        tmp_path / "made", [documents(3, seed=i) for i in range(9)], scored=True, retriever=retriever,
        domain_field="extension",
    )  # fmt: skip
    change(path, lambda m: m["scores"].update(mean_step=2.0, mean_control=0.5))
    page = page_of(tmp_path, path)
    assert [name for name in page.charts() if "score" in name] == []
    assert "roots-through-walk" in page.charts()
    assert f"packed by {retriever} with k = 1." in page.text
    assert "on average" not in page.text.split("documents in")[0]
    assert ("domain field extension" in page.text) == (retriever == "domain")
    assert "score of an edge" not in text_of(path)


@pytest.mark.parametrize(
    ("retriever", "ratio"), [("bm25", True), ("dense", True), ("hybrid", False), ("random", False)]
)
def test_lead_compares_with_random_documents(tmp_path, retriever, ratio):
    path = made(
        tmp_path / "made", [documents(3, seed=i) for i in range(9)], scored=retriever != "random", retriever=retriever
    )
    if retriever == "random":
        assert "packed at random." in text_of(path)
        return
    change(path, lambda m: m["scores"].update(mean_step=30.0, mean_control=12.0))
    text = " ".join(text_of(path).split())
    assert "score 30.0 on average" in text
    assert "the same retrieving documents with random ones 12.0" in text
    assert ("random ones 12.0, a ratio of 2.5." in text) == ratio


def test_mixture_of_two_retrievers_has_no_score_charts(mixed, built, tmp_path):
    copy = shutil.copytree(mixed, tmp_path / "copy")
    assert "scores" in page_of(tmp_path, copy).charts()
    assert "scores" in page_of(tmp_path, copy, built).charts()  # both of BM25
    change(copy, lambda m: m["mixture"][1].update(retriever="dense"))
    page = page_of(tmp_path, copy)
    assert [name for name in page.charts() if "score" in name] == []
    assert "roots-through-walk" in page.charts()
    assert "were retrieved by bm25 and dense, whose scores do not compare" in page.text


def test_small_and_negative_scores_are_read(tmp_path):
    path = made(tmp_path / "made", [documents(3, seed=i) for i in range(9)], scored=True, scale=-0.0123)
    assert "Median -0.141;" in page_of(tmp_path, path).text
    assert "-0.148" in text_of(path)


def test_a_name_with_dollars_is_no_formula(tmp_path):
    path = made(tmp_path / "made", [documents(3)] * 2, source="$a_b$")
    page_of(tmp_path, path)
    assert ">$a_b$</text>" in (tmp_path / "report.html").read_text()


def test_names_tell_datasets_apart(tmp_path):
    assert distinct_names([tmp_path / "x" / "out", tmp_path / "y" / "out"]) == ["x/out", "y/out"]
    assert distinct_names([tmp_path / "x", tmp_path / "y"]) == ["x", "y"]
    assert distinct_names([tmp_path / "x", tmp_path / "x"]) == ["x (1)", "x (2)"]


@pytest.mark.parametrize(
    "examples",
    [
        [[]],
        [],
        [documents(1, LENGTH)],
        [documents(1, 1)],
        [documents(4), []],
        [[np.full(LENGTH, 7, np.int32)]] * 3,
        [documents(LENGTH, 1)] * 2,
    ],
    ids=["padding alone", "no example", "one document", "one token", "an empty example", "one type", "many documents"],
)
@pytest.mark.parametrize("scored", [False, True])
def test_odd_datasets_have_a_report(tmp_path, examples, scored):
    path = made(tmp_path / "made", examples, scored=scored)
    page = page_of(tmp_path, path)
    cells = {a["data-key"]: float(a["data-value"]) for a, _ in page.cells}
    assert cells["ledger.examples"] == len(examples)
    assert "nan" not in page.text.lower().replace("nanumber", "")
    assert "random control is weak" in text_of(path) or not any(map(len, examples))
    assert f" {len(examples)} example{'s' * (len(examples) != 1)} of {LENGTH} tokens" in text_of(path)


def test_random_packing_has_no_scores(tmp_path):
    page = page_of(tmp_path, made(tmp_path / "made", [documents(3, seed=i) for i in range(10)]))
    assert not any(name.startswith(("scores", "score-")) for name in page.charts())
    assert {"related-zipf", "tree-0", "fill"} <= set(page.charts())


def test_near_duplicates_raise_the_alarm_with_the_remedy(tmp_path, monkeypatch):
    monkeypatch.setattr("splice.report.ngrams.NEAR_TOKENS", 16)
    copies = [documents(1, 20, seed=i) * 2 for i in range(10)]
    raised = made(tmp_path / "raised", copies)
    page = page_of(tmp_path, raised)
    assert "20 of 20 documents tested (100.0%)" in page.text
    assert "again with --dedup near, which drops those whose words are as much alike." in page.text
    assert "Near-duplicates turn retrieval into copying." not in page.text  # nothing is retrieved there
    assert "Near-duplicates in one example teach copying." in page.text
    found = made(tmp_path / "found", copies, scored=True)
    assert "Near-duplicates turn retrieval into copying." in page_of(tmp_path, found).text
    assert "Near-duplicates turn retrieval into copying." in text_of(found)
    assert any(attributes.get("class") == "alarm" for _, attributes in page.tags)
    assert "--dedup near" in text_of(raised)
    page = page_of(tmp_path, made(tmp_path / "again", copies, dedup="near", near_threshold=0.8))
    assert "again with --near-threshold below 0.8, which drops more." in page.text
    quiet = page_of(tmp_path, made(tmp_path / "quiet", [documents(3, 20, seed=i) for i in range(10)]))
    assert "0 of 30 documents tested (0.0%)" in quiet.text
    assert not any(attributes.get("class") == "alarm" for _, attributes in quiet.tags)


def test_large_datasets_are_sampled_and_the_page_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr("splice.report.windows.MOST_EXAMPLES", 9)
    monkeypatch.setattr("splice.report.columns.MOST_EXAMPLES", 15)
    path = made(tmp_path / "made", [documents(3, seed=i) for i in range(50)], shards=5)
    text = page_of(tmp_path, path).text
    assert "depths from 20 of 50 examples; relatedness from 9 of 50 examples, 432 tokens" in text


def test_datasets_without_an_example_leave_the_others_their_names(tmp_path, built):
    empty, small = made(tmp_path / "empty", []), made(tmp_path / "small", [documents(3)] * 2)
    text = page_of(tmp_path, empty, small).text
    assert "One example of small" in text
    assert "Where everything went: small" in text
    assert "of empty" not in text
    assert "went: empty" not in text


def test_a_name_that_begins_with_a_line_is_in_the_legends(tmp_path):
    paths = [made(tmp_path / name, [documents(3, seed=i) for i in range(9)], scored=True) for name in ("_a", "b")]
    page_of(tmp_path, *paths)
    figures = (tmp_path / "report.html").read_text().split("<figure")[1:]
    for name in ("scores", "score-by-step", "documents-per-example"):
        (figure,) = (figure for figure in figures if f'id="{name}"' in figure)
        assert ">_a</text>" in figure


def carried(path: Path) -> Path:
    """Four documents of 40 tokens, each retrieved by the one before, in examples of 64 that go on in the next; BOS is 0.

    Of the third document only its BOS is in the second example, so four rows of one are three edges.
    """
    path = made(path, [documents(1)] * 3, scored=True, tail="carry", join="bos")
    nan = np.nan
    spans = [[(0, 40), (0, 22)], [(22, 63), (0, 20), (0, 0)], [(0, 40), (0, 20)]]
    parents, scores = [[-1, 0], [-1, 0, -1], [-1, 0]], [[nan, 7], [7, 8, 9], [9, nan]]
    rows = []
    for number in range(3):
        sizes = [b - a + (a == 0 and not (number == 2 and i == 0)) for i, (a, b) in enumerate(spans[number])]
        n, own = len(sizes), np.full(sum(sizes), 5)
        offsets = np.cumsum([0, *sizes])[:-1]
        own[[o for i, o in enumerate(offsets) if spans[number][i][0] == 0 and not (number == 2 and i == 0)]] = 0
        ids = np.append(own, np.full(LENGTH - len(own), 2)).astype(np.int32)
        rows.append(
            Example(
                number, 0, ids, LENGTH - len(own), [f"{number}/{i}" for i in range(n)], ["made"] * n, offsets.astype(np.int32),
                np.array(spans[number], np.int32), np.array(parents[number], np.int32), np.array(scores[number], np.float32),
            )
        )  # fmt: skip
    (shard,) = (path / "data").iterdir()
    write_shard(shard, rows, LENGTH, "bm25")
    change(path, lambda m: m["join"].update(bos_id=0))
    return path


def test_an_edge_counts_once_however_its_document_is_cut(tmp_path):
    f = read_facts(carried(tmp_path / "made"), "made")
    assert sorted(f.scores.tolist()) == [7, 8, 9]
    assert f.columns.opens.tolist() == [True, True, False, True, False, True, True]


def test_where_documents_go_on_nothing_is_said_of_an_example_alone(tmp_path):
    page = page_of(tmp_path, carried(tmp_path / "made"))
    for label in ("trees in an example", "depth of an example", "documents alone"):
        (row,) = (row for row in page.rows if row and row[0].startswith(label))
        assert row[1] == "–", label
    for wrong in ("Every example begins with a root", "The first document is a root", "next begins again at depth 0"):
        assert wrong not in page.text
    assert "A document that goes on in the next example counts where it begins." in page.text
    assert "one that is not here" in page.text


@pytest.mark.parametrize(
    ("settings", "said", "unsaid"),
    [
        ({}, ["The first document is a root", "Every example begins with a root", "A document is used once"], []),
        ({"order": "reverse"}, ["written in reverse"], ["The first document is", "Every example begins"]),
        ({"order": "shuffle"}, ["examples are shuffled"], ["The first document is", "Every example begins"]),
        ({"max_uses": 3}, ["fewest documents to choose from", "The first document is"], ["A document is used once"]),
    ],
)
def test_captions_are_true_of_the_settings(tmp_path, settings, said, unsaid):
    path = made(tmp_path / "made", [documents(3, seed=i) for i in range(9)], scored=True, **settings)
    text = page_of(tmp_path, path).text
    assert all(words in text for words in said)
    assert not any(words in text for words in unsaid)


def test_captions_of_a_mixture_say_what_is_true_of_any_settings(mixed, tmp_path):
    text = page_of(tmp_path, mixed).text
    assert "depends on the order of each build" in text
    for words in ("A document is used once", "The first document is", "Every example begins"):
        assert words not in text


def test_a_document_whose_retriever_was_trimmed_is_no_tree(tmp_path):
    path = made(tmp_path / "made", [documents(3, seed=i) for i in range(9)], scored=True, order="reverse")
    f = read_facts(path, "made")
    assert not f.orphaned
    parent = f.columns.parent.copy()
    parent[1] = -1
    assert replace(f, columns=replace(f.columns, parent=parent)).orphaned


def test_trimmed_is_a_share_of_every_use_and_left_out_stands_apart(tmp_path):
    path = made(tmp_path / "made", [documents(4)] * 2, max_uses=2)
    counts = {"tokens_in": 100, "reused_tokens": 100, "written": 120, "trimmed": 60, "left_out_tokens": 20, "reuses": 5}
    change(path, lambda m: m["ledger"]["sources"]["made"].update(counts))
    rows = {row.label: row.text for row in headline(json.loads((path / "manifest.json").read_text()))}
    assert rows["trimmed"] == "60 (30.0%)"
    assert rows["left out"] == "20 (10.0%)"
    assert "token of the packed documents, as often as they were used, by" in page_of(tmp_path, path).text
    change(path, lambda m: m["ledger"]["sources"]["made"].update(left_out_tokens=0))
    assert "left out" not in [row.label for row in headline(json.loads((path / "manifest.json").read_text()))]


def test_a_tokenizer_is_only_looked_for_in_the_dataset(tmp_path, monkeypatch):
    path = made(tmp_path / "gpt2", [documents(3)] * 2)

    def asked(*_, **__):
        raise AssertionError("a tokenizer was asked for elsewhere")

    monkeypatch.setattr("splice.tokenizer_files._download", asked)
    monkeypatch.chdir(tmp_path)
    page_of(tmp_path, Path("gpt2"))
    (path / "tokenizer").mkdir()  # without a file
    assert "How its documents begin" not in page_of(tmp_path, Path("gpt2")).text


def test_texts_are_those_of_the_tokenizer(built, tmp_path):
    f = read_facts(built, "built")
    tokenizer = load_tokenizer(str(built / "tokenizer"), fast=False)
    bos_id = f.manifest["join"]["bos_id"]
    pieces = list(own_tokens(f.example, bos_id))
    assert f.words == tuple(tokenizer.decode(piece[:40]) for piece in pieces[:40])


@pytest.mark.parametrize("key", ["settings.max_uses", "scores.mean_step", "join", "ledger.sources.made.near_duplicate"])
def test_the_manifest_of_another_splice_is_one_clear_error(tmp_path, key):
    path = made(tmp_path / "made", [documents(3)] * 2)

    def without(manifest: dict) -> None:
        *names, last = key.split(".")
        for name in names:
            manifest = manifest[name]
        del manifest[last]

    change(path, without)
    change(path, lambda m: m.update(splice="0.0.1"))
    with pytest.raises(SpliceError, match=r"made by splice 0\.0\.1, build it again"):
        page_of(tmp_path, path)


def test_a_terminal_without_unicode_gets_letters(tmp_path):
    path = made(tmp_path / "naïve…", [documents(3, seed=i) for i in range(9)], scored=True)
    file = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    show_report([path], Console(file=file, width=150))
    file.flush()
    text = file.buffer.getvalue().decode("ascii")
    assert "na?ve...: 9 examples" in text
    assert "@" in text  # of a histogram
    assert "\u2588" in text_of(path)


def test_a_path_that_is_not_utf8_is_named(tmp_path):
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff"))
    shutil.copytree(made(tmp_path / "made", [documents(3)]), path)
    with pytest.raises(SpliceError, match="path is not UTF-8") as raised:
        write_report([path], tmp_path / "report.html")
    str(raised.value).encode()


def test_a_sampled_mixture_knows_its_padding_and_says_what_is_estimated(mixed, tmp_path, monkeypatch):
    copy = shutil.copytree(mixed, tmp_path / "copy")
    change(copy, lambda m: m.update(tokens=m["tokens"] - 700))
    manifest = json.loads((copy / "manifest.json").read_text())
    whole = sum(shard["examples"] for shard in manifest["shards"]) * manifest["settings"]["length"]
    assert "separators are estimated" not in page_of(tmp_path, copy).text
    monkeypatch.setattr("splice.report.columns.MOST_EXAMPLES", 1)
    page = page_of(tmp_path, copy)
    f = read_facts(copy, "copy")
    assert len(f.columns) < f.examples
    counts = composition(f)
    assert counts["padding"] == whole - manifest["tokens"]
    assert counts["documents"] + counts["separators"] == manifest["tokens"]
    for n in counts.values():
        assert f"{n:,}" in page.text
    assert "separators are estimated from" in page.text


def test_sampled_document_lengths_say_so(built, tmp_path, monkeypatch):
    assert "document lengths from the first" not in page_of(tmp_path, built).text
    monkeypatch.setattr("splice.report.facts.MOST_DOCUMENTS", 5)
    monkeypatch.setattr("splice.report.traits.MOST_DOCUMENTS", 5)
    assert "document lengths from the first" in page_of(tmp_path, built).text


def test_long_lists_say_how_much_more_there_is(tmp_path):
    path = made(tmp_path / "made", [documents(3)] * 2)

    def many(manifest: dict) -> None:
        counts = manifest["ledger"]["sources"].pop("made")
        manifest["ledger"]["sources"] = {f"s{i:03d}": counts for i in range(70)}
        manifest["settings"]["sources"] = [f"s{i:03d}" for i in range(70)]

    change(path, many)
    text = page_of(tmp_path, path).text
    assert "s000, s001, s002, s003, s004 and 65 more" in text
    assert "The table lists the first 60 of 70." in text


def test_terminal_has_the_figures(built, mixed):
    text = text_of(built, mixed, width=200)
    for path in (built, mixed):
        manifest = json.loads((path / "manifest.json").read_text())
        assert f"{at(manifest, 'shards.*.examples'):,}" in text
    manifest = json.loads((built / "manifest.json").read_text())
    for key in ("ledger.sources.*.documents_in", "ledger.sources.*.tokens_in", "ledger.sources.*.trimmed"):
        assert f"{at(manifest, key):,}" in text
    assert f"{manifest['scores']['mean_step']:,.1f}" in text
    for words in ("Zipf exponent", "Compression gain", "random control", "documents in an example", "▇"):
        assert words in text


def test_terminal_and_page_show_the_same_relatedness(built, tmp_path):
    rows = {(row[1], row[2]) for row in page_of(tmp_path, built).rows if len(row) == 4 and row[0] == "out"}
    (line,) = (line.split() for line in text_of(built).splitlines() if line.startswith("Types per token"))
    assert {("dataset", line[3]), ("random control", line[7])} <= rows


def test_no_dataset_is_an_error(tmp_path, built):
    with pytest.raises(SpliceError, match="no such directory"):
        write_report([tmp_path / "absent"], tmp_path / "report.html")
    with pytest.raises(SpliceError, match=r"no manifest\.json"):
        show_report([tmp_path], Console(file=io.StringIO()))
    with pytest.raises(SpliceError, match="no dataset"):
        write_report([], tmp_path / "report.html")
    broken = made(tmp_path / "broken", [documents(2)])
    (shard,) = (broken / "data").iterdir()
    shard.write_bytes(b"not a shard")
    with pytest.raises(SpliceError, match="splice validate"):
        write_report([built, broken], tmp_path / "report.html")
    (tmp_path / "manifest.json").write_text('{"shards": 7}')
    with pytest.raises(SpliceError, match="cannot be read"):
        write_report([tmp_path], tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()


def test_nothing_heavy_is_imported_before_a_report_is_asked_for():
    code = "import sys, splice.report; sys.exit(any(m in sys.modules for m in ('matplotlib', 'jinja2', 'pyarrow', 'torch')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
