"""Properties of the analytic step times that hold whatever the constants are, and the record's exact layout."""

import dataclasses
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replay.errors import SpecError
from replay.hardware.catalogue import shipped_catalogue
from replay.hardware.entries import GpuType
from replay.kernels.loglinear import KNOT_BITS, floor_of, interpolate
from replay.steptime.accuracy import BENCHMARKED, STATED_ERROR, QuotedError, model_kinds, quoted_error, stated_error
from replay.steptime.analytic import VERSION, analytic_step_time, capture_sizes, table_knots
from replay.steptime.overheads import KERNELS_FACTOR_ELSEWHERE, served_overheads
from replay.steptime.overheads import VERSION as OVERHEADS_VERSION
from replay.steptime.record import StepTime
from replay.steptime.roofline import EFFICIENCY, Roofline, generation

CATALOGUE = shipped_catalogue()
MODELS = (
    "meta-llama/Llama-3.1-8B",
    "meta-llama/Llama-3.1-70B",
    "Qwen/Qwen3-30B-A3B",
    "openai/gpt-oss-20b",
    "deepseek-ai/DeepSeek-V3",
)
GPUS = ("A100-SXM-80GB", "H100-SXM", "L40S", "B200-SXM", "MI300X", "T4")


def step_time(model: str = MODELS[0], gpu: GpuType | str = "H100-SXM", **changes: object) -> StepTime:
    fields: dict[str, object] = {
        "tp": 1,
        "weight_dtype": None,
        "kv_dtype": None,
        "max_num_batched_tokens": 2048,
        "max_num_seqs": 256,
        **changes,
    }
    found, spec = CATALOGUE.gpu(gpu) if isinstance(gpu, str) else gpu, CATALOGUE.model(model)
    is_async, tp = bool(fields.pop("async_scheduling", True)), int(str(fields["tp"]))
    version = "vllm-0.33" if is_async else "vllm-0.11"
    fields["overheads"] = served_overheads(
        spec, found, tp=tp, scheduler="vllm", version=version, async_scheduling=is_async
    )
    return analytic_step_time(spec, found, **fields)  # type: ignore[arg-type] # one dict for all tests


@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("tp", [1, 8])
def test_every_record_is_positive_monotone_and_integer(model: str, gpu: str, tp: int) -> None:
    record = step_time(model, gpu, tp=tp)
    assert record.rest_ps.dtype == np.int64
    assert record.rest_ps.shape == (2049,)
    assert record.rest_ps[0] == 0
    assert (np.diff(record.rest_ps) >= 0).all()
    assert record.rest_ps[1] > 0
    assert record.decode_linear_ps > 0
    assert record.prefill_linear_ps > 0
    assert record.provenance == "analytic"
    assert record.calibration_id == f"analytic/{gpu}/{VERSION}+{OVERHEADS_VERSION}"


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(MODELS), st.floats(1.01, 4.0), st.sampled_from(["mem_bw_gb_per_s", "fp16_tflops", "fp8_tflops"]))
def test_a_better_data_sheet_is_never_slower(model: str, factor: float, what: str) -> None:
    gpu = CATALOGUE.gpu("H100-SXM")
    better = gpu.model_copy(update={what: getattr(gpu, what) * factor})
    slow, fast = step_time(model, gpu), step_time(model, better)
    assert (fast.rest_ps <= slow.rest_ps).all()
    assert fast.decode_linear_ps <= slow.decode_linear_ps
    assert fast.prefill_linear_ps <= slow.prefill_linear_ps


def test_bandwidth_halves_the_decode_attention() -> None:
    gpu = CATALOGUE.gpu("H100-SXM")
    double = gpu.model_copy(update={"mem_bw_gb_per_s": 2 * gpu.mem_bw_gb_per_s})
    assert step_time(gpu=double).decode_linear_ps == pytest.approx(step_time(gpu=gpu).decode_linear_ps / 2, abs=1)


def test_decode_attention_is_bytes_over_bandwidth() -> None:
    kv_bytes = 2 * 32 * 8 * 128 * 2
    expected = kv_bytes / (0.92 * 3350e9)
    assert step_time().decode_linear_ps == pytest.approx(expected * 1e12, rel=1e-4)


def test_prefill_attention_is_flops_over_peak() -> None:
    per_pair = 4 * 32 * 32 * 128 / (EFFICIENCY["hopper"].prefill * 989.4e12) * 1.04
    assert step_time().prefill_linear_ps == pytest.approx(per_pair / 2 * 1e12, rel=2e-3)


@pytest.mark.parametrize("model", MODELS[:3])
def test_more_ranks_never_read_more_weights_each(model: str) -> None:
    def gemms(tp: int) -> np.ndarray:
        roofline = Roofline(CATALOGUE.model(model), CATALOGUE.gpu("H100-SXM"), tp, "bf16", "bf16", 256)
        tokens = np.arange(1.0, 600.0)
        return roofline.dense_s(tokens) + roofline.experts_s(tokens) + roofline.head_s(tokens)

    for few, many in ((1, 2), (2, 4), (4, 8)):
        assert (gemms(many) < gemms(few)).all()


def test_kv_heads_are_replicated_beyond_their_number() -> None:
    four, eight, sixteen = (step_time("Qwen/Qwen3-30B-A3B", tp=tp).decode_linear_ps for tp in (4, 8, 16))
    assert four == eight == sixteen
    assert step_time("Qwen/Qwen3-30B-A3B", tp=2).decode_linear_ps == pytest.approx(2 * four, abs=1)


def test_experts_touched_grow_with_the_batch_up_to_all_of_them() -> None:
    model, gpu = CATALOGUE.model("Qwen/Qwen3-30B-A3B"), CATALOGUE.gpu("H100-SXM")
    roofline = Roofline(model, gpu, 1, "bf16", "bf16", 256)
    tokens = np.array([1.0, 8.0, 16.0])
    # 128 experts, 8 a token: 8, 52 and 82 of them are touched under uniform routing.
    touched = roofline.experts_s(tokens) / roofline.experts_s(tokens)[0] * 8
    assert touched == pytest.approx([8.0, 51.6, 82.4], rel=0.01)


def test_graph_padding_is_baked_in_up_to_the_capture_limit() -> None:
    record = step_time()
    assert record.rest_ps[9] == record.rest_ps[16]
    assert record.rest_ps[17] == record.rest_ps[24]
    assert record.rest_ps[300] == record.rest_ps[304]
    assert record.rest_ps[512] < record.rest_ps[513] < record.rest_ps[514]
    assert capture_sizes(256)[-1] == 512
    assert capture_sizes(8).tolist() == [1, 2, 4, 8, 16]
    assert capture_sizes(1024, data_centre_blackwell=True)[-1] == 1024


def test_without_graphs_small_steps_wait_for_the_launches() -> None:
    eager, graphs = step_time(tp=8, cuda_graphs=False), step_time(tp=8)
    assert eager.rest_ps[1] >= graphs.rest_ps[1]
    assert eager.rest_ps[2048] == graphs.rest_ps[2048]


def test_sampling_is_charged_by_decode_and_vocabulary() -> None:
    record = step_time()
    assert record.decode_request_ps == round(5e6 + 0.15e3 * 128256)
    assert record.decode_table_ps.shape == (0, 0), "no window, no table"


def test_window_layers_stop_growing_at_the_window() -> None:
    model = CATALOGUE.model("openai/gpt-oss-20b")
    assert model.sliding_window == 128
    table = step_time("openai/gpt-oss-20b").decode_table_ps
    values = [interpolate(table, 10, context) for context in (1, 64, 127, 128, 129, 1000, 50_000)]
    assert values[0] < values[1] < values[2] < values[3] == values[4] == values[5] == values[6]
    per_token = (values[1] - values[0]) / 63
    window_bytes = 12 * 2 * 8 * 64 * 2
    assert per_token == pytest.approx(10 * window_bytes / (0.92 * 3350e9) * KERNELS_FACTOR_ELSEWHERE * 1e12, rel=1e-3)


def test_knots_are_those_of_the_kernels() -> None:
    knots = table_knots(5000)
    assert knots.tolist() == [floor_of(i, KNOT_BITS) for i in range(len(knots))]
    assert knots[-2] >= 5000


def test_host_work_is_small_where_it_is_hidden() -> None:
    hidden, added = step_time(async_scheduling=True), step_time(async_scheduling=False)
    assert hidden.host_ps < added.host_ps
    assert (hidden.rest_ps == added.rest_ps).all()


def test_rings_over_pcie_are_slower_than_over_nvlink() -> None:
    gpu = CATALOGUE.gpu("H100-SXM")
    plugged = gpu.model_copy(update={"interconnect": "PCIe5 x16", "max_scaleup_gpus": 1})
    assert step_time(gpu=plugged, tp=4).rest_ps[2048] > 1.2 * step_time(gpu=gpu, tp=4).rest_ps[2048]
    assert (step_time(gpu=plugged).rest_ps == step_time(gpu=gpu).rest_ps).all()


@pytest.mark.parametrize("key", ["T4", "V100-SXM2-16GB", "A10G", "A6000", "A40", "RTX-3090"])
def test_no_error_is_stated_for_a_generation_that_was_not_compared(key: str) -> None:
    sentence = stated_error(CATALOGUE.model(MODELS[0]), CATALOGUE.gpu(key), "bf16")
    assert sentence.startswith("not measured on this GPU generation; efficiencies borrowed from ")
    assert "%" not in sentence
    assert any("borrowed" in note for note in step_time(gpu=key).notes)


@pytest.mark.parametrize("weights", ["int8", "int4", "w8a16", "fp32"])
def test_no_error_is_stated_for_a_format_that_was_not_compared(weights: str) -> None:
    sentence = stated_error(CATALOGUE.model(MODELS[0]), CATALOGUE.gpu("H100-SXM"), weights)
    assert sentence.startswith(f"not measured for dense models with {weights} weights")


def test_stated_errors_are_those_of_the_documented_table(project_root: Path) -> None:
    rows = re.findall(
        r"^\| (\S+) \| (dense|experts), (\w+) \|.*\| ([\d.]+) % \| ([\d.]+) % \|$",
        (project_root / "docs" / "step-time.md").read_text(),
        re.MULTILINE,
    )
    assert {(generation(CATALOGUE.gpu(gpu)), kind, fmt) for gpu, kind, fmt, _, _ in rows} == set(STATED_ERROR)
    for gpu, kind, fmt, *figures in rows:
        stated = STATED_ERROR[generation(CATALOGUE.gpu(gpu)), kind, fmt]
        for figure, text in zip(figures, stated, strict=True):
            low, *high = (int(n) for n in re.findall(r"\d+", text))
            assert low <= round(float(figure)) <= (high[0] if high else low)


def test_weight_only_formats_compute_at_16_bit() -> None:
    both, weights_only, plain = (step_time(weight_dtype=fmt).rest_ps for fmt in ("w8a8", "w8a16", "bf16"))
    assert weights_only[2048] > 0.95 * plain[2048], "large batches are bound by 16-bit compute"
    assert both[2048] < 0.9 * weights_only[2048]
    assert weights_only[1] < 0.7 * plain[1], "a single token is bound by reading 8-bit weights"
    four, four_only = (step_time(gpu="B200-SXM", weight_dtype=fmt).rest_ps for fmt in ("nvfp4", "nvfp4a16"))
    assert four[2048] < 0.7 * four_only[2048]


def test_errors_are_stated_and_guesses_admitted() -> None:
    dense, experts = CATALOGUE.model(MODELS[0]), CATALOGUE.model(MODELS[2])
    assert "median" in stated_error(dense, CATALOGUE.gpu("H100-SXM"), "bf16")
    assert stated_error(experts, CATALOGUE.gpu("H100-SXM"), "fp8") != stated_error(
        experts, CATALOGUE.gpu("H100-SXM"), "bf16"
    )
    assert generation(CATALOGUE.gpu("Gaudi3")) == "other"
    assert stated_error(dense, CATALOGUE.gpu("Gaudi3"), "bf16") == "not measured"
    assert any("guesses" in note for note in step_time(gpu="Gaudi3").notes)
    assert any("factor of two" in note for note in step_time(MODELS[2], weight_dtype="fp8").notes)


def test_a_tp_that_does_not_divide_the_heads_is_refused() -> None:
    with pytest.raises(SpecError, match="does not divide"):
        step_time(tp=3)


def test_a_repeat_is_identical() -> None:
    first, second = step_time(MODELS[2], tp=2), step_time(MODELS[2], tp=2)
    for item in dataclasses.fields(StepTime):
        one, other = getattr(first, item.name), getattr(second, item.name)
        assert np.array_equal(one, other) if isinstance(one, np.ndarray) else one == other


def test_errors_of_benchmarks_are_those_of_the_page(project_root: Path) -> None:
    rows = re.findall(
        r"^\| (\S+) \| (dense|experts|linear) \| (\d+) \| (\d+ %) \| (\d+ %) \|$",
        (project_root / "docs" / "benchmarks.md").read_text(),
        re.MULTILINE,
    )
    assert {(subject, kind): (int(n), *figures) for subject, kind, n, *figures in rows} == BENCHMARKED


def test_plans_quote_what_covers_the_benchmarks() -> None:
    """AMD: the error of published throughput alone; NVIDIA from the data sheet: the larger of steps and throughput."""
    dense, experts = CATALOGUE.model(MODELS[0]), CATALOGUE.model(MODELS[2])
    assert quoted_error(stated_error(dense, CATALOGUE.gpu("MI250"), "bf16")) == QuotedError(0.22, 0.22)
    assert quoted_error(stated_error(dense, CATALOGUE.gpu("A100-PCIe-80GB"), "bf16")) == QuotedError(0.34, 0.34)
    assert quoted_error(stated_error(experts, CATALOGUE.gpu("B200-SXM"), "nvfp4")) == QuotedError(0.51, 0.51)
    assert stated_error(dense, CATALOGUE.gpu("MI355X"), "bf16").startswith("not measured for dense")


def test_the_error_of_the_widest_group_is_stated() -> None:
    """Of an engine on a GPU type where that is worse than its generation; else of the generation."""
    experts = CATALOGUE.model(MODELS[2])
    vllm, sglang = (stated_error(experts, CATALOGUE.gpu("MI300X"), "bf16", one) for one in ("vllm", "sglang"))
    assert "published benchmarks of expert models on MI300X under vllm" in vllm
    assert "published benchmarks of expert models on cdna3" in sglang
    (rows, _, wide), (_, _, broad) = (BENCHMARKED[one, "experts"] for one in ("MI300X/vllm/analytic", "cdna3"))
    assert f"throughput of {rows} published" in vllm
    assert f"nine in ten within {wide}" in vllm
    assert f"nine in ten within {broad}" in sglang
    linear = CATALOGUE.model("Qwen/Qwen3.5-397B-A17B")
    assert model_kinds(linear) == ("linear", "experts")
    assert model_kinds(experts) == ("experts",)
