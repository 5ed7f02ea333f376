"""What changed in the V1 scheduler from one vLLM release to the next, as far as a replay can tell.

Found by comparing the releases' own schedulers: 0.8.5, 0.9.0, 0.10.0, 0.10.2, 0.11.0, 0.11.2, 0.12 to 0.14, 0.16 to
0.19, 0.22 to 0.26, 0.28 and 0.30 to 0.33. ``tests/data`` holds recordings of 0.8.5, 0.11.0 and 0.33.0. Releases are
(major, minor); 0.11 is 0.11.0, since 0.11.1 changed some of this already.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from replay.knobs import refuse

Release = tuple[int, int]

V1_SINCE: Release = (0, 8)
"""Before, V0 ran by default."""
RECORDED: tuple[Release, ...] = ((0, 8), (0, 11), (0, 33))
"""Releases whose steps were recorded and are replayed exactly."""

_PRIORITY_SINCE: Release = (0, 9)
_ASYNC_OFFERED_SINCE: Release = (0, 10)
_ASYNC_SINCE: Release = (0, 14)
_UTILIZATION_092_SINCE: Release = (0, 30)
_FULL_ISL_SINCE: Release = (0, 19)
_STOPS_AT_LONG_PROMPT_SINCE: Release = (0, 12)
_FREES_UNHASHED_FIRST_SINCE: Release = (0, 23)
_SPARES_LONE_REQUEST_SINCE: Release = (0, 31)
_TAKES_VICTIMS_BACK_SINCE: Release = (0, 12)
_STOPS_AT_END_SINCE: Release = (0, 12)


def scheduling_defaults(release: Release) -> dict[str, bool | float]:
    """Fields of ``EngineConfig`` that the release decides, by their names."""
    return {
        "gpu_memory_utilization": 0.92 if release >= _UTILIZATION_092_SINCE else 0.9,
        "async_scheduling": release >= _ASYNC_SINCE,
        "scheduler_reserve_full_isl": release >= _FULL_ISL_SINCE,
        **scheduling_rules(release),
    }


def scheduling_rules(release: Release) -> Mapping[str, bool]:
    """Those of them that are no knobs."""
    return {
        "threshold_binds_lone_request": release < _SPARES_LONE_REQUEST_SINCE,
        "unchunked_looks_further": release < _STOPS_AT_LONG_PROMPT_SINCE,
        "frees_in_order": release < _FREES_UNHASHED_FIRST_SINCE,
        "victims_stay": release < _TAKES_VICTIMS_BACK_SINCE,
        "runs_past_end": release < _STOPS_AT_END_SINCE,
    }


def kernel_rules(rules: Mapping[str, Any], by_priority: bool, is_async: bool) -> dict[str, int]:
    """The rules as fields of the kernels' ``Config``; those on victims and on ends act in one mode only."""
    acts = {"victims_stay": by_priority, "runs_past_end": is_async}
    return {name: int(rules[name] and acts.get(name, True)) for name in scheduling_rules(V1_SINCE)}


def check_release(release: Release, policy: str, is_async: bool) -> tuple[str, ...]:
    """What a result must say about the release's V1 scheduler.

    Raises:
        SpecError: for what that scheduler does not do.
    """
    name = f"vLLM {release[0]}.{release[1]}"
    if policy == "priority" and release < _PRIORITY_SINCE:
        detail = f"{name} has no priorities in its V1 scheduler"
        raise refuse("scheduling_policy", detail, "leave scheduling_policy out, or name a release from 0.9 on")
    if is_async and release < _ASYNC_OFFERED_SINCE:
        detail = f"{name} has no asynchronous scheduling"
        raise refuse("async_scheduling", detail, "leave async_scheduling out, or name a release from 0.10 on")
    if is_async and policy == "priority" and release < _TAKES_VICTIMS_BACK_SINCE:
        detail = f"{name} stops at an error of its own where priorities preempt under asynchronous scheduling"
        raise refuse("async_scheduling", detail, "leave async_scheduling out, or name a release from 0.12 on")
    if release in RECORDED:
        return ()
    how = "asynchronous" if is_async else "synchronous"
    return (f"scheduler of {name}: its defaults and rules as read in its source ({how} scheduling), not recorded",)
