"""Scoring a table of steps: what is counted, what is refused."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from click.testing import CliRunner

from api.cli.group import cli
from replay.errors import SpecError
from replay.hardware.catalogue import shipped_catalogue
from replay.steptime.calibrations import calibration_by_name
from replay.steptime.components import KernelModel
from replay.steptime.score import score_steps

BASE: dict[str, Any] = {
    "phase": "decode", "prefill_batch": 0, "isl_new": 0, "cached_ctx": 0, "decode_batch": 8, "decode_ctx": 1024,
    "step_ms": 6.0, "source": "silicon", "gpu": "h100_sxm", "model": "Llama-3.1-8B", "tp": 1, "moe_ep": 0,
    "weight_dtype": "bf16", "gemm_quant": "bfloat16", "moe_quant": "-", "kv_dtype": "bf16", "backend": "vllm",
}  # fmt: skip
PREFILL = {"phase": "prefill", "prefill_batch": 1, "isl_new": 512, "decode_batch": 0, "decode_ctx": 0, "step_ms": 14.0}
MIXED = {"phase": "mixed", "prefill_batch": 1, "isl_new": 512, "step_ms": 15.0}


def steps(tmp_path: Path, *rows: dict[str, Any]) -> Path:
    path = tmp_path / "steps.parquet"
    pl.DataFrame([{**BASE, **row} for row in rows]).write_parquet(path)
    return path


def test_a_decode_step_is_priced_from_its_kernels(tmp_path: Path) -> None:
    found = calibration_by_name("h100_sxm", "vllm")
    assert found is not None
    kernels = KernelModel(shipped_catalogue().model("meta-llama/Llama-3.1-8B"), found.tables, 1, "bf16", "bf16")
    eight = np.array([8.0])
    seconds = kernels.rest_s(eight)[0] + kernels.decode_grid_s(eight, np.array([1024.0]))[0, 0]
    seconds += max(kernels.head_extra_s(eight)[0], 0.0)
    scores = score_steps(steps(tmp_path, {"step_ms": seconds * 1e3 / 1.1}))
    assert scores.overall["median"] == pytest.approx(0.1, abs=0.002)
    assert scores.by == [{"gpu": "h100_sxm", "model": "Llama-3.1-8B", "phase": "decode", **scores.overall}]


def test_phases_and_rows_are_counted(tmp_path: Path) -> None:
    scores = score_steps(steps(tmp_path, {}, PREFILL, MIXED, {"source": "sol"}))
    assert scores.rows["read"] == 4
    assert scores.rows["scored"] == scores.overall["n"] == 3
    assert {row["phase"] for row in scores.by} == {"prefill", "decode", "mixed"}
    assert scores.overall["p95"] < 0.3


def test_what_no_calibration_serves_is_scored_with_the_data_sheet_and_named(tmp_path: Path) -> None:
    latent = {
        "model": "DeepSeek-V3", "gpu": "a100_sxm", "tp": 8, "moe_ep": 8, "gemm_quant": "fp8_block",
        "moe_quant": "fp8_block", "step_ms": 25.0,
    }  # fmt: skip
    scores = score_steps(steps(tmp_path, {**BASE, **latent}, {**MIXED, **latent, "phase": "mixed"}))
    assert scores.analytic[0]["n"] == 1
    assert "latent" in str(scores.analytic[0]["reason"])
    assert scores.by_calibration[0]["calibration_id"] == "analytic/A100-SXM-80GB/3"
    assert scores.rows["mixed steps of latent attention, which the source prices wrongly"] == 1


@pytest.mark.parametrize(
    ("row", "field", "word"),
    [
        ({"step_ms": -1.0}, "step_ms", "not above 0"),
        ({"step_ms": math.nan}, "step_ms", "not above 0"),
        ({"step_ms": None}, "step_ms", "not above 0"),
        ({"step_ms": 0.006}, "step_ms", "seconds"),
        ({"step_ms": 6000.0}, "step_ms", "microseconds"),
        ({"phase": "warm-up"}, "phase", "warm-up"),
        ({"decode_ctx": -5}, "decode_ctx", "below 0"),
        ({"source": "sol"}, "source", "silicon"),
    ],
)
def test_a_poisoned_table_is_refused_with_its_field(tmp_path: Path, row: dict[str, Any], field: str, word: str) -> None:
    with pytest.raises(SpecError, match=word) as refused:
        score_steps(steps(tmp_path, row))
    assert refused.value.errors[0].field == field
    assert refused.value.errors[0].cure


def test_a_missing_column_and_another_format_are_refused(tmp_path: Path) -> None:
    path = steps(tmp_path, {})
    pl.read_parquet(path).drop("backend").write_parquet(path)
    with pytest.raises(SpecError, match="backend"):
        score_steps(path)
    path.write_text("no parquet")
    with pytest.raises(SpecError, match="cannot be read as Parquet"):
        score_steps(path)
    with pytest.raises(SpecError, match="cannot be read as Parquet"):
        score_steps(tmp_path / "none.parquet")


def test_the_verb_prints_both_shapes(tmp_path: Path) -> None:
    path = str(steps(tmp_path, {}, PREFILL))
    text = CliRunner().invoke(cli, ["score-steps", path])
    assert text.exit_code == 0
    assert text.stdout.startswith("2 steps: median error")
    answer = CliRunner().invoke(cli, ["score-steps", path, "--json"])
    assert answer.exit_code == 0
    assert '"overall"' in answer.stdout


@pytest.mark.reference
def test_the_reference_steps_are_within_the_targets(reference_dir: Path) -> None:
    scores = score_steps(reference_dir / "reference" / "aiconfigurator" / "step_times.parquet")
    assert scores.overall["n"] > 250_000
    assert scores.overall["median"] <= 0.05
    assert scores.overall["p95"] <= 0.15
