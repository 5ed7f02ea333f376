"""How many replicas of one candidate meet the objectives: bracket and bisect on real replays.

The answer is the smallest replayed count that passes while the count below it, replayed too, fails. Budgets are hard
caps: counts above them are never replayed. Nothing here knows how a replay runs: ``simulate`` is given.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from replay.engines import data_parallel_size
from replay.errors import SpecError
from replay.hardware.entries import GpuType, ModelSpec
from replay.planning.certainty import CertaintySearch
from replay.planning.cost import Pricing, cost_of
from replay.planning.document import CandidateResult, Evidence, Infeasible, Operating, PoolsInfo, Recommendation
from replay.planning.figures import curve_point, engine_info, memory_breakdown, operating, step_time_info
from replay.planning.idle import caches_prefixes, idle_value_s
from replay.planning.parts import Certainty, CurvePoint
from replay.planning.pool_split import UNKNOWN_LOADS, PoolLoads, loads_of, replay_splits
from replay.planning.pools import pools_part
from replay.planning.resolve import Candidate, ResolvedPlan
from replay.planning.wording import quantity, rejected_sentence, unmet_sentence
from replay.results import RELIEVED_BY_REPLICAS, ReplayResult
from replay.specs import DeploymentSpec, Objective
from replay.workload import Workload

if TYPE_CHECKING:
    from replay.deployment import Deployment

ResolveDeployment = Callable[[DeploymentSpec, ModelSpec, GpuType], "Deployment"]
Simulate = Callable[[Workload, "Deployment"], ReplayResult]
Checkpoint = Callable[[float], None]

MAX_REPLICAS = 4096
_STALLED = 0.005
"""Growth of the replica count by half or more that improves the worst objective by less than this share has stalled."""

_STALLS = 2
"""Stalls in a row that end the search: a single one may be a hole."""
_BELOW_CAP = 8
"""Counts below a failing cap that are replayed before the cap is blamed."""


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
    ranks, apart = data_parallel_size(plan.spec.engine), plan.spec.disaggregation is not None
    pricing = Pricing(candidate.gpu_key, candidate.tp, plan.spec.price, offers, ranks, apart)
    search = _Search(workload, plan, candidate, pricing, simulate, checkpoint)
    try:
        search.check_caps()
        search.deployment = _deployment(plan, candidate, resolve_deployment)
        return search.answer()
    except _NoAnswer as no_answer:
        return search.infeasible(no_answer)


def _deployment(plan: ResolvedPlan, candidate: Candidate, resolve_deployment: ResolveDeployment) -> Deployment:
    try:
        return resolve_deployment(plan.deployment(candidate), plan.model, plan.gpu(candidate.gpu_key))
    except SpecError as error:
        raise _NoAnswer(error.code, error.detail) from error


@dataclass(frozen=True)
class _Replayed:
    """One replay: its outcome, its figures where it passed, and what was replayed. The result itself holds per-request
    arrays and is not kept."""

    point: CurvePoint
    deployment: Deployment
    figures: Operating | None
    pools: PoolsInfo | None


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
    passing: dict[int, _Replayed] = field(default_factory=dict)
    """The counts that pass."""
    loads: PoolLoads = UNKNOWN_LOADS
    """Of pools, once one replica of each was replayed."""
    cap: int = MAX_REPLICAS
    cap_code: str = "limit.replicas"
    cap_name: str = ""
    replays: int = 0

    @property
    def replica_gpus(self) -> int:
        """GPUs of one replica, all its data-parallel ranks."""
        return self.candidate.tp * self.pricing.ranks

    @property
    def least(self) -> int:
        """Replicas that serve at least: one, or one in each pool."""
        return 1 if self.plan.spec.disaggregation is None else 2

    @property
    def spare(self) -> int:
        """Replicas that are bought beside those that serve, since so many may be down."""
        return self.plan.spec.survive_failures

    def check_caps(self) -> None:
        """Turns the budgets into a largest count of replicas that serve."""
        spec, tp = self.plan.spec, self.replica_gpus
        self.cap = min(MAX_REPLICAS, max(self.least, self.workload.n))
        self.cap_name = f"one replica for each of the {self.workload.n} requests"
        if self.cap == MAX_REPLICAS:
            self.cap_name = f"the {MAX_REPLICAS} replicas that are tried at most"
        least = "one replica" if self.least == 1 else "one prefill and one decode replica"
        least, several = (f"{least} and {self.spare} to spare" if self.spare else least), self.spare + self.least > 1
        if spec.max_gpus is not None and spec.max_gpus // tp - self.spare < self.cap:
            self.cap, self.cap_code = spec.max_gpus // tp - self.spare, "budget.max_gpus"
            self.cap_name = f"the cap of {spec.max_gpus} GPUs"
            if self.cap < self.least:
                needs = f"{least} need{'' if several else 's'} {tp * (self.least + self.spare)} GPUs"
                raise _NoAnswer(self.cap_code, f"{needs}, over the cap of {spec.max_gpus} GPUs")
        if spec.max_usd_per_hour is None:
            return
        single = self.pricing.usd_per_hour(self.least + self.spare)
        if single is None:
            raise _NoAnswer("budget.unpriced", f"the budget cannot be checked: {self.pricing.reason()}")
        limit = f"{spec.max_usd_per_hour:g} USD per hour"
        affordable = self.pricing.most_replicas_within(spec.max_usd_per_hour, self.cap + self.spare) - self.spare
        if affordable < self.least:
            raise _NoAnswer(
                "budget.max_usd_per_hour",
                f"{least} cost{'' if several else 's'} {single:g} USD per hour, over the cap of {limit}",
            )
        if affordable < self.cap:
            self.cap, self.cap_code = affordable, "budget.max_usd_per_hour"
            self.cap_name = f"the cap of {limit}"

    def answer(self) -> CandidateResult:
        """Runs the search."""
        first = self.point(self.least)
        never = {reason: count for reason, count in first.rejected.items() if reason not in RELIEVED_BY_REPLICAS}
        if never:
            raise _NoAnswer("requests.rejected", rejected_sentence(never, self.workload.n, self._resolved()))
        self._check_reachable(first)
        self._check_patience()
        return self._recommendation(self._smallest_passing(first), first)

    def point(self, replicas: int) -> CurvePoint:
        """The outcome at a replica count, replayed once."""
        known = self.points.get(replicas)
        if known is not None:
            return known
        found = self._replay(self._resolved(), replicas)
        self.points[replicas] = found.point
        if found.point.passed:
            self.passing[replicas] = found
        return found.point

    def _replay(self, deployment: Deployment, replicas: int) -> _Replayed:
        """``replicas`` of a deployment; of pools the best of some splits."""
        if deployment.decode is None:
            return self._replay_one(deployment.with_replicas(replicas))
        replayed: dict[int | None, _Replayed] = {}

        def replay(prefill: int, decode: int) -> CurvePoint:
            found = replayed[prefill] = self._replay_one(deployment.with_pools(prefill, decode))
            return found.point

        loads = self.loads if deployment is self.deployment else self.loads._replace(is_bound=False)
        point = replay_splits(replicas, loads, replay, self._is_affordable)
        return replace(replayed[point.prefill_replicas], point=point)

    def _replay_one(self, deployment: Deployment) -> _Replayed:
        self.checkpoint(self.replays / (self.replays + 3.0))
        self.replays += 1
        result, objectives = self.simulate(self.workload, deployment), self.plan.spec.objectives
        replicas, groups = deployment.replicas + self.spare, None
        if deployment.decode is not None:
            groups = deployment.tensor_parallel_groups
            if self.loads is UNKNOWN_LOADS:
                self.loads = loads_of(result, per_replica=not caches_prefixes(self.workload, deployment))
        point = curve_point(
            result,
            requests=self.workload.n,
            replica_gpus=self.replica_gpus,
            objectives=objectives,
            usd_per_hour=self.pricing.usd_per_hour(replicas, groups),
            spare=self.spare,
        )
        if not point.passed:
            return _Replayed(point, deployment, None, None)
        figures, pools = operating(result, self.workload, objectives), pools_part(result, deployment)
        return _Replayed(point, deployment, figures, pools)

    def _is_affordable(self, prefill: int, decode: int) -> bool:
        limit = self.plan.spec.max_usd_per_hour
        cost = self.pricing.usd_per_hour(prefill + decode, self.pricing.split(prefill, decode)) if limit else None
        return limit is None or (cost is not None and cost <= limit)

    def _resolved(self) -> Deployment:
        if self.deployment is None:
            raise RuntimeError("a candidate is replayed only after its deployment is resolved")
        return self.deployment

    def _check_reachable(self, first: CurvePoint) -> None:
        """Objectives that no number of replicas can meet are said before any larger replay."""
        for row in first.objectives:
            if row.value_s is None and first.finished and (row.attainment is None or row.attained is None):
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

    def _check_patience(self) -> None:
        """A client who gives up on an answer that nobody disturbs gives up at any number of replicas."""
        timeout_s = self.plan.spec.client_timeout_s
        if timeout_s is None:
            return
        longest = Objective(metric="e2e", threshold_s=timeout_s, attainment=1.0)
        idle = idle_value_s(longest, self.workload, self._resolved())
        if idle > timeout_s:
            raise _NoAnswer(
                "slo.unreachable",
                f"the longest answer takes {quantity(idle)} even alone on an idle replica, and clients give up after "
                f"{quantity(timeout_s)}: more replicas cannot help",
            )

    def _smallest_passing(self, first: CurvePoint) -> int:
        """The smallest passing count whose predecessor fails and whose successor, within the cap, passes too; where no
        such count is found, the smallest that passes."""
        least = self.least
        failing, passing = (least - 1, least) if first.passed else self._bracket(least, first)
        while True:
            while passing - failing > 1:
                middle = self._next_probe(failing, passing, first)
                if self.point(middle).passed:
                    passing = middle
                else:
                    failing = middle
            if passing == self.cap or self.point(passing + 1).passed:
                return passing
            try:
                failing, passing = self._bracket(passing + 1, first)
            except _NoAnswer:
                return min(self.passing)

    def _bracket(self, failing: int, first: CurvePoint) -> tuple[int, int]:
        """A failing and a passing count above ``failing``: first tried where the work fits, then growing. One count
        that fails may be a hole: neither a cap nor a stall is blamed on it alone."""
        floor, stalls = failing, 0
        guess = max(failing + 1, self._work_fits_at(first))
        previous: CurvePoint | None = None
        while True:
            guess = min(guess, self.cap)
            if guess <= failing:
                raise self._out_of_reach(self.cap_code)
            point = self.point(guess)
            if point.passed:
                return failing, guess
            if guess == self.cap:
                return self._below_cap(floor, point)
            failing = guess
            stalls = stalls + 1 if previous is not None and _stalled(previous, point) else 0
            if stalls == _STALLS:
                raise self._out_of_reach("slo.unreachable")
            if previous is None or (not stalls and point.replicas >= 1.5 * previous.replicas):
                previous = point
            guess = max(guess + 1, math.ceil(guess * (1.25 if len(self.points) < 4 else 2.0)))

    def _below_cap(self, floor: int, at_cap: CurvePoint) -> tuple[int, int]:
        """As ``_bracket``, where the cap itself fails: some counts below it that were skipped are replayed first."""
        skipped = [count for count in range(self.cap - 1, floor, -1) if count not in self.points]
        for count in [] if at_cap.saturated else skipped[:_BELOW_CAP]:
            if self.point(count).passed:
                return max(n for n, point in self.points.items() if n < count and not point.passed), count
        raise self._out_of_reach(self.cap_code)

    def _work_fits_at(self, first: CurvePoint) -> int:
        """Replicas that hold the work by the load of the first; the fewest where nothing is offered at a rate."""
        if self.least > 1:
            return self.loads.fits_at()
        return 1 if first.load_factor is None else max(1, math.ceil(first.load_factor))

    def _next_probe(self, failing: int, passing: int, first: CurvePoint) -> int:
        """Near the count where the work just fits the answer is often that count itself: try its predecessor first."""
        if passing == self._work_fits_at(first):
            return passing - 1
        return (failing + passing) // 2

    def _out_of_reach(self, code: str) -> _NoAnswer:
        best = self._best()
        spare = f" and {self.spare} to spare" if self.spare else ""
        where = f"{best.replicas_text}{spare} ({best.gpus} GPUs)"
        reached = "the most within" if best.replicas == self.cap else "the best within"
        reason = f"at {where}, {reached} {self.cap_name}, {unmet_sentence(best)}"
        if code == "slo.unreachable":
            reason = f"at {where} {unmet_sentence(best)}; more replicas do not help"
        return _NoAnswer(code, reason)

    def _best(self) -> CurvePoint:
        """The replayed count that comes nearest to passing: not saturated, then by its worst objective."""
        return min(self.points.values(), key=lambda point: (*point.distance, point.replicas))

    def _recommendation(self, replicas: int, first: CurvePoint) -> CandidateResult:
        bought, passed, workload = replicas + self.spare, self.passing[replicas], self.workload
        deployment, figures = passed.deployment, passed.figures
        if figures is None:
            raise RuntimeError("a count that passes keeps its figures")
        cost = cost_of(
            self.pricing,
            bought,
            prompt_tokens=int(workload.prompt_tokens.sum()),
            output_tokens=int(workload.output_tokens.sum()),
            span_s=workload.span_s,
            burst=figures.offered_rps is None,
            groups=None if deployment.decode is None else deployment.tensor_parallel_groups,
        )
        found = Recommendation(
            **{name: getattr(figures, name) for name in type(figures).model_fields},
            **{name: getattr(cost, name) for name in type(cost).model_fields},
            gpu=self.candidate.gpu_key,
            tp=self.candidate.tp,
            replicas=bought,
            data_parallel_size=self.pricing.ranks,
            gpus=bought * self.replica_gpus,
            survive_failures=self.spare,
            memory=memory_breakdown(deployment),
            engine=engine_info(deployment),
            step_time=step_time_info(deployment),
            curve=self._curve(),
            evidence=self._evidence(replicas, first),
            certainty=self._certainty(replicas),
            pools=passed.pools,
        )
        return CandidateResult(
            gpu=found.gpu,
            tp=found.tp,
            recommendation=found,
            step_time=found.step_time,
            engine=found.engine,
            replays=self.replays,
        )

    def _evidence(self, replicas: int, first: CurvePoint) -> Evidence:
        passes, fails = self.points[replicas], self.points.get(replicas - 1)
        if fails is None:
            who = "One replica" if self.least == 1 else "One replica of each pool"
            sentence = f"{who} meets every objective."
        elif fails.splits_replayed is not None:
            sentence = (
                f"{passes.replicas_text} meet every objective. With one replica less none of the splits that were "
                f"replayed does ({fails.splits_replayed} of {fails.replicas - 1}); at the best, "
                f"{fails.replicas_text}, {unmet_sentence(fails)}."
            )
        else:
            sentence = f"{replicas} replicas meet every objective; with {fails.replicas}, {unmet_sentence(fails)}."
        if self.spare:
            sentence += (
                f" {replicas + self.spare} are bought: the objectives are met while any {self.spare} of them "
                f"{'is' if self.spare == 1 else 'are'} down for the whole window."
            )
        one_more = self.points.get(replicas + 1)
        failed = [point.replicas for point in self._curve() if not point.passed and point.replicas > min(self.passing)]
        if one_more is not None and not one_more.passed:
            sentence += (
                f" With {one_more.replicas}, {unmet_sentence(one_more)}, and no count above was found whose successor "
                "passes too: a larger count may fail where this one passes."
            )
        elif failed:
            sentence += (
                " Among the replayed counts a larger one failed where a smaller one passed: the answer lies above it."
            )
        return Evidence(
            passes=passes,
            fails=fails,
            one_more=one_more,
            monotone=not failed,
            lower_bound_replicas=self._lower_bound(first),
            replays=len(self.points),
            sentence=sentence,
        )

    def _certainty(self, replicas: int) -> Certainty:
        return CertaintySearch(
            workload=self.workload,
            objectives=self.plan.spec.objectives,
            deployment=self._resolved(),
            replicas=replicas,
            cap=self.cap,
            cap_name=self.cap_name,
            point=lambda deployment, count: self._replay(deployment, count).point,
            usd_per_hour=self._usd_per_hour_like(self.points[replicas]),
            spare=self.spare,
            least=self.least,
        ).answer()

    def _usd_per_hour_like(self, answer: CurvePoint) -> Callable[[int], float | None]:
        """Dollars per hour by count, at the answer's ratio of prefill to decode where they are apart."""
        prefill = answer.prefill_replicas
        if prefill is None:
            return self.pricing.usd_per_hour

        def at(count: int) -> float | None:
            share = min(count - 1, max(1, round(count * prefill / answer.replicas)))
            return self.pricing.usd_per_hour(count, self.pricing.split(share, count - share))

        return at

    def _lower_bound(self, first: CurvePoint) -> int:
        """Replicas below which the work exceeds capacity. Capacity grows as the replicas do, unless each has a prefix
        cache of its own: then only replayed counts say it."""
        if not caches_prefixes(self.workload, self._resolved()):
            return self._work_fits_at(first)
        return 1 + max((point.replicas for point in self.points.values() if point.saturated), default=0)

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
            best=self._best() if self.points else None,
            curve=self._curve(),
            memory=memory_breakdown(deployment) if deployment is not None else None,
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
    return now.worst > before.worst * (1.0 - _STALLED)
