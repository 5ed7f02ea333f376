"""A user's own calibration: what measurements of one deployment changed in the shipped step times, and how sure.

Few numbers on top of a shipped record; the physics stays. No numpy here: jobs store it and ``api`` reads it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated, Literal

from pydantic import Field, model_validator

from replay.engines import EngineConfig
from replay.errors import FieldError, SpecError
from replay.hardware.dtypes import kv_format, weight_format
from replay.hardware.entries import ModelSpec
from replay.specs_base import Spec

ParameterName = Literal["kernels_factor", "decode_attention_factor", "decode_row_s", "host_s", "request_s"]
PARAMETERS: tuple[ParameterName, ...] = (
    "kernels_factor",
    "decode_attention_factor",
    "decode_row_s",
    "host_s",
    "request_s",
)
Phase = Literal["prefill", "decode", "mixed", "first token", "request"]
"""What a measurement times: a step with prompt tokens, with decodes, with both; an idle server's first token; or whole
requests."""
PHASES: tuple[Phase, ...] = ("prefill", "decode", "mixed")
MEANING: dict[ParameterName, str] = {
    "kernels_factor": "GEMMs, prefill attention and all-reduces, over the shipped times",
    "decode_attention_factor": "decode attention, over the shipped times",
    "decode_row_s": "sampling and bookkeeping of one decode in one step",
    "host_s": "scheduler and input preparation of a step",
    "request_s": "from sending a request to the engine's seeing it",
}


KNOT_MEANING = "GEMMs and all-reduces of a step of so many tokens, over the shipped times"
FACTORS = (0.05, 20.0)
"""Between these a factor is possible."""
FEWEST_OF_A_PHASE = 10
"""Of fewer left-out measurements no error of a phase is stated."""


class _Part(Spec):
    """Of a calibration."""


class DeploymentKey(_Part):
    """What a calibration holds for: another engine release of the same family is taken to be the same server."""

    model: str = Field(min_length=1, max_length=300)
    gpu: str = Field(min_length=1, max_length=100)
    tp: int = Field(ge=1, le=64)
    family: str = Field(max_length=20)
    weight_dtype: str = Field(max_length=40)
    kv_dtype: str = Field(max_length=40)


class Parameter(_Part):
    """One constant: ``value`` counts. Where it is not ``identified`` it is the shipped one, and ``reason`` says why."""

    name: ParameterName
    value: float
    shipped: float
    sd: float | None
    """Standard deviation by the data and the shipped value together; ``None``: not fitted."""
    identified: bool
    reason: str = Field(default="", max_length=300)

    @model_validator(mode="after")
    def _possible(self) -> Parameter:
        low, high = FACTORS if self.name.endswith("factor") else (0.0, 1.0)
        if not low <= self.value <= high:
            raise ValueError(f"{self.name} is {self.value:g}, which is not between {low:g} and {high:g}")
        return self


class Knot(_Part):
    """The time of a step's linear part (GEMMs, all-reduces) at one size: ``factor`` times the shipped one."""

    tokens: int = Field(ge=1, le=2**31)
    shipped_s: float = Field(gt=0, le=100)
    factor: float = Field(ge=FACTORS[0], le=FACTORS[1])
    prior: float = Field(gt=0)
    """The common factor of all sizes, at which it stays where it is not ``identified``."""
    sd: float | None
    identified: bool
    reason: str = Field(default="", max_length=300)


class Shape(_Part):
    """The linear part's own shape: linear in tokens from knot to knot; beyond the ends, which are the smallest and the
    largest measured size, the shipped time with the end's factor."""

    knots: tuple[Knot, ...] = Field(min_length=2, max_length=8)
    error: float = Field(ge=0)
    """Of left-out steps: the mean over shapes of |mean error|."""
    unbent_error: float = Field(ge=0)
    """The same with the shipped shape."""

    @model_validator(mode="after")
    def _grows(self) -> Shape:
        for one, more in pairwise(self.knots):
            if one.tokens >= more.tokens or one.factor * one.shipped_s > more.factor * more.shipped_s * (1 + 1e-9):
                raise ValueError("knots must be in order of tokens, and more tokens must not take less time")
        return self


class ErrorFigures(_Part):
    """Errors |predicted / measured - 1| of measurements that the fit did not see."""

    what: str = Field(max_length=100)
    phase: Phase | None = None
    """``None``: of several."""
    n: int = Field(ge=1)
    median: float
    p95: float
    shipped_median: float
    """The same of the shipped step times."""


class Residual(_Part):
    """One measurement beside what the calibration says of it."""

    label: str = Field(max_length=200)
    phase: Phase | None = None
    """``None``: not known."""
    measured_s: float = Field(gt=0)
    predicted_s: float = Field(gt=0)


class UserCalibration(_Part):
    """Fitted on one deployment, and used for it alone."""

    schema_version: Literal[1, 2] = 1
    """2: with a ``shape``."""
    deployment: DeploymentKey
    base_id: str = Field(max_length=200)
    """Calibration id of the shipped step times that the parameters stand on."""
    async_scheduling: bool
    parameters: tuple[Parameter, ...] = Field(min_length=5, max_length=5)
    shape: Shape | None = Field(default=None, exclude_if=lambda shape: shape is None)
    """With it ``kernels_factor`` is of prefill attention alone. Absent as in version 1, whose ids thus stay."""
    errors: tuple[ErrorFigures, ...] = Field(max_length=10)
    """By cross-validation; empty where there was too little to leave anything out."""
    residuals: tuple[Residual, ...] = Field(default=(), max_length=400)
    sources: tuple[Annotated[str, Field(max_length=300)], ...] = Field(min_length=1, max_length=100)
    measurements: int = Field(ge=1)
    date: str = Field(pattern=r"^\d{4}-\d{2}-\d{2}$")
    notes: tuple[Annotated[str, Field(max_length=500)], ...] = Field(default=(), max_length=20)

    @model_validator(mode="after")
    def _each_once(self) -> UserCalibration:
        if tuple(one.name for one in self.parameters) != PARAMETERS:
            raise ValueError(f"parameters must be {', '.join(PARAMETERS)}, in this order")
        if (self.shape is not None) != (self.schema_version == 2):
            raise ValueError("a shape makes schema_version 2, and only a shape does")
        return self

    @property
    def id(self) -> str:
        """``user/`` and the start of the content's SHA-256: another fit is another calibration."""
        text = json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"), allow_nan=False)
        return f"user/{hashlib.sha256(text.encode()).hexdigest()[:16]}"

    def value(self, name: ParameterName) -> float:
        """The value of a parameter."""
        return next(one.value for one in self.parameters if one.name == name)

    def meaning(self, name: ParameterName) -> str:
        """What a parameter is."""
        if self.shape is not None and name == "kernels_factor":
            return "prefill attention, over the shipped times; the linear part has a shape of its own"
        return MEANING[name]

    @property
    def headline(self) -> ErrorFigures | None:
        """The error that stands for the whole: of E2E where requests were measured; ``None``: not known."""
        return next((one for one in self.errors if "E2E" in one.what), self.errors[0] if self.errors else None)

    @property
    def stated_error(self) -> str:
        """The sentence on errors for reports."""
        shown = self.headline
        if shown is None:
            return f"fitted on {self.measurements} measurements of this deployment, error not known (too few to check)"
        figures = f"median {shown.median:.1%}, p95 {shown.p95:.1%} of {shown.n} left out of the fit"
        p95 = {one.phase: one.p95 for one in self.errors if one.n >= FEWEST_OF_A_PHASE}
        if "prefill" in p95 and "decode" in p95:
            figures += f" (prefill p95 {p95['prefill']:.1%}, decode p95 {p95['decode']:.1%})"
        of_requests = [next((one.p95 for one in self.errors if what in one.what), None) for what in ("TTFT", "ITL")]
        if "E2E" in shown.what and None not in of_requests:
            figures += f" (TTFT p95 {of_requests[0]:.1%}, ITL p95 {of_requests[1]:.1%})"
        return f"{shown.what} as measured on this deployment: {figures.replace('%', ' %')}"


def deployment_key(
    model: ModelSpec, gpu_key: str, tp: int, engine: EngineConfig, weight_dtype: str | None, kv_dtype: str | None
) -> DeploymentKey:
    """The key of a deployment, dtypes spelled out."""
    family = engine.scheduler if engine.scheduler in ("sglang", "trtllm", "tgi-v2", "tgi-v3") else "vllm"
    return DeploymentKey(
        model=model.key,
        gpu=gpu_key,
        tp=tp,
        family=family,
        weight_dtype=weight_format(weight_dtype, model.weight_dtype),
        kv_dtype=kv_format(kv_dtype),
    )


def matching(calibrations: Sequence[UserCalibration], key: DeploymentKey) -> UserCalibration | None:
    """The calibration of a deployment: the last given that fits; ``None`` where there is none."""
    return next((one for one in reversed(calibrations) if one.deployment == key), None)


def parse_calibration(document: object) -> UserCalibration:
    """A calibration from its JSON form.

    Raises:
        SpecError: ``calibration.file`` where it is none.
    """
    try:
        return UserCalibration.model_validate(document)
    except ValueError as error:
        cure = "give the file that capreplay calibrate --output wrote"
        detail = "the file holds no calibration"
        raise SpecError("calibration.file", detail, [FieldError(detail, field="calibration", cure=cure)]) from error
