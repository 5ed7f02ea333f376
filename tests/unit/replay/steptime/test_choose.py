"""Which step times a deployment gets, and that nothing is downgraded without a word."""

import re
from pathlib import Path

import numpy as np
import pytest

from replay.deployment import resolve_deployment
from replay.hardware.catalogue import shipped_catalogue
from replay.planning.figures import step_time_info
from replay.specs import DeploymentSpec, EngineSpec
from replay.steptime.accuracy import BENCHMARKED, MEASURED_RUNS, QuotedError, quoted_error
from replay.steptime.choose import choose_step_time
from replay.steptime.record import StepTime

CATALOGUE = shipped_catalogue()
LLAMA, MIXTRAL, SCOUT = (
    "meta-llama/Llama-3.1-8B", "mistralai/Mixtral-8x7B-v0.1", "meta-llama/Llama-4-Scout-17B-16E-Instruct",
)  # fmt: skip


def chosen(model: str = LLAMA, gpu: str = "H100-SXM", **changes: object) -> StepTime:
    fields: dict[str, object] = {
        "scheduler": "vllm", "version": "vllm-0.33", "tp": 1, "weight_dtype": None, "kv_dtype": None,
        "max_num_batched_tokens": 2048, "max_num_seqs": 128, "max_model_len": 8192, "async_scheduling": True,
    }  # fmt: skip
    return choose_step_time(CATALOGUE.model(model), CATALOGUE.gpu(gpu), **{**fields, **changes})  # type: ignore[arg-type] # one dict for all


@pytest.mark.parametrize(
    "gpu", ["A100-SXM-80GB", "H100-SXM", "H200-SXM", "B200-SXM", "B300-SXM", "GB200", "GB300", "L40S"]
)
def test_a_timed_gpu_gets_its_kernels(gpu: str) -> None:
    record = chosen(gpu=gpu)
    assert record.provenance == "transported"
    assert record.calibration_id.endswith("/vllm/1+2")
    assert "single kernels timed" in record.notes[0]
    assert quoted_error(record.stated_error) is not None
    for table in (record.rest_ps[1:], record.prefill_table_ps[2:]):
        assert table.dtype == np.int64
        assert (table > 0).all()
    assert (record.decode_table_ps >= 0).all()  # the LM head on more rows; attention itself is bytes over bandwidth
    assert record.decode_linear_ps > 0
    assert record.prefill_step_ps > 0
    assert record.host_ps > 0
    assert record.request_overhead_ps == 75 * 10**8


def test_an_engine_family_gets_its_own_kernels_where_they_were_timed() -> None:
    assert chosen(scheduler="sglang").calibration_id == "h100_sxm/sglang/1+2"
    assert chosen(scheduler="trtllm").calibration_id == "h100_sxm/trtllm/1+2"
    stand_in = chosen(gpu="B300-SXM", scheduler="sglang")
    assert stand_in.calibration_id == "b300_sxm/vllm/1+2"
    assert any("SGLang" in note and "stand in" in note for note in stand_in.notes)


def test_a_gpu_that_nobody_timed_gets_its_data_sheet() -> None:
    record = chosen(gpu="H100-PCIe")
    assert record.provenance == "analytic"
    assert not record.stated_error
    assert not any("Kernels of" in note for note in record.notes)


def test_a_kernel_that_nobody_timed_is_named() -> None:
    record = chosen(weight_dtype="int4")
    assert record.provenance == "analytic"
    assert record.notes[0].startswith("Kernels of H100-SXM were timed, but not for this deployment: GEMMs with int4")
    latent = chosen("deepseek-ai/DeepSeek-V3", "H200-SXM", tp=8, weight_dtype="bf16")
    assert "latent attention (MLA) of this size with bf16 weights was not timed" in latent.notes[0]


def test_a_gpu_with_other_figures_under_a_shipped_name_is_not_that_gpu() -> None:
    slower = CATALOGUE.gpu("H100-SXM").model_copy(update={"mem_bw_gb_per_s": 2000.0})
    record = choose_step_time(
        CATALOGUE.model(LLAMA), slower, scheduler="vllm", version="vllm-0.33", tp=1, weight_dtype=None, kv_dtype=None,
        max_num_batched_tokens=512, max_num_seqs=8, max_model_len=1024, async_scheduling=True,
    )  # fmt: skip
    assert record.provenance == "analytic"


def test_experts_of_another_size_are_scaled_and_said() -> None:
    timed, scaled = chosen(MIXTRAL, tp=4), chosen(SCOUT, tp=8)
    assert not any("Experts of this size" in note for note in timed.notes)
    assert any("Experts of this size were not timed" in note for note in scaled.notes)
    own, other = quoted_error(timed.stated_error), quoted_error(scaled.stated_error)
    assert own is not None
    assert other is not None
    assert other.prefill > own.prefill
    assert other.decode > own.decode


def test_a_deployment_reports_what_it_rests_on() -> None:
    spec = DeploymentSpec(model=LLAMA, gpu="H100-SXM", engine=EngineSpec(preset="vllm-0.33"))
    info = step_time_info(resolve_deployment(spec, CATALOGUE.model(LLAMA), CATALOGUE.gpu("H100-SXM")))
    assert (info.provenance, info.calibration_id) == ("transported", "h100_sxm/vllm/1+2")
    assert info.stated_error.startswith(
        "step time of dense models, put together from kernels timed on H100-SXM: median"
    )


def test_eager_steps_are_no_faster_than_their_launches() -> None:
    eager, graphs = (chosen("Qwen/Qwen3-0.6B", cuda_graphs=captured) for captured in (False, True))
    assert eager.rest_ps[1] > graphs.rest_ps[1]
    assert eager.rest_ps[3] == eager.rest_ps[1]  # both bound by the launches of 28 layers


def test_measured_runs_are_those_of_the_accuracy_page(project_root: Path) -> None:
    every_run = (project_root / "docs" / "accuracy.md").read_text().split("## Every run")[1]
    errors: dict[tuple[str, str], list[float]] = {}
    for line in every_run.splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if len(cells) < 11 or not re.fullmatch(r"[+-][\d.]+", cells[10]):
            continue
        kind = "experts" if re.search(r"\d+x\d+B|-\d+E-", cells[2], re.IGNORECASE) else "dense"
        errors.setdefault((cells[1], kind), []).append(abs(float(cells[10])))
    assert errors.keys() == MEASURED_RUNS.keys()
    for key, found in errors.items():
        worst = np.percentile(found, 95) if len(found) >= 20 else max(found)
        assert MEASURED_RUNS[key] == (len(found), f"{worst:.1f} %"), key


@pytest.mark.parametrize(
    ("sentence", "shares"),
    [
        ("x: median 3 %, p95 14 to 15 %; latency end to end not measured", (0.15, 0.15)),
        ("x: median 1.6 %, p95 8.8 % of 14157 timings; mean ITL of 69 measured runs within 6.8 %", (0.088, 0.088)),
        ("x: median 0.8 %, p95 5.6 % of 13800 timings; mean ITL of 11 measured runs within 17.1 %", (0.171, 0.171)),
        ("x: median 0.9 %, p95 4.5 % of 8526 timings; mean ITL of 1 measured run within 5.1 %", (0.051, 0.051)),
        (
            "x: median 1 %, p95 4 % of 6468 timings; throughput of 49 published benchmarks: nine in ten within 28 %",
            (0.28, 0.28),
        ),
        ("throughput of 429 published benchmarks of dense models: median 59 %, nine in ten within 297 %", (2.97, 2.97)),
        ("x: median 1 %, p95 8 % of 9 timings (prefill p95 13.3 %, decode p95 5.2 %); not measured", (0.133, 0.052)),
        (
            "x: median 1 %, p95 8 % of 9 timings (prefill p95 13.3 %, decode p95 5.2 %); mean ITL of 69 measured runs "
            "within 6.8 %",
            (0.133, 0.068),
        ),
        ("not measured", None),
    ],
)
def test_the_larger_error_of_steps_and_of_runs_counts(sentence: str, shares: tuple[float, float] | None) -> None:
    assert quoted_error(sentence) == (None if shares is None else QuotedError(*shares))


def test_runs_and_published_benchmarks_are_both_stated_and_the_larger_counts() -> None:
    sentence = chosen(LLAMA).stated_error
    rows, _, most = BENCHMARKED["H100-SXM/vllm", "dense"]
    assert (
        f"throughput of {rows} published benchmarks of dense models under this engine: nine in ten within {most}"
        in sentence
    )
    error = quoted_error(sentence)
    assert error is not None
    assert error.prefill == error.decode == int(most.split()[0]) / 100
    linear = quoted_error(chosen("Qwen/Qwen3.5-397B-A17B", "H200-SXM", tp=8).stated_error)
    assert linear is not None
    assert linear.largest > 1.0, "no range: published runs of such models were several times slower"


def test_the_error_of_measured_runs_is_stated_where_there_are_any() -> None:
    assert "mean ITL of" in chosen(LLAMA).stated_error
    assert "mean ITL of 1 measured run within" in chosen(LLAMA, "L40S").stated_error
    assert quoted_error(chosen(MIXTRAL, tp=4).stated_error) == QuotedError(0.098, 0.098)


def test_of_an_engine_without_measured_runs_published_throughput_is_quoted() -> None:
    sentence = chosen(LLAMA, scheduler="trtllm").stated_error
    assert "published benchmarks of dense models under this engine: nine in ten within" in sentence
    assert "mean ITL" not in sentence
    assert "latency end to end not measured" in chosen(LLAMA, "H200-SXM").stated_error


def test_latent_attention_of_another_engine_does_not_stand_in() -> None:
    found = chosen("deepseek-ai/DeepSeek-R1", "B300-SXM", tp=8, scheduler="sglang")
    assert found.provenance == "analytic"
    assert "latent attention (MLA) was timed under vLLM only" in found.notes[0]
    assert chosen("deepseek-ai/DeepSeek-R1", "B300-SXM", tp=8).provenance == "transported"


def test_cards_over_pcie_pass_on_at_the_rate_of_a_pair() -> None:
    pair, four = (chosen(gpu="L40S", tp=tp) for tp in (2, 4))
    assert any("at the rate of a pair" in note for note in four.notes)
    assert not any("at the rate of a pair" in note for note in pair.notes)
    assert four.rest_ps[2048] < pair.rest_ps[2048]  # timed across sockets, four cards were slower than two
