"""A trace drawn from a description, where nobody has a log yet: clients with a rate, a variation of gaps, and lengths.

The shape of a client (rate over time, coefficient of variation and family of its gaps, tables of lengths) is that of
ServeGen: Xiang et al., "ServeGen: Workload Characterization and Generation of Large Language Model Serving in
Production" (2025). Lengths of prompt and output are drawn apart: where they go together in reality, a recorded trace
says more.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import polars as pl
from pydantic import Field, ValidationError, field_validator

from replay.errors import TraceError, curable
from replay.faults import plain_faults
from replay.specs_base import Spec
from replay.traces.report import LengthProfile, TraceProfile

Int64Array = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]

NS = 10**9
MAX_REQUESTS = 5_000_000
_MAX_DESCRIPTION_BYTES = 2**22
_EARLY = 10
"""Gaps before the window, so that its start finds clients at any point between two requests."""


class Client(Spec):
    """One source of requests, or many alike."""

    name: str = Field(min_length=1, max_length=200)
    rate_rps: float | tuple[tuple[float, float], ...]
    """Requests a second; or pairs of a time in seconds and the rate from then on, in order, the first at 0."""
    gap_cv: float = Field(default=1.0, ge=0, le=20)
    """Coefficient of variation of the gaps where the rate stays: 0 even, 1 Poisson."""
    gaps: Literal["gamma", "weibull"] = "gamma"
    prompt_tokens: dict[float, float] = Field(min_length=1, max_length=1000)
    """Quantile (0 to 1) to length; lengths between are interpolated on a logarithmic scale."""
    output_tokens: dict[float, float] = Field(min_length=1, max_length=1000)
    model: str | None = Field(default=None, max_length=1000)

    @field_validator("rate_rps")
    @classmethod
    def _rates(cls, value: float | tuple[tuple[float, float], ...]) -> float | tuple[tuple[float, float], ...]:
        pairs = ((0.0, value),) if isinstance(value, float) else value
        times = [time for time, _ in pairs]
        if not pairs or times[0] != 0 or times != sorted(set(times)):
            raise ValueError("give the rate as [time_s, requests_per_s] pairs, times rising from 0")
        if min(rate for _, rate in pairs) < 0 or max(rate for _, rate in pairs) == 0:
            raise ValueError("rates must be 0 or more, and not all 0")
        return value

    @field_validator("prompt_tokens", "output_tokens")
    @classmethod
    def _quantiles(cls, value: dict[float, float]) -> dict[float, float]:
        points = sorted(value.items())
        if points[0][0] < 0 or points[-1][0] > 1:
            raise ValueError("quantiles lie between 0 and 1, e.g. {0: 10, 0.5: 300, 0.99: 4000, 1: 8000}")
        lengths = [length for _, length in points]
        if lengths[0] < 1 or lengths != sorted(lengths) or lengths[-1] > 2**24:
            raise ValueError("lengths must not fall from one quantile to the next, and be 1 to 16777216")
        return value


class Description(Spec):
    """What ``capreplay synth`` reads."""

    span_s: float = Field(gt=0, le=90 * 86_400)
    seed: int = Field(default=0, ge=0, lt=2**31)
    clients: tuple[Client, ...] = Field(min_length=1, max_length=10_000)


def describe(profile: TraceProfile) -> Description:
    """A description of one client like a recorded trace: its rate over time, the gaps' variation, quantiles of lengths.

    Raises:
        TraceError: ``trace.synthetic``: the profile has no span.
    """
    if profile.span_s <= 0:
        raise _refusal("the trace has no span, so no rate", "take a trace of more than one instant")
    bin_s = profile.series.bin_s
    rates = tuple((one.start_s, one.requests / bin_s) for one in profile.series.bins)
    # Per second, not per gap: the gaps of a trace whose rate drifts vary more than any client's.
    burst = profile.dispersion_1s if profile.dispersion_1s is not None else 1.0
    client = {
        "name": "like",
        "rate_rps": rates,
        "gap_cv": min(math.sqrt(burst), 20.0),
        "prompt_tokens": _quantiles_of(profile.prompt_tokens),
        "output_tokens": _quantiles_of(profile.output_tokens),
    }
    return Description.model_validate({"span_s": profile.span_s, "clients": [client]})


def draw(description: Description) -> tuple[pl.DataFrame, str]:
    """The requests in arrival order, in our own format's columns, and the sentence that every report of them shows.

    Raises:
        TraceError: ``trace.synthetic``: no request, or more than 5 million are expected.
    """
    span_s = description.span_s
    expected = sum(_Curve(client, span_s).total for client in description.clients)
    if expected > MAX_REQUESTS:
        raise _refusal(
            f"about {expected:,.0f} requests would be drawn; the most is {MAX_REQUESTS:,}", "lower rates or span_s"
        )
    seeds = np.random.SeedSequence(description.seed).spawn(len(description.clients))
    frames = []
    for client, seed in zip(description.clients, seeds, strict=True):
        rng = np.random.Generator(np.random.PCG64(seed))
        times = _arrivals(client, span_s, rng)
        frames.append(
            pl.DataFrame(
                {
                    "arrival_ns": times,
                    "prompt_tokens": _lengths(client.prompt_tokens, len(times), rng),
                    "output_tokens": _lengths(client.output_tokens, len(times), rng),
                    "tenant": pl.Series([client.name] * len(times), dtype=pl.String),
                    "model": pl.Series([client.model] * len(times), dtype=pl.String),
                }
            )
        )
    frame = pl.concat(frames).sort("arrival_ns", maintain_order=True)
    if frame.height == 0:
        raise _refusal("no request was drawn", "raise rates or span_s")
    note = (
        f"Drawn from a description, not recorded: {frame.height:,} requests of {len(frames):,} "
        f"client{'s' if len(frames) > 1 else ''} over {span_s:g} s, seed {description.seed}; prompt and output lengths "
        "are drawn apart, and no prompt shares a prefix."
    )
    return frame, note


def description_in(path: Path) -> Description | None:
    """The description that a file holds; ``None`` where it is anything else: no JSON object, or not with these keys.

    Raises:
        TraceError: ``trace.synthetic``: a description that makes no sense, with each field and its cure.
    """
    if path.stat().st_size > _MAX_DESCRIPTION_BYTES:
        return None
    data = path.read_bytes()
    if data.lstrip()[:1] != b"{" or b'"clients"' not in data or b'"span_s"' not in data:
        return None
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or not {"clients", "span_s"} <= set(found):
        return None
    return read_description(found)


def read_description(found: dict[str, Any]) -> Description:
    """The description in a JSON object.

    Raises:
        TraceError: ``trace.synthetic``, with each field and its cure.
    """
    try:
        return Description.model_validate(found)
    except ValidationError as error:
        faults = plain_faults(error.errors(include_url=False, include_input=False))
        said = "; ".join(f"{one.field}: {one.detail}" if one.field else one.detail for one in faults[:5])
        raise TraceError("trace.synthetic", f"this description cannot be drawn: {said}", faults) from error


class _Curve:
    """Requests expected until each time, for a rate that changes in steps."""

    def __init__(self, client: Client, span_s: float) -> None:
        pairs = ((0.0, client.rate_rps),) if isinstance(client.rate_rps, float) else client.rate_rps
        inside = [(time, rate) for time, rate in pairs if time < span_s]
        self.times = np.array([*(time for time, _ in inside), span_s])
        self.expected = np.concatenate([[0.0], np.cumsum(np.diff(self.times) * [rate for _, rate in inside])])
        self.total = float(self.expected[-1])

    def time_of(self, expected: FloatArray) -> FloatArray:
        """When so many requests are expected; where the rate is 0 no request falls."""
        rising = np.append(True, np.diff(self.expected) > 0)
        ends = np.flatnonzero(rising)
        step = np.searchsorted(self.expected[ends], expected, side="left").clip(1)
        end = ends[step]
        rate = (self.expected[end] - self.expected[end - 1]) / (self.times[end] - self.times[end - 1])
        return np.asarray(self.times[end] - (self.expected[end] - expected) / rate, np.float64)


def _arrivals(client: Client, span_s: float, rng: np.random.Generator) -> Int64Array:
    """A renewal process of mean gap 1, read as the number of requests expected so far."""
    curve = _Curve(client, span_s)
    position = -_EARLY * float(rng.random() + 1)
    drawn: list[FloatArray] = []
    while position < curve.total:
        some = _gaps(client, int(min(max(curve.total - position, 16) * 1.1 + 16, 2**20)), rng)
        places = position + np.cumsum(some)
        position = float(places[-1])
        drawn.append(places)
    expected = np.concatenate(drawn) if drawn else np.zeros(0)
    expected = expected[(expected > 0) & (expected < curve.total)]
    return np.floor(curve.time_of(expected) * NS).astype(np.int64)


def _gaps(client: Client, n: int, rng: np.random.Generator) -> FloatArray:
    if client.gap_cv == 0:
        return np.ones(n)
    if client.gaps == "gamma":
        shape = 1 / client.gap_cv**2
        return np.asarray(rng.gamma(shape, 1 / shape, n), np.float64)
    shape = weibull_shape(client.gap_cv)
    return np.asarray(rng.weibull(shape, n) / math.gamma(1 + 1 / shape), np.float64)


def weibull_shape(cv: float) -> float:
    """The shape of the Weibull distribution with this coefficient of variation, by halving: it falls with the shape."""
    low, high = 0.05, 200.0
    for _ in range(100):
        middle = math.sqrt(low * high)
        found = math.exp(math.lgamma(1 + 2 / middle) - 2 * math.lgamma(1 + 1 / middle)) - 1
        low, high = (middle, high) if found > cv * cv else (low, middle)
    return low


def _lengths(quantiles: dict[float, float], n: int, rng: np.random.Generator) -> Int64Array:
    points = sorted(quantiles.items())
    at, log = [q for q, _ in points], np.log([length for _, length in points])
    return np.maximum(np.rint(np.exp(np.interp(rng.random(n), at, log))), 1).astype(np.int64)


def _quantiles_of(lengths: LengthProfile) -> dict[float, float]:
    named = (
        (0.0, lengths.min), (0.5, lengths.p50), (0.9, lengths.p90), (0.95, lengths.p95), (0.99, lengths.p99),
        (1.0, lengths.max),
    )  # fmt: skip
    return {quantile: float(value) for quantile, value in named if value is not None}


def _refusal(detail: str, cure: str) -> TraceError:
    return curable("trace.synthetic", detail, cure, "clients")
