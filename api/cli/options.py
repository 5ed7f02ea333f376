"""Options that several verbs share, and how their text becomes values of a spec."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from api.cli.what_if import what_if_options
from api.scalars import scalar

if TYPE_CHECKING:
    from replay.calibration.user import UserCalibration
    from replay.specs import Objective, Transform
    from replay.traces.options import IngestOptions

F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_OBJECTIVES = ("ttft_p99=2s", "itl_p99=100ms")
"""Used, and said aloud, where a plan names no objective."""


def options(*decorators: Callable[[F], F]) -> Callable[[F], F]:
    """Several option decorators as one, shown in the order given."""

    def apply(function: F) -> F:
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return apply


trace_argument = click.argument("trace", type=click.Path(path_type=Path))

model_option = click.option("--model", required=True, help="Catalogue key, Hugging Face id, or path to a config.json.")

engine_options = options(
    click.option("--engine", default="vllm-0.33", show_default=True, help="Engine preset, or path to a JSON file."),
    click.option(
        "--set",
        "sets",
        multiple=True,
        metavar="KNOB=VALUE",
        help="Override an engine knob, e.g. max_num_seqs=256. Repeatable.",
    ),
    click.option("--weight-dtype", help="bf16, fp8, int4, ...; default: as the model is published."),
    click.option("--kv-dtype", help="KV cache dtype, e.g. fp8; default: bf16 or the model's own."),
    click.option(
        "--max-model-len",
        type=int,
        help="Longest context to serve; default: the model's maximum, or what fits where that does not.",
    ),
)

ROUTERS = (
    "round_robin",
    "random",
    "session_affinity",
    "least_outstanding",
    "least_outstanding_tokens",
    "least_kv_usage",
    "power_of_two",
    "vllm_dp",
    "prefix_aware",
)
"""The ``Router`` names of ``replay.specs``, which is too slow to import for a help text; a test compares them."""

router_options = options(
    click.option(
        "--router",
        type=click.Choice(ROUTERS),
        default="round_robin",
        show_default=True,
        help="How requests are spread over replicas.",
    ),
    click.option(
        "--router-snapshot-s",
        type=float,
        metavar="SECONDS",
        help="How often the router sees the replicas' state; default: 0.1 for vllm_dp, else always as it is.",
    ),
)

timeout_option = click.option(
    "--client-timeout-s",
    type=float,
    metavar="SECONDS",
    help="Clients give up a request that has not finished by then; default: they wait.",
)

failure_options = options(
    click.option(
        "--failure",
        "failures",
        multiple=True,
        metavar="REPLICA:AT[:BACK]",
        help="Lose a replica (from 0) AT seconds into the window; BACK seconds later it is back. Repeatable.",
    ),
    click.option(
        "--cold-start",
        "cold_starts",
        multiple=True,
        metavar="REPLICA:READY",
        help="A replica takes work only from READY seconds on. Repeatable.",
    ),
)

calibration_option = click.option(
    "--calibration",
    "calibrations",
    multiple=True,
    type=click.Path(path_type=Path),
    help="A calibration of yours, as written by capreplay calibrate; counts where its deployment is met. Repeatable.",
)

slo_option = click.option(
    "--slo",
    multiple=True,
    metavar="OBJECTIVE",
    help="e.g. ttft_p99=2s, itl_p95=50ms, e2e_mean=8s, or ttft<=2s@99% (of requests). Repeatable.",
)

transform_options = options(
    click.option(
        "--growth", type=float, default=1.0, show_default=True, help="Load factor, e.g. 1.5 for next year's load."
    ),
    click.option(
        "--window", metavar="START:END", help="Only this part of the trace, in seconds from its first request."
    ),
    click.option(
        "--warmup", type=float, default=0.0, show_default=True, metavar="SECONDS", help="Sent this early: not scored."
    ),
    click.option(
        "--cooldown", type=float, default=0.0, show_default=True, metavar="SECONDS", help="Sent this late: not scored."
    ),
    click.option(
        "--max-excluded-share",
        type=float,
        default=0.1,
        show_default=True,
        metavar="SHARE",
        help="Share of requests that may be left out for a missing length.",
    ),
    what_if_options,
    click.option("--seed", type=int, default=0, show_default=True, help="Seed of everything that draws."),
)

format_options = options(
    click.option("--format", "format_", metavar="NAME", help="Trace format; default: recognised from the file."),
    click.option(
        "--map",
        "mapping",
        multiple=True,
        metavar="FIELD=COLUMN",
        help="Take FIELD (arrival, prompt_tokens, output_tokens, ...) from COLUMN. Repeatable.",
    ),
    click.option("--time-unit", type=click.Choice(["s", "ms", "us", "ns"]), help="Unit of numeric times."),
    click.option(
        "--zone", "--time-zone", "time_zone", metavar="ZONE", help="IANA zone of times without one, e.g. UTC."
    ),
    click.option("--year", type=click.IntRange(2000, 2099), help="Year of a log whose times have none."),
    click.option(
        "--repeated-hour",
        type=click.Choice(["first", "second", "order"]),
        help="Which hour a local time means that daylight saving repeats.",
    ),
    click.option(
        "--clock-restarts",
        type=click.Choice(["follow", "overlap"]),
        help="Files were joined: each part follows the one before, or all times are of one clock.",
    ),
    click.option(
        "--keep-far-off", is_flag=True, default=None, help="The few rows far in time from all others are real."
    ),
    click.option(
        "--prompt-includes-cached/--prompt-excludes-cached",
        default=None,
        help="Whether prompt tokens count those read from a cache, where the file does not settle it.",
    ),
    click.option(
        "--rows-are-requests", is_flag=True, default=None, help="Every row is one request, though it looks like a sum."
    ),
    click.option(
        "--keep-duplicates",
        is_flag=True,
        default=None,
        help="Rows that are equal, or share an id, are different requests.",
    ),
    click.option(
        "--ignore-status",
        is_flag=True,
        default=None,
        help="Columns that seem to tell failed calls from good ones do not.",
    ),
    click.option(
        "--turn-lengths",
        type=click.Choice(["whole", "added"]),
        help="What lengths of later turns of a session count: the whole prompt, or what a turn added.",
    ),
    click.option("--block-size", type=int, help="Tokens of one prefix block, where the format does not fix it."),
    click.option("--max-rejected-share", type=float, help="Refuse a trace with more rejected rows; default 0.05."),
    click.option(
        "--ids",
        type=click.Choice(["keep", "hash"]),
        help="hash: tenants and sessions become labels, the same as this installation's service makes; default keep.",
    ),
)

price_options = options(
    click.option("--price-provider", metavar="NAME", help="Only offers of this provider."),
    click.option("--price-region", metavar="NAME", help="Only offers in this region."),
    click.option("--price-term", default="on_demand", show_default=True, metavar="TERM", help="on_demand, spot, ..."),
    click.option(
        "--price-usd-per-gpu-hour",
        "own_prices",
        multiple=True,
        metavar="GPU=USD",
        help="Your own price; beats the catalogue. Repeatable.",
    ),
)


def comma_list(values: Sequence[str]) -> tuple[str, ...]:
    """``("H100,A100", "L40S")`` -> ``("H100", "A100", "L40S")``; repeats are dropped."""
    parts = [part.strip() for value in values for part in value.split(",")]
    return tuple(dict.fromkeys(part for part in parts if part))


def comma_ints(values: Sequence[str], option: str) -> tuple[int, ...]:
    """``("1,2,4",)`` -> ``(1, 2, 4)``.

    Raises:
        click.UsageError: where a part is no whole number.
    """
    try:
        return tuple(int(part) for part in comma_list(values))
    except ValueError as error:
        raise click.UsageError(
            f"{option} takes whole numbers, e.g. {option} 1,2,4; got {','.join(values)!r}"
        ) from error


def pairs(values: Sequence[str], option: str, example: str) -> dict[str, str]:
    """``("a=1", "b=2")`` -> ``{"a": "1", "b": "2"}``.

    Raises:
        click.UsageError: where ``=`` is missing or a key is given twice.
    """
    out: dict[str, str] = {}
    for value in values:
        key, equals, text = value.partition("=")
        key = key.strip()
        if not equals or not key:
            raise click.UsageError(f"{option} takes KEY=VALUE, e.g. {option} {example}; got {value!r}")
        if key in out:
            raise click.UsageError(f"{option} {key} is given twice")
        out[key] = text.strip()
    return out


def objectives_of(slo: Sequence[str]) -> tuple[tuple[Objective, ...], str | None]:
    """The objectives of ``--slo``, and a sentence if the default ones were taken."""
    from replay.specs import parse_objective

    chosen = comma_list(slo)
    note = None
    if not chosen:
        chosen = DEFAULT_OBJECTIVES
        note = f"no --slo given: planning for {' and '.join(DEFAULT_OBJECTIVES)}; name your own with --slo"
    return tuple(parse_objective(text) for text in chosen), note


def transform_of(
    growth: float,
    window: str | None,
    warmup_s: float,
    cooldown_s: float,
    max_excluded_share: float,
    changes: Mapping[str, Any],
) -> Transform:
    """The transform of ``--growth``, ``--window START:END`` (either end may be left out), ``--warmup``, ``--cooldown``,
    ``--max-excluded-share``, and ``changes`` as ``what_if_options`` gathers them."""
    from replay.specs import Transform

    start: float | None = None
    end: float | None = None
    if window is not None:
        first, colon, last = window.partition(":")
        try:
            start, end = (float(first) if first else None), (float(last) if last else None)
        except ValueError:
            colon = ""
        if not colon:
            raise click.UsageError(f"--window takes START:END in seconds, e.g. --window 0:3600; got {window!r}")
    given = {
        "growth": growth,
        "window_start_s": start,
        "window_end_s": end,
        "warmup_s": warmup_s,
        "cooldown_s": cooldown_s,
        "max_excluded_share": max_excluded_share,
    }
    own = {"growth": "--growth", "window_start_s": "--window", "window_end_s": "--window", "warmup_s": "--warmup"}
    own |= {"cooldown_s": "--cooldown", "max_excluded_share": "--max-excluded-share"}
    for field in changes:
        if field in own:
            raise click.UsageError(f"give {field} by {own[field]}, not by --transform")
    return Transform.model_validate(given | dict(changes))


def engine_of(engine: str, sets: Sequence[str]) -> dict[str, Any]:
    """The engine part of a spec: a preset's name or a JSON file with ``preset`` and ``overrides``, plus ``--set``."""
    spec: dict[str, Any] = {"preset": engine, "overrides": {}}
    if engine.endswith(".json") or "/" in engine:
        loaded = load_json(Path(engine), "--engine")
        spec = {"preset": loaded.get("preset", "vllm-0.33"), "overrides": dict(loaded.get("overrides", {}))}
    spec["overrides"].update({k: scalar(v) for k, v in pairs(sets, "--set", "max_num_seqs=256").items()})
    return spec


def ingest_options_of(
    format_: str | None,
    mapping: Sequence[str],
    time_unit: str | None,
    time_zone: str | None,
    year: int | None,
    repeated_hour: str | None,
    clock_restarts: str | None,
    keep_far_off: bool | None,
    prompt_includes_cached: bool | None,
    rows_are_requests: bool | None,
    keep_duplicates: bool | None,
    ignore_status: bool | None,
    turn_lengths: str | None,
    block_size: int | None,
    max_rejected_share: float | None,
    ids: str | None,
) -> IngestOptions:
    """How to read the trace: the options of ``format_options``."""
    from replay.traces.options import IngestOptions, parse_mapping

    chosen = {
        "format": format_,
        "mapping": parse_mapping(mapping),
        "time_unit": time_unit,
        "time_zone": time_zone,
        "year": year,
        "repeated_hour": repeated_hour,
        "clock_restarts": clock_restarts,
        "keep_far_off": keep_far_off,
        "prompt_includes_cached": prompt_includes_cached,
        "rows_are_requests": rows_are_requests,
        "keep_duplicates": keep_duplicates,
        "ignore_status": ignore_status,
        "turn_lengths": turn_lengths,
        "block_size": block_size,
        "max_rejected_share": max_rejected_share,
        "ids": ids,
    }
    return IngestOptions.model_validate({key: value for key, value in chosen.items() if value is not None})


def failures_of(values: Sequence[str]) -> list[dict[str, float]]:
    """``("0:60:120",)`` -> ``[{"replica": 0, "at_s": 60.0, "back_after_s": 120.0}]``."""
    example = "0:60 (lost for good after 60 s) or 0:60:120 (back 120 s later)"
    return [_timed(value, "--failure", ("at_s", "back_after_s"), example) for value in values]


def cold_starts_of(values: Sequence[str]) -> list[dict[str, float]]:
    """``("1:90",)`` -> ``[{"replica": 1, "ready_after_s": 90.0}]``."""
    return [_timed(value, "--cold-start", ("ready_after_s",), "1:90") for value in values]


def _timed(value: str, option: str, names: tuple[str, ...], example: str) -> dict[str, float]:
    """``REPLICA:TIME[:TIME]``; the first time is needed."""
    replica, *times = value.split(":")
    refusal = click.UsageError(f"{option} takes a replica and times in seconds, e.g. {example}; got {value!r}")
    if not 1 <= len(times) <= len(names):
        raise refusal
    try:
        return {"replica": int(replica)} | dict(zip(names, map(float, times), strict=False))
    except ValueError as error:
        raise refusal from error


def id_key_of(options: IngestOptions) -> bytes | None:
    """The installation's key, where ids are to become labels. Raises SpecError for a damaged one."""
    if options.ids != "hash":
        return None
    from models.settings import load_settings

    return load_settings().id_key()


def calibrations_of(paths: Sequence[Path]) -> tuple[UserCalibration, ...]:
    """The calibrations in files; the last one for a deployment counts."""
    if not paths:
        return ()
    from replay.calibration.user import parse_calibration

    return tuple(parse_calibration(load_json(path, "--calibration")) for path in paths)


def own_prices_of(values: Sequence[str]) -> dict[str, float]:
    """``("H100=2.5",)`` -> ``{"H100": 2.5}``."""
    out = {}
    for gpu, text in pairs(values, "--price-usd-per-gpu-hour", "H100-SXM=2.50").items():
        try:
            out[gpu] = float(text)
        except ValueError as error:
            raise click.UsageError(f"--price-usd-per-gpu-hour {gpu}: {text!r} is no number of dollars") from error
    return out


def load_json(path: Path, option: str) -> dict[str, Any]:
    """The JSON object in a file.

    Raises:
        click.UsageError: where the file holds no JSON object.
    """
    try:
        loaded = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise click.UsageError(f"{option}: {path} is no JSON file: {error}") from error
    if not isinstance(loaded, dict):
        raise click.UsageError(f"{option}: {path} holds no JSON object")
    return loaded
