"""The outcome of one engine run, and of several shares of a run as one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import numpy.typing as npt

Int32Array = npt.NDArray[np.int32]
Int64Array = npt.NDArray[np.int64]
IntT = TypeVar("IntT", bound=np.signedinteger)


@dataclass(frozen=True)
class EngineRun:
    """Outcome of one run over some requests, in their order. Times in ps, -1 where it never happened."""

    admitted_ps: Int64Array
    first_ps: Int64Array
    last_ps: Int64Array
    replica: Int32Array
    preemptions_of: Int32Array
    hit_tokens: Int32Array
    gaps: Int64Array
    """ITL histogram of the scored requests: tokens by log-linear bin of ps."""
    gap_max_ps: int
    steps: int
    looked_up_hits: int
    """Tokens found in the prefix cache by all requests, those given up included."""
    queried_tokens: int
    """Prompt tokens looked up in the prefix cache, re-admissions included; 0 without caching."""
    host_hit_tokens: int
    """Of the hits, tokens that were copied back from host memory."""
    preemptions: int
    busy_ps: float
    used_block_ps: float
    running_ps: float
    used_blocks_max: int
    kernel_s: float
    sent_ps: Int64Array
    """When each request arrived: known only now for those that follow others."""
    generated: Int32Array
    """Output tokens of requests that were given up; other loops than the general one may leave it 0."""
    lost_gaps: int = 0
    """Scored gaps of answers that a lost replica broke off, which ``gaps`` counts too; and their sum."""
    lost_gaps_ps: int = 0
    sent_again: int = 0
    """Requests sent anew because their replica was lost."""
    end_ps: int = 0
    """When the last step of all replicas ended: after the last token, where its requests had been given up."""

    def only(self, kept: npt.NDArray[np.bool_]) -> EngineRun:
        """The same with the columns of some of its requests."""
        return replace(
            self,
            admitted_ps=self.admitted_ps[kept],
            first_ps=self.first_ps[kept],
            last_ps=self.last_ps[kept],
            replica=self.replica[kept],
            preemptions_of=self.preemptions_of[kept],
            hit_tokens=self.hit_tokens[kept],
            sent_ps=self.sent_ps[kept],
            generated=self.generated[kept],
        )


def join_runs(runs: list[EngineRun], parts: list[Int64Array], dealt: Int32Array, ranks: int = 1) -> EngineRun:
    """Puts the outcomes of the requests ``parts`` back into one; ranks are numbered through all replicas."""

    def column(shares: list[npt.NDArray[IntT]]) -> npt.NDArray[IntT]:
        whole = np.empty(len(dealt), dtype=shares[0].dtype)
        for part, share in zip(parts, shares, strict=True):
            whole[part] = share
        return whole

    within = column([run.replica for run in runs])
    served = dealt * ranks + within if ranks > 1 else dealt
    return EngineRun(
        admitted_ps=column([run.admitted_ps for run in runs]),
        first_ps=column([run.first_ps for run in runs]),
        last_ps=column([run.last_ps for run in runs]),
        replica=np.where(within < 0, within, served).astype(np.int32),
        preemptions_of=column([run.preemptions_of for run in runs]),
        hit_tokens=column([run.hit_tokens for run in runs]),
        gaps=np.sum([run.gaps for run in runs], axis=0),
        gap_max_ps=max(run.gap_max_ps for run in runs),
        steps=sum(run.steps for run in runs),
        looked_up_hits=sum(run.looked_up_hits for run in runs),
        queried_tokens=sum(run.queried_tokens for run in runs),
        host_hit_tokens=sum(run.host_hit_tokens for run in runs),
        preemptions=sum(run.preemptions for run in runs),
        busy_ps=sum(run.busy_ps for run in runs),
        used_block_ps=sum(run.used_block_ps for run in runs),
        running_ps=sum(run.running_ps for run in runs),
        used_blocks_max=max(run.used_blocks_max for run in runs),
        kernel_s=sum(run.kernel_s for run in runs),
        sent_ps=column([run.sent_ps for run in runs]),
        generated=column([run.generated for run in runs]),
        lost_gaps=sum(run.lost_gaps for run in runs),
        lost_gaps_ps=sum(run.lost_gaps_ps for run in runs),
        sent_again=sum(run.sent_again for run in runs),
        end_ps=max(run.end_ps for run in runs),
    )
