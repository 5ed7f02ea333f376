"""How a trace becomes the workload of a what-if: window, tenants, ties, growth, burstiness, lengths, prefix sharing."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from replay.specs_base import Spec

GrowthMethod = Literal["superpose", "shift", "compress"]
Spread = Literal["keep", "even", "uniform"]
ZeroOutput = Literal["count_out", "keep_as_one", "drop", "infer"]
MixAlign = Literal["start", "clock"]
Cancels = Literal["as_logged", "at_their_time", "at_their_time_drawn"]

MAX_GROWTH = 1000.0

Tenant = Annotated[str, Field(min_length=1, max_length=1000)]
Tokens = Annotated[int, Field(ge=-(2**24), le=2**24)]
Cap = Annotated[int, Field(ge=1, le=2**24)]


class MixedTrace(Spec):
    """Another trace whose load is added: of services that will share the cluster, or of a region that fails over."""

    trace: str = Field(min_length=1, max_length=500)
    """Over REST the id of a ready trace, on the command line its file."""
    name: str = Field(default="", max_length=100, pattern=r"^[^\x00-\x1f\x7f/]*$")
    """Its tenants become ``name/tenant``, or ``name`` where it has none; empty: the trace's own name."""
    share: float = Field(default=1.0, gt=0, le=1)
    """Part of its load that is added, drawn (seeded): whole sessions where it has them, else single requests."""

    def named(self, trace_name: str) -> MixedTrace:
        """This with the trace's own name, unless it was given one."""
        own = "".join("_" if one == "/" or not one.isprintable() else one for one in trace_name)
        return self if self.name else self.model_copy(update={"name": own[:100]})


class Transform(Spec):
    """How a trace becomes the workload of a what-if. The default is the trace as it was sent.

    Applied in the order of the fields: mixing, window, tenants, unknown outputs, ties, growth, burstiness, agentic
    depth, lengths, prefix sharing, then what is scored. All that draws is seeded by the ``seed`` beside the transform.
    """

    mix_with: tuple[MixedTrace, ...] = Field(default=(), max_length=8)
    """Further traces whose load is added."""
    mix_align: MixAlign = "start"
    """Whether all begin together, or keep the times of their clocks."""
    window_start_s: float | None = Field(default=None, ge=0)
    window_end_s: float | None = Field(default=None, gt=0)
    window_from: str | None = Field(default=None, max_length=64)
    """The window's start as a date and time (ISO 8601); without an offset it is in the trace's zone."""
    window_until: str | None = Field(default=None, max_length=64)
    """The window's end (excluded), as ``window_from``."""
    busiest_window_s: float | None = Field(default=None, gt=0)
    """Only the window of this length in which the most requests arrive, wherever it begins."""
    window_load_quantile: float = Field(default=1.0, gt=0, le=1)
    """Of the whole windows of ``busiest_window_s`` end to end, the one at this quantile of load. 1: the busiest."""
    tenants: tuple[Tenant, ...] = Field(default=(), max_length=1000)
    """Only these tenants; empty: all. ``(none)`` stands for requests without one."""
    without_tenants: tuple[Tenant, ...] = Field(default=(), max_length=1000)
    """All but these tenants."""
    zero_output: ZeroOutput = "count_out"
    """Requests whose output is 0 or unknown: left out and counted against ``max_excluded_share``; replayed with one
    output token; dropped as no load; or given the output of a request with a prompt of about their length (drawn)."""
    cancels: Cancels = "as_logged"
    """Aborted requests: as long as the tokens that the trace counts; or until their clients leave, as long after
    sending as the trace says, if they have not had these tokens before; or until then, with answers as long as others
    (drawn)."""
    spread: Spread = "keep"
    """Requests that share a tick of the trace's clock: as they are, evenly over the tick, or uniformly drawn in it."""
    growth: float = Field(default=1.0, gt=0, le=MAX_GROWTH)
    """Load factor; below 1 by thinning, unless time is compressed. All methods are seeded."""
    growth_method: GrowthMethod = "superpose"
    """``superpose``: copies at almost the same time, so that bursts grow too; ``shift``: copies moved to another time,
    so that bursts of copies do not meet; ``compress``: the same requests in less time."""
    growth_shift_s: float | None = Field(default=None, gt=0)
    """Under ``shift``, how far a copy is moved at most, either way; ``None``: anywhere in the window."""
    tenant_growth: dict[Tenant, Annotated[float, Field(gt=0, le=MAX_GROWTH)]] = Field(
        default_factory=dict, max_length=1000
    )
    """Load factor of single tenants, on top of ``growth``."""
    burstiness: float = Field(default=1.0, ge=0, le=8)
    """Power of the gaps between arrivals at the same mean rate: 0 even, 1 as recorded, above 1 burstier."""
    burstiness_window_s: float = Field(default=60.0, gt=0)
    """Gaps are reshaped within windows of this length, which keep their number of requests."""
    agent_steps: int = Field(default=1, ge=1, le=100)
    """Each request becomes a chain of so many calls, each with the text of those before it in its prompt."""
    agent_pause_s: float = Field(default=0.0, ge=0, le=86_400)
    """From the end of a call to the next of its chain: the tool's time."""
    agent_step_tokens: int = Field(default=0, ge=0, le=2**24)
    """Tokens that each step adds to the prompt besides the output: the tool's answer."""
    prompt_scale: float = Field(default=1.0, gt=0, le=1000)
    prompt_shift_tokens: Tokens = 0
    prompt_cap_tokens: Cap | None = None
    """Prompt tokens are scaled, then shifted, then capped; a request keeps at least one."""
    output_scale: float = Field(default=1.0, gt=0, le=1000)
    output_shift_tokens: Tokens = 0
    output_cap_tokens: Cap | None = None
    """Output tokens likewise, and the declared ``max_tokens`` with them."""
    prefix_sharing: float = Field(default=1.0, ge=0, le=1)
    """Share of the reusable prefix blocks that is kept: a drawn part of the requests shares nothing any more."""
    prefix_from_sessions: bool = False
    """Take each turn of a session to begin with the prompt and the output of the turn before it, so that a prefix cache
    can act. For traces with sessions and without block ids."""
    max_excluded_share: float = Field(default=0.1, ge=0, le=1)
    """Share of the window's requests that may be left out because a length is missing or they wait for another one."""
    warmup_s: float = Field(default=0.0, ge=0)
    """Requests sent in this first part of the window are replayed and not scored."""
    cooldown_s: float = Field(default=0.0, ge=0)
    """Requests sent in this last part of the window are replayed and not scored."""

    @field_validator("window_from", "window_until")
    @classmethod
    def _a_time(cls, value: str | None) -> str | None:
        if value is None:
            return None
        try:
            datetime.fromisoformat(value)
        except ValueError as error:
            raise ValueError("not a date and time; write it like 2026-03-02T09:00:00+01:00") from error
        return value

    @model_validator(mode="after")
    def _window_in_order(self) -> Transform:
        start, end = self.window_start_s or 0.0, self.window_end_s
        if end is not None and end <= start:
            raise ValueError("window_end_s must be after window_start_s")
        if end is not None and self.warmup_s + self.cooldown_s >= end - start:
            raise ValueError("warmup_s and cooldown_s leave nothing of the window to score: shorten them")
        ways = {
            "window_start_s or window_end_s": self.window_start_s is not None or end is not None,
            "window_from or window_until": self.window_from is not None or self.window_until is not None,
            "busiest_window_s": self.busiest_window_s is not None,
        }
        given = [name for name, there in ways.items() if there]
        if len(given) > 1:
            raise ValueError(f"the window is given in two ways: keep {', or '.join(given)}")
        if self.window_load_quantile < 1 and self.busiest_window_s is None:
            raise ValueError("window_load_quantile needs the windows' length: give busiest_window_s")
        return self

    @model_validator(mode="after")
    def _parts_fit(self) -> Transform:
        if self.mix_align != "start" and not self.mix_with:
            raise ValueError("mix_align says how the traces of mix_with are aligned: give them, or leave it out")
        if self.growth_shift_s is not None and self.growth_method != "shift":
            raise ValueError("growth_shift_s moves the copies of growth_method shift: leave it out, or choose shift")
        if self.agent_steps == 1 and (self.agent_pause_s or self.agent_step_tokens):
            raise ValueError("agent_pause_s and agent_step_tokens are of the steps of agent_steps: give 2 or more")
        if self.agent_steps > 1 and self.cancels != "as_logged":
            raise ValueError("when clients leave in the calls of agent_steps is not known: leave cancels out, or them")
        if self.prefix_from_sessions and self.cancels == "at_their_time_drawn":
            raise ValueError(
                "prefix_from_sessions takes prompts to hold the answers before them, which are longer when drawn: "
                "set cancels=at_their_time"
            )
        both = sorted(set(self.tenants) & set(self.without_tenants))
        if both:
            raise ValueError(f"the tenant {both[0]!r} is in tenants and in without_tenants: remove it from one")
        if self.tenants and self.without_tenants:
            raise ValueError("give tenants or without_tenants, not both: tenants already leaves out all others")
        for name, factor in self.tenant_growth.items():
            if name in self.without_tenants or (self.tenants and name not in self.tenants):
                raise ValueError(f"tenant_growth names {name!r}, which is left out: remove it from tenant_growth")
            if factor * self.growth > MAX_GROWTH:
                raise ValueError(
                    f"growth {self.growth:g} times tenant_growth {factor:g} of {name!r} is above {MAX_GROWTH:g}: "
                    "lower one of them"
                )
        return self
