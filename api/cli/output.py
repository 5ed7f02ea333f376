"""What the verbs print: one JSON object or plain tables on stdout, progress on stderr."""

from __future__ import annotations

import json
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


def json_option(function: F) -> F:
    """Adds ``--json``."""
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout.")(function)


def print_json(document: Any) -> None:
    """Prints one JSON value; a NaN or an infinity is a fault, never text."""
    click.echo(json.dumps(document, indent=2, allow_nan=False))


def table(
    head: Sequence[str], rows: Sequence[Sequence[str]], *, left: Sequence[int] = (0,), wrap: int | None = None
) -> str:
    """A plain text table: ``left`` columns are aligned left, the others right; ``wrap`` bounds the last column."""
    if wrap is not None:
        rows = [line for row in rows for line in _wrapped(row, wrap)]
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]

    def line(cells: Sequence[str]) -> str:
        padded = (c.ljust(w) if i in left else c.rjust(w) for i, (c, w) in enumerate(zip(cells, widths, strict=True)))
        return "  ".join(padded).rstrip()

    return "\n".join([line(head), "  ".join("-" * w for w in widths), *(line(row) for row in rows)])


def _wrapped(row: Sequence[str], width: int) -> list[Sequence[str]]:
    first, *others = textwrap.wrap(row[-1], width) or [""]
    blank = [""] * (len(row) - 1)
    return [(*row[:-1], first), *((*blank, text) for text in others)]


class Progress:
    """Progress on stderr: one rewritten line on a terminal, else a line for each new stage."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._live = sys.stderr.isatty()
        self._quiet = quiet
        self._stage = ""
        self._shown_at = 0.0
        self._lock = threading.Lock()

    def __call__(self, stage: str, fraction: float | None = None) -> None:
        if not self._quiet:
            with self._lock:
                self._show(stage, fraction)

    def _show(self, stage: str, fraction: float | None) -> None:
        if not self._live:
            if stage != self._stage:
                click.echo(f"... {stage}", err=True)
            self._stage = stage
            return
        now = time.monotonic()
        if stage == self._stage and now - self._shown_at < 0.1 and fraction != 1.0:
            return
        self._stage, self._shown_at = stage, now
        share = "" if fraction is None else f" {min(max(fraction, 0.0), 1.0):4.0%}"
        click.echo(f"\r\x1b[K{stage}{share}", err=True, nl=False)

    def done(self) -> None:
        """Clears the live line."""
        if self._live and not self._quiet and self._stage:
            click.echo("\r\x1b[K", err=True, nl=False)
            self._stage = ""
