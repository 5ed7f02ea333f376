"""Catalogue entries as the API takes and gives them: the domain's entries, bounded, with where they come from."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints, computed_field

from api.schemas.common import Body, BoundedObject, Label, Out
from replay.hardware.entries import GpuType, ModelSpec, Price

Origin = Literal["shipped", "own"]
Key = Annotated[str, StringConstraints(min_length=1, max_length=100, pattern=r"^[A-Za-z0-9][A-Za-z0-9._+-]*$")]
ModelKey = Annotated[str, StringConstraints(min_length=1, max_length=200, pattern=r"^[A-Za-z0-9][A-Za-z0-9._+/-]*$")]
Note = Annotated[str, StringConstraints(max_length=2000)]
Source = Annotated[
    str, StringConstraints(min_length=1, max_length=500), Field(description="Where the figures come from")
]
Day = Annotated[str, StringConstraints(pattern=r"^\d{4}-\d{2}-\d{2}$"), Field(description="Date of the figures")]
_Rate = Annotated[float, Field(gt=0, le=1e7)]


class GpuTypeRequest(GpuType):
    """A GPU type of the tenant's own; the same key replaces."""

    key: Key
    vendor: Annotated[str, StringConstraints(min_length=1, max_length=100)]
    aliases: tuple[Annotated[str, StringConstraints(min_length=1, max_length=100)], ...] = Field(
        default=(), max_length=20
    )
    memory_spec_gb: Annotated[float, Field(gt=0, le=100_000)]
    memory_total_gib: Annotated[float, Field(gt=0, le=100_000)]
    mem_bw_gb_per_s: _Rate
    fp16_tflops: _Rate
    fp8_tflops: _Rate | None = None
    fp4_tflops: _Rate | None = None
    int8_tops: _Rate | None = None
    interconnect: Annotated[str, StringConstraints(max_length=100)] = "PCIe"
    interconnect_gb_per_s_per_dir: _Rate | None = None
    pcie_gb_per_s_per_dir: _Rate | None = None
    max_scaleup_gpus: Annotated[int, Field(ge=1, le=1024)] = 1
    compute_capability: Annotated[str, StringConstraints(max_length=20)] | None = None
    source: Source
    date: Day | None = None
    notes: Note = ""

    def entry(self) -> GpuType:
        """The entry alone."""
        return GpuType.model_validate(self.model_dump())


class ModelConfigRequest(Body):
    """A model of the tenant's own, from its Hugging Face ``config.json``; the same key replaces."""

    key: ModelKey
    config: BoundedObject = Field(description="The content of config.json, as it is")
    source: Annotated[str, StringConstraints(max_length=500)] = Field(
        default="", description="Where the file comes from; empty: uploaded over the API"
    )


class PriceRequest(Price):
    """A price of the tenant's own; the same id replaces."""

    id: Key
    provider: Annotated[Label, Field(min_length=1, max_length=100)]
    instance_type: Annotated[Label, Field(max_length=100)] = ""
    gpu: Annotated[str, StringConstraints(min_length=1, max_length=100)]
    gpus_per_instance: Annotated[int, Field(ge=1, le=1024)] = 1
    region: Annotated[Label, Field(min_length=1, max_length=100)]
    term: Annotated[Label, Field(min_length=1, max_length=100)] = "on_demand"
    usd_per_instance_hour: Annotated[float, Field(gt=0, le=1e6)]
    date: Day
    source: Source
    licence: Annotated[str, StringConstraints(max_length=200)] = ""
    notes: Note = ""

    def entry(self) -> Price:
        """The entry alone."""
        return Price.model_validate(self.model_dump())


class GpuTypeOut(GpuType):
    """A GPU type; each figure with its source and date."""

    origin: Origin


class ModelSpecOut(ModelSpec):
    """A model's architecture."""

    origin: Origin


class PriceOut(Price):
    """One offer."""

    origin: Origin

    @computed_field  # type: ignore[prop-decorator]  # mypy knows no decorated properties; pydantic documents this form
    @property
    def usd_per_gpu_hour(self) -> float:
        """The instance's price over its GPUs; whole instances are billed."""
        return super().usd_per_gpu_hour


class EngineKnobOut(Out):
    """One setting of an engine, under the engine's own name; null bounds are none."""

    name: str
    type: Literal["int", "float", "bool", "text"]
    low: float | None
    high: float | None
    choices: list[str]
    """The words that a text knob takes; none: any text."""


class EngineOut(Out):
    """An engine preset; any release of the same engine may be named too, e.g. ``vllm-0.19.0``."""

    key: str
    title: str


class EngineList(Out):
    """All presets, and the knobs that ``engine.overrides`` takes; a preset refuses those of another scheduler."""

    items: list[EngineOut]
    knobs: list[EngineKnobOut]
