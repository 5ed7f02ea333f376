"""Open-addressing hash tables in flat arrays: a key's value, ``NEVER`` where there is none. Tables lie side by side,
each of ``mask + 1`` buckets from ``base`` on, at most a quarter full: fuller ones were slower."""

from __future__ import annotations

import numpy as np

from replay.kernels.jit import inlined, inner
from replay.kernels.state import NEVER, Int32, Int64

_MIX = np.int64(0x9E3779B97F4A7C15 - 2**64)  # golden-ratio multiplier, as int64


@inner
def bucket_of(key: int, mask: int) -> int:
    """Home bucket of a key (multiplicative hashing, high bits folded down)."""
    mixed = np.int64(key) * _MIX
    return int((mixed ^ (mixed >> 29) ^ (mixed >> 43)) & mask)


@inlined
def mask_of(values: Int32, tables: int) -> int:
    """The mask of each of ``tables`` tables that lie side by side."""
    return len(values) // tables - 1


@inner
def find_bucket(keys: Int64, values: Int32, base: int, mask: int, key: int) -> int:
    """Bucket (absolute) that holds ``key``, or the empty one where it belongs."""
    home = bucket_of(key, mask)
    while values[base + home] != NEVER and keys[base + home] != key:
        home = (home + 1) & mask
    return base + home


@inner
def close_bucket(keys: Int64, values: Int32, base: int, mask: int, hole: int) -> None:
    """Empties a bucket and moves later members of its probe run back, so that no tombstones are needed."""
    hole -= base
    probe = hole
    while True:
        values[base + hole] = NEVER
        while True:
            probe = (probe + 1) & mask
            if values[base + probe] == NEVER:
                return
            home = bucket_of(keys[base + probe], mask)
            if (probe - home) & mask >= (probe - hole) & mask:
                break
        keys[base + hole] = keys[base + probe]
        values[base + hole] = values[base + probe]
        hole = probe
