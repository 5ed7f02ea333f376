"""How many replicas of one candidate meet the objectives: bracket and bisect on real replays.

The answer is the smallest replayed count that passes while the count below it, replayed too, fails. Budgets are hard
caps: counts above them are never replayed. Nothing here knows how a replay runs: ``simulate`` is given.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from replay.errors import SpecError
from replay.hardware.entries import GpuType, ModelSpec
from replay.planning.cost import Pricing, cost_of
from replay.planning.document import CandidateResult, CurvePoint, Evidence, Infeasible, Recommendation
from replay.planning.figures import curve_point, engine_info, memory_breakdown, operating, step_time_info
from replay.planning.idle import idle_value_s
from replay.planning.resolve import Candidate, ResolvedPlan
from replay.planning.wording import quantity, rejected_sentence, unmet_sentence
from replay.results import ReplayResult
from replay.specs import DeploymentSpec
from replay.workload import Workload

if TYPE_CHECKING:
    from replay.deployment import Deployment

ResolveDeployment = Callable[[DeploymentSpec, ModelSpec, GpuType], "Deployment"]
Simulate = Callable[[Workload, "Deployment"], ReplayResult]
Checkpoint = Callable[[float], None]

MAX_REPLICAS = 4096
HOST_GPUS = 8
"""GPUs that share a host's PCIe: the largest tensor-parallel group without a fast interconnect."""
_STALLED = 0.005
"""Growth of the replica count by half or more that improves the worst objective by less than this share has stalled."""


class _NoAnswer(Exception):  # noqa: N818 - a control-flow signal inside this module, never an error
    def __init__(self, code: str, reason: str) -> None:
        super().__init__(reason)
        self.code, self.reason = code, reason


def evaluate_candidate(
    workload: Workload,
    plan: ResolvedPlan,
    candidate: Candidate,
    resolve_deployment: ResolveDeployment,
    simulate: Simulate,
    checkpoint: Checkpoint,
) -> CandidateResult:
    """Feasibility, then the smallest passing replica count with its evidence and cost.

    ``checkpoint`` is called with a progress in 0..1 before each replay and may raise to cancel.

    Raises:
        SpecError: ``workload.empty``, or what ``checkpoint`` raises. An infeasible candidate is a result, not an error.
    """
    if workload.n == 0:
        raise SpecError("workload.empty", "the workload holds no request: widen the window or choose another trace")
    offers = tuple(offer for offer in plan.prices if offer.gpu == candidate.gpu_key)
    pricing = Pricing(candidate.gpu_key, candidate.tp, plan.spec.price, offers)
    search = _Search(workload, plan, candidate, pricing, simulate, checkpoint)
    try:
        search.check_caps()
        search.deployment = _deployment(plan, candidate, resolve_deployment)
        return search.answer()
    except _NoAnswer as no_answer:
        return search.infeasible(no_answer)


def largest_tensor_parallel(gpu: GpuType) -> int:
    """GPUs that one tensor-parallel group can span: the fast domain, or a host's PCIe where cards are plugged in."""
    plugged = "PCIe" in gpu.interconnect or "bridge" in gpu.interconnect
    return max(gpu.max_scaleup_gpus, HOST_GPUS if plugged else 1)


def _deployment(plan: ResolvedPlan, candidate: Candidate, resolve_deployment: ResolveDeployment) -> Deployment:
    gpu = plan.gpu(candidate.gpu_key)
    largest = largest_tensor_parallel(gpu)
    if candidate.tp > largest:
        reason = (
            f"tensor parallelism {candidate.tp} spans more GPUs than one interconnect domain of {gpu.key} ({largest})"
        )
        raise _NoAnswer("parallelism.scale_up", reason)
    try:
        deployment = resolve_deployment(plan.deployment(candidate), plan.model, gpu)
    except SpecError as error:
        raise _NoAnswer(error.code, error.detail) from error
    if not deployment.memory.fits:
        raise _NoAnswer("memory", deployment.memory.reason or "the model does not fit into the GPU's memory")
    return deployment


@dataclass
class _Search:
    workload: Workload
    plan: ResolvedPlan
    candidate: Candidate
    pricing: Pricing
    simulate: Simulate
    checkpoint: Checkpoint
    deployment: Deployment | None = None
    points: dict[int, CurvePoint] = field(default_factory=dict)
    results: dict[int, ReplayResult] = field(default_factory=dict)
    """Only the newest passing and the single replica are kept: a result holds per-request arrays."""
    monotone: bool = True
    cap: int = MAX_REPLICAS
    cap_code: str = "slo.unreachable"
    cap_reason: str = ""

    def check_caps(self) -> None:
        """Turns the budgets into a largest replica count."""
        spec, tp = self.plan.spec, self.candidate.tp
        self.cap = min(MAX_REPLICAS, self.workload.n)
        self.cap_reason = f"at {self.cap} replicas"
        if spec.max_gpus is not None and spec.max_gpus // tp < self.cap:
            self.cap, self.cap_code = spec.max_gpus // tp, "budget.max_gpus"
            self.cap_reason = f"at {self.cap * tp} GPUs, the most under the cap of {spec.max_gpus} GPUs,"
            if self.cap == 0:
                raise _NoAnswer(self.cap_code, f"one replica needs {tp} GPUs, over the cap of {spec.max_gpus} GPUs")
        if spec.max_usd_per_hour is None:
            return
        single = self.pricing.usd_per_hour(1)
        if single is None:
            raise _NoAnswer("budget.unpriced", f"the budget cannot be checked: {self.pricing.reason()}")
        limit = f"{spec.max_usd_per_hour:g} USD per hour"
        affordable = self.pricing.most_replicas_within(spec.max_usd_per_hour, self.cap)
        if affordable == 0:
            raise _NoAnswer(
                "budget.max_usd_per_hour", f"one replica costs {single:g} USD per hour, over the cap of {limit}"
            )
        if affordable < self.cap:
            self.cap, self.cap_code = affordable, "budget.max_usd_per_hour"
            self.cap_reason = f"at {affordable * tp} GPUs, the most under the cap of {limit},"

    def answer(self) -> CandidateResult:
        """Runs the search."""
        first = self.point(1)
        if first.rejected:
            limit = self._resolved().engine.max_model_len
            raise _NoAnswer("requests.rejected", rejected_sentence(first.rejected, self.workload.n, limit))
        self._check_reachable(first)
        return self._recommendation(self._smallest_passing(first), first)

    def point(self, replicas: int) -> CurvePoint:
        """The outcome at a replica count, replayed once."""
        known = self.points.get(replicas)
        if known is not None:
            return known
        deployment = self._resolved()
        done = len(self.points)
        self.checkpoint(done / (done + 3.0))
        result = self.simulate(self.workload, deployment.with_replicas(replicas))
        point = curve_point(
            result,
            requests=self.workload.n,
            tp=self.candidate.tp,
            objectives=self.plan.spec.objectives,
            usd_per_hour=self.pricing.usd_per_hour(replicas),
        )
        self.points[replicas] = point
        if point.passed:
            self.results[replicas] = result
        return point

    def _resolved(self) -> Deployment:
        if self.deployment is None:
            raise RuntimeError("a candidate is replayed only after its deployment is resolved")
        return self.deployment

    def _check_reachable(self, first: CurvePoint) -> None:
        """Objectives that no number of replicas can meet are said before any larger replay."""
        for row in first.objectives:
            if row.value_s is None:
                raise _NoAnswer(
                    "slo.no_sample", f"{row.name} has no sample: no request of the workload yields this metric"
                )
        for objective in self.plan.spec.objectives:
            idle = idle_value_s(objective, self.workload, self._resolved())
            if idle > objective.threshold_s:
                raise _NoAnswer(
                    "slo.unreachable",
                    f"{objective.name} is {quantity(idle)} even with every request alone on an idle replica; "
                    f"the objective is {quantity(objective.threshold_s)}: more replicas cannot help",
                )

    def _smallest_passing(self, first: CurvePoint) -> int:
        """The smallest passing count whose predecessor fails and whose successor, within the cap, passes too."""
        failing, passing = (0, 1) if first.passed else self._bracket(1, first)
        while True:
            while passing - failing > 1:
                middle = self._next_probe(failing, passing, first)
                if self.point(middle).passed:
                    passing = middle
                else:
                    failing = middle
            self._forget_results(keep=passing)
            if passing == self.cap or self.point(passing + 1).passed:
                return passing
            self.monotone = False
            failing, passing = self._bracket(passing + 1, first)

    def _bracket(self, failing: int, first: CurvePoint) -> tuple[int, int]:
        """The largest failing and a passing count above ``failing``: first tried where the work fits, then growing."""
        guess = max(failing + 1, math.ceil(first.load_factor))
        previous: CurvePoint | None = None
        while True:
            guess = min(guess, self.cap)
            if guess <= failing:
                self._give_up(self.cap_code)
            point = self.point(guess)
            if point.passed:
                return failing, guess
            failing = guess
            if guess == self.cap:
                self._give_up(self.cap_code)
            if previous is not None and _stalled(previous, point):
                self._give_up("slo.unreachable")
            if previous is None or point.replicas >= 1.5 * previous.replicas:
                previous = point
            guess = max(guess + 1, math.ceil(guess * (1.25 if len(self.points) < 4 else 2.0)))

    def _next_probe(self, failing: int, passing: int, first: CurvePoint) -> int:
        """Near the count where the work just fits the answer is often that count itself: try its predecessor first."""
        if passing == math.ceil(first.load_factor):
            return passing - 1
        return (failing + passing) // 2

    def _give_up(self, code: str) -> None:
        best = self.points[max(self.points)]
        where = self.cap_reason if best.replicas == self.cap else f"at {best.replicas} replicas"
        reason = f"{where} {unmet_sentence(best)}"
        if code == "slo.unreachable":
            reason += "; more replicas do not help"
        raise _NoAnswer(code, reason)

    def _forget_results(self, keep: int) -> None:
        self.results = {replicas: result for replicas, result in self.results.items() if replicas == keep}

    def _recommendation(self, replicas: int, first: CurvePoint) -> CandidateResult:
        deployment, workload = self._resolved().with_replicas(replicas), self.workload
        figures = operating(self.results[replicas], workload, self.plan.spec.objectives)
        cost = cost_of(
            self.pricing,
            replicas,
            prompt_tokens=int(workload.prompt_tokens.sum()),
            output_tokens=int(workload.output_tokens.sum()),
            span_s=workload.span_s,
        )
        found = Recommendation(
            **{name: getattr(figures, name) for name in type(figures).model_fields},
            **{name: getattr(cost, name) for name in type(cost).model_fields},
            gpu=self.candidate.gpu_key,
            tp=self.candidate.tp,
            replicas=replicas,
            gpus=replicas * self.candidate.tp,
            memory=memory_breakdown(deployment.memory),
            engine=engine_info(deployment),
            step_time=step_time_info(deployment),
            curve=self._curve(),
            evidence=self._evidence(replicas, first),
        )
        return CandidateResult(
            gpu=found.gpu,
            tp=found.tp,
            recommendation=found,
            step_time=found.step_time,
            engine=found.engine,
            replays=len(self.points),
        )

    def _evidence(self, replicas: int, first: CurvePoint) -> Evidence:
        passes, fails = self.points[replicas], self.points.get(replicas - 1)
        if fails is None:
            sentence = "One replica meets every objective."
        else:
            sentence = f"{replicas} replicas meet every objective; with {fails.replicas}, {unmet_sentence(fails)}."
        if not self.monotone:
            sentence += (
                " Among the replayed counts a larger one failed where a smaller one passed: the answer lies above it."
            )
        return Evidence(
            passes=passes,
            fails=fails,
            one_more=self.points.get(replicas + 1),
            monotone=self.monotone,
            lower_bound_replicas=max(1, math.ceil(first.load_factor)),
            replays=len(self.points),
            sentence=sentence,
        )

    def _curve(self) -> tuple[CurvePoint, ...]:
        return tuple(self.points[replicas] for replicas in sorted(self.points))

    def infeasible(self, why: _NoAnswer) -> CandidateResult:
        """The candidate's row in the table of those that are no answer."""
        deployment = self.deployment
        row = Infeasible(
            gpu=self.candidate.gpu_key,
            tp=self.candidate.tp,
            code=why.code,
            reason=why.reason,
            best=self.points[max(self.points)] if self.points else None,
            curve=self._curve(),
            memory=memory_breakdown(deployment.memory) if deployment is not None else None,
        )
        return CandidateResult(
            gpu=row.gpu,
            tp=row.tp,
            infeasible=row,
            step_time=step_time_info(deployment) if deployment is not None else None,
            engine=engine_info(deployment) if deployment is not None else None,
            replays=len(self.points),
        )


def _stalled(before: CurvePoint, now: CurvePoint) -> bool:
    """Whether a larger replica count left the worst objective as it was."""
    if now.saturated or before.saturated or now.replicas < 1.5 * before.replicas:
        return False
    return _worst(now) > _worst(before) * (1.0 - _STALLED)


def _worst(point: CurvePoint) -> float:
    return max((row.value_s or math.inf) / row.threshold_s for row in point.objectives)
