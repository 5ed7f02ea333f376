"""The catalogue: GPU types, models and prices, each figure with its source; and adding one's own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal
from urllib.parse import quote

from fastapi import APIRouter, Query, Request, Response
from pydantic import ValidationError
from sqlalchemy.orm import Session

from api.auth import JobWriter, Reader
from api.deps import CurrentServices, ReadSession, WriteSession
from api.pages.forms import Faults, Form, number
from api.pages.render import CheckedForm, PageRoute, page, see_other
from api.reports.tables import Cell, Column, Table
from api.strict import parse_json
from models.errors import AppError, InvalidError
from models.principal import Principal
from models.use_cases import catalogue
from replay.errors import ReplayError
from replay.hardware.catalogue import Catalogue
from replay.hardware.entries import GpuType, ModelSpec, Price

router = APIRouter(route_class=PageRoute)

Kind = Literal["gpus", "models", "prices"]
_TITLES = {"gpus": "GPU types", "models": "Models", "prices": "Prices"}
MAX_ROWS = 300


@router.get("/catalogue")
def show_catalogue(_principal: Reader) -> Response:
    """The catalogue starts with GPU types."""
    return see_other("/catalogue/gpus")


@router.get("/catalogue/{kind}")
def show_kind(
    request: Request,
    session: ReadSession,
    principal: Reader,
    kind: Kind,
    find: Annotated[str, Query(max_length=100)] = "",
) -> Response:
    """One kind of entry, filtered by a text."""
    return _page(request, session, principal, kind, find, Form(), Faults())


@router.post("/catalogue/{kind}")
def add_entry(
    request: Request,
    form: CheckedForm,
    session: WriteSession,
    services: CurrentServices,
    principal: JobWriter,
    kind: Kind,
) -> Response:
    """Adds or replaces one of the tenant's own entries; a fault shows the form again."""
    faults = Faults()
    try:
        with session.begin_nested():
            if kind == "models":
                key, config = form.text("key"), _json(form, "config", faults)
                if not key:
                    faults.add("key", "name the model, e.g. my-org/my-model")
                if not faults:
                    catalogue.put_model_from_config(
                        session, principal, services, key, config, source="uploaded config.json"
                    )
            elif kind == "gpus":
                entry = _json(form, "entry", faults)
                if not faults:
                    gpu = GpuType.model_validate({"source": "own entry", **entry})
                    catalogue.put_gpu_type(session, principal, services, gpu)
            else:
                price = _price(form, faults)
                if not faults:
                    catalogue.put_price(session, principal, services, Price.model_validate(price))
    except (AppError, ReplayError, ValidationError) as error:
        faults.take(error, _fields(kind))
    if faults:
        return _page(request, session, principal, kind, "", form, faults)
    added = form.text("key" if kind == "models" else "gpu")[:100]
    return see_other(f"/catalogue/{kind}?find={quote(added)}")


def _fields(kind: Kind) -> dict[str, str]:
    if kind == "prices":
        names = ("id", "provider", "gpu", "region", "term", "usd_per_instance_hour", "gpus_per_instance", "date")
        return {name: name for name in names}
    return {"key": "key"} if kind == "models" else {}


def _json(form: Form, name: str, faults: Faults) -> dict[str, Any]:
    try:
        value = parse_json(form.text(name).encode())
    except InvalidError as error:
        faults.add(name, error.detail.replace("the body", "this text"))
        return {}
    if isinstance(value, dict):
        return value
    faults.add(name, "paste a JSON object: it starts with { and ends with }")
    return {}


def _price(form: Form, faults: Faults) -> dict[str, Any]:
    texts = {name: form.text(name) for name in ("provider", "gpu", "region", "term", "date", "instance_type")}
    for name in ("provider", "gpu", "region", "term", "date"):
        if not texts[name]:
            faults.add(name, "this is needed")
    usd = number(form, "usd_per_instance_hour", faults)
    count = number(form, "gpus_per_instance", faults, whole=True) or 1
    if usd is None and not faults.of("usd_per_instance_hour"):
        faults.add("usd_per_instance_hour", "say how many dollars an hour")
    parts = (texts["provider"], texts["gpu"], str(count), texts["region"], texts["term"], texts["instance_type"])
    identity = "own:" + ":".join(part.lower() for part in parts if part)
    return texts | {"id": identity, "usd_per_instance_hour": usd, "gpus_per_instance": count, "source": "own entry"}


def _page(
    request: Request, session: Session, principal: Principal, kind: Kind, find: str, form: Form, faults: Faults
) -> Response:
    known = catalogue.catalogue_for(session, principal)
    own = catalogue.own_keys(session, principal)
    table = _table_of(kind, known)
    rows = [row for row in table.rows if all(word in " ".join(map(str, row)).lower() for word in find.lower().split())]
    shown = Table(f"{table.caption}: {len(rows):,} of {len(table.rows):,}", table.columns, tuple(rows[:MAX_ROWS]))
    return page(
        request,
        "catalogue.html",
        status=422 if faults else 200,
        title=_TITLES[kind],
        kind=kind,
        kinds=_TITLES,
        table=shown,
        cut=max(len(rows) - MAX_ROWS, 0),
        find=find,
        version=known.version,
        own=sorted(own.get(kind.removesuffix("s"), frozenset())),
        form=form,
        faults=faults,
        labels={"config": "config.json", "entry": "Entry"},
        gpus=sorted(known.gpus),
    )


def _table_of(kind: Kind, known: Catalogue) -> Table:
    if kind == "gpus":
        return gpu_table(sorted(known.gpus.values(), key=lambda gpu: (gpu.vendor != "NVIDIA", gpu.vendor, gpu.key)))
    if kind == "models":
        return model_table(sorted(known.models.values(), key=lambda model: model.key.lower()))
    return price_table(sorted(known.prices, key=lambda price: (price.gpu, price.usd_per_gpu_hour)))


def gpu_table(gpus: Sequence[GpuType]) -> Table:
    """GPU types with the figures that plans use."""
    columns = (
        Column("key", "key", "name"),
        Column("vendor", "vendor", "text"),
        Column("memory, GiB", "memory_total_gib"),
        Column("bandwidth, GB/s", "mem_bw_gb_per_s"),
        Column("16 bit, TFLOP/s", "fp16_tflops"),
        Column("8 bit, TFLOP/s", "fp8_tflops"),
        Column("interconnect", "interconnect", "text"),
        Column("GB/s each way", "interconnect_gb_per_s_per_dir"),
        Column("largest group", "max_scaleup_gpus"),
        Column("source", "source", "text"),
    )
    return _table("GPU types", columns, gpus)


def model_table(models: Sequence[ModelSpec]) -> Table:
    """Models with their architecture."""
    columns = (
        Column("key", "key", "name"),
        Column("parameters, 10^9", "total_params_b"),
        Column("layers", "num_layers"),
        Column("hidden", "hidden_size"),
        Column("heads", "num_attention_heads"),
        Column("KV heads", "num_key_value_heads"),
        Column("attention", "attention_kind", "text"),
        Column("experts", "num_experts"),
        Column("weights", "weight_dtype", "text"),
        Column("longest context", "max_position"),
        Column("source", "source", "text"),
    )
    return _table("Models", columns, models)


def price_table(prices: Sequence[Price]) -> Table:
    """Offers with provider, region, term and date."""
    columns = (
        Column("provider", "provider", "text"),
        Column("GPU", "gpu", "name"),
        Column("USD per GPU-hour", "usd_per_gpu_hour", "usd"),
        Column("region", "region", "text"),
        Column("term", "term", "text"),
        Column("instance", "instance_type", "text"),
        Column("GPUs", "gpus_per_instance"),
        Column("as of", "date", "name"),
        Column("source", "source", "text"),
    )
    return _table("Prices in US dollars without tax", columns, prices)


def _table(caption: str, columns: tuple[Column, ...], entries: Sequence[GpuType | ModelSpec | Price]) -> Table:
    rows: list[tuple[Cell, ...]] = [tuple(getattr(entry, column.key) for column in columns) for entry in entries]
    return Table(caption, columns, tuple(rows))
