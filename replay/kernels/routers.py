"""Routers: which replica an arriving request goes to, from the exact state at that instant."""

from __future__ import annotations

from replay.kernels.jit import inlined
from replay.kernels.state import OUTSTANDING, ROUND_ROBIN, ROUTER_NEXT, Config, State


@inlined
def route(config: Config, state: State) -> int:
    """Round robin; or the replica with the fewest outstanding requests, ties in turn from the last choice on."""
    cluster = state.meters.cluster
    start = cluster[ROUTER_NEXT]
    best = start
    if config.router != ROUND_ROBIN:
        regs = state.meters.regs
        for i in range(1, config.replicas):
            replica = start + i
            if replica >= config.replicas:
                replica -= config.replicas
            if regs[replica, OUTSTANDING] < regs[best, OUTSTANDING]:
                best = replica
    cluster[ROUTER_NEXT] = best + 1 if best + 1 < config.replicas else 0
    return best
