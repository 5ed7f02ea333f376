"""Models whose layers form several groups: their blocks in a replay, under vLLM and under the others."""

from __future__ import annotations

import numpy as np
import pytest

from replay.deployment import Deployment, resolve_deployment
from replay.errors import SpecError
from replay.hardware.catalogue import shipped_catalogue
from replay.machine import make_machine
from replay.planning.figures import memory_breakdown
from replay.simulate import simulate
from replay.specs import DeploymentSpec
from replay.traces.sharing import previous_turns
from replay.workload import Workload

PS = 10**12


def deployed(
    model: str, preset: str = "vllm-0.33", gpu: str = "H100-SXM", tp: int = 1, **knobs: int | str
) -> Deployment:
    catalogue = shipped_catalogue()
    spec = {"model": model, "gpu": gpu, "tp": tp, "engine": {"preset": preset, "overrides": knobs}}
    return resolve_deployment(DeploymentSpec.model_validate(spec), catalogue.model(model), catalogue.gpu(gpu))


def together(n: int, prompt: int, output: int) -> Workload:
    return Workload(np.zeros(n, np.int64), np.full(n, prompt), np.full(n, output), 0.0)


def test_a_request_holds_its_whole_context_once_and_its_window_once() -> None:
    """gpt-oss: a full group and one of windows of 128, batches of 8192 tokens, two in flight in 0.33."""
    gpt = deployed("openai/gpt-oss-20b")
    assert gpt.most_blocks(np.array([16, 17, 131072])).tolist() == [2, 4, 8192 + 1033]
    assert gpt.usable_blocks == gpt.memory.kv_blocks
    old = deployed("openai/gpt-oss-20b", "vllm-0.11")
    assert old.most_blocks(np.array([131072])).tolist() == [8192 + 521]
    machine = make_machine(gpt)
    assert machine.loop == "general", "the fast loop knows one group only"
    assert (machine.config.full_groups, machine.config.window_groups, machine.config.window_tokens) == (1, 1, 128)


def test_blocks_leave_a_window_as_a_prompt_is_computed() -> None:
    """20,000 tokens in chunks of 8192: the second chunk has 1024 full blocks and 1024 - (8192 - 127) // 16 in the
    window; the third has 1250 and 1250 - (16384 - 127) // 16, which is less."""
    gpt = deployed("openai/gpt-oss-20b", max_num_batched_tokens=8192)
    result = simulate(together(1, 20_000, 1), gpt)
    assert round(result.kv_usage_max * gpt.usable_blocks) == 1024 + 1024 - 504


def test_six_window_groups_of_gemma_take_far_fewer_blocks_than_whole_contexts() -> None:
    gemma = deployed("google/gemma-3-27b-it", max_num_batched_tokens=2048, max_num_seqs=64)
    groups = gemma.layer_groups
    assert groups is not None
    assert (groups.full_groups, groups.window_groups, groups.window_tokens) == (1, 6, 1024)
    result = simulate(together(40, 30_000, 200), gemma)
    assert result.finished == 40
    most = gemma.usable_blocks // int(gemma.most_blocks(np.array([30_199]))[0])
    as_whole = gemma.usable_blocks // 7 // -(-30_199 // 16)
    assert result.batch_mean > 0.8 * most > 1.5 * as_whole


def test_turns_hit_where_every_group_still_has_their_blocks() -> None:
    k, s = np.divmod(np.arange(20), 4)
    load = Workload(k * 20 * PS + s * PS // 100, 100 * k + 60, np.full(20, 40), 80.0, follows=previous_turns(s))
    result = simulate(load, deployed("openai/gpt-oss-20b"))
    assert result.requests.hit_tokens.tolist() == np.where(k, (100 * k - 1) // 16 * 16, 0).tolist()


def test_recurrent_states_are_held_for_life_and_never_shared() -> None:
    qwen = deployed("Qwen/Qwen3.5-27B", gpu="H200", max_num_batched_tokens=8192)
    groups = qwen.layer_groups
    assert groups is not None
    assert groups.state_blocks == 6
    one = int(qwen.most_blocks(np.array([5_000]))[0])
    result = simulate(together(8, 4_000, 1_001), qwen)
    assert round(result.kv_usage_max * qwen.usable_blocks) == 8 * one
    assert any("recurrent states" in note for note in result.notes)
    again = Workload(np.arange(2) * 9 * PS, np.full(2, 4_000), np.full(2, 9), 9.0, follows=np.array([-1, 0]))
    assert simulate(again, qwen).prefix_hit_rate is None


def test_other_schedulers_say_what_they_do_not_follow() -> None:
    sglang = deployed("openai/gpt-oss-20b", "sglang")
    assert sglang.layer_groups is None
    assert any("capacity is understated" in note for note in sglang.notes)
    memory = memory_breakdown(sglang)
    assert memory.kv_tokens == memory.kv_blocks * memory.block_size
    assert any("blocks of whole-context capacity are replayed" in note for note in memory.notes)
    with pytest.raises(SpecError, match="under vLLM's V1 scheduler only") as caught:
        deployed("Qwen/Qwen3.5-27B", "trtllm", "H200")
    assert caught.value.errors[0].field == "engine.preset"
    drafts = deployed("openai/gpt-oss-20b", num_speculative_tokens=2, acceptance_rate="0.6")
    assert drafts.layer_groups is None
    assert any("capacity is understated" in note for note in drafts.notes)
    with pytest.raises(SpecError, match="without speculative decoding only"):
        deployed("Qwen/Qwen3.5-27B", gpu="H200", num_speculative_tokens=2, acceptance_rate="0.6")
    assert caught.value.errors[0].cure
