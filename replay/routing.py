"""Routers by name: their kernels' codes, what they need, and the dealing out where no state is read."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from replay.errors import FieldError, SpecError
from replay.kernels.state import (
    DEALT,
    LEAST_KV_USAGE,
    LEAST_OUTSTANDING,
    LEAST_OUTSTANDING_TOKENS,
    POWER_OF_TWO,
    PREFIX_AWARE,
    ROUND_ROBIN,
    VLLM_DP,
    VLLM_DP_OLD,
    WORD,
    Config,
    Int32,
    Int64,
    Requests,
    Routing,
    new_routing,
)
from replay.specs import DeploymentSpec, Router, default_snapshot_s, reads_state
from replay.workload import Workload

_READ_STATE = {
    "least_outstanding": LEAST_OUTSTANDING,
    "least_outstanding_tokens": LEAST_OUTSTANDING_TOKENS,
    "least_kv_usage": LEAST_KV_USAGE,
    "power_of_two": POWER_OF_TWO,
    "vllm_dp": VLLM_DP,
    "prefix_aware": PREFIX_AWARE,
}
_PS_PER_S = 10**12


def router_code(router: Router, engine_version: str) -> int:
    """The kernels' code of a router where replicas run together. ``engine_version``: ``vllm-0.11``, ..."""
    if not reads_state(router):
        return ROUND_ROBIN if router == "round_robin" else DEALT
    if router == "vllm_dp" and engine_version.startswith("vllm-0."):
        return VLLM_DP if int(engine_version.split(".")[1]) > 11 else VLLM_DP_OLD
    return _READ_STATE[router]


def snapshot_ps(spec: DeploymentSpec) -> int:
    """How often the router sees the replicas' state; 0: always as it is."""
    age_s = default_snapshot_s(spec.router) if spec.router_snapshot_s is None else spec.router_snapshot_s
    return round(age_s * _PS_PER_S)


def check_router(spec: DeploymentSpec, scheduler: str, caching: bool, workload: Workload) -> None:
    """Whether the router has what it needs on this engine and workload.

    Raises:
        SpecError: ``deployment.router``, naming what is missing and the cure.
    """
    detail = cure = ""
    if scheduler == "static" and reads_state(spec.router):
        detail = "static batching is replayed behind round_robin, random and session_affinity only"
        cure = "use one of those routers, or another engine preset"
    elif spec.router == "session_affinity" and workload.session is None:
        detail = "the router session_affinity needs session ids, and this workload has none"
        cure = "map a column to session when the trace is ingested, or use another router"
    elif spec.router == "prefix_aware" and workload.prefix is None:
        detail = "the router prefix_aware needs prompts' block ids, and this workload has none"
        cure = "use a trace with block ids (prefix_blocks), or another router"
        if workload.follows is not None:
            cure = "prefixes from sessions have no ids: use the router session_affinity, which keeps a session together"
    elif spec.router == "prefix_aware" and not caching:
        detail = "the router prefix_aware is of no use while the engine caches no prefixes"
        cure = "turn on enable_prefix_caching, or use another router"
    if detail:
        raise SpecError("deployment.router", detail, [FieldError(detail, field="router", cure=cure)])


def deal(router: Router, n: int, replicas: int, seed: int, session: Int64 | None) -> Int32:
    """The replica of each of ``n`` requests under a router that reads no state.

    ``random`` draws it. ``session_affinity`` hashes the session, so a session stays on one replica; requests without
    one (-1) are drawn.
    """
    if router == "round_robin":
        return (np.arange(n) % replicas).astype(np.int32)
    drawn = np.random.default_rng(seed).integers(0, replicas, n, dtype=np.int32)
    if router == "random" or session is None:
        return drawn
    return np.where(session < 0, drawn, (_hash(session) % np.uint64(replicas)).astype(np.int32))


def _hash(values: Int64) -> npt.NDArray[np.uint64]:
    """The finaliser of SplitMix64 (Steele, Lea and Flood, 2014): every bit of the result depends on all of the
    value."""
    z = values.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def draw_pairs(n: int, replicas: int, seed: int) -> Int32:
    """Two different replicas for each of ``n`` requests (the same one twice where there is only one), shape (n, 2)."""
    rng = np.random.default_rng(seed)
    one = rng.integers(0, replicas, n, dtype=np.int32)
    step = rng.integers(1, max(replicas, 2), n, dtype=np.int32)
    return np.stack([one, (one + step) % np.int32(replicas)], axis=1)


def prepare_routing(
    config: Config,
    requests: Requests,
    regs: Int64,
    seed: int,
    router: Router = "round_robin",
    session: Int64 | None = None,
) -> Routing:
    """What the router of ``config`` starts with. ``router`` and ``session``: of one that deals beforehand."""
    routing = new_routing(config, regs)
    if config.router == DEALT:
        dealt = deal(router, len(requests.arrival_ps), config.replicas, seed, session)
        routing = routing._replace(pair=np.stack([dealt, dealt], axis=1))
    if config.router == POWER_OF_TWO:
        routing = routing._replace(pair=draw_pairs(len(requests.arrival_ps), config.replicas, seed))
    if config.router == PREFIX_AWARE:
        ids = int(requests.prefix_ids.max(initial=-1)) + 1  # a trace numbers its blocks without gaps
        routing = routing._replace(holders=np.zeros((ids, -(-config.replicas // WORD)), np.int64))
    return routing
