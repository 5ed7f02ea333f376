"""The first runs reach every loop that a job may need."""

from __future__ import annotations

import pytest

from replay.engines import PRESETS
from replay.first_runs import LOOPS, deployment_of
from replay.machine import make_machine


def loops_of_first_runs() -> set[str]:
    return {make_machine(deployment_of(case)).loop for case in LOOPS.values() if "disaggregation" not in case}


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_finds_its_loop_compiled(preset: str) -> None:
    own = {"max_concurrent_requests": 10, "max_tokens_default": 16} if preset.startswith("tgi") else {}
    engine = {"preset": preset, "overrides": own}
    assert make_machine(deployment_of({"engine": engine})).loop in loops_of_first_runs()


def test_loops_that_no_preset_names_are_among_them() -> None:
    assert {"general", "fast", "lockstep", "vllm-v0", "vllm-v0-chunked"} <= loops_of_first_runs()
    assert any(deployment_of(case).decode is not None for case in LOOPS.values())
    machines = [make_machine(deployment_of(case)) for case in LOOPS.values() if "disaggregation" not in case]
    assert any(machine.loop == "fast" and machine.config.replicas > 1 for machine in machines)
