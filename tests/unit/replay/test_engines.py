"""Engine presets and knobs: defaults, what each scheduler takes, and refusals that name the knob and the cure."""

from __future__ import annotations

import pytest

from replay.engines import KNOBS, KNOBS_OF, PRESETS, EngineConfig, resolve_engine
from replay.errors import SpecError
from replay.hardware.catalogue import shipped_catalogue
from replay.specs import EngineSpec

CATALOGUE = shipped_catalogue()
MODEL = CATALOGUE.model("meta-llama/Llama-3.1-8B-Instruct")


def engine(preset: str, gpu: str = "H100-SXM", length: int | None = 8192, **knobs: object) -> EngineConfig:
    spec = EngineSpec.model_validate({"preset": preset, "overrides": knobs})
    return resolve_engine(spec, CATALOGUE.gpu(gpu), MODEL, length)


@pytest.mark.parametrize("preset", [name for name in PRESETS if not name.startswith(("sglang", "trtllm", "tgi"))])
def test_every_preset_resolves_and_shows_its_own_knobs(preset: str) -> None:
    config = engine(preset)
    own = set(KNOBS_OF[config.scheduler])
    foreign = {name for names in KNOBS_OF.values() for name in names} - own
    ranks = {"data_parallel_size", "enable_expert_parallel"}  # of one rank there is nothing to show
    assert own - ranks <= config.settings().keys()
    assert not foreign & config.settings().keys()
    assert config.max_num_seqs <= config.max_num_batched_tokens


def test_every_knob_belongs_somewhere() -> None:
    assert all(name in KNOBS for names in KNOBS_OF.values() for name in names)


def test_sarathi_is_the_v1_loop_with_a_small_budget() -> None:
    config = engine("sarathi")
    assert config.scheduler == "vllm"
    assert (config.max_num_batched_tokens, config.max_num_seqs, config.watermark) == (512, 128, 0.01)
    assert (config.enable_chunked_prefill, config.async_scheduling, config.enable_prefix_caching) == (
        True,
        False,
        False,
    )
    assert engine("sarathi", max_num_batched_tokens=256).max_num_batched_tokens == 256


def test_v0_takes_whole_prompts_and_its_releases_by_number() -> None:
    config = engine("vllm-v0")
    assert (config.max_num_batched_tokens, config.max_num_seqs) == (8192, 256)
    assert (config.gpu_memory_utilization, config.watermark, config.block_size) == (0.9, 0.01, 16)
    assert (config.preemption_mode, config.swap_space_gib) == ("recompute", 4.0)
    assert config.pcie_gb_per_s == pytest.approx(0.78 * 64)
    older = engine("vllm-0.6.3")
    assert (older.scheduler, older.version) == ("vllm-v0", "vllm-0.6")
    assert engine("vllm-0.8.5").scheduler == "vllm"
    longer = engine("vllm-v0", length=65_536)
    assert (longer.enable_chunked_prefill, longer.max_num_batched_tokens) == (True, 2048)
    assert any("32768" in note for note in longer.notes)
    whole = engine("vllm-v0", length=65_536, enable_chunked_prefill=False)
    assert (whole.enable_chunked_prefill, whole.max_num_batched_tokens) == (False, 65_536)


def test_orca_reserves_single_slots() -> None:
    config = engine("orca", max_tokens_default=512)
    assert (config.scheduler, config.block_size, config.max_tokens_default) == ("orca", 1, 512)
    assert config.max_num_batched_tokens == 8192


@pytest.mark.parametrize(
    ("preset", "knobs", "knob", "cure"),
    [
        ("vllm-0.33", {"scheduling_policy": "lifo"}, "scheduling_policy", "fcfs, priority, sjf, srpt"),
        ("vllm-0.33", {"output_length_sigma": 0.5}, "output_length_sigma", "sjf or srpt"),
        ("vllm-0.33", {"scheduling_policy": "priority", "ageing_per_s": 1}, "ageing_per_s", "sjf or srpt"),
        ("vllm-0.33", {"scheduling_policy": "sjf", "output_length_sigma": -1.0}, "output_length_sigma", "between 0"),
        ("vllm-0.33", {"swap_space_gib": 4.0}, "swap_space_gib", "vllm-v0"),
        ("vllm-v0", {"scheduling_policy": "sjf"}, "scheduling_policy", "belongs to vllm"),
        ("vllm-v0", {"enable_chunked_prefill": True, "preemption_mode": "swap"}, "preemption_mode", "recompute"),
        ("orca", {"enable_chunked_prefill": True}, "enable_chunked_prefill", "belongs to vllm"),
        ("vllm-v0", {"preemption_mode": "drop"}, "preemption_mode", "recompute, swap"),
        ("vllm-v0", {"max_num_batched_tokens": 2048}, "max_num_batched_tokens", "8192"),
        ("orca", {"watermark": 0.1}, "watermark", "vllm-v0"),
        ("static", {"max_tokens_default": 10}, "max_tokens_default", "orca"),
        ("sarathi", {"max_num_batched_tokens": 64}, "max_num_batched_tokens", "128"),
    ],
)
def test_refusals_name_the_knob_and_the_cure(preset: str, knobs: dict[str, object], knob: str, cure: str) -> None:
    with pytest.raises(SpecError) as refusal:
        engine(preset, **knobs)
    fault = refusal.value.errors[0]
    assert fault.field == f"engine.overrides.{knob}"
    assert cure in fault.cure


def test_words_are_read_in_any_case() -> None:
    assert engine("vllm-0.33", scheduling_policy="SRPT").scheduling_policy == "srpt"
