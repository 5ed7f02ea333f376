"""Exact distributions of whole numbers, built a slice at a time."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from replay.traces.report import LengthProfile, Timing

Int64Array = npt.NDArray[np.int64]

NS = 10**9
_DENSE = 2**20
_BITS = 11


@dataclass
class Tally:
    """Exact distribution of non-negative integers: counts by value, dense for small values, sparse above."""

    _dense: Int64Array = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    _values: Int64Array = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    _counts: Int64Array = field(default_factory=lambda: np.empty(0, dtype=np.int64))

    def add(self, sample: Int64Array) -> None:
        """Counts a sample."""
        large = sample >= _DENSE
        if large.any():
            values, counts = np.unique(sample[large], return_counts=True)
            self._values, index = np.unique(np.concatenate([self._values, values]), return_inverse=True)
            counts = np.concatenate([self._counts, counts])
            self._counts = np.zeros(len(self._values), dtype=np.int64)
            np.add.at(self._counts, index, counts)
            sample = sample[~large]
        fresh = np.bincount(sample, minlength=len(self._dense))
        fresh[: len(self._dense)] += self._dense
        self._dense = fresh

    @property
    def values(self) -> Int64Array:
        """The different values, ascending."""
        return np.concatenate([np.flatnonzero(self._dense), self._values])

    @property
    def counts(self) -> Int64Array:
        """How often each of ``values`` occurs."""
        return np.concatenate([self._dense[self._dense > 0], self._counts])

    def percentile(self, q: float) -> float:
        """numpy-linear percentile; the tally must not be empty."""
        values, ends = self.values, np.cumsum(self.counts)
        last = int(ends[-1]) - 1
        rank = q / 100.0 * last
        low = int(np.floor(rank))
        below = int(values[np.searchsorted(ends, low, side="right")])
        above = int(values[np.searchsorted(ends, min(low + 1, last), side="right")])
        return below + (above - below) * (rank - low)

    def alike(self) -> float:
        """The chance that two draws are equal; 1 where there is nothing to draw from."""
        counts = self.counts
        return float(np.square(counts / counts.sum()).sum()) if len(counts) else 1.0

    def above(self, limit: int) -> int:
        """How many are larger than ``limit``."""
        return int(self.counts[self.values > limit].sum())

    def profile(self) -> LengthProfile:
        """The distribution as a document."""
        values, counts = self.values, self.counts
        n = int(counts.sum())
        if n == 0:
            return LengthProfile(n=0, mean=None, min=None, p50=None, p90=None, p95=None, p99=None, max=None, total=0)
        total = sum(int(v) * int(c) for v, c in zip(values, counts, strict=True))
        p50, p90, p95, p99 = (self.percentile(q) for q in (50.0, 90.0, 95.0, 99.0))
        return LengthProfile(
            n=n,
            mean=total / n,
            min=int(values[0]),
            p50=p50,
            p90=p90,
            p95=p95,
            p99=p99,
            max=int(values[-1]),
            total=total,
        )


@dataclass
class TimeTally:
    """Distribution of times in ns, each kept to 11 significant bits (0.05 %): 40 million different ones stay small."""

    _times: Tally = field(default_factory=Tally)

    def add(self, times_ns: Int64Array) -> None:
        """Counts a sample of times >= 0."""
        # frexp is exact enough: a float64 rounds at bit 53, far below the 11 that are kept.
        spare = np.maximum(np.frexp(times_ns.astype(np.float64))[1].astype(np.int64) - _BITS, 0)
        half = (np.int64(1) << spare) >> 1
        self._times.add(((times_ns + half) >> spare) << spare)

    def timing(self) -> Timing | None:
        """The distribution as a document; ``None`` where nothing was counted."""
        found = self._times.profile()
        if found.n == 0:
            return None
        p50, p90, p95, p99 = (self._times.percentile(q) / NS for q in (50.0, 90.0, 95.0, 99.0))
        mean_s, max_s = found.total / found.n / NS, int(self._times.values[-1]) / NS
        return Timing(n=found.n, mean_s=mean_s, p50_s=p50, p90_s=p90, p95_s=p95, p99_s=p99, max_s=max_s)
