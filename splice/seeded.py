"""Seeded choices that depend on nothing but their arguments: no library's generator, no version, no platform.

The 64-bit mixer is splitmix64's finaliser (Steele, Lea, Flood 2014). A permutation is the order of mixed keys, so any
part of it can be found again from (seed, stream) alone.
"""

from __future__ import annotations

import hashlib

import numpy as np


def mix(values: np.ndarray) -> np.ndarray:
    """Mix uint64 [N] to uint64 [N], a bijection whose output bits look independent of the input."""
    x = np.asarray(values, dtype=np.uint64)
    with np.errstate(over="ignore"):
        x = (x + np.uint64(0x9E3779B97F4A7C15)).astype(np.uint64)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return x ^ (x >> np.uint64(31))


def key(seed: int, *stream: int | str) -> np.uint64:
    """One uint64 for a seed and the name of what it is used for ("roots", pack 3)."""
    digest = hashlib.blake2b(repr((int(seed), *stream)).encode(), digest_size=8).digest()
    return np.frombuffer(digest, dtype="<u8")[0]


def permutation(n: int, seed: int, *stream: int | str) -> np.ndarray:
    """A permutation of 0 .. n-1 as int64 [n], drawn by (seed, stream)."""
    keys = mix(np.arange(n, dtype=np.uint64) ^ key(seed, *stream))
    return np.argsort(keys, kind="stable")
