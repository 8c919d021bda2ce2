"""The report of finished datasets: figures equal the manifest's, text is only text, small and odd datasets have a page too."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from splice import __version__
from splice.errors import SpliceError
from splice.report import show_report, write_report
from splice.report.facts import distinct_names
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
    b = made(tmp_path / "b", [documents(3, seed=i) for i in range(9)], scored=True, retriever="repo")
    assert {"scores-0", "scores-1"} <= set(page_of(tmp_path, a, b).charts())
    assert "scores" in page_of(tmp_path, a, a).charts()


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
    assert f"{len(examples)}" in text_of(path)


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
    assert "again with --dedup near, which drops them" in page.text
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
