"""What a deployment can sustain, and whether a workload asks for more.

Capacity is measured: the workload's own requests are offered without end, and the rate at which they are admitted
once the batch has filled is what one replica sustains.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from replay.deployment import Deployment
from replay.engine_run import EngineRun, Int32Array, Int64Array
from replay.kernels.routers import MATCH_PERCENT
from replay.kernels.state import Requests
from replay.kernels.texts import repeat_texts
from replay.machine import Checkpoint, Machine, take_requests
from replay.steptime.interpolation import record_table
from replay.workload import PrefixBlocks

PS_PER_S = 1e12
_REQUESTS = 8192
_CACHED_REQUESTS = 4096
"""Requests of the run that measures capacity: several times the largest batch. Fewer where a prefix cache is kept."""
_SEED = 20_260
_LIFETIMES = 5.0
_LONGEST_RUN_S = 50.0 * 86_400
"""One request after the other must stay within what int64 picoseconds can count."""


def measure_capacity(
    machine: Machine,
    requests: Requests,
    deployment: Deployment,
    checkpoint: Checkpoint,
    session: Int64Array | None = None,
) -> tuple[float, float]:
    """Requests per second that one replica of ``deployment`` sustains, and the kernel seconds spent. ``session``: of
    each request, -1 for none; read where the router keeps sessions together.

    Requests are drawn in an order of their own (a fixed permutation), so that the order of the trace does not weigh one
    part of its mix more than another. With a prefix cache order and share matter: the run then takes what the first
    replica gets, in order, repeated with prefixes of its own until it is long enough.
    """
    n = len(requests.arrival_ps)
    if n == 0:
        return 0.0, 0.0
    if machine.caches_prefixes:
        whole = session if machine.router == "session_affinity" else None
        if machine.router == "prefix_aware":
            whole = _kept_together(requests, machine.config.prefix_block_tokens)
        return _capacity_on(machine, requests, deployment, checkpoint, _share_of_one(n, deployment.replicas, whole))
    burst = shuffled(requests, deployment, machine.ranks)
    return admission_rate(machine.alone().run(at_once(burst), checkpoint))


def measure_capacity_as_dealt(
    machine: Machine, requests: Requests, deployment: Deployment, checkpoint: Checkpoint, replica: Int32Array
) -> tuple[float, float] | None:
    """As ``measure_capacity`` behind ``prefix_aware``, on what the replica nearest to the mean share was sent in a run
    of all: ``replica`` of each request, negative where none served it. ``None`` behind other routers, and where the run
    kept together all that this one would: load never decided against it, and what was measured beforehand stands."""
    if machine.router != "prefix_aware" or deployment.replicas == 1:
        return None
    group = _kept_together(requests, machine.config.prefix_block_tokens)
    served = np.flatnonzero(replica >= 0)
    pairs = len(np.unique(group[served] * deployment.replicas + replica[served]))
    if pairs == len(np.unique(group[served])):
        return None
    shares = np.bincount(replica[served], minlength=deployment.replicas)
    middle = int(np.argmin(np.abs(shares - shares.mean())))
    return _capacity_on(machine, requests, deployment, checkpoint, np.flatnonzero(replica == middle))


def _capacity_on(
    machine: Machine, requests: Requests, deployment: Deployment, checkpoint: Checkpoint, share: Int64Array
) -> tuple[float, float]:
    """What one replica sustains on the requests ``share`` in order, and the kernel seconds spent."""
    burst = _in_order(
        take_requests(requests, share), min(_CACHED_REQUESTS * machine.ranks, _most(requests, deployment))
    )
    return admission_rate(machine.alone().run(at_once(burst), checkpoint))


def _share_of_one(n: int, replicas: int, session: Int64Array | None) -> Int64Array:
    """Places of the requests that one of ``replicas`` gets: every so many-th session, else every so many-th request."""
    every = np.arange(0, n, replicas)
    if session is None:
        return every
    number = np.unique(session, return_inverse=True)[1] - int((session < 0).any())
    alone = np.flatnonzero(session < 0)
    number[alone] = np.arange(len(alone))
    share = np.flatnonzero(number % replicas == 0)
    return share if len(share) else every


def _kept_together(requests: Requests, block_tokens: int) -> Int64Array:
    """A number for each group of requests that the router prefix_aware sends after each other: whose known prefix is
    long enough goes where the last block of it was first."""
    prefix = PrefixBlocks(requests.prefix_start, requests.prefix_ids, block_tokens)
    known = prefix.reusable_tokens
    group = np.arange(len(known))
    follows = np.flatnonzero((known > 0) & (100 * known >= MATCH_PERCENT * requests.prompt_tokens))
    ids, first = np.unique(prefix.ids, return_index=True)
    last = prefix.ids[prefix.start[follows] + known[follows] // block_tokens - 1]
    group[follows] = np.searchsorted(prefix.start, first[np.searchsorted(ids, last)], side="right") - 1
    while not np.array_equal(group, group[group]):
        group = group[group]
    return group


def shuffled(requests: Requests, deployment: Deployment, ranks: int = 1) -> Requests:
    """Requests for a run that measures the capacity of ``ranks`` engines together, in an order of their own."""
    n = len(requests.arrival_ps)
    return take_requests(requests, _shuffled(n, min(_REQUESTS * ranks, _most(requests, deployment))))


def at_once(requests: Requests) -> Requests:
    """The same, all sent at time 0."""
    return requests._replace(arrival_ps=np.zeros(len(requests.arrival_ps), np.int64))


def admission_rate(run: EngineRun) -> tuple[float, float]:
    """Requests per second that a run of requests sent at once admits when its batch has filled, and its kernel
    seconds."""
    count = len(run.admitted_ps)
    admitted = np.sort(run.admitted_ps)
    quarter = count // 4
    window_ps, whole_ps = int(admitted[-1] - admitted[quarter]), int(run.last_ps.max())
    if window_ps > whole_ps // 4:
        return (count - 1 - quarter) / (window_ps / PS_PER_S), run.kernel_s
    return count / (whole_ps / PS_PER_S), run.kernel_s  # everything was admitted at once


def _most(requests: Requests, deployment: Deployment) -> int:
    return int(_LONGEST_RUN_S / lifetime_s(requests, deployment)) + 1


@lru_cache(maxsize=8)
def _shuffled(n: int, count: int) -> Int64Array:
    """``count`` places among ``n`` requests: whole permutations, then a part of one. Read-only: all replays of a plan
    get the same array."""
    rng = np.random.Generator(np.random.PCG64(_SEED))
    places = np.concatenate([rng.permutation(n) for _ in range(-(-count // n))])[:count].astype(np.int64)
    places.flags.writeable = False
    return places


def _in_order(requests: Requests, count: int) -> Requests:
    """The head of ``requests``, or all of them over and over; each round has block ids of its own."""
    n = len(requests.arrival_ps)
    if n >= count:
        return take_requests(requests, np.arange(count))
    rounds = -(-count // n)
    many = take_requests(requests, np.tile(np.arange(n), rounds))
    many = many._replace(texts=repeat_texts(requests.texts, rounds))
    step = int(requests.prefix_ids.max(initial=0)) + 1
    shift = np.repeat(np.arange(rounds, dtype=np.int64), len(requests.prefix_ids)) * step
    return many._replace(prefix_ids=many.prefix_ids + shift)


def lifetime_s(requests: Requests, deployment: Deployment) -> float:
    """Mean time that a request would take alone on an idle replica."""
    record = deployment.step_time
    prompt, output = float(requests.prompt_tokens.mean()), float(requests.output_tokens.mean())
    chunk = len(record.rest_ps) - 1
    prefill = prompt / chunk * int(record.rest_ps[chunk]) if prompt > chunk else int(record.rest_ps[int(prompt)])
    prefill += record.prefill_linear_ps * prompt * (prompt + 1)
    chunks = max(prompt / chunk, 1.0)
    before = max(prompt - chunk, 0.0) / 2  # cached tokens behind the mean chunk
    prefill += chunks * (record.prefill_step_ps + record_table(record.prefill_table_ps, prompt / chunks, before))
    context = prompt + output / 2
    decode = int(record.rest_ps[1]) + record.decode_request_ps + record.decode_linear_ps * context
    decode += record_table(record.decode_table_ps, 1.0, context)
    return (prefill + (output - 1) * decode) / PS_PER_S


def offered_rps(requests: Requests, span_s: float, deployment: Deployment) -> float | None:
    """Requests per second over the workload's span; ``None`` for a burst, which has no rate.

    A rate is a load that lasts: where all requests come within a few lifetimes of one, what counts is how long the
    deployment takes over them, and latencies say that by themselves. Where requests follow others the lifetime is that
    of a whole session with its pauses: sessions that keep starting bring their requests at this rate whatever the
    deployment, while a few that all start at once slow down with it.
    """
    n = len(requests.arrival_ps)
    if n == 0:
        return 0.0
    heads = int((requests.after < 0).sum()) if len(requests.after) else n
    session_s = (n * lifetime_s(requests, deployment) + float(requests.delay_ps.sum()) / PS_PER_S) / heads
    if span_s < _LIFETIMES * session_s:
        return None
    return n / span_s
