"""``capreplay serve``: the API and the pages, and in embedded mode the worker beside them."""

from __future__ import annotations

import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from api.cli.options import options
from api.cli.output import json_option, print_json
from api.cli.service import data_dir_option, require_schema, settings_with

if TYPE_CHECKING:
    from models.settings import Settings


@click.command("serve", short_help="Start the service: API and pages, and in embedded mode its worker too.")
@options(
    click.option("--host", help="Address to bind to; default: CAPREPLAY_HOST or 127.0.0.1."),
    click.option("--port", type=click.IntRange(0, 65535), help="0: a free one; default: CAPREPLAY_PORT or 8000."),
    data_dir_option,
    click.option("--no-worker", is_flag=True, help="Embedded mode without its worker: jobs wait for capreplay worker."),
    json_option,
)
def command(host: str | None, port: int | None, data_dir: Path | None, no_worker: bool, as_json: bool) -> None:
    """Start the service: API and pages, and in embedded mode its worker too.

    Without a broker (CAPREPLAY_BROKER_URL) the mode is embedded: SQLite, one worker process, only this machine, no
    keys. Prints the address once it is bound; stops on Ctrl-C or SIGTERM.
    """
    from api.app import create_app
    from models.logs import configure_logging
    from models.supervisor import WorkerSupervisor

    settings = settings_with(host=host, port=port, data_dir=data_dir)
    configure_logging(settings)
    with alone(settings):
        require_schema(settings)
        settings.signing_key()  # a damaged one is refused now, not at the first form
        app = create_app(settings)
        listening = bind(settings)
        address = address_of(settings, listening)
        if as_json:
            print_json({"address": address, "data_dir": str(settings.data_dir.absolute())})
        else:
            click.echo(f"capreplay serves {address} (data in {settings.data_dir.absolute()})")
        sys.stdout.flush()
        supervisor = WorkerSupervisor(settings) if settings.embedded and not no_worker else None
        signal.signal(signal.SIGTERM, _stop)
        try:
            if supervisor is not None:
                supervisor.start()
            _serve(app, listening, settings.trusted_proxies)
        finally:
            if supervisor is not None:
                supervisor.stop()


@contextmanager
def alone(settings: Settings) -> Iterator[None]:
    """Holds the data folder of embedded mode; deployments may serve from several processes.

    Raises:
        SpecError: naming the process that has the folder.
    """
    from models.folder_lock import FolderTakenError, hold
    from replay.errors import FieldError, SpecError

    if not settings.embedded:
        yield
        return
    try:
        with hold(settings.data_dir / "serve.lock"):
            yield
    except FolderTakenError as taken:
        cure = "stop it, or choose another folder with --data-dir"
        detail = f"another capreplay serve (process {taken.holder}) has the data folder {settings.data_dir.absolute()}"
        raise SpecError(
            "settings.data_dir", f"{detail}: {cure}", [FieldError(detail, field="--data-dir", cure=cure)]
        ) from None


def bind(settings: Settings) -> socket.socket:
    """The listening socket.

    Raises:
        SpecError: where the address is taken or not this machine's.
    """
    from replay.errors import FieldError, SpecError

    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        return socket.create_server((settings.host, settings.port), family=family, backlog=2048)
    except OSError as error:
        cure = "stop what listens there, or choose another with --port (0 takes a free one)"
        detail = f"cannot listen on {settings.host}:{settings.port}: {(error.strerror or str(error)).lower()}"
        raise SpecError("settings.address", detail, [FieldError(detail, field="--port", cure=cure)]) from None


def address_of(settings: Settings, listening: socket.socket) -> str:
    """What to open in a browser; ``CAPREPLAY_PUBLIC_URL`` where it is set."""
    if settings.public_url:
        return settings.public_url
    name = f"[{settings.host}]" if ":" in settings.host else settings.host
    return f"http://{name}:{listening.getsockname()[1]}"


def _serve(app: Any, listening: socket.socket, trusted_proxies: str) -> None:
    import uvicorn

    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=5,
        forwarded_allow_ips=trusted_proxies,
    )
    try:
        uvicorn.Server(config).run(sockets=[listening])
    finally:
        listening.close()


def _stop(_signal: int, _frame: object) -> None:
    # uvicorn raises the signal again when it has shut down; the worker must be stopped too before the process ends.
    raise SystemExit(0)
