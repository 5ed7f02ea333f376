"""What each vLLM release's V1 scheduler does, and what is refused."""

from __future__ import annotations

import pytest

from replay.errors import SpecError
from replay.vllm_releases import check_release, kernel_rules, scheduling_defaults, scheduling_rules


def test_releases_take_their_own_defaults() -> None:
    def since(name: str) -> tuple[int, int]:
        return next(r for r in ((0, minor) for minor in range(8, 34)) if scheduling_defaults(r)[name])

    assert since("async_scheduling") == (0, 14)
    assert since("scheduler_reserve_full_isl") == (0, 19)
    assert scheduling_defaults((0, 29))["gpu_memory_utilization"] == 0.9
    assert scheduling_defaults((0, 30))["gpu_memory_utilization"] == 0.92


def test_rules_end_with_the_release_that_changed_them() -> None:
    last = {
        name: max(minor for minor in range(8, 34) if scheduling_rules((0, minor))[name])
        for name in scheduling_rules((0, 8))
    }
    assert last == {
        "threshold_binds_lone_request": 30,
        "unchunked_looks_further": 11,
        "frees_in_order": 22,
        "victims_stay": 11,
        "runs_past_end": 11,
    }


def test_rules_of_one_mode_are_off_in_others() -> None:
    rules = scheduling_rules((0, 11))
    assert kernel_rules(rules, by_priority=False, is_async=False)["victims_stay"] == 0
    assert kernel_rules(rules, by_priority=True, is_async=False)["victims_stay"] == 1
    assert kernel_rules(rules, by_priority=False, is_async=True)["runs_past_end"] == 1
    assert kernel_rules(rules, by_priority=False, is_async=False)["frees_in_order"] == 1


@pytest.mark.parametrize(
    ("release", "policy", "is_async", "field"),
    [
        ((0, 8), "priority", False, "engine.overrides.scheduling_policy"),
        ((0, 9), "fcfs", True, "engine.overrides.async_scheduling"),
        ((0, 11), "priority", True, "engine.overrides.async_scheduling"),
    ],
)
def test_what_a_release_does_not_do_is_refused(
    release: tuple[int, int], policy: str, is_async: bool, field: str
) -> None:
    with pytest.raises(SpecError) as caught:
        check_release(release, policy, is_async)
    assert [error.field for error in caught.value.errors] == [field]


def test_releases_that_were_not_recorded_say_so() -> None:
    assert check_release((0, 11), "fcfs", False) == check_release((0, 33), "fcfs", True) == ()
    assert "not recorded" in check_release((0, 19), "priority", True)[0]
