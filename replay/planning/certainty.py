"""How sure a replica count is: what it would be were step times and KV blocks off by their stated error.

Both ends are found by real replays: steps shorter and more blocks for the fewest replicas, steps longer and fewer
blocks for the most. The search starts where the error alone would put the answer, and gives up after a few replays
with the outer end of what it knows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from replay.planning.figures import step_time_info
from replay.planning.idle import idle_value_s
from replay.planning.parts import Certainty, CurvePoint, RangeEnd
from replay.planning.wording import HOW_SURE, quantity, unmet_sentence
from replay.specs import Objective
from replay.steptime.accuracy import quoted_error
from replay.workload import Workload

if TYPE_CHECKING:
    from replay.deployment import Deployment
    from replay.steptime.record import StepTime

MOST_REPLAYS = 6
"""For one end. Then the end stands at the nearest count outside what is still open."""


@dataclass(frozen=True)
class ErrorBand:
    """Shares: steps with prompt tokens are off by up to ``prefill``, of decodes alone by up to ``decode``, KV blocks by
    up to ``kv_blocks``. Those of steps are shares of what was measured, |predicted / measured - 1|: where they are e, a
    step may take 1 / (1 - e) times as long as predicted."""

    prefill: float
    decode: float
    kv_blocks: float

    @property
    def step_time(self) -> float:
        """The larger error of both phases."""
        return max(self.prefill, self.decode)

    def text(self, *, slower: bool) -> str:
        """``steps 8.8 % longer and a KV cache 0.6 % smaller``."""
        end = "longer" if slower else "shorter"
        both, prefill, decode = (
            f"{100 * abs(step_factor(error, slower=slower) - 1.0):.3g} %"
            for error in (self.step_time, self.prefill, self.decode)
        )
        parts = [f"steps {both} {end}"] if self.step_time else []
        if self.prefill != self.decode:
            parts = [f"prefill steps {prefill} and decode steps {decode} {end}"]
        if self.kv_blocks:
            parts.append(f"a KV cache {100 * self.kv_blocks:.2g} % {'smaller' if slower else 'larger'}")
        return " and ".join(parts)


def step_factor(error: float, *, slower: bool) -> float:
    """How many times as long as predicted a step may take whose prediction is off by ``error``, below 1, of what was
    measured. The shorter end counts ``error`` as one of throughput, which is the outer of the two."""
    return 1.0 / (1.0 - error) if slower else 1.0 - error


def error_band(deployment: Deployment) -> ErrorBand | None:
    """The error that is stated of the step times (``quoted_error``), and the 90 % interval of the KV cache; blocks that
    the user sets are exact. Of two pools the larger. ``None``: the error of the step times was not measured."""
    quoted = quoted_error(step_time_info(deployment).stated_error)
    if quoted is None:
        return None
    if deployment.decode is not None:
        one, other = error_band(replace(deployment, decode=None)), error_band(deployment.decode)
        if one is None or other is None:
            return None
        return ErrorBand(
            max(one.prefill, other.prefill), max(one.decode, other.decode), max(one.kv_blocks, other.kv_blocks)
        )
    memory = deployment.memory
    is_given = deployment.engine.num_gpu_blocks_override is not None
    return ErrorBand(
        quoted.prefill,
        quoted.decode,
        0.0 if is_given or memory.kv_gib <= 0 else memory.kv_uncertainty_gib / memory.kv_gib,
    )


def at_edge(deployment: Deployment, band: ErrorBand, *, slower: bool) -> Deployment:
    """The deployment with every step longer and fewer KV blocks by the error, or shorter and more. Knobs and the links
    between pools stay."""
    sign = 1.0 if slower else -1.0
    blocks = max(0, math.floor(deployment.memory.kv_blocks * (1.0 - sign * band.kv_blocks)))
    return replace(
        deployment,
        step_time=_by_phase(
            deployment, step_factor(band.prefill, slower=slower), step_factor(band.decode, slower=slower)
        ),
        memory=deployment.memory.model_copy(update={"kv_blocks": blocks}),
        decode=None if deployment.decode is None else at_edge(deployment.decode, band, slower=slower),
    )


def scaled(record: StepTime, factor: float) -> StepTime:
    """Every part of a step ``factor`` times as long; what a request waits for before the engine sees it stays."""

    changed: dict[str, Any] = {}
    for part in fields(record):
        if not part.name.endswith("_ps") or part.name == "request_overhead_ps":
            continue
        value = getattr(record, part.name)
        is_table = isinstance(value, np.ndarray)
        changed[part.name] = np.rint(value * factor).astype(np.int64) if is_table else round(value * factor)
    return replace(record, **changed)


def _by_phase(deployment: Deployment, prefill: float, decode: float) -> StepTime:
    """Steps with prompt tokens ``prefill`` times as long, those of decodes alone ``decode`` times. A step of no more
    tokens than a step of decodes may have counts as one of decodes; the host's part goes with the larger change. More
    tokens never become faster, to the outer side."""
    record, engine = deployment.step_time, deployment.engine
    if prefill == decode:
        return scaled(record, decode)
    most_decodes = engine.max_num_seqs * (1 + engine.num_speculative_tokens)
    alike = scaled(record, max((prefill, decode), key=lambda factor: abs(factor - 1.0)))
    of_prefill, of_decode = scaled(record, prefill), scaled(record, decode)
    changed: dict[str, Any] = {}
    for name in ("rest_ps", "shared_ps"):
        below, above = getattr(of_decode, name)[: most_decodes + 1], getattr(of_prefill, name)[most_decodes + 1 :]
        if len(above) and max(prefill, decode) > 1.0:
            above = np.maximum(above, below.max())
        elif len(above):
            below = np.minimum(below, above.min())
        changed[name] = np.concatenate([below, above])
    changed |= {name: getattr(of_prefill, name) for name in vars(record) if name.startswith("prefill_")}
    changed |= {name: getattr(of_decode, name) for name in vars(record) if name.startswith("decode_")}
    return replace(alike, **changed)


@dataclass
class CertaintySearch:
    """The range around ``replicas``, the answer without error. ``point`` replays so many replicas of a deployment."""

    workload: Workload
    objectives: tuple[Objective, ...]
    deployment: Deployment
    replicas: int
    cap: int
    """Hard: counts above it are never replayed."""
    cap_name: str
    point: Callable[[Deployment, int], CurvePoint]
    usd_per_hour: Callable[[int], float | None]
    spare: int = 0
    """Replicas bought beside those that serve; both ends count them."""
    least: int = 1
    """The fewest replicas there can be."""
    replays: int = 0

    def answer(self) -> Certainty:
        """The range with its reasons; without one where no error is known or it is as large as the step itself."""
        sure = HOW_SURE[self.deployment.step_time.provenance]
        band = error_band(self.deployment)
        if band is None:
            why = "No range: how far these step times are off was not measured."
            return Certainty(how_sure=sure, sentence=why)
        if band == ErrorBand(0.0, 0.0, 0.0):
            end, why = self._end(self.replicas), "Step times and KV cache are stated to be exact."
            return Certainty(how_sure=sure, step_time_error=0.0, kv_error=0.0, fewest=end, most=end, sentence=why)
        errors = {"step_time_error": float(f"{band.step_time:.9g}"), "kv_error": float(f"{band.kv_blocks:.9g}")}
        if band.prefill != band.decode:
            errors |= {"prefill_error": float(f"{band.prefill:.9g}"), "decode_error": float(f"{band.decode:.9g}")}
        if band.step_time >= 1.0:
            why = f"No range: a step may be off by {band.step_time:.0%}, which bounds no count."
            return Certainty(how_sure=sure, sentence=why.replace("%", " %"), **errors)
        fewest, fast = self._fewest(band)
        most, slow = self._most(band)
        return Certainty(
            how_sure=sure,
            fewest=self._end(fewest),
            most=None if most is None else self._end(most),
            replays=self.replays,
            sentence=f"{fast} {slow}".strip(),
            **errors,
        )

    def _end(self, replicas: int) -> RangeEnd:
        bought = replicas + self.spare
        gpus = bought * (self.deployment.gpus // self.deployment.replicas)
        return RangeEnd(replicas=bought, gpus=gpus, usd_per_hour=self.usd_per_hour(bought))

    def _fewest(self, band: ErrorBand) -> tuple[int, str]:
        """The smallest count that passes with shorter steps, and what was seen."""
        if self.replicas == self.least:
            return self.least, ""
        edge = at_edge(self.deployment, band, slower=False)
        seen: dict[int, CurvePoint] = {}
        start = math.ceil(self.replicas * (1.0 - band.step_time)) - 1
        failing, passing = self._narrow(edge, seen, failing=self.least - 1, passing=self.replicas, start=start)
        fewest, what = failing + 1, band.text(slower=False)
        if fewest == self.replicas:
            return fewest, f"With {what}, {failing} would still not do: {unmet_sentence(seen[failing])}."
        if fewest != passing:
            return fewest, f"With {what}, {fewest} to {passing} replicas would do."
        return fewest, f"With {what}, {_replicas(fewest)} would do."

    def _most(self, band: ErrorBand) -> tuple[int | None, str]:
        """The smallest count that passes with longer steps, ``None`` where none was found, and what was seen."""
        edge, what = at_edge(self.deployment, band, slower=True), band.text(slower=True)
        if min(pool.usable_blocks for pool in (edge, edge.decode) if pool is not None) < 1:
            return None, f"With {what}, no KV cache may be left."
        for objective in self.objectives:
            idle = idle_value_s(objective, self.workload, edge)
            if idle > objective.threshold_s:
                return None, (
                    f"With {what}, no number of replicas is enough: {objective.name} is {quantity(idle)} even on an "
                    f"idle replica, against {quantity(objective.threshold_s)}."
                )
        seen: dict[int, CurvePoint] = {}
        start = max(self.replicas, math.ceil(self.replicas * step_factor(band.step_time, slower=True)) - 1)
        failing, passing = self._narrow(edge, seen, failing=self.replicas - 1, passing=None, start=start)
        if passing == self.replicas:
            return passing, f"With {what}, {_replicas(passing)} still meet{'s' * (passing == 1)} every objective."
        fails = f"With {what}, it fails at {_replicas(failing)}: {unmet_sentence(seen[failing])}"
        if passing is not None:
            return passing, f"{fails}; {passing} meet every objective.{self._driver(band, failing)}"
        limit = self.cap_name if failing == self.cap else "the most that were tried"
        return None, f"{fails}; that is {limit}."

    def _driver(self, band: ErrorBand, failing: int) -> str:
        """Which phase's error makes ``failing`` replicas fail, by replaying each alone; empty where both are alike."""
        if band.prefill == band.decode:
            return ""
        alone = []
        for phase, other in (("prefill", "decode"), ("decode", "prefill")):
            edge = at_edge(self.deployment, replace(band, **{other: 0.0}), slower=True)
            self.replays += 1
            if not self.point(edge, failing).passed:
                alone.append(phase)
        if len(alone) == 1:
            return f" The error of {alone[0]} steps alone makes it fail there."
        return " The error of either phase alone makes it fail there." if alone else " Only both together make it fail."

    def _narrow(
        self, edge: Deployment, seen: dict[int, CurvePoint], *, failing: int, passing: int | None, start: int
    ) -> tuple[int, int | None]:
        """A failing and a passing count as near to each other as a few replays bring them, ``failing`` and ``passing``
        known before. From ``start`` in growing strides, then by halves."""
        first, probe, stride = failing, start, 1
        for _ in range(MOST_REPLAYS):
            end = self.cap + 1 if passing is None else passing
            if end - failing <= 1:
                break
            probe = min(max(probe, failing + 1), end - 1)
            self.replays += 1
            seen[probe] = self.point(edge, probe)
            if seen[probe].passed:
                passing = probe
            else:
                failing = probe
            if passing is not None and failing > first:
                probe = (failing + passing) // 2
            else:
                probe = failing + stride if passing is None else passing - stride
                stride *= 2
        return failing, passing


def _replicas(count: int) -> str:
    return f"{count} replica{'' if count == 1 else 's'}"
