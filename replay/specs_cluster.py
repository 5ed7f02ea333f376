"""When replicas are down: failures and late starts, as a user gives them."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

from pydantic import Field

from replay.specs_base import Spec

LATEST_S = 7_776_000
"""90 days, the longest workload."""


class Failure(Spec):
    """A replica that is lost. Its requests start anew on the others."""

    replica: int = Field(ge=0)
    """From 0 on."""
    at_s: float = Field(ge=0, le=LATEST_S)
    """Seconds from the start of the window."""
    back_after_s: float | None = Field(default=None, gt=0, le=LATEST_S)
    """Seconds until it takes work again, empty; ``None``: it stays away."""


class ColdStart(Spec):
    """A replica that is added: it takes work only once its model is loaded."""

    replica: int = Field(ge=0)
    """From 0 on."""
    ready_after_s: float = Field(gt=0, le=LATEST_S)
    """Seconds from the start of the window."""


def check_replicas(given: Iterable[Failure | ColdStart], replicas: int) -> None:
    """Raises ValueError where a replica is named that the deployment does not have."""
    for one in given:
        if one.replica >= replicas:
            named = f"replica {one.replica} does not exist"
            raise ValueError(f"{named}: the deployment has {replicas}, counted from 0 to {replicas - 1}")


def downtimes(failures: Iterable[Failure], cold_starts: Iterable[ColdStart]) -> list[tuple[int, float, float | None]]:
    """(replica, down from s, until s or for ever) in order.

    Raises:
        ValueError: a replica that is lost while it is down.
    """
    spans: list[tuple[int, float, float | None]] = [(one.replica, 0.0, one.ready_after_s) for one in cold_starts]
    spans += [(f.replica, f.at_s, None if f.back_after_s is None else f.at_s + f.back_after_s) for f in failures]
    spans.sort(key=lambda span: span[:2])
    for (replica, start_s, end_s), (other, again_s, _) in pairwise(spans):
        if replica == other and (end_s is None or again_s <= end_s):
            until = "and does not come back" if end_s is None else f"until {end_s:g} s"
            raise ValueError(
                f"replica {replica} is lost at {again_s:g} s, but it is down from {start_s:g} s {until}: "
                "leave one of the two out, or let it come back earlier"
            )
    return spans
