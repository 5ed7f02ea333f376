"""The plan form: from text fields to a ``PlanSpec`` and back, with each fault at its field."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, ValidationError

from api.pages.forms import Faults, Form, named_lines, named_values, number
from replay.errors import SpecError
from replay.specs import PlanSpec

METRICS = (("ttft", "TTFT"), ("itl", "ITL"), ("tpot", "TPOT"), ("e2e", "E2E"), ("queue", "queue time"))
STATISTICS = ("mean", "p50", "p90", "p95", "p99", "p99.9", "attain90", "attain95", "attain99", "attain99.9")
"""``attain99``: of 99 % of requests, each within the limit."""
ROWS = range(20)
"""As many objectives as a plan may have."""
_DEFAULT_ROWS = (("ttft", "p99", "2", "s"), ("itl", "p99", "100", "ms"))

FIELDS = {
    "name": "name",
    "model": "model",
    "gpu": "gpus",
    "gpus": "gpus",
    "tp": "tp",
    "slo": "slo",
    "objectives": "slo",
    "growth": "growth",
    "window_start_s": "window_start_s",
    "window_end_s": "window_end_s",
    "warmup_s": "warmup_s",
    "prefix_from_sessions": "prefix_from_sessions",
    "cooldown_s": "cooldown_s",
    "transform": "changes",
    "disaggregation": "pools",
    "preset": "engine",
    "overrides": "knobs",
    "router": "router",
    "router_snapshot_s": "router_snapshot_s",
    "weight_dtype": "weight_dtype",
    "kv_dtype": "kv_dtype",
    "max_model_len": "max_model_len",
    "provider": "provider",
    "region": "region",
    "term": "term",
    "usd_per_gpu_hour": "own_prices",
    "price": "own_prices",
    "max_gpus": "max_gpus",
    "max_usd_per_hour": "max_usd_per_hour",
    "client_timeout_s": "client_timeout_s",
    "survive_failures": "survive_failures",
    "calibration": "calibration",
    "seed": "seed",
}
"""Part of a spec's path -> field of the form."""

_TRANSFORM_FIELDS = ("growth", "window_start_s", "window_end_s", "warmup_s", "cooldown_s", "prefix_from_sessions")
"""Fields of a transform with a field of their own in the form; ``changes`` takes all others."""

_TEXTS = ("weight_dtype", "kv_dtype")
_NUMBERS = (
    ("router_snapshot_s", False),
    ("max_model_len", True),
    ("max_gpus", True),
    ("max_usd_per_hour", False),
    ("client_timeout_s", False),
)


def defaults() -> Form:
    """The form as it is first shown."""
    pairs = [("tp", "1"), ("tp", "2"), ("tp", "4"), ("tp", "8"), ("growth", "1"), ("engine", "vllm-0.33")]
    pairs += [("term", "on_demand"), ("router", "round_robin"), ("calibration", "auto"), ("seed", "0")]
    for i, row in enumerate(_DEFAULT_ROWS):
        pairs += [
            (f"{name}_{i}", value) for name, value in zip(("metric", "statistic", "limit", "unit"), row, strict=True)
        ]
    return Form(pairs)


def rows_shown(form: Form) -> range:
    """The objective rows to show: those in use, and room for two more."""
    used = [i + 1 for i in ROWS if form.text(f"limit_{i}")]
    return range(min(max(used, default=0) + 2, len(ROWS)))


def tps_shown(form: Form) -> list[str]:
    """The sizes to choose from: the usual ones, and whatever an earlier plan had."""
    chosen = [tp for tp in form.many("tp") if tp.isdecimal() and len(tp) < 6]
    return sorted({"1", "2", "4", "8", "16", *chosen}, key=int)


def from_spec(spec: PlanSpec) -> Form:
    """The form that gives this plan again: for a what-if or a schedule."""
    pairs = [("name", spec.name), ("model", spec.model), ("engine", spec.engine.preset), ("router", spec.router)]
    pairs += [("gpus", gpu) for gpu in spec.gpus] + [("tp", str(tp)) for tp in spec.tp]
    for i, objective in enumerate(spec.objectives[: len(ROWS)]):
        limit, unit = _limit(objective.threshold_s)
        pairs += [
            (f"metric_{i}", objective.metric),
            (f"statistic_{i}", objective.name.removeprefix(f"{objective.metric}_")),
        ]
        pairs += [(f"limit_{i}", limit), (f"unit_{i}", unit)]
    change = spec.transform
    numbers = (
        ("growth", change.growth),
        ("window_start_s", change.window_start_s),
        ("window_end_s", change.window_end_s),
        ("router_snapshot_s", spec.router_snapshot_s),
        ("warmup_s", change.warmup_s or None),
        ("cooldown_s", change.cooldown_s or None),
        ("max_model_len", spec.max_model_len),
        ("max_gpus", spec.max_gpus),
        ("max_usd_per_hour", spec.max_usd_per_hour),
        ("client_timeout_s", spec.client_timeout_s),
        ("survive_failures", spec.survive_failures or None),
        ("seed", spec.seed),
    )
    pairs += [(name, _exact(value)) for name, value in numbers if value is not None]
    texts = (
        ("weight_dtype", spec.weight_dtype),
        ("kv_dtype", spec.kv_dtype),
        ("provider", spec.price.provider),
        ("region", spec.price.region),
        ("term", spec.price.term),
        ("prefix_from_sessions", "true" if change.prefix_from_sessions else None),
        ("calibration", spec.calibration),
    )
    pairs += [(name, value) for name, value in texts if value]
    pairs.append(("changes", _lines_text(change, _TRANSFORM_FIELDS)))
    pairs.append(("pools", "" if spec.disaggregation is None else _lines_text(spec.disaggregation)))
    pairs.append(("knobs", named_lines(spec.engine.overrides)))
    pairs.append(("own_prices", named_lines(spec.price.usd_per_gpu_hour)))
    return Form(pairs)


def _exact(value: float) -> str:
    """The number as a person writes it; reading it gives the same again."""
    return repr(value).removesuffix(".0")


def _limit(threshold_s: float) -> tuple[str, str]:
    """The limit and its unit: milliseconds below a second, where they give the same number again."""
    milliseconds = f"{threshold_s * 1000:.12g}"
    return (
        (milliseconds, "ms")
        if threshold_s < 1 and float(milliseconds) / 1000 == threshold_s
        else (_exact(threshold_s), "s")
    )


def to_spec(form: Form, faults: Faults) -> PlanSpec | None:
    """The plan, or ``None`` with its faults noted."""
    body: dict[str, Any] = {
        "name": form.text("name"),
        "model": form.text("model"),
        "gpus": form.many("gpus"),
        "tp": form.many("tp"),
        "objectives": _objectives(form, faults),
        "engine": {"preset": form.text("engine") or "vllm-0.33", "overrides": named_values(form, "knobs", faults)},
        "router": form.text("router") or "round_robin",
        "calibration": form.text("calibration") or "auto",
        "price": {
            "provider": form.optional("provider"),
            "region": form.optional("region"),
            "term": form.text("term") or "on_demand",
            "usd_per_gpu_hour": named_values(form, "own_prices", faults),
        },
    }
    growth = number(form, "growth", faults)
    window = {name: number(form, name, faults) for name in ("window_start_s", "window_end_s")}
    trim = {name: number(form, name, faults) or 0.0 for name in ("warmup_s", "cooldown_s")}
    sessions = {"prefix_from_sessions": form.text("prefix_from_sessions") == "true"}
    changes = _lines(form, "changes", faults, "prompt_scale=1.5", _TRANSFORM_FIELDS)
    body["disaggregation"] = _lines(form, "pools", faults, "kv_transfer_gb_per_s=50") or None
    body["transform"] = {**changes, "growth": 1.0 if growth is None else growth, **window, **trim, **sessions}
    body |= {name: form.optional(name) for name in _TEXTS}
    body |= {name: number(form, name, faults, whole=whole) for name, whole in _NUMBERS}
    body |= {name: number(form, name, faults, whole=True) or 0 for name in ("seed", "survive_failures")}
    for name, sentence in (
        ("model", "name a model"),
        ("gpus", "choose at least one GPU type"),
        ("tp", "choose at least one"),
    ):
        if not body[name]:
            faults.add(name, sentence)
    if faults:
        return None
    try:
        return PlanSpec.model_validate(body)
    except (ValidationError, SpecError) as error:
        faults.take(error, FIELDS)
        return None


def _objectives(form: Form, faults: Faults) -> list[dict[str, Any]]:
    rows = []
    for i in ROWS:
        limit = number(form, f"limit_{i}", faults)
        if limit is None:
            continue
        statistic = form.text(f"statistic_{i}", "p99")
        scale = 1000 if form.text(f"unit_{i}") == "ms" else 1
        row: dict[str, Any] = {"metric": form.text(f"metric_{i}"), "threshold_s": limit / scale}
        if statistic.startswith("attain"):
            row |= {"percentile": None, "attainment": _share(statistic.removeprefix("attain"), f"limit_{i}", faults)}
        else:
            row["percentile"] = None if statistic == "mean" else statistic.removeprefix("p")
        rows.append(row)
    if not rows and not any(faults.of(f"limit_{i}") for i in ROWS):
        faults.add("slo", "give at least one limit: without an objective no number of GPUs is right")
    return rows


def _share(percent: str, field: str, faults: Faults) -> float | None:
    try:
        return round(float(percent) / 100, 12)
    except ValueError:
        faults.add(field, f"{percent!r} is no percentage of requests")
        return None


def _lines(form: Form, field: str, faults: Faults, example: str, elsewhere: Sequence[str] = ()) -> dict[str, Any]:
    """``name=value`` lines, values as JSON or text; names that the form has a field for ``elsewhere`` are refused."""
    out: dict[str, Any] = {}
    for line in filter(None, map(str.strip, form.text(field).splitlines())):
        name, equals, value = (part.strip() for part in line.partition("="))
        if not equals or not name or not value:
            faults.add(field, f"{line!r} is not of the form field=value, e.g. {example}")
        elif name in out:
            faults.add(field, f"{name} is given twice: keep one line")
        elif name in elsewhere:
            faults.add(field, f"{name} has a field of its own in this form: give it there")
        else:
            try:
                out[name] = json.loads(value)
            except (ValueError, RecursionError):
                out[name] = value
    return out


def _lines_text(spec: BaseModel, elsewhere: Sequence[str] = ()) -> str:
    """The lines that ``_lines`` reads, for all that is not as it is without being asked."""
    chosen = spec.model_dump(mode="json", exclude_defaults=True, exclude=set(elsewhere))
    return "\n".join(f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in chosen.items())
