"""A corpus of any size, made up: documents of words drawn by Zipf's law, about topics, so that they have neighbours.

    python bench/synthetic.py OUTPUT --gigabytes 20 [--workers 2] [--seed 0] [--build]

Writes OUTPUT/NNNNN.jsonl.zst, about 128 MB of text each, rows {"id", "text"}; the same bytes for the same seed. A document is some
5,000 characters long (log-normally, 300 to 30,000). Six words in ten are of one vocabulary of 400,000, frequency 1 over rank;
the others of its topic's 64 words or of those of its topic's field. A topic is of some 200 documents, wherever they lie; a field
is of 64 topics.
"""

from __future__ import annotations

import argparse
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import zstandard
from measure import run
from numba import njit

SHARD_BYTES = 128 * 10**6
CHARACTERS = 5000
VOCABULARY = 400_000
DRAWS = 2**22  # of the table that Zipf's law is drawn from: finer than the rarest word
TOPIC_DOCUMENTS, TOPIC_WORDS, FIELD_TOPICS = 200, 64, 64
COMMON_SHARE = 0.6
LINE_WORDS = 12
LETTERS = b"etaoinshrdlucmfwypvbgkjqxz"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path)
    parser.add_argument("--gigabytes", type=float, required=True, help="of text")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--build", action="store_true", help="build it into OUTPUT-built, and say what that took")
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    shards = max(1, round(arguments.gigabytes * 10**9 / SHARD_BYTES))
    topics = max(1, shards * SHARD_BYTES // CHARACTERS // TOPIC_DOCUMENTS)
    started = time.monotonic()
    with ProcessPoolExecutor(arguments.workers) as pool:
        made = list(
            pool.map(_make, *zip(*((arguments.output, n, topics, arguments.seed) for n in range(shards)), strict=True))
        )
    documents, size, packed = (sum(column) for column in zip(*made, strict=True))
    seconds = time.monotonic() - started
    print(
        f"{documents:,} documents, {size / 1e9:.2f} GB of text, {packed / 1e9:.2f} GB on disk, {shards} shards, {seconds:.0f} s"
    )
    if arguments.build:
        built = arguments.output.with_name(f"{arguments.output.name}-built")
        command = [sys.executable, "-m", "splice.cli", "build", arguments.output, "--id-field", "id", "--output", built]
        took = run([*command, "--workers", arguments.workers])
        print(
            f"built in {took.wall_seconds:.0f} s, {took.cpu_seconds:.0f} CPU s, at most {took.peak_bytes / 2**30:.2f} GiB "
            "over all processes, mapped files included"
        )


def _make(output: Path, shard: int, topics: int, seed: int) -> tuple[int, int, int]:
    """One shard; its documents, bytes of text and bytes on disk."""
    letters, ends, draws = _vocabulary()
    rng = np.random.default_rng((seed, shard))
    sizes = np.clip(CHARACTERS * rng.lognormal(-0.18, 0.6, 2 * SHARD_BYTES // CHARACTERS), 300, 30_000).astype(np.int64)
    sizes = sizes[: int(np.searchsorted(np.cumsum(sizes), SHARD_BYTES))]
    topic = rng.integers(0, topics, len(sizes))
    out = np.empty(int(sizes.sum()) * 11 // 10 + 200 * len(sizes), np.uint8)
    head = np.frombuffer(b'{"id": "%08d-000000", "text": "' % shard, np.uint8)
    used, text = _fill(letters, ends, draws, sizes, topic, np.uint64(seed * 2**32 + shard + 1), head, out)
    packed = zstandard.ZstdCompressor(level=1).compress(out[:used].data)
    (output / f"{shard:05d}.jsonl.zst").write_bytes(packed)
    return len(sizes), text, len(packed)


_made: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []  # once a process


def _vocabulary() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(letters uint8, ends int64 [V + 1], draws int32 [DRAWS]): the words, the frequent ones short, and a word for each draw."""
    if not _made:
        rng = np.random.default_rng(0)
        length = np.clip(np.log(np.arange(1, VOCABULARY + 1)) / 1.7 + rng.integers(1, 4, VOCABULARY), 2, 14).astype(
            np.int64
        )
        ends = np.concatenate([[0], np.cumsum(length)])
        frequent_first = np.minimum(rng.geometric(0.12, int(ends[-1])) - 1, len(LETTERS) - 1)
        letters = np.frombuffer(LETTERS, np.uint8)[frequent_first]
        cumulative = np.cumsum(1 / np.arange(1, VOCABULARY + 1))
        draws = np.searchsorted(cumulative, (np.arange(DRAWS) + 0.5) / DRAWS * cumulative[-1]).astype(np.int32)
        _made.append((letters, ends, draws))
    return _made[0]


@njit(cache=True)
def _random(state: np.uint64) -> np.uint64:
    """splitmix64."""
    z = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@njit(cache=True)
def _fill(
    letters: np.ndarray, ends: np.ndarray, draws: np.ndarray, sizes: np.ndarray, topics: np.ndarray, state: np.uint64,
    head: np.ndarray, out: np.ndarray,
) -> tuple[int, int]:  # fmt: skip
    """Write a JSON line for each document; the bytes written, and how many of them are text."""
    step = np.uint64(0x9E3779B97F4A7C15)
    state *= step
    at = text = 0
    for d in range(sizes.size):
        out[at : at + head.size] = head
        number = d
        for place in range(6):
            out[at + 22 - place] = 48 + number % 10
            number //= 10
        at += head.size
        written = words = 0
        while written < sizes[d]:
            state += step
            r = _random(state)
            low = r & np.uint64(0xFFFFFFFF)
            if (r >> np.uint64(40)) < np.uint64(COMMON_SHARE * (1 << 24)):
                word = draws[low % np.uint64(DRAWS)]
            else:  # of the topic or its field: half of the words each, the first ones oftener
                of_topic = low & np.uint64(1)
                owner = topics[d] if of_topic else topics[d] // FIELD_TOPICS + 10**9
                u = np.float64(low >> np.uint64(1)) / 2.0**31
                rank = np.int64(u * u * TOPIC_WORDS)
                word = 2000 + np.int64(
                    _random(np.uint64(owner * TOPIC_WORDS + rank + 1) * step) % np.uint64(VOCABULARY - 2000)
                )
            for i in range(ends[word], ends[word + 1]):
                out[at] = letters[i]
                at += 1
            written += ends[word + 1] - ends[word] + 1
            words += 1
            if words % LINE_WORDS == 0:
                out[at] = 92  # \n, as JSON has it
                out[at + 1] = 110
                at += 2
            else:
                out[at] = 32
                at += 1
        text += written
        out[at] = 34
        out[at + 1] = 125
        out[at + 2] = 10
        at += 3
    return at, text


if __name__ == "__main__":
    main()
