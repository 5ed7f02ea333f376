"""Closed loops: requests that start only when another has ended, so that arrivals depend on the deployment."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Int64Array = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]


class CycleError(ValueError):
    """Requests that wait for each other; ``member`` is one of them."""

    def __init__(self, member: int) -> None:
        super().__init__(f"request {member} waits for itself")
        self.member = member


@dataclass(frozen=True)
class Unrolled:
    """Of each request: the open one at the head of its chain, the sum of the delays from there, and the number of
    steps. Shape (n,) each."""

    root: Int64Array
    offset: Int64Array
    depth: Int64Array


def unroll(after: Int64Array, delay: Int64Array) -> Unrolled:
    """Follows ``after`` (the request before, -1: none) to its head, in as many rounds as the chains' length has bits.

    Raises:
        CycleError: requests that wait for each other.
    """
    n = len(after)
    follows = after >= 0
    root = np.where(follows, after, np.arange(n, dtype=np.int64))
    offset = np.where(follows, delay, 0)
    depth = follows.astype(np.int64)
    for _ in range(n.bit_length() + 1):
        offset, depth, root = offset + offset[root], depth + depth[root], root[root]
    cyclic = after[root] >= 0
    if cyclic.any():
        raise CycleError(int(np.flatnonzero(cyclic)[0]))
    return Unrolled(root, offset, depth)


@dataclass(frozen=True)
class ClosedLoop:
    """Which requests of a workload follow others. ``after``: the index of the earlier request that must end first, -1
    for an open one; ``delay_ps``: from that end to the arrival. Shape (n,) each; ``after[i] < i``.

    The workload's ``arrival_ps`` of a follower is the earliest that it could come, were every request before it served
    in no time; so the delay between two requests of a chain is also the difference of theirs.
    """

    after: Int64Array
    delay_ps: Int64Array

    def ancestors(self, keep: BoolArray) -> Int64Array:
        """The nearest request before each one that is kept, or -1."""
        before = self.after.copy()
        while True:
            passed = before >= 0
            passed[passed] = ~keep[before[passed]]
            if not passed.any():
                return before
            before[passed] = self.after[before[passed]]

    def only(self, keep: BoolArray, arrival_ps: Int64Array) -> ClosedLoop:
        """The same for the requests that are kept. Whoever followed one that is not, follows what that one did, after
        both delays: a request that cannot run ends as it arrives."""
        before = self.ancestors(keep)[keep]
        follows = before >= 0
        place = np.cumsum(keep) - 1
        delay = np.zeros(len(before), np.int64)
        delay[follows] = arrival_ps[keep][follows] - arrival_ps[before[follows]]
        return ClosedLoop(np.where(follows, place[before], -1), delay)

    @property
    def sessions(self) -> int:
        """Open requests."""
        return int((self.after < 0).sum())
