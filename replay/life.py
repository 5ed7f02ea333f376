"""What happens to requests and replicas beside serving: from a deployment to the kernels, and from them to statuses."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from replay.deployment import Deployment
from replay.errors import FieldError, SpecError
from replay.kernels.state import FAR, GAVE_UP, HELD, NEVER, REFUSED, REFUSED_TOKENS
from replay.results import CANCELLED, STATUSES
from replay.specs import DeploymentSpec
from replay.specs_cluster import downtimes
from replay.workload import Workload

Int64Array = npt.NDArray[np.int64]
Int32Array = npt.NDArray[np.int32]
BoolArray = npt.NDArray[np.bool_]

_PS_PER_S = 10**12


def _timeout_ps(deployment: Deployment) -> int:
    timeout_s = deployment.spec.client_timeout_s
    return FAR if timeout_s is None else round(timeout_s * _PS_PER_S)


def patience_ps(deployment: Deployment, workload: Workload) -> Int64Array | None:
    """From each request's sending until its client gives up or leaves at a time of its own, whichever is first, shape
    (n,); FAR: never. ``None``: all clients stay.

    What a request takes on its way to the engine is part of the client's time. ``resolve_deployment`` refuses a timeout
    that is not longer; a client that leaves within it is taken to leave as its request comes to the engine.
    """
    timeout_ps, leaves = _timeout_ps(deployment), workload.leaves
    if timeout_ps == FAR and leaves is None:
        return None
    each = np.full(workload.n, timeout_ps, np.int64)
    if leaves is not None:
        each = np.minimum(each, leaves.after_ps)
    return np.maximum(each, deployment.step_time.request_overhead_ps + 1)


def cancels(deployment: Deployment, workload: Workload) -> BoolArray:
    """Whose clients, where they leave, do so because the trace says so and not because they give up, shape (n,)."""
    leaves = workload.leaves
    if leaves is None:
        return np.zeros(workload.n, np.bool_)
    return leaves.cancelled & (leaves.after_ps < _timeout_ps(deployment))


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
    asked = {
        "transform": "requests that start when another has ended (closed loop)" if closed else "",
        "client_timeout_s": "client_timeout_s" if spec.client_timeout_s is not None else "",
        "transform.cancels": "clients that leave at their time" if workload.leaves is not None else "",
        "failures": "failures" if spec.failures else "",
        "cold_starts": "cold_starts" if spec.cold_starts else "",
    }
    first = next((name for name, what in asked.items() if what), "")
    fixed = "replayed for given arrivals on replicas that stay: not with"
    another = "use another engine preset"
    if first and (deployment.decode is not None or engine.data_parallel_size > 1):
        whole = "prefill and decode apart" if deployment.decode is not None else "data-parallel ranks"
        cure = "use replicas that do both, without ranks" if first == "transform" else _left_out(first)
        raise _not_replayed(first, f"{whole} are {fixed} {asked[first]}", cure)
    if first and engine.scheduler == "static":
        cure = "use another engine preset" if first == "transform" else f"{_left_out(first)}, or {another}"
        raise _not_replayed(first, f"static batches are {fixed} {asked[first]}", cure)
    for name in ("client_timeout_s", "transform.cancels"):
        if engine.scheduler == "vllm-v0" and asked[name]:
            detail = "clients that leave before the end are not replayed on the V0 scheduler"
            raise _not_replayed(name, detail, f"{_left_out(name)}, or {another}")
    if engine.scheduler == "sglang" and deployment.caches_prefixes and workload.shares_prompts:
        for name in ("client_timeout_s", "transform.cancels", "failures"):
            if asked[name]:
                cure = f"set disable_radix_cache, or {_left_out(name)}"
                raise _not_replayed(name, f"SGLang's radix cache is not replayed with {asked[name]}", cure)
    if closed and engine.ageing_per_s > 0:
        detail = "ageing_per_s goes by arrival times, which are not known beforehand in a closed loop"
        raise _not_replayed("engine.overrides.ageing_per_s", detail, "leave it out")


def _left_out(field: str) -> str:
    """The cure of going without."""
    if field == "transform.cancels":
        return "replay aborted streams with cancels=as_logged"
    return "leave it out" if field != "failures" else "leave failures out"


def _not_replayed(field: str, detail: str, cure: str) -> SpecError:
    where = field if field.startswith(("engine", "transform")) else f"deployment.{field}"
    return SpecError("deployment.not_replayed", f"{detail}; {cure}", [FieldError(detail, field=where, cure=cure)])


def endings(replica: Int32Array, scheduler: str, cancelled: BoolArray) -> Int64Array:
    """Status of each request from where it ended up; 0 where a replica served it. ``cancelled``: see ``cancels``."""
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
    status[(replica == GAVE_UP) & cancelled] = STATUSES.index(CANCELLED)
    return status


def has_left(status: Int64Array) -> BoolArray:
    """Whose clients did not stay to the end."""
    return np.isin(status, [STATUSES.index("client_timeout"), STATUSES.index(CANCELLED)])


class Left(NamedTuple):
    """Clients that did not stay: how many were cancelled, of them without a first token, and the output tokens that
    were computed for them and for those that gave up."""

    cancelled: int
    unanswered: int
    cancelled_tokens: int
    gave_up_tokens: int


def when_sent(
    workload: Workload,
    served: BoolArray,
    sent_ps: Int64Array,
    last_ps: Int64Array,
    status: Int64Array,
    patience_ps: Int64Array | None,
    overhead_ps: int,
) -> Int64Array:
    """When each request of a workload was sent, shape (n,); -1: it follows one that has not ended.

    ``sent_ps``, ``last_ps`` and ``status`` are of the requests that came to the engine, ``served``; a client that
    leaves does so ``patience_ps`` (of the whole workload) after sending, and one that is refused hears it
    ``overhead_ps`` after sending. A request that cannot run ends as it is sent.
    """
    loop = workload.closed_loop
    if loop is None:
        return workload.arrival_ps
    sent = np.full(workload.n, NEVER, np.int64)
    sent[served] = sent_ps
    ended = sent.copy()
    wait_ps = np.full(len(sent_ps), overhead_ps, np.int64)
    if patience_ps is not None:
        wait_ps = np.where(has_left(status), patience_ps[served], overhead_ps)
    ended[served] = np.where(status == 0, last_ps, sent_ps + wait_ps)
    ended[np.flatnonzero(served)[status == STATUSES.index("no_replica")]] = NEVER
    others = np.flatnonzero(~served)
    before = loop.ancestors(served)[others]
    nominal = workload.arrival_ps
    wait = nominal[others] - np.where(before >= 0, nominal[before], 0)
    known = (before < 0) | (ended[before] >= 0)
    sent[others] = np.where(known, np.where(before >= 0, ended[before], 0) + wait, NEVER)
    return sent


def notes(deployment: Deployment, workload: Workload, sent_again: int, left: Left) -> tuple[str, ...]:
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
    if left.gave_up_tokens:
        said.append(f"{left.gave_up_tokens:,} output tokens went to clients that gave up")
    if workload.leaves is not None:
        said.append(
            f"{left.cancelled:,} clients left at the time that the trace gives (cancelled), {left.unanswered:,} of "
            f"them before the first token; {left.cancelled_tokens:,} output tokens had been computed for them"
        )
    return tuple(said)
