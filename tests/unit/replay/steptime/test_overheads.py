"""What a served step has beyond its kernels: each constant in its place, by GPU, model and engine."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from replay.deployment import Deployment, resolve_deployment
from replay.hardware.catalogue import shipped_catalogue
from replay.specs import DeploymentSpec
from replay.steptime import overheads as constants
from replay.steptime.calibrated import Limits, calibrated_step_time
from replay.steptime.calibrations import shipped_calibration
from replay.steptime.components import KernelModel
from replay.steptime.overheads import NO_OVERHEADS, Overheads, host_of, served_overheads
from replay.steptime.record import StepTime

CATALOGUE = shipped_catalogue()


def served(model: str = "meta-llama/Llama-3.1-8B", gpu: str = "H100-SXM", tp: int = 1) -> Overheads:
    return served_overheads(
        CATALOGUE.model(model), CATALOGUE.gpu(gpu), tp=tp, scheduler="vllm", version="vllm-0.33", async_scheduling=True
    )


def record(overheads: Overheads, tp: int = 2) -> StepTime:
    model, calibration = CATALOGUE.model("meta-llama/Llama-3.1-8B"), shipped_calibration("H100-SXM", "vllm")
    assert calibration is not None
    kernels = KernelModel(model, calibration.tables, tp, "bf16", "bf16")
    return calibrated_step_time(kernels, calibration, Limits(2048, 128, 8192), overheads)


def deployed(preset: str, gpu: str = "H100-SXM") -> Deployment:
    spec = DeploymentSpec.model_validate({"model": "meta-llama/Llama-3.1-8B", "gpu": gpu, "engine": {"preset": preset}})
    return resolve_deployment(spec, CATALOGUE.model(spec.model), CATALOGUE.gpu(gpu))


def test_no_overheads_add_nothing() -> None:
    bare = record(NO_OVERHEADS)
    assert (bare.host_ps, bare.host_per_request_ps, bare.request_overhead_ps, bare.decode_request_ps) == (0, 0, 0, 0)
    assert bare.decode_linear_ps == 0


def test_the_factor_stretches_kernels_and_nothing_else() -> None:
    bare, stretched = record(NO_OVERHEADS), record(Overheads(kernels_factor=1.5, host_s=1e-3))
    assert stretched.rest_ps[1:] == pytest.approx(bare.rest_ps[1:] * 1.5, rel=1e-9)
    assert stretched.prefill_table_ps == pytest.approx(bare.prefill_table_ps * 1.5, abs=2)
    assert stretched.prefill_step_ps == pytest.approx(bare.prefill_step_ps * 1.5, abs=2)
    assert stretched.host_ps == 10**9


def test_decode_attention_by_bytes() -> None:
    """Llama-3.1-8B at tp 2: 32 layers x 4 key-value heads x 128 x 2 x 2 bytes = 64 KiB a token."""
    found = record(Overheads(decode_bandwidth_share=0.92))
    assert found.decode_linear_ps == pytest.approx(65536 / (0.92 * 3350e9) * 1e12, abs=1)


def test_waiting_at_all_reduces_is_a_constant_of_a_step() -> None:
    """65 all-reduces of Llama-3.1-8B: two in each of 32 layers, one after the embedding."""
    added = record(Overheads(all_reduce_s=2e-6)).rest_ps - record(NO_OVERHEADS).rest_ps
    assert added[0] == 0
    assert np.abs(added[1:] - 130_000_000).max() <= 1
    alone = record(Overheads(all_reduce_s=2e-6), tp=1).rest_ps - record(NO_OVERHEADS, tp=1).rest_ps
    assert not alone.any()


def test_constants_of_a_served_deployment() -> None:
    found = served()
    assert found.kernels_factor == constants.KERNELS_FACTOR_ELSEWHERE
    assert found.decode_row_s == pytest.approx(5e-6 + 128_256 * 0.15e-9)
    assert found.all_reduce_s == 0
    assert served(tp=4).all_reduce_s == pytest.approx(2 * constants.ALL_REDUCE_S)
    assert served("mistralai/Mixtral-8x7B-v0.1").kernels_factor == constants.EXPERTS_KERNELS_FACTOR
    assert served("openai/gpt-oss-20b").kernels_factor == constants.KERNELS_FACTOR_ELSEWHERE
    assert served(gpu="A100-SXM-80GB").decode_row_s > 3 * found.decode_row_s


def test_attention_that_is_more_than_bytes_stays_as_timed() -> None:
    assert served().decode_bandwidth_share == constants.DECODE_BANDWIDTH_SHARE
    assert served("deepseek-ai/DeepSeek-R1").decode_bandwidth_share is None
    assert served("openai/gpt-oss-20b").decode_bandwidth_share is None


def test_host_by_engine() -> None:
    assert host_of("vllm", "vllm-0.33", True) == constants.HOST_OVERLAPPED
    assert host_of("vllm", "vllm-0.11", False) == constants.HOST_V1
    assert host_of("vllm", "vllm-0.8", False) == constants.HOST_V1_FIRST
    assert host_of("vllm-v0", "vllm-0.7", False) == constants.HOST_V0
    assert deployed("vllm-v0").step_time.host_ps == 2 * 10**9
    assert deployed("vllm-0.11").step_time.host_ps == round(constants.HOST_V1.step_s * 1e12)


@pytest.mark.parametrize("gpu", ["H100-SXM", "T4"])
def test_a_deployment_is_served_by_these_constants_and_says_which(gpu: str) -> None:
    spec = {"model": "meta-llama/Llama-3.1-8B", "gpu": gpu, "max_model_len": 2048, "tp": 1 if gpu == "H100-SXM" else 4}
    parsed = DeploymentSpec.model_validate(spec)
    found = resolve_deployment(parsed, CATALOGUE.model(parsed.model), CATALOGUE.gpu(gpu)).step_time
    assert found.request_overhead_ps == round(constants.REQUEST_S * 1e12)
    assert found.calibration_id.endswith(f"+{constants.VERSION}")


def test_more_ranks_or_a_longer_row_are_never_faster() -> None:
    slower = replace(NO_OVERHEADS, decode_row_s=1e-5)
    assert record(slower).decode_request_ps > record(NO_OVERHEADS).decode_request_ps
    assert all(served(tp=2 * tp).all_reduce_s > served(tp=tp).all_reduce_s for tp in (1, 2, 4))
