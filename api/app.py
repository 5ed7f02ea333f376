"""The application: ``create_app(settings)`` builds it whole, with no state outside it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version

import structlog
from fastapi import FastAPI
from prometheus_client import start_http_server
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware

from api.context import ApiContext
from api.description import describe_errors_as_problems
from api.health import router as health_router
from api.middleware import RequestContext
from api.origin import LocalGuard, is_loopback, trusted_origins
from api.pages import router as pages_router
from api.problems import install_problem_handlers
from api.replies import install_replay_handler
from api.routes import V1_ROUTES
from models.limits import build_rate_limiter
from models.services import Services, build_services
from models.settings import Settings
from replay.errors import FieldError, SpecError

DESCRIPTION = (
    "Replays production LLM request traces to say how many GPUs, of which type, meet the latency targets, and at what "
    "cost. Long work answers 202 with the job's address; errors are application/problem+json."
)

log = structlog.get_logger(__name__)


def create_app(settings: Settings, services: Services | None = None) -> FastAPI:
    """Builds the application. Nothing is connected to before the first request or the start of the lifespan.

    ``services``: those of the process, where it has some already; then the caller closes them.

    Raises:
        SpecError: without API keys on an address that others can reach.
    """
    check_exposure(settings)
    owned = services is None
    services = services or build_services(settings)
    context = ApiContext(services, build_rate_limiter(settings))

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        server = None
        if settings.metrics_port is not None:
            server, _thread = start_http_server(settings.metrics_port, settings.host, context.metrics.registry)
        log.info("api started", embedded=settings.embedded, auth=settings.auth_required)
        try:
            yield
        finally:
            if server is not None:
                server.shutdown()
                server.server_close()
            if owned:
                services.database.close()

    app = FastAPI(
        title="capreplay",
        version=version("capreplay"),
        description=DESCRIPTION,
        docs_url=None,  # the interactive pages load scripts from elsewhere, which our policy forbids
        redoc_url=None,
        redirect_slashes=False,
        lifespan=lifespan,
        middleware=_middleware(settings, context),
    )
    app.state.context = context
    install_problem_handlers(app)
    install_replay_handler(app)
    # The routes are whole as they are; including their routers would build each a second time, on the first request.
    app.router.routes.extend([*health_router.routes, *V1_ROUTES])
    app.include_router(pages_router)
    describe_errors_as_problems(app)
    return app


def check_exposure(settings: Settings) -> None:
    """Refuses to serve without keys on an address that others can reach.

    Raises:
        SpecError: naming the variables.
    """
    if not settings.auth_required and not is_loopback(settings.host):
        cure = "set CAPREPLAY_AUTH=keys and make a key with `capreplay keys`, or set CAPREPLAY_HOST=127.0.0.1"
        raise SpecError(
            "settings",
            f"{settings.host} can be reached by others, and no API keys are asked for: {cure}",
            [FieldError(cure, field="CAPREPLAY_HOST", cure=cure)],
        )


def _middleware(settings: Settings, context: ApiContext) -> list[Middleware]:
    layers = [Middleware(RequestContext, metrics=context.metrics, settings=settings)]
    if settings.cors_origins:
        layers.append(
            Middleware(
                CORSMiddleware,
                allow_origins=list(settings.cors_origins),
                allow_methods=["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"],
                allow_headers=[
                    "Authorization",
                    "Content-Type",
                    "Content-Digest",
                    "Idempotency-Key",
                    "If-Match",
                    "If-None-Match",
                    "Tus-Resumable",
                    "Upload-Length",
                    "Upload-Metadata",
                    "Upload-Offset",
                ],
                expose_headers=[
                    "ETag",
                    "Location",
                    "Retry-After",
                    "X-Request-Id",
                    "Content-Location",
                    "Tus-Resumable",
                    "Upload-Expires",
                    "Upload-Length",
                    "Upload-Offset",
                ],
            )
        )
    if not settings.auth_required:
        layers.append(Middleware(LocalGuard, trusted=trusted_origins(settings)))
    return layers
