"""The engine as a queue that theory has solved: degenerate step times against closed forms.

With one slot the engine is a single server. One output token makes the prefill the whole service; a constant step makes
it the number of tokens. With c slots, a constant step and geometric lengths it is M/M/c, but for arrivals that wait for
the step in progress. Each figure is the mean of independent replications with fixed seeds; the interval is Student's t
at 99 %, and its width is checked too, so that no test passes for being vague.
"""

from __future__ import annotations

from collections.abc import Callable
from math import factorial, sqrt

import numpy as np
import pytest
from engines import config, linear_law, requests, run_fast

from replay.kernels.state import BUSY, RUNNING_REQUESTS, Config, Requests, StepTimes

REPLICATIONS = 20
T_99 = 2.861  # Student's t, 19 degrees of freedom, two-sided 99 %
Draw = Callable[[np.random.Generator, int], np.ndarray]


def one_server(budget: int = 1) -> Config:
    return config(max_num_seqs=1, max_num_batched_tokens=budget, num_blocks=1 << 40)


def poisson(rng: np.random.Generator, n: int, mean_gap: float) -> list[int]:
    return np.cumsum(rng.exponential(mean_gap, n)).astype(np.int64).tolist()


def mean_and_half_width(figures: list[float]) -> tuple[float, float]:
    return float(np.mean(figures)), T_99 * float(np.std(figures, ddof=1)) / sqrt(len(figures))


def mean_wait(c: Config, make: Callable[[np.random.Generator], Requests], law: StepTimes) -> tuple[float, float]:
    """Mean time from arrival to admission and its half interval, the first tenth of each replication left out."""
    figures = []
    for seed in range(REPLICATIONS):
        r = make(np.random.default_rng((27, seed)))
        wait = run_fast(c, r, law)[0].admitted_ps - r.arrival_ps
        figures.append(float(wait[len(wait) // 10 :].mean()))
    return mean_and_half_width(figures)


def assert_within(measured: tuple[float, float], theory: float, width: float, above: float = 0.0) -> None:
    """``theory`` (or up to ``above`` more) lies in the interval, and the interval is narrow."""
    mean, half = measured
    assert half < width * theory, f"interval of {half / theory:.1%} says too little"
    assert theory - half <= mean <= theory + above + half, f"{mean:.1f} +- {half:.1f}, theory {theory:.1f}"


@pytest.mark.parametrize("load", [0.3, 0.6, 0.8])
def test_27_m_d_1(load: float) -> None:
    """One prompt length, one output token: a fixed service time D. Mean wait: load D / (2 (1 - load))."""
    service, n = 10_000, 40_000
    law = linear_law(1, constant=service)

    def make(rng: np.random.Generator) -> Requests:
        return requests(poisson(rng, n, service / load), [1] * n, [1] * n)

    assert_within(mean_wait(one_server(), make, law), load * service / (2 * (1 - load)), width=0.03)


def geometric(rng: np.random.Generator, n: int) -> np.ndarray:
    return rng.geometric(1 / 30, n)


def uniform(rng: np.random.Generator, n: int) -> np.ndarray:
    return rng.integers(1, 60, n)


def chats_and_essays(rng: np.random.Generator, n: int) -> np.ndarray:
    return np.where(rng.random(n) < 0.9, 10, 200)


MOMENTS: dict[Draw, tuple[float, float]] = {  # mean, mean of squares
    geometric: (30, 2 * 30**2 - 30),
    uniform: (30, 59 * 60 * 119 / 6 / 59),
    chats_and_essays: (29, 0.9 * 100 + 0.1 * 40_000),
}


@pytest.mark.parametrize("draw", MOMENTS, ids=lambda draw: draw.__name__)
@pytest.mark.parametrize("load", [0.5, 0.75])
def test_27_m_g_1_by_output_length(draw: Draw, load: float) -> None:
    """N tokens take N equal steps. Pollaczek and Khinchine: mean wait = rate E[S^2] / (2 (1 - load))."""
    step, n = 1000, 40_000
    mean, square = MOMENTS[draw]
    rate = load / (mean * step)
    law = linear_law(1, constant=step)

    def make(rng: np.random.Generator) -> Requests:
        return requests(poisson(rng, n, 1 / rate), [1] * n, draw(rng, n).tolist())

    theory = rate * square * step**2 / (2 * (1 - load))
    assert_within(mean_wait(one_server(), make, law), theory, width=0.06)


@pytest.mark.parametrize("load", [0.5, 0.75])
def test_27_m_g_1_by_prompt_length(load: float) -> None:
    """The same with the service in the prefill: prompts of very different length, one step each."""
    per_token, n = 100, 40_000
    lengths, shares = np.array([20, 100, 1500]), np.array([0.5, 0.4, 0.1])
    mean, square = float(shares @ lengths), float(shares @ lengths**2)
    rate = load / (mean * per_token)
    law = linear_law(1500, per_token=per_token)

    def make(rng: np.random.Generator) -> Requests:
        return requests(poisson(rng, n, 1 / rate), rng.choice(lengths, n, p=shares).tolist(), [1] * n)

    theory = rate * square * per_token**2 / (2 * (1 - load))
    assert_within(mean_wait(one_server(1500), make, law), theory, width=0.06)


def erlang_c_wait(servers: int, load: float, service: float) -> float:
    """Mean wait in M/M/c at ``load`` of each server: P(wait) service / (c (1 - load)), by Erlang's C formula."""
    offered = servers * load
    queued = offered**servers / factorial(servers) / (1 - load)
    waits = queued / (sum(offered**k / factorial(k) for k in range(servers)) + queued)
    return waits * service / (servers * (1 - load))


@pytest.mark.parametrize(("servers", "load"), [(1, 0.7), (2, 0.8), (4, 0.8), (8, 0.85)])
def test_m_m_c(servers: int, load: float) -> None:
    """c slots, a step that takes the same time however full, geometric lengths of 100 steps on average."""
    step, mean, n = 1000, 100, 40_000
    c = config(max_num_seqs=servers, max_num_batched_tokens=servers, num_blocks=1 << 40)
    law = linear_law(servers, constant=step)

    def make(rng: np.random.Generator) -> Requests:
        gaps = poisson(rng, n, mean * step / (servers * load))
        return requests(gaps, [1] * n, rng.geometric(1 / mean, n).tolist())

    # An arrival waits for the end of the step in progress: half a step on average, at most one.
    assert_within(mean_wait(c, make, law), erlang_c_wait(servers, load, mean * step), width=0.08, above=step)


@pytest.mark.parametrize("servers", [1, 4, 64])
def test_littles_law_is_exact_from_empty_to_empty(servers: int) -> None:
    """Time-weighted running requests are the sum of the times from admission to the last token; so are requests in the
    system and end-to-end times."""
    rng, n = np.random.default_rng((10, servers)), 5000
    c = config(max_num_seqs=servers, max_num_batched_tokens=256, num_blocks=1 << 40)
    r = requests(poisson(rng, n, 70_000 / servers), rng.integers(1, 300, n).tolist(), rng.geometric(1 / 40, n).tolist())
    law = linear_law(256, floor=500, per_token=3, constant=70, context=1)
    outcome, meters = run_fast(c, r, law)
    assert meters.meters[0, RUNNING_REQUESTS] == (outcome.last_ps - outcome.admitted_ps).sum()
    moments = np.concatenate([r.arrival_ps, outcome.last_ps])
    change = np.repeat([1, -1], n)
    order = np.lexsort((change, moments))
    in_system = np.cumsum(change[order])
    assert in_system[-1] == 0
    area = int((in_system[:-1] * np.diff(moments[order])).sum())
    assert area == int((outcome.last_ps - r.arrival_ps).sum())
    assert meters.meters[0, BUSY] == int(np.diff(moments[order])[in_system[:-1] > 0].sum())


def test_utilisation_is_the_offered_load() -> None:
    """One server: the busy share of a long run is rate times service."""
    service, n, shares = 10_000, 20_000, []
    for seed in range(REPLICATIONS):
        r = requests(poisson(np.random.default_rng((29, seed)), n, service / 0.6), [1] * n, [1] * n)
        outcome, meters = run_fast(one_server(), r, linear_law(1, constant=service))
        shares.append(float(meters.meters[0, BUSY] / outcome.last_ps.max()))
    assert_within(mean_and_half_width(shares), 0.6, width=0.01)
