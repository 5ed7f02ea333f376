"""Sizing against real start-up logs, scored as docs/memory.md section 6 says: architecture and flags in, no sizes.

One vote per (model, precision, tp, release); hybrid token lines, verdicts and rows without model or GPU are apart.
"""

import csv
import re
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from replay.hardware.catalogue import shipped_catalogue
from replay.hardware.memory import MemoryPlan, size_memory
from replay.hardware.versions import parse_engine_version

pytestmark = pytest.mark.reference
CATALOGUE = shipped_catalogue()


@dataclass(frozen=True)
class Log:
    row: dict[str, str]
    engine: str
    plan: MemoryPlan

    @property
    def vote(self) -> tuple[str, ...]:
        return (self.row["model"].lower(), self.row["kv_dtype"], self.row["tp"], self.engine)

    @property
    def error(self) -> float | None:
        """Relative error of KV tokens, else of KV GiB; ``None`` where the log has neither."""
        tokens, gib = self.row["kv_cache_tokens"], self.row["kv_cache_gib"]
        if tokens and float(tokens) > 0:
            return abs(self.plan.kv_tokens / float(tokens) - 1)
        return abs(self.plan.kv_gib / float(gib) - 1) if gib and float(gib) > 0.1 else None


def size_logs(path: Path) -> Iterator[Log]:
    """Rows that state model, GPU, release and utilisation, with the defaults of that release for the rest."""
    for row in csv.DictReader(path.read_text("utf-8").splitlines()):
        release = re.search(r"\d+\.\d+", row["engine_version"])
        known = row["model"] and row["gpu"] and row["gpu_memory_utilization"] and row["max_model_len"]
        if not known or release is None or "WRONG" in row["notes"] or "FAILS" in row["notes"]:
            continue
        gpu, model = CATALOGUE.gpu(row["gpu"]), CATALOGUE.model(row["model"])
        engine = f"vllm-{release.group()}"
        length = int(row["max_model_len"])
        large = gpu.memory_total_gib >= 70 and not gpu.key.startswith("A100")
        tokens, seqs = (8192, 1024) if large else (2048, 256)
        if parse_engine_version(engine).legacy:
            tokens, seqs = length, 256
        plan = size_memory(
            model,
            gpu,
            tp=int(row["tp"]),
            engine_version=engine,
            max_num_seqs=seqs,
            max_num_batched_tokens=tokens,
            gpu_memory_utilization=float(row["gpu_memory_utilization"]),
            max_model_len=length,
            kv_dtype=row["kv_dtype"],
        )
        yield Log(row, engine, plan)


@pytest.fixture(scope="module")
def logs(reference_dir: Path) -> list[Log]:
    found = list(size_logs(reference_dir / "reference" / "vllm_kv_logs.csv"))
    assert len(found) >= 35
    return found


def test_error_of_kv_capacity(logs: list[Log]) -> None:
    votes: dict[tuple[str, ...], float] = {}
    for log in logs:
        if log.error is not None and not parse_engine_version(log.engine).legacy:
            votes.setdefault(log.vote, log.error)
    errors = sorted(votes.values())
    assert len(errors) >= 24
    median, p90 = statistics.median(errors), errors[int(0.9 * (len(errors) - 1))]
    assert median <= 0.01
    assert p90 <= 0.05
    assert errors[-1] <= 0.01, "one release, GPU and campaign: every start is within 1 %"


def test_parts_match_the_logged_parts(logs: list[Log]) -> None:
    for log in logs:
        if log.engine != "vllm-0.19":
            continue
        name = log.row["model"]
        assert log.plan.weights_gib == pytest.approx(float(log.row["weights_gib"]), abs=0.25), name
        activation = re.search(r"activation ([\d.]+)", log.row["notes"])
        assert activation is not None
        assert log.plan.activation_gib == pytest.approx(float(activation.group(1)), abs=0.12), name
        concurrency = re.search(r"max concurrency ([\d.]+)", log.row["notes"])
        assert concurrency is not None
        assert log.plan.max_concurrency == pytest.approx(float(concurrency.group(1)), rel=0.01), name


def test_intervals_cover_nine_of_ten_logs(logs: list[Log]) -> None:
    votes = {}
    for log in logs:
        if log.row["kv_cache_gib"] and log.engine == "vllm-0.19":
            miss = abs(log.plan.kv_gib - float(log.row["kv_cache_gib"]))
            votes.setdefault(log.vote, miss <= log.plan.kv_uncertainty_gib)
    assert sum(votes.values()) >= 0.9 * len(votes)


def test_block_counts_of_benchmarked_servers(reference_dir: Path) -> None:
    """Block counts of measured servers that ran max_num_seqs 128; rows with unstated flags are left out."""
    errors = {}
    table = (reference_dir / "reference" / "blis" / "kv_capacity.csv").read_text("utf-8")
    for row in csv.DictReader(table.splitlines()):
        if row["engine_version"] != "0.15.1" or "Llama-4" in row["model"]:
            continue
        plan = size_memory(
            CATALOGUE.model(row["model"]),
            CATALOGUE.gpu(row["gpu"]),
            tp=int(row["tp"]),
            engine_version="vllm-0.15.1",
            max_num_seqs=128,
            max_num_batched_tokens=int(row["max_num_batched_tokens"]),
            gpu_memory_utilization=0.9,
            max_model_len=4096,
        )
        errors[row["example_id"]] = abs((plan.kv_blocks + 1) / float(row["kv_blocks_gpu"]) - 1)
    assert len(errors) == 9
    assert statistics.median(errors.values()) <= 0.005
    assert max(errors.values()) <= 0.015
