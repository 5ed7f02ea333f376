"""The catalogue as a tenant sees it: what ships with the product, and the tenant's own entries over it."""

from __future__ import annotations

from typing import Any

from sqlalchemy.orm import Session

from models.errors import InvalidError, NotFoundError
from models.principal import Principal
from models.repositories import catalogue as entry_rows
from models.services import Services
from models.use_cases import audit
from replay.hardware.catalogue import Catalogue, shipped_catalogue
from replay.hardware.entries import Entry, GpuType, ModelSpec, Price
from replay.hardware.hf_config import model_from_config

_TYPES: dict[str, type[Entry]] = {"gpu": GpuType, "model": ModelSpec, "price": Price}
MAX_ENTRIES = 5000
"""Of one tenant: each plan reads them all."""


def catalogue_for(session: Session, principal: Principal) -> Catalogue:
    """Shipped entries with the tenant's own; the tenant's win."""
    own: dict[str, list[Any]] = {kind: [] for kind in _TYPES}
    for row in entry_rows.list_entries(session, principal.tenant_id):
        own[row.kind].append(_TYPES[row.kind].model_validate(row.document["entry"]))
    return shipped_catalogue().with_entries(gpus=own["gpu"], models=own["model"], prices=own["price"])


def own_keys(session: Session, principal: Principal) -> dict[str, frozenset[str]]:
    """Keys that the tenant added, by kind (``gpu``, ``model``, ``price``)."""
    rows = entry_rows.list_entries(session, principal.tenant_id)
    return {kind: frozenset(row.key for row in rows if row.kind == kind) for kind in _TYPES}


def put_gpu_type(session: Session, principal: Principal, services: Services, entry: GpuType) -> bool:
    """Adds or replaces the tenant's GPU type; True where it was new."""
    return _put(session, principal, services, "gpu", entry.key, entry)


def put_model(session: Session, principal: Principal, services: Services, entry: ModelSpec) -> bool:
    """Adds or replaces the tenant's model spec; True where it was new."""
    return _put(session, principal, services, "model", entry.key, entry)


def put_model_from_config(
    session: Session, principal: Principal, services: Services, key: str, config: dict[str, Any], *, source: str
) -> ModelSpec:
    """Adds a model from a Hugging Face ``config.json``. Raises SpecError naming the field that is missing."""
    entry = model_from_config(config, key, source)
    put_model(session, principal, services, entry)
    return entry


def put_price(session: Session, principal: Principal, services: Services, entry: Price) -> bool:
    """Adds or replaces the tenant's price of this ``id``. Raises SpecError where the GPU type is unknown."""
    gpu = catalogue_for(session, principal).gpu(entry.gpu)
    return _put(session, principal, services, "price", entry.id, entry.model_copy(update={"gpu": gpu.key}))


def delete_entry(session: Session, principal: Principal, services: Services, kind: str, key: str) -> None:
    """Removes one of the tenant's own entries. Raises NotFoundError (also for shipped ones)."""
    principal.require("jobs:write")
    row = entry_rows.find_entry(session, principal.tenant_id, kind, key)
    if row is None:
        raise NotFoundError(f"there is no {kind} {key[:60]!r} of your own", code="catalogue.not_found")
    session.delete(row)
    audit.note(session, principal, services, f"catalogue.{kind}.delete", key)


def _put(session: Session, principal: Principal, services: Services, kind: str, key: str, entry: Entry) -> bool:
    principal.require("jobs:write")
    if not 0 < len(key) <= 300:
        raise InvalidError("the key must have 1 to 300 characters", code="catalogue.key")
    new = entry_rows.find_entry(session, principal.tenant_id, kind, key) is None
    if new and len(entry_rows.list_entries(session, principal.tenant_id)) >= MAX_ENTRIES:
        raise InvalidError(f"a tenant keeps at most {MAX_ENTRIES} entries: delete some", code="catalogue.full")
    document = {"schema_version": 1, "entry": entry.model_dump(mode="json")}
    entry_rows.put_entry(session, principal.tenant_id, kind, key, document, services.clock())
    audit.note(session, principal, services, f"catalogue.{kind}.put", key)
    return new
