"""Lists that the options repeat, so that a help text needs no slow import, are those of the specs."""

from __future__ import annotations

from typing import get_args

import click
import pytest

from api.cli.options import ROUTERS, cold_starts_of, failures_of
from replay.specs import Router


def test_routers() -> None:
    assert get_args(Router) == ROUTERS


def test_failures_and_late_starts() -> None:
    assert failures_of(("0:60", "1:5.5:120")) == [
        {"replica": 0, "at_s": 60.0},
        {"replica": 1, "at_s": 5.5, "back_after_s": 120.0},
    ]
    assert cold_starts_of(("2:90",)) == [{"replica": 2, "ready_after_s": 90.0}]


@pytest.mark.parametrize("text", ["0", "0:1:2:3", "x:1", "0:soon", ""])
def test_a_failure_that_cannot_be_read_shows_one_that_can(text: str) -> None:
    with pytest.raises(click.UsageError, match=r"--failure takes a replica and times in seconds, e\.g\. 0:60 "):
        failures_of((text,))
