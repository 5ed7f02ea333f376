"""Published throughput benchmarks replayed: how far throughput, TTFT and TPOT of each row are off, and all summed up.

A closed loop of C clients and a burst are replayed as ``replay.accuracy.closed_loop`` says, with the row's own count of
requests where it is within ``MOST_REQUESTS`` a replica.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import numpy as np

from replay.accuracy.benchmark_rows import BenchmarkRow, LeftOutError, parse_row, workload_of
from replay.accuracy.closed_loop import sent_ps, with_seats
from replay.deployment import Deployment, resolve_deployment
from replay.errors import SpecError
from replay.hardware.catalogue import Catalogue
from replay.simulate import simulate
from replay.specs import DeploymentSpec
from replay.steptime.accuracy import FEWEST_ROWS, benchmark_subjects, error_sentence, model_kinds, quoted_error
from replay.steptime.choose import FAMILIES
from replay.steptime.overheads import sampling_row_s


@dataclass(frozen=True)
class ScoredRow:
    """A row beside its replay. Errors are simulated / measured - 1."""

    row_id: str
    gpu: str
    model: str
    engine: str
    load_kind: str
    kind: str
    """The narrowest of ``model_kinds``."""
    provenance: str
    errors: dict[str, float]
    """By figure: ``throughput``, and those of ``LATENCIES`` that the row has."""
    figures: dict[str, tuple[float, float]]
    """Measured and simulated: output tokens a second, seconds, seconds."""
    subjects: tuple[str, ...]
    """``benchmark_subjects``: what its error is an error of."""
    stated: float | None
    """The error of its step times that a plan would quote, as a share; ``None``: none is known."""


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
    several = output > 1
    ttft_ps, tpot_ps = first - sent, (last - first)[several] / (output[several] - 1)
    simulated = {"ttft": ttft_ps.mean(), "ttft_p50": np.median(ttft_ps)}
    if several.any():
        simulated |= {"tpot": tpot_ps.mean(), "tpot_p50": np.median(tpot_ps)}
    figures |= {
        name: (value, float(simulated[name]) / 1e12) for name, value in row.latencies_s.items() if name in simulated
    }
    gpu, record = deployment.gpu, deployment.step_time
    family = FAMILIES.get(deployment.engine.scheduler, "vllm")
    sentence = error_sentence(record, deployment.model, gpu, deployment.memory.weight_dtype, family)
    return ScoredRow(
        row_id=row.row_id,
        gpu=gpu.key,
        model=deployment.model.key,
        engine=engine,
        load_kind=row.load_kind,
        kind=model_kinds(deployment.model)[0],
        provenance=record.provenance,
        errors={name: simulated / measured - 1.0 for name, (measured, simulated) in figures.items()},
        figures=figures,
        subjects=benchmark_subjects(gpu, family, record.provenance),
        stated=None if (quoted := quoted_error(sentence)) is None else quoted.largest,
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
    by_gpu: dict[tuple[str, str, str, str], list[ScoredRow]] = defaultdict(list)
    for row in scored:
        by_gpu[row.gpu, row.engine.lower(), row.kind, row.provenance].append(row)
    return {
        "overall": _summed(scored),
        "by": [
            {"gpu": gpu, "model": model, "engine": engine, "load_kind": kind, **_summed(members)}
            for (gpu, model, engine, kind), members in sorted(groups.items())
        ],
        "by_gpu": [
            {"gpu": gpu, "engine": engine, "models": kind, "step_times": provenance, **_summed(members)}
            for (gpu, engine, kind, provenance), members in sorted(by_gpu.items())
        ],
        "bands": _bands(scored),
        "rows": [
            {
                "row_id": row.row_id,
                "gpu": row.gpu,
                "model": row.model,
                "engine": row.engine,
                "load_kind": row.load_kind,
                "step_times": row.provenance,
                "stated_error": row.stated,
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


def _bands(scored: list[ScoredRow]) -> list[dict[str, Any]]:
    """What plans quote of these errors: by subject and kind of model, where there are rows enough."""
    groups: dict[tuple[str, str], list[float]] = defaultdict(list)
    for row in scored:
        for subject in row.subjects:
            groups[subject, row.kind].append(abs(row.errors["throughput"]))
    return [
        {
            "subject": subject,
            "models": kind,
            "rows": len(errors),
            "median": median(errors),
            "p90": float(np.percentile(errors, 90)),
        }
        for (subject, kind), errors in sorted(groups.items())
        if len(errors) >= FEWEST_ROWS
    ]


_LABELS = {
    "throughput": "output_tokens_per_s",
    "ttft": "ttft_mean_s",
    "ttft_p50": "ttft_p50_s",
    "tpot": "tpot_mean_s",
    "tpot_p50": "tpot_p50_s",
}


def _summed(rows: list[ScoredRow]) -> dict[str, Any]:
    found: dict[str, Any] = {"rows": len(rows)}
    for name in _LABELS:
        errors = [row.errors[name] for row in rows if name in row.errors]
        if errors:
            found[name] = {
                "n": len(errors),
                "median": median(abs(e) for e in errors),
                "signed": median(errors),
                "p90": float(np.percentile(np.abs(errors), 90)),
                "worst": max(errors, key=abs),
            }
    stated = [(abs(row.errors["throughput"]), row.stated) for row in rows if row.stated is not None]
    if stated:
        found["stated_error"] = {
            "n": len(stated),
            "median": median(share for _, share in stated),
            "within": sum(error <= share for error, share in stated) / len(stated),
        }
    return found
