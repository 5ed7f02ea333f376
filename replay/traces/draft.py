"""A workload in the making: the columns that the changes of a what-if move, copy and resize together."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from replay.closed_loop import ClosedLoop, unroll
from replay.traces.chains import copies_of
from replay.traces.sharing import copies_apart
from replay.workload import Labels, Leaves, PrefixBlocks

Int64Array = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Draft:
    """Requests in arrival order, shape (n,) each; ``None`` where the trace does not say. See ``Workload``."""

    arrival_ns: Int64Array
    """From the start of the window."""
    prompt: Int64Array
    output: Int64Array
    span_ns: int
    to_last: bool
    """Whether the span ends with the last arrival, and not at a time that the user gave."""
    declared: Int64Array | None = None
    prefix: PrefixBlocks | None = None
    tenant: Labels | None = None
    priority_class: Labels | None = None
    priority: Int64Array | None = None
    session: Int64Array | None = None
    loop: ClosedLoop | None = None
    leaves: Leaves | None = None

    @property
    def n(self) -> int:
        return len(self.arrival_ns)

    @cached_property
    def root(self) -> Int64Array:
        """The request at the head of each one's chain; itself where it follows none."""
        if self.loop is None:
            return np.arange(self.n, dtype=np.int64)
        return unroll(self.loop.after, self.loop.delay_ps).root

    def heads_moved(self, heads_ns: Int64Array) -> Draft:
        """The same with new times of the requests that are heads; followers go with theirs."""
        times = heads_ns[self.root] + (self.arrival_ns - self.arrival_ns[self.root])
        order = np.argsort(times, kind="stable").astype(np.int64)
        return self.take(order, times[order])

    def take(
        self,
        index: Int64Array,
        arrival_ns: Int64Array,
        copy: Int64Array | None = None,
        wrapped: BoolArray | None = None,
    ) -> Draft:
        """Entry ``i`` is copy ``copy[i]`` of request ``index[i]``, at ``arrival_ns[i]``; without ``copy`` each is its
        own only one.

        Copies have sessions and prefix ids of their own. What a shift carried round the window (``wrapped``) is in
        sessions of its own too: its earlier turns would come after its later ones.
        """
        copy = np.zeros(len(index), np.int64) if copy is None else copy
        session = self.session
        if session is not None:
            variant = copy if wrapped is None else copy + wrapped * (copy.max(initial=0) + 1)
            own, apart = session[index], variant * (session.max(initial=0) + 1)
            session = np.where(own < 0, -1, own + apart)
        prefix = None if self.prefix is None else copies_apart(self.prefix.take(index), copy)
        return replace(
            self,
            arrival_ns=arrival_ns,
            prompt=self.prompt[index],
            output=self.output[index],
            declared=_taken(self.declared, index),
            prefix=prefix,
            tenant=_labels_taken(self.tenant, index),
            priority_class=_labels_taken(self.priority_class, index),
            priority=_taken(self.priority, index),
            session=session,
            loop=None if self.loop is None else copies_of(self.loop, index, copy),
            leaves=None if self.leaves is None else self.leaves.take(index),
        )


def _taken(column: Int64Array | None, index: Int64Array) -> Int64Array | None:
    return None if column is None else column[index]


def _labels_taken(labels: Labels | None, index: Int64Array) -> Labels | None:
    return None if labels is None else Labels(labels.code[index], labels.names)
