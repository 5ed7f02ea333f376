"""How many requests a workload may have: growth, mixing and agentic depth make more than any trace holds."""

from __future__ import annotations

import math

from replay.errors import curable
from replay.specs_transform import Transform

MAX_REQUESTS = 100_000_000
"""Of one replay, unless the caller says otherwise: two and a half times the largest published trace."""


def check_requests(count: float, transform: Transform, most: int = MAX_REQUESTS) -> None:
    """Refuses a workload of more than ``most`` requests before they are made. ``count``: how many they would be, at
    least.

    Raises:
        TraceError: ``workload.too_many_requests``, with the part of the transform that makes the most of them.
    """
    if round(count) <= most:
        return
    growth = 1.0 if transform.growth_method == "compress" else transform.growth
    factors = {"growth": growth, "agent_steps": float(transform.agent_steps)}
    factors |= {"tenant_growth": max(transform.tenant_growth.values(), default=1.0)}
    field, factor = max(factors.items(), key=lambda one: one[1])
    window = "a shorter window (window_start_s and window_end_s, or busiest_window_s)"
    both = growth > 1 and transform.agent_steps > 1
    fitting = (growth * transform.agent_steps if both else factor) * most / count
    if factor > 1 and field == "tenant_growth":
        cure = f"lower tenant_growth, choose {window}"
    elif factor > 1 and fitting >= 1:
        subject = "growth and agent_steps until their product is" if both else f"{field} to"
        cure = f"lower {subject} {_rounded_down(fitting):g} at most, choose {window}"
    elif transform.mix_with:
        field, cure = "mix_with", f"mix in fewer traces or smaller shares of them, choose {window}"
    else:
        field, cure = "window_end_s", f"choose {window}"
    cure += ", or raise CAPREPLAY_JOB_MAX_REQUESTS if the memory is there"
    what = f"the workload would have {count:,.0f} requests or more; one replay takes {most:,}"
    raise curable("workload.too_many_requests", what, cure, f"transform.{field}", rule="max_requests")


def _rounded_down(value: float) -> float:
    """To three digits, so that what is said is never more than ``value``."""
    unit = 10.0 ** (math.floor(math.log10(value)) - 2)
    return math.floor(value / unit) * unit
