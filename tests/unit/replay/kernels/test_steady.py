"""Runs of batches that hold the same decodes: the general loop's integers and floats, on real step times."""

from __future__ import annotations

import numpy as np
import pytest
from engine_cases import SHARED, assert_same_run
from engines import run_fast, run_general

from replay.deployment import resolve_deployment
from replay.hardware.catalogue import shipped_catalogue
from replay.kernels.loglinear import KNOT_BITS, bin_of, floor_of, interpolate, line_of
from replay.kernels.state import FAR, GAP_BITS, LEAST_KV_USAGE, LEAST_OUTSTANDING, STEPS, Config, StepTimes
from replay.machine import make_machine, make_requests
from replay.specs import DeploymentSpec, EngineSpec

MODEL, GPU = "meta-llama/Llama-3.1-8B", "L40S"


def machine(preset: str) -> tuple[Config, StepTimes]:
    catalogue = shipped_catalogue()
    spec = DeploymentSpec(model=MODEL, gpu=GPU, engine=EngineSpec(preset=preset))
    found = make_machine(resolve_deployment(spec, catalogue.model(MODEL), catalogue.gpu(GPU)))
    return found.config, found.times


@pytest.mark.parametrize("preset", ["vllm-0.11", "vllm-0.33"])
@pytest.mark.parametrize("mean_gap_s", [0.1, 20.0])
@pytest.mark.parametrize(("replicas", "router"), [(1, 0), (3, LEAST_OUTSTANDING), (3, LEAST_KV_USAGE)])
def test_light_and_full_loads_on_real_step_times_are_the_general_loops(
    preset: str, mean_gap_s: float, replicas: int, router: int
) -> None:
    rng = np.random.default_rng(11)
    config, times = machine(preset)
    n = 40
    arrival_ps = np.cumsum(rng.exponential(mean_gap_s, n) * 1e12).astype(np.int64)
    load = make_requests(arrival_ps, rng.integers(1, 6000, n), rng.integers(1, 600, n))
    for blocks in (config.num_blocks, 450):  # 450: requests are preempted while nothing else happens
        c = config._replace(replicas=replicas, router=router, num_blocks=blocks, watermark_blocks=0)
        general, fast = run_general(c, load, times), run_fast(c, load, times, steps_a_call=97)
        assert_same_run(general, fast)
        assert np.array_equal(general[1].regs[:, SHARED], fast[1].regs[:, SHARED])
        assert fast[1].regs[:, STEPS].sum() > 10 * n


def test_interpolation_is_bilinear_with_each_product_rounded_down() -> None:
    rng = np.random.default_rng(3)
    table = rng.integers(0, 10**12, (30, 60))
    x, y = rng.integers(0, 300, 400), rng.integers(0, 20_000, 400)
    for a, b in zip(x.tolist(), y.tolist(), strict=True):
        i, j = (min(int(bin_of(at, KNOT_BITS)), size - 2) for at, size in zip((a, b), table.shape, strict=True))
        x0, x1, y0, y1 = (int(floor_of(k, KNOT_BITS)) for k in (i, i + 1, j, j + 1))
        cell = [[int(table[k, m]) for m in (j, j + 1)] for k in (i, i + 1)]
        low, high = (cell[0][m] + (cell[1][m] - cell[0][m]) * (a - x0) // (x1 - x0) for m in (0, 1))
        assert interpolate(table, a, b) == low + (high - low) * (b - y0) // (y1 - y0)


def test_a_line_holds_from_one_knot_to_the_next() -> None:
    table = np.random.default_rng(4).integers(0, 10**12, (30, 60))
    y, last = 0, int(floor_of(59, KNOT_BITS))
    while y < 2 * last:
        low, rise, knot, end, bits = line_of(table, 37, y)
        assert knot <= y < end
        assert (end == FAR) == (y >= floor_of(58, KNOT_BITS))
        for at in range(y, min(end, y + 50)):
            assert interpolate(table, 37, at) == low + (rise * (at - knot) >> bits)
        y = min(end, 2 * last)


def test_a_gap_bin_reaches_from_its_floor_to_the_next_ones() -> None:
    for gap in np.random.default_rng(5).integers(0, 1 << 50, 300).tolist():
        index = int(bin_of(gap, GAP_BITS))
        assert floor_of(index, GAP_BITS) <= gap < floor_of(index + 1, GAP_BITS)
