"""A request to calibrate: which server was measured, and which files say how fast it was."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from replay.engines import resolve_engine
from replay.hardware.catalogue import Catalogue
from replay.hardware.dtypes import kv_format, weight_format
from replay.hardware.entries import GpuType, ModelSpec
from replay.hardware.feasibility import check_parallelism
from replay.specs import DeploymentSpec, EngineSpec
from replay.specs_base import Spec

MAX_FILES = 20
MAX_BYTES = 256 * 1024**2
"""Of all files as they are sent, and of each decompressed."""
FileName = Annotated[str, Field(max_length=60, pattern=r"^[^/.\x00-\x1f\x7f][^/\x00-\x1f\x7f]*$")]
"""The last part of a path; the worker gives the file this name again."""


class MeasuredDeployment(Spec):
    """One replica of the server that was measured, with the engine's settings as it had them."""

    model: str = Field(min_length=1, max_length=300)
    gpu: str = Field(min_length=1, max_length=100)
    tp: int = Field(default=1, ge=1, le=64)
    engine: EngineSpec = EngineSpec()
    weight_dtype: str | None = None
    """``None``: as the model is published."""
    kv_dtype: str | None = None
    """``None``: the model's activation dtype."""
    max_model_len: int | None = Field(default=None, ge=1)
    """``None``: the model's maximum position."""

    def spec(self) -> DeploymentSpec:
        """As ``resolve_deployment`` takes it."""
        return DeploymentSpec.model_validate(self.model_dump())


class MeasurementFile(Spec):
    """One file: its name, which reports of the fit use, and the hash of its content."""

    name: FileName
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


class ResolvedCalibration(BaseModel):
    """What a job fits, complete in itself."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    schema_version: Literal[1] = 1
    deployment: MeasuredDeployment
    model: ModelSpec
    gpu: GpuType
    files: tuple[MeasurementFile, ...] = Field(min_length=1, max_length=MAX_FILES)


def resolve_calibration(
    deployment: MeasuredDeployment, catalogue: Catalogue, files: tuple[MeasurementFile, ...]
) -> ResolvedCalibration:
    """Looks up model and GPU type, and tries parallelism, number formats and knobs.

    Raises:
        SpecError: unknown or ambiguous names, with the nearest ones; unknown or contradictory knobs.
    """
    model, gpu = catalogue.model(deployment.model), catalogue.gpu(deployment.gpu)
    check_parallelism(model, gpu, deployment.tp, weight_format(deployment.weight_dtype, model.weight_dtype))
    kv_format(deployment.kv_dtype)
    resolve_engine(deployment.engine, gpu, model, deployment.max_model_len, deployment.tp)
    named = deployment.model_copy(update={"model": model.key, "gpu": gpu.key})
    return ResolvedCalibration(deployment=named, model=model, gpu=gpu, files=files)
