"""The catalogue as the routes show it: entries with where they come from."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from sqlalchemy.orm import Session

from api.schemas.catalogue import EngineKnobOut, EngineList, EngineOut, GpuTypeOut, ModelSpecOut, Origin, PriceOut
from models.errors import NotFoundError
from models.principal import Principal
from models.use_cases.catalogue import catalogue_for, own_keys
from replay.engine_families import FAMILY_KNOBS
from replay.engines import KNOBS, PRESETS
from replay.errors import SpecError
from replay.hardware.catalogue import Catalogue
from replay.hardware.entries import GpuType, ModelSpec, Price

_KINDS: dict[type, Literal["int", "float", "bool", "text"]] = {int: "int", float: "float", bool: "bool", str: "text"}


@dataclass(frozen=True)
class CatalogueView:
    """A tenant's catalogue and which keys are the tenant's own."""

    catalogue: Catalogue
    own: dict[str, frozenset[str]]

    @classmethod
    def of(cls, session: Session, principal: Principal) -> CatalogueView:
        """Read from the database over what ships."""
        return cls(catalogue_for(session, principal), own_keys(session, principal))

    def _origin(self, kind: str, key: str) -> Origin:
        return "own" if key in self.own.get(kind, frozenset()) else "shipped"

    def gpu_types(self) -> list[GpuType]:
        """All GPU types."""
        return list(self.catalogue.gpus.values())

    def models(self) -> list[ModelSpec]:
        """All models."""
        return list(self.catalogue.models.values())

    def prices(self, *, gpu: str | None, provider: str | None, region: str | None, term: str | None) -> list[Price]:
        """Offers that pass the filters; ``gpu`` by key or alias.

        Raises:
            SpecError: the GPU type is unknown.
        """
        wanted = {
            "gpu": self.catalogue.gpu(gpu).key if gpu is not None else None,
            "provider": provider,
            "region": region,
            "term": term,
        }
        return [
            price
            for price in self.catalogue.prices
            if all(
                text is None or str(getattr(price, name)).casefold() == text.casefold() for name, text in wanted.items()
            )
        ]

    def gpu_type(self, key: str) -> GpuType:
        """One GPU type. Raises NotFoundError naming the nearest."""
        try:
            return self.catalogue.gpu(key)
        except SpecError as error:
            raise NotFoundError(error.detail, code=error.code, errors=error.errors) from error

    def model(self, key: str) -> ModelSpec:
        """One model. Raises NotFoundError naming the nearest."""
        try:
            return self.catalogue.model(key)
        except SpecError as error:
            raise NotFoundError(error.detail, code=error.code, errors=error.errors) from error

    def gpu_out(self, gpu: GpuType) -> GpuTypeOut:
        """As the API shows it."""
        return GpuTypeOut(**gpu.model_dump(), origin=self._origin("gpu", gpu.key))

    def model_out(self, model: ModelSpec) -> ModelSpecOut:
        """As the API shows it."""
        return ModelSpecOut(**model.model_dump(), origin=self._origin("model", model.key))

    def price_out(self, price: Price) -> PriceOut:
        """As the API shows it."""
        origin = self._origin("price", price.id)
        return PriceOut(**price.model_dump(), origin=origin)


def engine_list() -> EngineList:
    """All engine presets and knobs."""

    def bound(value: float) -> float | None:
        return value if math.isfinite(value) else None

    return EngineList(
        items=[EngineOut(key=key, title=title) for key, title in PRESETS.items()],
        knobs=[
            EngineKnobOut(
                name=name,
                type=_KINDS[knob.kind],
                low=bound(knob.low),
                high=bound(knob.high),
                choices=list(knob.choices),
            )
            for name, knob in sorted((KNOBS | FAMILY_KNOBS).items())
        ],
    )
