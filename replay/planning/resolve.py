"""Requests with every key resolved: what a job stores, so that a worker needs no catalogue and a repeat hashes equal.

No polars, no numba: ``api`` resolves requests with this module.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from difflib import get_close_matches
from typing import Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from replay.calibration.user import UserCalibration
from replay.engines import resolve_engine
from replay.errors import FieldError, SpecError
from replay.fields import fields_of_a_plan, fields_of_a_replay, pool_refusal
from replay.hardware.catalogue import Catalogue
from replay.hardware.dtypes import kv_format, weight_format
from replay.hardware.entries import GpuType, ModelSpec, Price
from replay.hardware.feasibility import check_parallelism
from replay.specs import (
    POOLS,
    DeploymentSpec,
    DisaggregationSpec,
    PlanSpec,
    PriceFilter,
    ReplaySpec,
)


class Candidate(NamedTuple):
    """One GPU type at one tensor-parallel size; its replica count is the question."""

    gpu_key: str
    tp: int


class TraceRef(BaseModel):
    """The trace of a request: content hash, and the name that people gave it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    sha256: str = Field(min_length=1, max_length=64)
    name: str = ""


class _Resolved(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    schema_version: Literal[1] = 1
    model: ModelSpec
    prices: tuple[Price, ...]
    """The offers that pass the price filter, cheapest per GPU-hour first."""
    trace: TraceRef
    mixed: tuple[TraceRef, ...] = ()
    """The traces of the transform's ``mix_with``, in its order."""
    catalogue_version: str
    calibrations: tuple[UserCalibration, ...] = ()
    """The user's own, as they were when this was asked: part of the hash, so that old results keep theirs."""

    def input_hash(self) -> str:
        """SHA-256 of the canonical JSON: equal requests on equal content have equal hashes, whatever the ids or files
        of the traces that are mixed in: ``mixed`` has their content."""
        values = self.model_dump(mode="json")
        for one in values["spec"]["transform"]["mix_with"]:
            del one["trace"]
        canonical = json.dumps(values, sort_keys=True, separators=(",", ":"), allow_nan=False)
        return hashlib.sha256(canonical.encode()).hexdigest()


class ResolvedPlan(_Resolved):
    """A ``PlanSpec`` with its catalogue entries."""

    kind: Literal["plan"] = "plan"
    spec: PlanSpec
    gpus: tuple[GpuType, ...]

    def candidates(self) -> tuple[Candidate, ...]:
        """GPU types x tensor-parallel sizes, in the order asked, sizes ascending."""
        return tuple(Candidate(gpu.key, tp) for gpu in self.gpus for tp in self.spec.tp)

    def gpu(self, key: str) -> GpuType:
        """The GPU type of a candidate.

        Raises:
            SpecError: ``plan.unknown_candidate``.
        """
        for gpu in self.gpus:
            if gpu.key == key:
                return gpu
        raise SpecError("plan.unknown_candidate", f"{key!r} is no GPU type of this plan")

    def deployment(self, candidate: Candidate) -> DeploymentSpec:
        """The candidate with one replica, or one in each pool, as ``resolve_deployment`` takes it."""
        return _candidate_spec(self.spec, self.model, candidate)


class ResolvedReplay(_Resolved):
    """A ``ReplaySpec`` with its catalogue entries."""

    kind: Literal["replay"] = "replay"
    spec: ReplaySpec
    gpu: GpuType


@fields_of_a_plan()
def resolve_plan(
    spec: PlanSpec,
    catalogue: Catalogue,
    *,
    trace: TraceRef,
    mixed: tuple[TraceRef, ...] = (),
    model: ModelSpec | None = None,
    calibrations: tuple[UserCalibration, ...] = (),
) -> ResolvedPlan:
    """Looks up every key of a plan. ``model`` replaces the lookup where the user gave a ``config.json``.

    GPU types named twice (also by alias) count once; a price of the user's for any spelling goes to that GPU type.
    Knobs and number formats are tried here, so that a mistake in them is refused at once.

    Raises:
        SpecError: unknown or ambiguous names, with the nearest ones; unknown or contradictory knobs.
    """
    gpus = {gpu.key: gpu for gpu in map(catalogue.gpu, spec.gpus)}
    found = model or catalogue.model(spec.model)
    price = _price_filter(spec.price, catalogue)
    weight_format(spec.weight_dtype, found.weight_dtype)
    kv_format(spec.kv_dtype)
    for gpu in gpus.values():
        _try_pools(_candidate_spec(spec, found, Candidate(gpu.key, spec.tp[0])), gpu, found)
    resolved = spec.model_copy(
        update={"model": found.key, "gpus": tuple(gpus), "tp": tuple(sorted(set(spec.tp))), "price": price}
    )
    return ResolvedPlan(
        spec=resolved,
        model=found,
        gpus=tuple(gpus.values()),
        prices=_offers(catalogue, tuple(gpus), price),
        trace=trace,
        mixed=mixed,
        catalogue_version=catalogue.version,
        calibrations=_own(calibrations, found, tuple(gpus)),
    )


@fields_of_a_replay()
def resolve_replay(
    spec: ReplaySpec,
    catalogue: Catalogue,
    *,
    trace: TraceRef,
    mixed: tuple[TraceRef, ...] = (),
    model: ModelSpec | None = None,
    calibrations: tuple[UserCalibration, ...] = (),
) -> ResolvedReplay:
    """Looks up every key of a replay; on-demand offers price it.

    Raises:
        SpecError: unknown or ambiguous names, with the nearest ones; a tensor-parallel size that cannot work.
    """
    gpu = catalogue.gpu(spec.deployment.gpu)
    found = model or catalogue.model(spec.deployment.model)
    weights = weight_format(spec.deployment.weight_dtype, found.weight_dtype)
    kv_format(spec.deployment.kv_dtype)
    _try_pools(spec.deployment, gpu, found, weights)
    deployment = spec.deployment.model_copy(update={"model": found.key, "gpu": gpu.key})
    return ResolvedReplay(
        spec=spec.model_copy(update={"deployment": deployment}),
        model=found,
        gpu=gpu,
        prices=_offers(catalogue, (gpu.key,), PriceFilter()),
        trace=trace,
        mixed=mixed,
        catalogue_version=catalogue.version,
        calibrations=_own(calibrations, found, (gpu.key,)),
    )


def _candidate_spec(spec: PlanSpec, model: ModelSpec, candidate: Candidate) -> DeploymentSpec:
    apart = None
    if spec.disaggregation is not None:
        apart = DisaggregationSpec(prefill_replicas=1, decode_replicas=1, **spec.disaggregation.model_dump())
    return DeploymentSpec(
        model=model.key,
        gpu=candidate.gpu_key,
        tp=candidate.tp,
        engine=spec.engine,
        router=spec.router,
        router_snapshot_s=spec.router_snapshot_s,
        weight_dtype=spec.weight_dtype,
        kv_dtype=spec.kv_dtype,
        max_model_len=spec.max_model_len,
        client_timeout_s=spec.client_timeout_s,
        disaggregation=apart,
    )


def _try_pools(spec: DeploymentSpec, gpu: GpuType, model: ModelSpec, weights: str | None = None) -> None:
    """Tries the knobs of the deployment, or of both its pools; and with ``weights`` their parallelism.

    Raises:
        SpecError: naming the pool where there are two.
    """
    pools = spec.pools()
    for name, pool in zip(POOLS, pools, strict=False):
        try:
            if weights is not None:
                check_parallelism(model, gpu, pool.tp, weights)
            resolve_engine(pool.engine, gpu, model, pool.max_model_len)
        except SpecError as error:
            if spec.disaggregation is None:
                raise
            raise pool_refusal(name, spec.disaggregation, error) from error


def _own(
    calibrations: tuple[UserCalibration, ...], model: ModelSpec, gpus: tuple[str, ...]
) -> tuple[UserCalibration, ...]:
    """The last calibration of each deployment that may be met: others must not make equal requests differ."""
    last = {one.deployment: one for one in calibrations}
    return tuple(one for key, one in last.items() if key.model == model.key and key.gpu in gpus)


def _priced_gpu(catalogue: Catalogue, name: str) -> GpuType:
    """As ``catalogue.gpu``, of a price of the user's own."""
    try:
        return catalogue.gpu(name)
    except SpecError as error:
        faults = [replace(one, field="price.usd_per_gpu_hour") for one in error.errors]
        raise SpecError(error.code, error.detail, faults) from None


def _check_offers(price: PriceFilter, catalogue: Catalogue) -> None:
    """A provider, region or term that no offer has is a mistake, not an empty market."""
    for name, wanted in (("provider", price.provider), ("region", price.region), ("term", price.term)):
        known = sorted({str(getattr(offer, name)) for offer in catalogue.prices}, key=str.casefold)
        spellings = known if name == "term" else [*map(str.casefold, known)]
        if wanted is None or not known or (wanted if name == "term" else wanted.casefold()) in spellings:
            continue
        near = get_close_matches(wanted.casefold(), [one.casefold() for one in known], n=3)
        shown = [one for one in known if one.casefold() in near] or known
        cure = f"{'did you mean' if near else 'use one of'} {', '.join(shown[:40])}"
        detail = f"no price of the catalogue has the {name} {wanted[:100]!r}; {cure}"
        raise SpecError("price.unknown", detail, [FieldError(detail, field=f"price.{name}", cure=cure)])


def _price_filter(price: PriceFilter, catalogue: Catalogue) -> PriceFilter:
    _check_offers(price, catalogue)
    own: dict[str, float] = {}
    for name, usd in price.usd_per_gpu_hour.items():
        key = _priced_gpu(catalogue, name).key
        if own.get(key, usd) != usd:
            detail = f"two different prices are given for {key}"
            raise SpecError(
                "price.twice", detail, [FieldError(detail, field="price", cure="give one price a GPU type")]
            )
        own[key] = usd
    return price.model_copy(update={"usd_per_gpu_hour": dict(sorted(own.items()))})


def _offers(catalogue: Catalogue, gpus: tuple[str, ...], price: PriceFilter) -> tuple[Price, ...]:
    return tuple(offer for key in gpus for offer in catalogue.offers(key, price))
