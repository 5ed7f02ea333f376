"""The fast loop for replicas behind a router that reads their state.

Replicas meet only at arrivals. So each one runs alone up to the next arrival, by the fast loop, and stops in the state
that the router must see: batches that end by then are processed, batches that start then are not. Between arrivals no
order of replicas matters. It must give the general loop's integers, bit for bit.
"""

from __future__ import annotations

from replay.kernels.fast import IN_FLIGHT, NOW, Fast, enqueue, finish_oldest, of_replica, run_steady, schedule_fast
from replay.kernels.jit import inlined, kernel
from replay.kernels.routers import route, take_snapshot
from replay.kernels.state import (
    FAR,
    FLIGHT,
    HEAD,
    NEVER,
    NEXT_ARRIVAL,
    NEXT_EVENT,
    NEXT_SNAPSHOT,
    RUNNING,
    Config,
    Meters,
    Outcome,
    Requests,
    Routing,
    StepTimes,
)

SCHEDULES, EXECUTES = range(2)
"""What a replica does next, in column ``FLIGHT``: schedule at ``NOW``, or wait for its oldest batch's end. Column
``NEXT_EVENT`` is the first arrival time at which it has been done: one after ``NOW``, or the end."""


@inlined
def run_until(
    config: Config,
    requests: Requests,
    times: StepTimes,
    outcome: Outcome,
    meters: Meters,
    arrays: Fast,
    until: int,
    max_steps: int,
) -> int:
    """Takes all replicas to what a router sees at ``until``; returns how many of ``max_steps`` batches are left, 0
    where it is not there yet."""
    regs = meters.regs
    for replica in range(config.replicas):
        if regs[replica, NEXT_EVENT] > until:
            continue
        reg = regs[replica]
        fast = of_replica(arrays, replica)
        while reg[NEXT_EVENT] <= until:
            if reg[FLIGHT] == EXECUTES:
                finish_oldest(config, requests, fast, reg)
                max_steps -= run_steady(config, times, meters, fast, reg, replica, until, max_steps)
                reg[FLIGHT] = SCHEDULES
                reg[NEXT_EVENT] = reg[NOW] + 1
            elif reg[RUNNING] == 0 and reg[HEAD] == NEVER:
                reg[IN_FLIGHT] = 0
                reg[NEXT_EVENT] = FAR
            elif max_steps == 0:
                return 0
            else:
                max_steps -= 1
                if schedule_fast(config, requests, times, outcome, meters, fast, reg, replica):
                    reg[FLIGHT] = EXECUTES
                    reg[NEXT_EVENT] = fast.flight_end_ps[0]
    return max_steps


@kernel
def advance_coupled(
    config: Config,
    requests: Requests,
    times: StepTimes,
    outcome: Outcome,
    meters: Meters,
    arrays: Fast,
    routing: Routing,
    max_steps: int,
) -> bool:
    """Schedules up to ``max_steps`` batches; False once nothing is left to do. Calling it again continues."""
    regs, cluster = meters.regs, meters.cluster
    n = len(requests.arrival_ps)
    while max_steps > 0:
        r = cluster[NEXT_ARRIVAL]
        now = requests.arrival_ps[r] if r < n else FAR - 1
        snapshot = config.router_snapshot_ps > 0 and r < n and cluster[NEXT_SNAPSHOT] <= now
        until = now - now % config.router_snapshot_ps if snapshot else now
        max_steps = run_until(config, requests, times, outcome, meters, arrays, until, max_steps)
        if max_steps == 0:
            return True
        if r == n:
            return False
        if snapshot:
            take_snapshot(config, regs, cluster, routing, until)
            continue
        replica = route(config, requests, regs, cluster, routing, r)
        outcome.replica[r] = replica
        reg = regs[replica]
        enqueue(requests, outcome, reg, r)
        if reg[NEXT_EVENT] == FAR:
            reg[NOW] = now
            reg[FLIGHT] = SCHEDULES
            reg[NEXT_EVENT] = now + 1
        cluster[NEXT_ARRIVAL] = r + 1
    return True
