"""Refusals on the command line: the same problem document as the API's, or the same words as sentences."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass, field
from typing import Any

import click

_OPTION_OF_FIELD = {
    "slo": "--slo",
    "objectives": "--slo",
    "model": "--model",
    "gpu": "--gpu",
    "gpus": "--gpu",
    "tp": "--tp",
    "replicas": "--replicas",
    "router": "--router",
    "router_snapshot_s": "--router-snapshot-s",
    "seed": "--seed",
    "growth": "--growth",
    "prefix_from_sessions": "--prefix-from-sessions",
    "growth_method": "--growth-method",
    "busiest_window_s": "--busiest",
    "tenants": "--tenant",
    "without_tenants": "--without-tenant",
    "zero_output": "--zero-output",
    "cancels": "--cancels",
    "spread": "--spread",
    "warmup_s": "--warmup",
    "cooldown_s": "--cooldown",
    "max_excluded_share": "--max-excluded-share",
    "timeline_bin_s": "--timeline-bin",
    "name": "--name",
    "calibration": "--calibration",
    "gpu_memory_utilization": "--gpu-memory-utilization",
    "burstiness": "--burstiness",
    "prompt_scale": "--prompt-scale",
    "output_scale": "--output-scale",
    "window_start_s": "--window",
    "window_end_s": "--window",
    "preset": "--engine",
    "engine": "--engine",
    "provider": "--price-provider",
    "region": "--price-region",
    "term": "--price-term",
    "max_gpus": "--max-gpus",
    "max_usd_per_hour": "--max-usd-per-hour",
    "weight_dtype": "--weight-dtype",
    "kv_dtype": "--kv-dtype",
    "max_model_len": "--max-model-len",
    "client_timeout_s": "--client-timeout-s",
    "survive_failures": "--survive-failures",
    "prefill_replicas": "--prefill-replicas",
    "decode_replicas": "--decode-replicas",
    "prefill_tp": "--prefill-tp",
    "decode_tp": "--decode-tp",
    "kv_transfer_gb_per_s": "--kv-transfer-gb-per-s",
    "kv_transfer_latency_s": "--kv-transfer-latency-s",
    "decode_router": "--decode-router",
    "first_token_from": "--first-token-from",
    "failures": "--failure",
    "cold_starts": "--cold-start",
    "endpoint": "--endpoint",
    "served_model": "--served-model",
    "api_key": "--api-key",
    "max_tokens": "--max-tokens",
}


_OPTION_OF_KEY = {
    "overrides": "--set",
    "prefill_overrides": "--prefill-set",
    "decode_overrides": "--decode-set",
    "usd_per_gpu_hour": "--price-usd-per-gpu-hour",
    "tenant_growth": "--tenant-growth",
}
"""Fields whose keys are the user's own names: a knob may be named as an option is."""


@dataclass(frozen=True)
class Refusal:
    """Why a verb did not run. ``errors`` are dictionaries as in the API's problem documents."""

    code: str
    detail: str
    errors: list[dict[str, Any]] = field(default_factory=list)
    title: str = "The request cannot be carried out as written"
    status: int = 422
    exit_code: int = 2

    def problem(self) -> dict[str, Any]:
        """The problem document (RFC 9457 members ``type``, ``title``, ``status``, ``detail`` plus ours)."""
        return {
            "type": "about:blank",
            "title": self.title,
            "status": self.status,
            "detail": self.detail,
            "code": self.code,
            "errors": self.errors,
        }


def option_of(field_path: str) -> str:
    """``transform.growth`` -> ``--growth``, ``engine.overrides.seed`` -> ``--set``; other fields of a transform are
    given by ``--transform``, and an unknown path is shown as it is."""
    parts = field_path.split(".")
    keyed = next((_OPTION_OF_KEY[part] for part in parts if part in _OPTION_OF_KEY), None)
    if keyed is not None:
        return keyed
    known = next((_OPTION_OF_FIELD[part] for part in reversed(parts) if part in _OPTION_OF_FIELD), None)
    if known is not None:
        return known

    from replay.specs import Transform

    path = parts[1:] if parts[0] == "transform" else parts
    return f"--transform {path[0]}" if path and path[0] in Transform.model_fields else field_path


def refusal_from(error: Exception) -> Refusal | None:
    """The refusal that ``error`` stands for; ``None`` if it is a fault of ours."""
    if isinstance(error, click.ClickException):
        verb = error.ctx.command_path if isinstance(error, click.UsageError) and error.ctx else "capreplay"
        detail = f"{error.format_message().rstrip('.')}; see {verb} --help"
        where = error.param.opts[0] if isinstance(error, click.BadParameter) and error.param else None
        faults = [{"detail": detail, "field": where}] if where else []
        return Refusal("usage", detail, faults, title="The command cannot be read")
    if isinstance(error, (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError)):
        name = error.filename or ""
        return Refusal("file.unreadable", f"cannot open {name}: {(error.strerror or '').lower()}", title="File problem")

    from pydantic import ValidationError

    from replay.errors import ReplayError

    application = sys.modules.get("models.errors")
    if application is not None and isinstance(error, application.AppError):
        faults = [{k: v for k, v in asdict(one).items() if v is not None} for one in error.errors]
        return Refusal(error.code, error.detail, faults, title=error.title, status=error.status)
    if isinstance(error, ReplayError):
        faults = [{k: v for k, v in asdict(one).items() if v is not None} for one in error.errors]
        title = "The trace cannot be read" if error.code.startswith("trace") else Refusal.title
        return Refusal(error.code, error.detail, faults, title=title)
    if isinstance(error, ValidationError):
        from replay.faults import plain_faults

        found = plain_faults(error.errors(include_url=False, include_input=False))
        faults = [{k: v for k, v in asdict(one).items() if v is not None} for one in found]
        first = found[0]
        detail = f"{option_of(first.field)}: {first.detail}" if first.field else first.detail
        return Refusal("spec.invalid", detail, faults)
    return None


def print_refusal(refusal: Refusal, *, as_json: bool) -> None:
    """With ``--json`` the problem on stdout; else sentences on stderr, each with its field and its cure."""
    if as_json:
        click.echo(json.dumps(refusal.problem(), indent=2))
        return
    click.echo(f"capreplay: {refusal.detail}", err=True)
    for one in refusal.errors:
        where = one.get("field")
        place = [option_of(where)] if where else []
        place += [f"line {one['line']}"] if one.get("line") is not None else []
        place += [f"column {one['column']}"] if one.get("column") else []
        cure = one.get("cure")
        is_said = not cure or cure in one["detail"] or cure in refusal.detail
        text = one["detail"] if is_said else f"{one['detail']} ({cure})"
        where_text = ", ".join(place)
        if text not in refusal.detail:
            click.echo(f"  {where_text + ': ' if place else ''}{text}", err=True)
        elif any(one not in refusal.detail for one in place):
            click.echo(f"  at {where_text}", err=True)
