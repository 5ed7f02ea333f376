"""Calibration files: kernel timings of one GPU type and engine family, read and checked.

The files shipped in ``replay/steptime/data`` are text, made by ``bench/calibrations.py``; each names its source,
licence, engine version and date, and how far steps put together from it are off. A file whose figures cannot be times
is refused.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from replay.errors import FieldError, SpecError
from replay.steptime.interpolation import Float64Array, never_falling
from replay.steptime.kernel_tables import (
    LATENT_WIDTH,
    AllReduceTables,
    AttentionKey,
    AttentionTables,
    Elementwise,
    ExpertKey,
    ExpertTables,
    GemmTables,
    KernelTables,
)

_NAMES = ("id", "gpu", "family", "engine_version", "date", "source", "licence")
LEFT_OUT = "experts left out"
"""The kind of error of expert layers that were not timed."""
DATA = Path(__file__).parent / "data"
_HEAD = re.compile(r'^"(gpu|family)": "([^"]+)",$', re.MULTILINE)

SLOWEST_FLOPS, FASTEST_FLOPS = 2e12, 3e16
"""No GPU multiplies large matrices slower or faster than this: figures beyond are in another unit."""


@dataclass(frozen=True)
class StepError:
    """|predicted / timed - 1| of single steps."""

    median: float
    p95: float
    steps: int


@dataclass(frozen=True)
class Calibration:
    """One file."""

    id: str
    gpu: str
    """Key of the GPU type in the catalogue."""
    family: str
    engine_version: str
    date: str
    source: str
    licence: str
    tables: KernelTables
    errors: Mapping[str, Mapping[str, StepError]]
    """By kind of model (``dense``, ``experts``, ``LEFT_OUT``) and phase (``all``, ``prefill``, ...)."""


@cache
def shipped_calibrations() -> Mapping[tuple[str, str], Path]:
    """Files shipped, by GPU type and engine family."""
    found = {}
    for path in sorted(DATA.glob("*.json")):
        with path.open(encoding="utf-8") as file:
            fields = dict(_HEAD.findall(file.read(400)))
        found[fields["gpu"], fields["family"]] = path
    return found


@cache
def shipped_calibration(gpu: str, family: str) -> Calibration | None:
    """The shipped calibration of a GPU type; of vLLM where the engine family has none of its own; or none."""
    files = shipped_calibrations()
    path = files.get((gpu, family)) or files.get((gpu, "vllm"))
    return None if path is None else read_calibration(path)


@cache
def calibration_by_name(gpu: str, family: str) -> Calibration | None:
    """The shipped calibration whose id begins with these names, as the source of the timings spells them."""
    path = DATA / f"{gpu}_{family}.json"
    return read_calibration(path) if path in shipped_calibrations().values() else None


def read_calibration(path: Path) -> Calibration:
    """Reads and checks a calibration file.

    Raises:
        SpecError: ``steptime.calibration`` naming the field, what is wrong and the cure.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise _refusal(
            path.name, f"it cannot be read as JSON: {error}", "take the file from the release again"
        ) from error
    return calibration_of(document)


def calibration_of(document: Mapping[str, Any]) -> Calibration:
    """A calibration from the object that a file holds; raises as ``read_calibration``."""
    try:
        head = {name: str(document[name]) for name in _NAMES}
        tables = _tables(document)
        errors = {
            kind: {phase: StepError(*figures) for phase, figures in phases.items()}
            for kind, phases in document.get("errors", {}).items()
        }
    except KeyError as error:
        raise _refusal(str(error.args[0]), "the field is missing", "take the file from the release again") from error
    return Calibration(**head, tables=tables, errors=errors)


def _tables(document: Mapping[str, Any]) -> KernelTables:
    tables = KernelTables(
        gemm=_gemm(document["gemm"]),
        prefill=_attention(document["prefill_attention"], "prefill_attention", "new", "cached"),
        decode=_attention(document["decode_attention"], "decode_attention", "batch", "context"),
        latent_prefill=_attention(document["latent_prefill"], "latent_prefill", "new", "cached"),
        latent_decode=_attention(document["latent_decode"], "latent_decode", "batch", "context"),
        experts=_experts(document["experts"]),
        all_reduce=AllReduceTables(
            size_bytes=_knots(document["all_reduce"]["bytes"], "all_reduce.bytes"),
            us={
                int(ranks): _times(curve, f"all_reduce.us.{ranks}", (len(document["all_reduce"]["bytes"]),))
                for ranks, curve in document["all_reduce"]["us"].items()
            },
        ),
        elementwise=Elementwise(
            memory_bytes_per_s=float(document["memory_gb_per_s"]) * 1e9,
            share=float(document["elementwise_share"]),
            fixed_us=float(document["elementwise_us"]),
        ),
        qk_norm_us=float(document["qk_norm_us"]),
    )
    _check_unit(tables.gemm)
    return tables


def _gemm(part: Mapping[str, Any]) -> GemmTables:
    outputs, inputs = _knots(part["outputs"], "gemm.outputs"), _knots(part["inputs"], "gemm.inputs")
    tokens, us = {}, {}
    for fmt, table in part["formats"].items():
        where = f"gemm.formats.{fmt}"
        tokens[fmt] = _knots(table["tokens"], f"{where}.tokens")
        us[fmt] = _times(table["us"], f"{where}.us", (len(outputs), len(inputs), len(tokens[fmt])))
    return GemmTables(outputs, inputs, tokens, us)


def _attention(part: Mapping[str, Any], where: str, rows: str, columns: str) -> AttentionTables:
    first, second = _knots(part[rows], f"{where}.{rows}"), _knots(part[columns], f"{where}.{columns}")
    us: dict[AttentionKey, dict[tuple[int, int], Float64Array]] = {}
    for number, kernel in enumerate(part["kernels"]):
        key = AttentionKey(
            int(kernel.get("head_dim", LATENT_WIDTH)),
            int(kernel.get("window", 0)),
            str(kernel["kv"]),
            str(kernel.get("weights", "")),
        )
        table = _times(kernel["us"], f"{where}.kernels.{number}.us", (len(first), len(second)))
        us.setdefault(key, {})[kernel["heads"], kernel.get("kv_heads", 1)] = never_falling(never_falling(table), 1)
    return AttentionTables(first, second, us)


def _experts(part: Mapping[str, Any]) -> ExpertTables:
    tokens = _knots(part["tokens"], "experts.tokens")
    us = {}
    for number, shape in enumerate(part["shapes"]):
        hidden, intermediate, top_k, experts = (
            int(shape[name]) for name in ("hidden", "intermediate", "top_k", "experts")
        )
        for split, curve in shape["us"].items():
            tp, ep = (int(ranks) for ranks in split.split("x"))
            where = f"experts.shapes.{number}.us.{split}"
            key = ExpertKey(hidden, intermediate, top_k, experts, str(shape["weights"]), tp, ep)
            us[key] = _times(curve, where, (len(tokens),))
    return ExpertTables(tokens, us)


def _knots(values: Any, where: str) -> Float64Array:
    knots = np.array(values, dtype=np.float64)
    if len(knots) < 2 or np.any(np.diff(knots) <= 0) or knots[0] < 0:
        raise _refusal(where, "knots must be two or more, rising", "sort them, each once")
    return knots


def _times(values: Any, where: str, shape: tuple[int, ...]) -> Float64Array:
    try:
        times = np.array(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise _refusal(where, "not a full table of numbers", "measure every point of the grid") from error
    if times.shape != shape:
        raise _refusal(
            where, f"its shape is {times.shape}, the knots ask for {shape}", "measure every point of the grid"
        )
    if not np.all(np.isfinite(times)):
        raise _refusal(where, "a time is not a number", "leave the kernel out or measure it again")
    if np.any(times <= 0):
        raise _refusal(where, f"a time is {times.min():g}; no kernel takes no time", "measure it again")
    return times


def _check_unit(gemm: GemmTables) -> None:
    """Large GEMMs must run at a speed that a GPU can have."""
    for fmt, us in gemm.us.items():
        flops = 2.0 * gemm.tokens[fmt][-1] * gemm.outputs[-1] * gemm.inputs[-1]
        speed = flops / (us[-1, -1, -1] * 1e-6)
        if not SLOWEST_FLOPS <= speed <= FASTEST_FLOPS or math.isnan(speed):
            detail = f"the largest GEMM would run at {speed / 1e12:.3g} TFLOP/s, which no GPU does"
            raise _refusal(f"gemm.formats.{fmt}.us", detail, "give microseconds, not seconds or milliseconds")


def _refusal(where: str, detail: str, cure: str) -> SpecError:
    message = f"calibration: {where}: {detail}"
    return SpecError("steptime.calibration", message, [FieldError(detail, field=where, cure=cure)])
