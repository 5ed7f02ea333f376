"""What happens to requests and replicas beside serving: from a deployment to the kernels, and from them to statuses."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from replay.deployment import Deployment
from replay.errors import FieldError, SpecError
from replay.kernels.state import FAR, GAVE_UP, HELD, NEVER, REFUSED, REFUSED_TOKENS
from replay.results import STATUSES
from replay.specs import DeploymentSpec
from replay.specs_cluster import downtimes
from replay.workload import Workload

Int64Array = npt.NDArray[np.int64]
Int32Array = npt.NDArray[np.int32]
BoolArray = npt.NDArray[np.bool_]

_PS_PER_S = 10**12
_ONLY_GIVEN_ARRIVALS = {"static": "static batches are"}


def client_timeout_ps(deployment: Deployment) -> int:
    """From a request's arrival at the engine until its client gives up; 0: never. What the request took on its way is
    part of the client's time."""
    timeout_s = deployment.spec.client_timeout_s
    if timeout_s is None:
        return 0
    return max(1, round(timeout_s * _PS_PER_S) - deployment.step_time.request_overhead_ps)


def down_ps(spec: DeploymentSpec) -> tuple[tuple[int, int, int], ...]:
    """(replica, down from ps, until ps or FAR) each, in order."""
    return tuple(
        (replica, round(start_s * _PS_PER_S), FAR if end_s is None else round(end_s * _PS_PER_S))
        for replica, start_s, end_s in downtimes(spec.failures, spec.cold_starts)
    )


def check_life(deployment: Deployment, workload: Workload) -> None:
    """Whether this engine can be replayed under what is asked for.

    Raises:
        SpecError: ``deployment.not_replayed``, naming what cannot and the cure.
    """
    engine, spec = deployment.engine, deployment.spec
    closed = workload.closed_loop is not None
    field = detail = ""
    asked = {
        "transform": "requests that start when another has ended (closed loop)" if closed else "",
        "client_timeout_s": "client_timeout_s" if spec.client_timeout_s is not None else "",
        "failures": "failures" if spec.failures else "",
        "cold_starts": "cold_starts" if spec.cold_starts else "",
    }
    whole = _ONLY_GIVEN_ARRIVALS.get(engine.scheduler)
    if deployment.decode is not None:
        whole = "prefill and decode apart are"
    elif engine.data_parallel_size > 1:
        whole = "data-parallel ranks are"
    if whole is not None:
        field = next((name for name, what in asked.items() if what), "")
        detail = f"{whole} replayed for given arrivals on replicas that stay: not with {asked.get(field)}"
    elif engine.scheduler == "vllm-v0" and spec.client_timeout_s is not None:
        field = "client_timeout_s"
        detail = "clients that give up are not replayed on the V0 scheduler"
    elif engine.scheduler == "sglang" and deployment.caches_prefixes and workload.shares_prompts:
        field = "client_timeout_s" if spec.client_timeout_s is not None else "failures" if spec.failures else ""
        detail = f"SGLang's radix cache is not replayed with {field}"
    elif closed and engine.ageing_per_s > 0:
        field = "engine.overrides.ageing_per_s"
        detail = "ageing_per_s goes by arrival times, which are not known beforehand in a closed loop"
    if field:
        cure = "leave it out" if field.startswith("engine") else "leave it out, or use another engine preset"
        if field == "transform":
            cure = "use another engine preset"
        if detail.startswith("SGLang's radix"):
            cure = f"set disable_radix_cache, or leave {field} out"
        if whole is not None and engine.scheduler != "static":
            cure = "use replicas that do both, without ranks" if field == "transform" else "leave it out"
        where = field if field.startswith(("engine", "transform")) else f"deployment.{field}"
        raise SpecError("deployment.not_replayed", f"{detail}; {cure}", [FieldError(detail, field=where, cure=cure)])


def endings(replica: Int32Array, scheduler: str) -> Int64Array:
    """Status of each request from where it ended up; 0 where a replica served it."""
    crowd = "over_max_concurrent_requests" if scheduler.startswith("tgi") else "over_max_num_queued_reqs"
    names = {
        REFUSED: crowd,
        REFUSED_TOKENS: "over_max_num_queued_tokens",
        GAVE_UP: "client_timeout",
        HELD: "no_replica",
        NEVER: "no_replica",
    }
    status = np.zeros(len(replica), np.int64)
    for code, name in names.items():
        status[replica == code] = STATUSES.index(name)
    return status


def when_sent(
    workload: Workload,
    served: BoolArray,
    sent_ps: Int64Array,
    last_ps: Int64Array,
    status: Int64Array,
    timeout_ps: int,
) -> Int64Array:
    """When each request of a workload was sent, shape (n,); -1: it follows one that has not ended.

    ``sent_ps``, ``last_ps`` and ``status`` are of the requests that the engine took, ``served``; a client that gives up
    does so ``timeout_ps`` after sending. A request that cannot run ends as it is sent.
    """
    loop = workload.closed_loop
    if loop is None:
        return workload.arrival_ps
    sent = np.full(workload.n, NEVER, np.int64)
    sent[served] = sent_ps
    ended = sent.copy()
    finished, gave_up = status == 0, status == STATUSES.index("client_timeout")
    ended[served] = np.where(finished, last_ps, sent_ps + np.where(gave_up, timeout_ps, 0))
    ended[np.flatnonzero(served)[status == STATUSES.index("no_replica")]] = NEVER
    others = np.flatnonzero(~served)
    before = loop.ancestors(served)[others]
    nominal = workload.arrival_ps
    wait = nominal[others] - np.where(before >= 0, nominal[before], 0)
    known = (before < 0) | (ended[before] >= 0)
    sent[others] = np.where(known, np.where(before >= 0, ended[before], 0) + wait, NEVER)
    return sent


def notes(deployment: Deployment, workload: Workload, sent_again: int, wasted_tokens: int) -> tuple[str, ...]:
    """What was replayed beside serving, in sentences for the report."""
    spec, said = deployment.spec, []
    if workload.closed_loop is not None:
        followers = workload.n - workload.closed_loop.sessions
        said.append(
            f"closed loop: {followers:,} of {workload.n:,} requests are sent only when another has ended, so their "
            "times depend on the deployment; latencies count from there"
        )
    if spec.client_timeout_s is not None:
        said.append(f"clients give up after {spec.client_timeout_s:g} s")
    if spec.failures or spec.cold_starts:
        again = f"{sent_again:,} requests were sent again, to be answered from the beginning" if sent_again else ""
        said.append("replicas are down at times" + (f": {again}" if again else ""))
    if wasted_tokens:
        said.append(f"{wasted_tokens:,} output tokens went to clients that gave up")
    return tuple(said)
