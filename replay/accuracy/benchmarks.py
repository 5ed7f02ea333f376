"""Rows of published throughput benchmarks: one operating point each, read, replayed and compared.

A closed loop of C clients and a burst are replayed as ``replay.accuracy.closed_loop`` says, with the row's own count of
requests where it is within ``MOST_REQUESTS`` a replica.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import polars as pl

from replay.accuracy.closed_loop import sent_ps, with_seats
from replay.deployment import Deployment, resolve_deployment
from replay.errors import FieldError, SpecError
from replay.hardware.catalogue import Catalogue
from replay.hardware.entries import ModelSpec
from replay.simulate import simulate
from replay.specs import DeploymentSpec, EngineSpec
from replay.steptime.overheads import sampling_row_s
from replay.workload import Workload

MOST_REQUESTS = 4096
"""Of one replica in one row: several times the largest batch, so that the run is mostly steady."""
REQUESTS_A_CLIENT = 10
"""Where a closed loop's row gives no count: the convention of the largest source."""
SHORTEST_SHARE = 0.8
"""``nominal_max``: lengths are drawn between this share of the value and the value."""
SEED = 20_260
KINDS = ("closed_loop", "offline")
QUALITIES = ("A", "B")
COLUMNS = (
    "row_id", "engine", "engine_version", "model", "model_key", "weight_dtype", "kv_dtype", "gpu", "num_gpus", "tp",
    "pp", "dp_or_ep", "load_kind", "concurrency", "isl", "osl", "isl_kind", "num_prompts", "output_tok_s_total",
    "ttft_mean_ms", "tpot_mean_ms", "quality", "spec_decode", "disagg",
)  # fmt: skip
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
    ttft_mean_s: float | None
    tpot_mean_s: float | None
    load_kind: str


@dataclass(frozen=True)
class ScoredRow:
    """A row beside its replay. Errors are simulated / measured - 1."""

    row_id: str
    gpu: str
    model: str
    engine: str
    load_kind: str
    provenance: str
    errors: dict[str, float]
    """By figure: ``throughput``, and ``ttft`` and ``tpot`` where the row has them."""
    figures: dict[str, tuple[float, float]]
    """Measured and simulated: output tokens a second, seconds, seconds."""


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
    return frame.select(COLUMNS).fill_null("").to_dicts()


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
    tp, gpus = int(_needed(row, "tp")), int(_needed(row, "num_gpus"))
    if gpus % tp:
        raise LeftOutError("num_gpus is no multiple of tp")
    replicas = gpus // tp
    try:
        gpu = catalogue.gpu(row["gpu"])
    except SpecError:
        raise LeftOutError(f"GPU {row['gpu']} is not in the catalogue") from None
    model = find_model(row, catalogue)
    if row["kv_dtype"] not in _KV:
        raise LeftOutError(f"KV cache of {row['kv_dtype']}")
    spec = DeploymentSpec(
        model=model.key,
        gpu=gpu.key,
        tp=tp,
        engine=EngineSpec(preset=engine_preset(row["engine"], row["engine_version"])),
        weight_dtype=_weights(row["weight_dtype"], model),
        kv_dtype=_KV[row["kv_dtype"]],
    )
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
    osl = round(_needed(row, "osl"))
    ttft, tpot = _number(row, "ttft_mean_ms"), _number(row, "tpot_mean_ms")
    return BenchmarkRow(
        row_id=row["row_id"],
        spec=spec,
        in_flight=in_flight,
        requests=max(1, min(int(prompts) // replicas, MOST_REQUESTS)),
        isl=max(1, round(_needed(row, "isl"))),
        osl=max(1, osl),
        drawn=row["isl_kind"] == "nominal_max",
        output_tokens_per_s=_needed(row, "output_tok_s_total") / replicas,
        ttft_mean_s=None if ttft is None else ttft / 1e3,
        tpot_mean_s=None if tpot is None else tpot / 1e3,
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


def score_row(row: BenchmarkRow, deployment: Deployment, engine: str) -> ScoredRow:
    """Replays one replica of a row and compares.

    Raises:
        LeftOutError: requests that cannot run on the deployment.
    """
    loaded = deployment if row.in_flight is None else with_seats(deployment, row.in_flight)
    workload = workload_of(row)
    result = simulate(workload, loaded, judge_load=False)
    table = result.requests
    if (table.last_token_ps < 0).any():
        raise LeftOutError(f"requests that cannot run there: {', '.join(result.rejected)}")
    planned = workload.arrival_ps
    sent = planned if row.in_flight is None else sent_ps(planned, table.last_token_ps, row.in_flight)
    first, last, output = table.first_token_ps, table.last_token_ps, table.output_tokens
    figures = {"throughput": (row.output_tokens_per_s, float(output.sum()) / (int(last.max()) / 1e12))}
    if row.ttft_mean_s is not None:
        figures["ttft"] = (row.ttft_mean_s, float((first - sent).mean()) / 1e12)
    several = output > 1
    if row.tpot_mean_s is not None and several.any():
        per_token = (last - first)[several] / (output[several] - 1)
        figures["tpot"] = (row.tpot_mean_s, float(per_token.mean()) / 1e12)
    return ScoredRow(
        row_id=row.row_id,
        gpu=deployment.gpu.key,
        model=deployment.model.key,
        engine=engine,
        load_kind=row.load_kind,
        provenance=deployment.step_time.provenance,
        errors={name: simulated / measured - 1.0 for name, (measured, simulated) in figures.items()},
        figures=figures,
    )


def _greedy(deployment: Deployment) -> Deployment:
    """Benchmarks of throughput decode greedily: no sampling over the vocabulary."""
    record = deployment.step_time
    saved = round(sampling_row_s(deployment.model, deployment.gpu) * 1e12)
    return replace(deployment, step_time=replace(record, decode_request_ps=max(record.decode_request_ps - saved, 0)))


class Deployments:
    """Deployments by spec, resolved once each and decoding greedily; a refusal is remembered too."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue
        self._found: dict[str, Deployment | str] = {}

    def of(self, spec: DeploymentSpec) -> Deployment:
        """The deployment of a spec.

        Raises:
            LeftOutError: with the reason for which it cannot run.
        """
        key = spec.model_dump_json()
        if key not in self._found:
            try:
                self._found[key] = _greedy(
                    resolve_deployment(spec, self._catalogue.model(spec.model), self._catalogue.gpu(spec.gpu))
                )
            except SpecError as error:
                self._found[key] = error.detail
        found = self._found[key]
        if isinstance(found, str):
            raise LeftOutError(found)
        return found


def score_rows(
    rows: Iterable[dict[str, str]], catalogue: Catalogue, told: Callable[[int], None] = lambda _: None
) -> tuple[list[ScoredRow], dict[str, list[str]]]:
    """The rows in scope: those replayed, and the ids of those not by reason. ``told`` hears how many are done."""
    deployments = Deployments(catalogue)
    scored: list[ScoredRow] = []
    left_out: dict[str, list[str]] = defaultdict(list)
    for done, row in enumerate(rows):
        told(done)
        try:
            parsed = parse_row(row, catalogue)
            scored.append(score_row(parsed, deployments.of(parsed.spec), row["engine"]))
        except LeftOutError as error:
            left_out[str(error)].append(row["row_id"])
    return scored, dict(left_out)


def benchmarks_document(scored: list[ScoredRow], left_out: dict[str, list[str]]) -> dict[str, Any]:
    """What ``capreplay score-benchmarks --json`` prints: errors as shares."""
    groups: dict[tuple[str, str, str, str], list[ScoredRow]] = defaultdict(list)
    for row in scored:
        groups[row.gpu, row.model, row.engine, row.load_kind].append(row)
    return {
        "overall": _summed(scored),
        "by": [
            {"gpu": gpu, "model": model, "engine": engine, "load_kind": kind, **_summed(members)}
            for (gpu, model, engine, kind), members in sorted(groups.items())
        ],
        "rows": [
            {
                "row_id": row.row_id,
                "gpu": row.gpu,
                "model": row.model,
                "engine": row.engine,
                "load_kind": row.load_kind,
                "step_times": row.provenance,
                **{
                    _LABELS[name]: {"measured": measured, "simulated": simulated, "error": row.errors[name]}
                    for name, (measured, simulated) in row.figures.items()
                },
            }
            for row in scored
        ],
        "not_replayed": [
            {"reason": reason, "rows": len(ids), "row_ids": ids}
            for reason, ids in sorted(left_out.items(), key=lambda one: -len(one[1]))
        ],
        "step_times": dict(Counter(row.provenance for row in scored)),
    }


_LABELS = {"throughput": "output_tokens_per_s", "ttft": "ttft_mean_s", "tpot": "tpot_mean_s"}


def _summed(rows: list[ScoredRow]) -> dict[str, Any]:
    found: dict[str, Any] = {"rows": len(rows)}
    for name in _LABELS:
        errors = [row.errors[name] for row in rows if name in row.errors]
        if errors:
            found[name] = {
                "n": len(errors),
                "median": median(abs(e) for e in errors),
                "signed": median(errors),
                "worst": max(errors, key=abs),
            }
    return found


def sample(rows: list[dict[str, str]], count: int | None) -> list[dict[str, str]]:
    """``count`` rows drawn with a fixed seed, in the order of the table; all where ``None`` or fewer."""
    if count is None or count >= len(rows):
        return rows
    rng = np.random.Generator(np.random.PCG64(SEED))
    return [rows[i] for i in sorted(rng.choice(len(rows), count, replace=False).tolist())]
