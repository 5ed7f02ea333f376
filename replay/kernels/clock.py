"""The instants at which something happens, for every loop but the fast ones.

At one instant, in this order: batches end; replicas are lost or come back; clients leave; requests arrive; the next
batches are scheduled.
"""

from __future__ import annotations

from replay.kernels.arrivals import next_arrival, take_arrived
from replay.kernels.jit import inlined
from replay.kernels.outages import change_replicas
from replay.kernels.patience import give_up_overdue, next_deadline
from replay.kernels.routers import keep_snapshot
from replay.kernels.state import NEXT_CHANGE, NEXT_EVENT, Config, Requests, State


@inlined
def next_instant(config: Config, requests: Requests, state: State) -> int:
    """When something happens next; FAR where nothing will."""
    regs, cluster = state.meters.regs, state.meters.cluster
    now = next_arrival(requests, state)
    for replica in range(config.replicas):
        now = min(now, regs[replica, NEXT_EVENT])
    if config.clients_leave:
        now = min(now, next_deadline(config, requests, state))
    if config.replicas_may_be_down and cluster[NEXT_CHANGE] < len(state.changes.time_ps):
        now = min(now, state.changes.time_ps[cluster[NEXT_CHANGE]])
    return now


@inlined
def pass_instant(config: Config, requests: Requests, state: State, now: int) -> None:
    """What happens between the ends of batches and the starts of the next ones."""
    if config.replicas_may_be_down:
        change_replicas(config, requests, state, now)
    if config.clients_leave:
        give_up_overdue(config, requests, state, now)
    keep_snapshot(config, state.meters.regs, state.meters.cluster, state.routing, now)
    take_arrived(config, requests, state, now)
