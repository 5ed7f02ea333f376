"""GPU types, models, prices and engines: what ships with the product, and the tenant's own over it."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request
from starlette.responses import Response

from api.auth import JobWriter, Reader
from api.catalogue_views import CatalogueView, engine_list
from api.deps import LABEL, CurrentServices, Paging, ReadSession, WriteSession
from api.pagination import ListPage, key_page
from api.replies import PostReply, entity
from api.schemas.catalogue import (
    EngineList,
    GpuTypeOut,
    GpuTypeRequest,
    ModelConfigRequest,
    ModelSpecOut,
    PriceOut,
    PriceRequest,
)
from api.schemas.common import problems
from api.strict import StrictRoute
from models.use_cases import catalogue as use_cases

router = APIRouter(prefix="/v1", tags=["catalogue"], route_class=StrictRoute)

Filter = Annotated[str | None, Query(max_length=100, pattern=LABEL)]
EntryKey = Annotated[str, Path(max_length=300, pattern=LABEL)]


@router.get("/gpu-types", operation_id="list_gpu_types", responses=problems(), summary="GPU types by key")
def list_gpu_types(principal: Reader, session: ReadSession, paging: Paging) -> ListPage[GpuTypeOut]:
    """Shipped ones and the tenant's own; each figure with its source and date."""
    view = CatalogueView.of(session, principal)
    return key_page(paging, view.gpu_types(), lambda gpu: gpu.key, view.gpu_out)


@router.post(
    "/gpu-types",
    operation_id="put_gpu_type",
    status_code=201,
    response_model=GpuTypeOut,
    responses={200: {"model": GpuTypeOut, "description": "Replaced"}, **problems(400, 413, 415)},
    summary="Add or replace a GPU type",
)
def put_gpu_type(
    principal: JobWriter, reply: PostReply, session: WriteSession, services: CurrentServices, body: GpuTypeRequest
) -> Response:
    """For this tenant; beats a shipped one of the same key. 201 where it is new, 200 where it replaces."""
    entry = body.entry()
    created = use_cases.put_gpu_type(session, principal, services, entry)
    answer = GpuTypeOut(**entry.model_dump(), origin="own")
    return reply.send(201 if created else 200, answer, location=f"/v1/gpu-types/{entry.key}")


@router.get(
    "/gpu-types/{key}",
    operation_id="get_gpu_type",
    response_model=GpuTypeOut,
    responses=problems(404),
    summary="One GPU type",
)
def get_gpu_type(request: Request, principal: Reader, session: ReadSession, key: EntryKey) -> Response:
    """By key or alias; a near miss names the nearest."""
    view = CatalogueView.of(session, principal)
    return entity(request, view.gpu_out(view.gpu_type(key)))


@router.get("/model-specs", operation_id="list_model_specs", responses=problems(), summary="Models by key")
def list_model_specs(principal: Reader, session: ReadSession, paging: Paging) -> ListPage[ModelSpecOut]:
    """Shipped ones and the tenant's own."""
    view = CatalogueView.of(session, principal)
    return key_page(paging, view.models(), lambda model: model.key, view.model_out)


@router.post(
    "/model-specs",
    operation_id="put_model_spec",
    status_code=201,
    response_model=ModelSpecOut,
    responses=problems(400, 413, 415),
    summary="Add or replace a model by its config.json",
)
def put_model_spec(
    principal: JobWriter, reply: PostReply, session: WriteSession, services: CurrentServices, body: ModelConfigRequest
) -> Response:
    """A field that the file lacks is named; nothing is guessed."""
    source = body.source or "config.json uploaded over the API"
    config: dict[str, Any] = body.config
    entry = use_cases.put_model_from_config(session, principal, services, body.key, config, source=source)
    answer = ModelSpecOut(**entry.model_dump(), origin="own")
    return reply.send(201, answer, location=f"/v1/model-specs/{entry.key}")


@router.get(
    "/model-specs/{key:path}",
    operation_id="get_model_spec",
    response_model=ModelSpecOut,
    responses=problems(404),
    summary="One model",
)
def get_model_spec(request: Request, principal: Reader, session: ReadSession, key: EntryKey) -> Response:
    """By key, alias or Hugging Face id; a near miss names the nearest."""
    view = CatalogueView.of(session, principal)
    return entity(request, view.model_out(view.model(key)))


@router.get("/prices", operation_id="list_prices", responses=problems(), summary="Prices by id")
def list_prices(
    principal: Reader,
    session: ReadSession,
    paging: Paging,
    gpu: Filter = None,
    provider: Filter = None,
    region: Filter = None,
    term: Filter = None,
) -> ListPage[PriceOut]:
    """Each offer with provider, region, term, date and source."""
    view = CatalogueView.of(session, principal)
    offers = view.prices(gpu=gpu, provider=provider, region=region, term=term)
    return key_page(paging, offers, lambda price: price.id, view.price_out)


@router.post(
    "/prices",
    operation_id="put_price",
    status_code=201,
    response_model=PriceOut,
    responses={200: {"model": PriceOut, "description": "Replaced"}, **problems(400, 413, 415)},
    summary="Add or replace a price",
)
def put_price(
    principal: JobWriter, reply: PostReply, session: WriteSession, services: CurrentServices, body: PriceRequest
) -> Response:
    """For this tenant. 201 where it is new, 200 where it replaces."""
    entry = body.entry()
    created = use_cases.put_price(session, principal, services, entry)
    answer = PriceOut(**entry.model_dump(), origin="own")
    return reply.send(201 if created else 200, answer)


@router.delete(
    "/gpu-types/{key}",
    operation_id="delete_gpu_type",
    status_code=204,
    responses=problems(404),
    summary="Remove a GPU type of the tenant's own",
)
def delete_gpu_type(principal: JobWriter, session: WriteSession, services: CurrentServices, key: EntryKey) -> None:
    """A shipped one of the same key counts again."""
    use_cases.delete_entry(session, principal, services, "gpu", key)


@router.delete(
    "/model-specs/{key:path}",
    operation_id="delete_model_spec",
    status_code=204,
    responses=problems(404),
    summary="Remove a model of the tenant's own",
)
def delete_model_spec(principal: JobWriter, session: WriteSession, services: CurrentServices, key: EntryKey) -> None:
    """A shipped one of the same key counts again."""
    use_cases.delete_entry(session, principal, services, "model", key)


@router.delete(
    "/prices/{key}",
    operation_id="delete_price",
    status_code=204,
    responses=problems(404),
    summary="Remove a price of the tenant's own",
)
def delete_price(principal: JobWriter, session: WriteSession, services: CurrentServices, key: EntryKey) -> None:
    """By its id. A shipped one of the same id counts again."""
    use_cases.delete_entry(session, principal, services, "price", key)


@router.get("/engines", operation_id="list_engines", response_model=EngineList, responses=problems())
def list_engines(request: Request, principal: Reader) -> Response:
    """Engine presets and their knobs, under the engines' own names."""
    return entity(request, engine_list())
