"""Lists that the options repeat, so that a help text needs no slow import, are those of the specs."""

from __future__ import annotations

from typing import get_args

from api.cli.options import ROUTERS
from replay.specs import Router


def test_routers() -> None:
    assert get_args(Router) == ROUTERS
