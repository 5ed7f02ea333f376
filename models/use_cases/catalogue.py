"""The catalogue as a tenant sees it: what ships with the product, and the tenant's own entries over it."""

from __future__ import annotations

from typing import Any

from sqlalchemy.orm import Session

from models.principal import Principal
from models.services import Services
from replay.hardware.catalogue import Catalogue
from replay.hardware.entries import GpuType, ModelSpec, Price


def catalogue_for(session: Session, principal: Principal) -> Catalogue:
    """Shipped entries with the tenant's own; the tenant's win."""
    raise NotImplementedError


def own_keys(session: Session, principal: Principal) -> dict[str, frozenset[str]]:
    """Keys that the tenant added, by kind (``gpu``, ``model``, ``price``)."""
    raise NotImplementedError


def put_gpu_type(session: Session, principal: Principal, services: Services, entry: GpuType) -> bool:
    """Adds or replaces the tenant's GPU type; True where it was new."""
    raise NotImplementedError


def put_model(session: Session, principal: Principal, services: Services, entry: ModelSpec) -> bool:
    """Adds or replaces the tenant's model spec; True where it was new."""
    raise NotImplementedError


def put_model_from_config(
    session: Session, principal: Principal, services: Services, key: str, config: dict[str, Any], *, source: str
) -> ModelSpec:
    """Adds a model from a Hugging Face ``config.json``. Raises SpecError naming the field that is missing."""
    raise NotImplementedError


def put_price(session: Session, principal: Principal, services: Services, entry: Price) -> bool:
    """Adds or replaces the tenant's price of this ``id``. Raises SpecError where the GPU type is unknown."""
    raise NotImplementedError


def delete_entry(session: Session, principal: Principal, services: Services, kind: str, key: str) -> None:
    """Removes one of the tenant's own entries. Raises NotFoundError (also for shipped ones)."""
    raise NotImplementedError
