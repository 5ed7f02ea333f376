"""The GPU bench without a GPU: shapes, the grid that fits, predictions from the shipped calibration, and the report."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from replay.hardware.catalogue import shipped_catalogue
from replay.steptime.calibrations import shipped_calibration
from replay.steptime.components import KernelModel

CATALOGUE = shipped_catalogue()
LLAMA = CATALOGUE.model("meta-llama/Llama-3.1-8B")
GIB = 2.0**30


@pytest.fixture(scope="module")
def bench(project_root: Path) -> ModuleType:
    path = project_root / "bench" / "gpu" / "llama_steps.py"
    spec = importlib.util.spec_from_file_location("llama_steps", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def kernels() -> KernelModel:
    calibration = shipped_calibration("H100-SXM", "vllm")
    assert calibration is not None
    return KernelModel(LLAMA, calibration.tables, 1, "bf16", "bf16")


def test_sizes_are_the_models(bench: ModuleType) -> None:
    """8.03 G parameters at 2 bytes; 128 KiB of keys and values a token."""
    shape = bench.shape_of(LLAMA)
    assert (shape.layers, shape.heads, shape.kv_heads, shape.head_dim) == (32, 32, 8, 128)
    assert shape.weight_bytes == pytest.approx(2 * 8.03e9, rel=0.001)
    assert shape.kv_bytes_per_token == 128 * 1024
    assert bench.shape_of(LLAMA, 4).layers == 4


@pytest.mark.parametrize(
    ("model", "layers", "reason"),
    [
        ("mistralai/Mixtral-8x7B-v0.1", None, "experts"),
        ("openai/gpt-oss-20b", None, "experts"),
        ("deepseek-ai/DeepSeek-R1", None, "experts"),
        ("meta-llama/Llama-3.1-8B", 33, "1 to 32"),
    ],
)
def test_other_shapes_are_refused(bench: ModuleType, model: str, layers: int | None, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        bench.shape_of(CATALOGUE.model(model), layers)


def test_the_grid_is_what_fits(bench: ModuleType) -> None:
    shape = bench.shape_of(LLAMA)
    whole, small = bench.grid(shape, 140 * GIB), bench.grid(shape, 24 * GIB)
    assert len([step for step in whole if step.phase == "prefill"]) == len(bench.PROMPTS)
    assert set(small) < set(whole)
    assert {step.batch for step in whole if step.phase == "decode"} == set(bench.BATCHES)
    assert all(step.kv_tokens * shape.kv_bytes_per_token + shape.weight_bytes <= 0.85 * 24 * GIB for step in small)
    assert bench.grid(shape, 8 * GIB) == []


def test_predictions_grow_with_work(bench: ModuleType, kernels: KernelModel) -> None:
    prompts = [bench.predicted_s(kernels, bench.Step("prefill", 1, tokens, 0)) for tokens in (512, 2048, 8192)]
    assert prompts == sorted(prompts)
    one, many = (bench.predicted_s(kernels, bench.Step("decode", batch, 1, 2048)) for batch in (1, 64))
    assert 16.06e9 / 3.35e12 < one < many  # no faster than reading the weights


def test_errors_are_of_the_prediction(bench: ModuleType, kernels: KernelModel) -> None:
    fast, slow = bench.Step("decode", 4, 1, 512), bench.Step("prefill", 1, 1024, 0)
    measured = {fast: bench.predicted_s(kernels, fast) / 1.25, slow: bench.predicted_s(kernels, slow)}
    rows = bench.compared(kernels, measured)
    assert [row.error for row in rows] == pytest.approx([0.25, 0.0])
    by = bench.summed(rows)
    assert by["decode"]["median"] == by["decode"]["worst"] == pytest.approx(0.25)
    text = bench.printed("Some card", "h100_sxm/vllm/1", "2026-01-01", rows)
    assert "| decode | 4 | 1 | 512 |" in text
    assert "decode: median 25.0%" in text
    assert json.dumps(by)


def test_without_pytorch_it_says_how_to_get_it(project_root: Path) -> None:
    program = """
import runpy, sys
sys.modules["torch"] = None
sys.argv = ["llama_steps.py"]
runpy.run_path("bench/gpu/llama_steps.py", run_name="__main__")
"""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=project_root, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "pip install torch" in done.stderr
