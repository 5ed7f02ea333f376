"""Structured logs for every process: one line an event, with request and job ids; never keys, prompts or trace rows."""

from __future__ import annotations

import logging
import sys
from typing import Any

import structlog

from models.settings import Settings


def configure_logging(settings: Settings) -> None:
    """Sets up structlog and the standard library's loggers alike; to stderr, so that stdout stays for answers."""
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    renderer: Any = (
        structlog.processors.JSONRenderer()
        if settings.log_format == "json"
        else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    )
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(settings.log_level)
    for chatty in ("alembic", "kombu", "amqp", "redbeat", "celery.worker.strategy", "celery.app.trace"):
        logging.getLogger(chatty).setLevel(max(logging.WARNING, root.level))
