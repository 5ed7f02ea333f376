"""Rows of published throughput benchmarks: one operating point each, read as a deployment and the load it met.

A row lacks much of what a replay needs. What stands in for it is said here; a row for which nothing honest can is left
out with the reason.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from replay.errors import FieldError, SpecError
from replay.hardware.catalogue import Catalogue
from replay.hardware.entries import ModelSpec
from replay.specs import DeploymentSpec, EngineSpec, Scalar
from replay.workload import Workload

MOST_REQUESTS = 4096
"""Of one replica in one row: several times the largest batch, so that the run is mostly steady."""
REQUESTS_A_CLIENT = 10
"""Where a closed loop's row gives no count: the convention of the largest source."""
SHORTEST_SHARE = 0.8
"""``nominal_max``: lengths are drawn between this share of the value and the value."""
SEED = 20_260
TRTLLM_SEATS, TRTLLM_BUDGET = 2048, 8192
"""Defaults of ``max_batch_size`` and ``max_num_tokens``."""
KINDS = ("closed_loop", "offline")
QUALITIES = ("A", "B")
COLUMNS = (
    "row_id", "engine", "engine_version", "model", "model_key", "weight_dtype", "kv_dtype", "gpu", "num_gpus", "tp",
    "pp", "dp_or_ep", "load_kind", "concurrency", "isl", "osl", "isl_kind", "num_prompts", "output_tok_s_total",
    "ttft_mean_ms", "tpot_mean_ms", "quality", "spec_decode", "disagg",
)  # fmt: skip
OPTIONAL = ("ttft_p50_ms", "tpot_p50_ms", "notes")
"""Columns that may be missing."""
LATENCIES = {
    "ttft": "ttft_mean_ms",
    "ttft_p50": "ttft_p50_ms",
    "tpot": "tpot_mean_ms",
    "tpot_p50": "tpot_p50_ms",
}
"""Columns of measured latencies by the name of the figure."""
_PRESETS = {
    "sglang": "sglang",
    "trt": "trtllm",
    "tensorrt-llm": "trtllm",
    "tensorrt-llm (triton)": "trtllm",
    "tgi": "tgi-v2",
}
_SIXTEEN_BIT = ("", "fp16", "bf16", "fp16/bf16 (framework default)")
_FORMATS = {"fp8": "fp8", "int4": "int4", "int8_sq": "int8", "mxfp4": "mxfp4"}
_KV = {"": None, "fp16": None, "bf16": None, "fp8": "fp8"}
_RELEASE = re.compile(r"^(?:vllm )?v?0\.(\d+)")


@dataclass(frozen=True)
class BenchmarkRow:
    """A row that can be replayed: a deployment, its load, and what was measured."""

    row_id: str
    spec: DeploymentSpec
    in_flight: int | None
    """Clients of one replica; ``None``: all requests at once."""
    requests: int
    """Of one replica."""
    isl: int
    osl: int
    drawn: bool
    """Lengths are drawn up to ``isl`` and ``osl``, not exactly them."""
    output_tokens_per_s: float
    latencies_s: dict[str, float]
    """Measured, by the names of ``LATENCIES``: those that the row has."""
    load_kind: str


class LeftOutError(Exception):
    """A row that is not replayed; the text says why."""


def read_benchmarks(path: Path) -> list[dict[str, str]]:
    """The rows of a benchmark table, as text by column.

    Raises:
        SpecError: ``benchmarks.column`` naming a column that is missing.
    """
    try:
        frame = pl.read_csv(path, infer_schema=False)
    except pl.exceptions.PolarsError as error:
        detail = f"{path.name} cannot be read as a table: {str(error).splitlines()[0]}"
        raise SpecError("benchmarks.file", detail, [FieldError(detail)]) from error
    missing = [name for name in COLUMNS if name not in frame.columns]
    if missing:
        detail = f"{path.name} lacks the column {missing[0]}"
        raise SpecError("benchmarks.column", detail, [FieldError(detail, column=missing[0])])
    optional = [pl.lit("").alias(name) for name in OPTIONAL if name not in frame.columns]
    return frame.with_columns(optional).select(*COLUMNS, *OPTIONAL).fill_null("").to_dicts()


def in_scope(row: dict[str, str]) -> bool:
    """Whether a row is a closed loop or a burst of quality A or B."""
    return row["load_kind"] in KINDS and row["quality"] in QUALITIES


def _number(row: dict[str, str], column: str) -> float | None:
    text = row[column]
    if text == "":
        return None
    try:
        value = float(text)
    except ValueError:
        raise LeftOutError(f"{column} is no number") from None
    if not 0 < value < 1e12:
        raise LeftOutError(f"{column} is not above 0")
    return value


def _needed(row: dict[str, str], column: str) -> float:
    value = _number(row, column)
    if value is None:
        raise LeftOutError(f"{column} is not stated")
    return value


def engine_preset(engine: str, version: str) -> str:
    """The preset that replays an engine of a benchmark.

    Raises:
        LeftOutError: an engine that is not known.
    """
    name = engine.lower()
    if name in _PRESETS:
        return _PRESETS[name]
    if name != "vllm":
        raise LeftOutError(f"engine {engine or 'not stated'}: no preset replays it")
    found = _RELEASE.match(version.strip().lower())
    if found:
        return f"vllm-0.{found[1]}"
    if version.startswith("2024"):
        return "vllm-v0"  # every release of that year
    if version in ("", "nightly (vllm/vllm-openai:nightly)"):
        return "vllm-0.33"
    raise LeftOutError("vLLM's release is not stated")


def _kv_dtype(row: dict[str, str], weights: str | None) -> str | None:
    """TensorRT-LLM's own tables of FP8 weights are of an FP8 cache (its later tables say so); else as stated."""
    if row["kv_dtype"] not in _KV:
        raise LeftOutError(f"KV cache of {row['kv_dtype']}")
    if row["kv_dtype"] == "" and weights == "fp8" and row["engine"].lower().startswith("tensorrt-llm"):
        return "fp8"
    return _KV[row["kv_dtype"]]


def _token_budget(preset: str, isl: int, in_flight: int | None) -> dict[str, Scalar]:
    """TensorRT-LLM cuts no prompts, and runs decodes first: its budget must hold a prompt beside all of them, and
    whoever measured a longer prompt had set it so."""
    if preset != "trtllm":
        return {}
    needed = isl + min(TRTLLM_SEATS, in_flight or TRTLLM_SEATS)
    return {"max_num_tokens": needed} if needed > TRTLLM_BUDGET else {}


def _weights(text: str, model: ModelSpec) -> str | None:
    published = model.weight_dtype
    if text in _SIXTEEN_BIT:
        return "bf16"
    name = text.lower()
    if name == "fp8" and published.startswith("fp8"):
        return None
    if name in ("fp4", "mxfp4") and published == "mxfp4":
        return None
    if name == "fp4":
        return "nvfp4"
    if name in _FORMATS:
        return _FORMATS[name]
    raise LeftOutError("weight_dtype is not stated" if "unstated" in name else f"weights {text} are not known")


def find_model(row: dict[str, str], catalogue: Catalogue) -> ModelSpec:
    """The model of a row by its name or its family's.

    Raises:
        LeftOutError: not in the catalogue.
    """
    for name in (row["model"], row["model_key"], f"{row['model_key']}-v0.1", f"{row['model_key']}-Instruct-v0.1"):
        try:
            return catalogue.model(name)
        except SpecError:
            continue
    raise LeftOutError(f"model {row['model_key']} is not in the catalogue")


def parse_row(row: dict[str, str], catalogue: Catalogue) -> BenchmarkRow:
    """A row as something to replay.

    Raises:
        LeftOutError: with the reason, where it lacks something or is served in a way that is not replayed.
    """
    if row["disagg"] == "true":
        raise LeftOutError("prefill and decode on different GPUs")
    if row["spec_decode"] not in ("", "none"):
        raise LeftOutError("speculative decoding")
    if row["pp"] not in ("", "1"):
        raise LeftOutError("pipeline parallelism")
    if "dp" in row["dp_or_ep"] or "dep" in row["dp_or_ep"]:
        raise LeftOutError("attention data parallelism")
    if row["isl_kind"] == "dataset_mean":
        raise LeftOutError("lengths are means of a distribution that is not given")
    if "treat load_kind with care" in row["notes"]:
        raise LeftOutError("how its requests were sent is not stated")
    tp, gpus = int(_needed(row, "tp")), int(_needed(row, "num_gpus"))
    if gpus % tp:
        raise LeftOutError("num_gpus is no multiple of tp")
    replicas = gpus // tp
    try:
        gpu = catalogue.gpu(row["gpu"])
    except SpecError:
        raise LeftOutError(f"GPU {row['gpu']} is not in the catalogue") from None
    model = find_model(row, catalogue)
    weights = _weights(row["weight_dtype"], model)
    kv_dtype = _kv_dtype(row, weights)
    clients, prompts = _number(row, "concurrency"), _number(row, "num_prompts")
    in_flight = None
    if clients is not None:
        if clients % replicas:
            raise LeftOutError("clients cannot be shared out evenly over the replicas")
        in_flight = int(clients) // replicas
    if prompts is None:
        if clients is None:
            raise LeftOutError("num_prompts is not stated")
        prompts = clients * (REQUESTS_A_CLIENT if row["load_kind"] == "closed_loop" else 1)
    isl, osl = max(1, round(_needed(row, "isl"))), max(1, round(_needed(row, "osl")))
    latencies = {name: value / 1e3 for name, at in LATENCIES.items() if (value := _number(row, at)) is not None}
    preset = engine_preset(row["engine"], row["engine_version"])
    spec = DeploymentSpec(
        model=model.key,
        gpu=gpu.key,
        tp=tp,
        engine=EngineSpec(preset=preset, overrides=_token_budget(preset, isl, in_flight)),
        weight_dtype=weights,
        kv_dtype=kv_dtype,
    )
    return BenchmarkRow(
        row_id=row["row_id"],
        spec=spec,
        in_flight=in_flight,
        requests=max(1, min(int(prompts) // replicas, MOST_REQUESTS)),
        isl=isl,
        osl=osl,
        drawn=row["isl_kind"] == "nominal_max",
        output_tokens_per_s=_needed(row, "output_tok_s_total") / replicas,
        latencies_s=latencies,
        load_kind=row["load_kind"],
    )


def workload_of(row: BenchmarkRow) -> Workload:
    """All requests planned for the start; who sends the next one when, the ends of others decide."""
    n = row.requests
    if row.drawn:
        rng = np.random.Generator(np.random.PCG64(SEED))
        prompt, output = (
            rng.integers(max(1, int(SHORTEST_SHARE * value)), value + 1, n) for value in (row.isl, row.osl)
        )
    else:
        prompt, output = np.full(n, row.isl), np.full(n, row.osl)
    limit = np.full(n, row.osl, np.int64)
    return Workload(np.zeros(n, np.int64), prompt.astype(np.int64), output.astype(np.int64), 1.0, max_tokens=limit)


def sample(rows: list[dict[str, str]], count: int | None) -> list[dict[str, str]]:
    """``count`` rows drawn with a fixed seed, in the order of the table; all where ``None`` or fewer."""
    if count is None or count >= len(rows):
        return rows
    rng = np.random.Generator(np.random.PCG64(SEED))
    return [rows[i] for i in sorted(rng.choice(len(rows), count, replace=False).tolist())]
