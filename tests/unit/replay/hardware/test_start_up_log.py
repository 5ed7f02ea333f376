"""Start-up logs of vLLM and SGLang: capacity and settings with their lines, what is missing, what is refused."""

from __future__ import annotations

import pytest

from replay.deployment import resolve_deployment
from replay.errors import SpecError
from replay.hardware.catalogue import shipped_catalogue
from replay.hardware.start_up_log import read_start_up_log
from replay.specs import DeploymentSpec

CATALOGUE = shipped_catalogue()
V1 = """\
(APIServer pid=1) INFO 10-08 12:00:00 [api_server.py:1839] vLLM API server version 0.11.0
(APIServer pid=1) INFO 10-08 12:00:00 [utils.py:233] non-default args: {'model_tag': 'Qwen/Qwen3-14B', \
'model': 'Qwen/Qwen3-14B', 'max_model_len': 32768, 'tensor_parallel_size': 2, 'max_num_seqs': 256, \
'gpu_memory_utilization': 0.95, 'served_model_name': ['mine'], 'kv_cache_dtype': 'fp8'}
(APIServer pid=1) INFO 10-08 12:00:05 [scheduler.py:205] Chunked prefill is enabled with max_num_batched_tokens=8192.
(EngineCore_DP0 pid=9) INFO 10-08 12:00:06 [core.py:58] Initializing a V1 LLM engine (v0.11.0) with config: \
model='Qwen/Qwen3-14B', speculative_config=None, dtype=torch.bfloat16, max_seq_len=32768, tensor_parallel_size=2, \
pipeline_parallel_size=1, quantization=None, enforce_eager=False, kv_cache_dtype=fp8, enable_prefix_caching=True
(Worker_TP0 pid=10) INFO 10-08 12:00:30 [gpu_worker.py:359] Available KV cache memory: 57.10 GiB
(EngineCore_DP0 pid=9) INFO 10-08 12:00:31 [kv_cache_utils.py:1087] GPU KV cache size: 1,496,816 tokens
(EngineCore_DP0 pid=9) INFO 10-08 12:00:31 [kv_cache_utils.py:1087] GPU KV cache size: 1,496,832 tokens
(EngineCore_DP0 pid=9) INFO [kv_cache_utils.py:1091] Maximum concurrency for 32,768 tokens per request: 45.68x
"""
SGLANG = """\
[2025-10-08 12:00:00] server_args=ServerArgs(model_path='meta-llama/Llama-3.1-8B', tp_size=2, \
mem_fraction_static=0.88, max_running_requests=None, chunked_prefill_size=8192, \
page_size=1, kv_cache_dtype='auto', quantization=None, \
schedule_conservativeness=1.0, disable_cuda_graph=False)
[2025-10-08 12:00:40 TP0] KV Cache is allocated. dtype: torch.bfloat16, #tokens: 900000, K size: 27.4 GB
[2025-10-08 12:00:50 TP0] max_total_num_tokens=900000, chunked_prefill_size=8192, max_prefill_tokens=16384, \
max_running_requests=2048, context_len=131072, available_gpu_mem=8.11 GB
"""


def test_speculative_decoding_is_said_not_to_be_read() -> None:
    for text in (
        V1.replace("'max_num_seqs': 256", "'speculative_config': {'method': 'ngram', 'num_speculative_tokens': 3}"),
        SGLANG.replace("page_size=1", "speculative_algorithm='EAGLE', page_size=1"),
    ):
        assert any("num_speculative_tokens" in note for note in read_start_up_log(text).notes)
    for text in (V1, SGLANG, SGLANG.replace("page_size=1", "speculative_algorithm=None, page_size=1")):
        assert not any("speculat" in note for note in read_start_up_log(text).notes)


def test_vllm_v1_with_ranks_that_differ() -> None:
    log = read_start_up_log(V1, CATALOGUE.model("Qwen/Qwen3-14B"))
    assert {name: found.value for name, found in log.found.items()} == {
        "version": "0.11.0",
        "model": "Qwen/Qwen3-14B",
        "max_model_len": 32768,
        "tp": 2,
        "pp": 1,
        "max_num_seqs": 256,
        "max_num_batched_tokens": 8192,
        "gpu_memory_utilization": 0.95,
        "enforce_eager": False,
        "enable_prefix_caching": True,
        "dtype": "torch.bfloat16",
        "kv_cache_dtype": "fp8",
        "kv_tokens": 1_496_816,
        "kv_blocks": 93_551,
        "block_size": 16,
    }
    assert log.found["max_num_batched_tokens"].line == 3
    assert log.found["kv_tokens"].line == 6
    assert any("smallest" in note for note in log.notes)
    assert any("block_size: 16, vLLM's default" in note for note in log.notes)
    assert log.missing == ("async_scheduling",)


def test_the_deployment_of_a_log_is_replayed_with_its_blocks() -> None:
    found = read_start_up_log(V1, CATALOGUE.model("Qwen/Qwen3-14B")).deployment()
    spec = DeploymentSpec.model_validate({**found, "gpu": "H100-SXM"})
    deployment = resolve_deployment(spec, CATALOGUE.model(spec.model), CATALOGUE.gpu(spec.gpu))
    assert deployment.usable_blocks == 93_551 - 1, "the null block serves no request"
    assert (deployment.engine.max_num_seqs, deployment.engine.max_num_batched_tokens) == (256, 8192)
    assert deployment.memory.kv_dtype == "fp8"
    assert (spec.tp, deployment.engine.version) == (2, "vllm-0.11")


def test_an_old_log_gives_blocks_and_the_concurrency_their_size() -> None:
    text = (
        "INFO 02-13 15:01:00 [x] Initializing an LLM engine (v0.6.3) with config: model='m/x', max_seq_len=4096, "
        "enable_prefix_caching=False, quantization=fp8\n"
        "INFO 02-13 15:01:40 kv_cache_utils.py:407] # GPU blocks: 33660, # CPU blocks: 2048\n"
        "INFO 02-13 15:01:40 kv_cache_utils.py:410] Maximum concurrency for 4096 tokens per request: 262.97x\n"
    )
    log = read_start_up_log(text)
    assert (log.value("block_size"), log.value("kv_blocks"), log.value("kv_tokens")) == (32, 33_660, 33_660 * 32)
    assert log.preset == "vllm-0.6.3"
    assert log.overrides == {"block_size": 32, "num_gpu_blocks_override": 33_660}
    assert log.deployment()["weight_dtype"] == "fp8"


def test_an_override_in_the_log_counts() -> None:
    text = (
        "INFO kv_cache_utils.py] # GPU blocks: 33660\n"
        "INFO core.py] Overriding num_gpu_blocks=33660 with num_gpu_blocks_override=512\n"
        "INFO kv_cache_utils.py] GPU KV cache size: 8,192 tokens\n"
    )
    log = read_start_up_log(text)
    assert (log.value("kv_blocks"), log.value("kv_tokens")) == (512, 8192)


def test_sglang_takes_what_it_settled_on_and_leaves_automatic_choices_out() -> None:
    log = read_start_up_log(SGLANG)
    assert log.preset == "sglang"
    assert log.value("kv_tokens") == 900_000
    assert log.overrides == {
        "max_running_requests": 2048,
        "chunked_prefill_size": 8192,
        "page_size": 1,
        "mem_fraction_static": 0.88,
        "schedule_conservativeness": 1.0,
        "disable_cuda_graph": False,
    }
    assert "disable_overlap_schedule" in log.missing
    spec = DeploymentSpec.model_validate({**log.deployment(), "gpu": "H100-SXM"})
    resolve_deployment(spec, CATALOGUE.model(spec.model), CATALOGUE.gpu(spec.gpu))


def test_a_model_with_windows_gets_no_block_count_from_tokens() -> None:
    model = next(one for one in CATALOGUE.models.values() if one.sliding_window and "gemma-2" in one.key.lower())
    text = "INFO api_server.py] vLLM API server version 0.19.0\nINFO GPU KV cache size: 670,160 tokens\n"
    assert "num_gpu_blocks_override" in read_start_up_log(text).overrides
    log = read_start_up_log(text, model)
    assert "num_gpu_blocks_override" not in log.overrides
    assert any("several groups" in note for note in log.notes)


def test_the_last_of_several_starts_counts() -> None:
    log = read_start_up_log(V1 + V1.replace("1,496,8", "1,396,8").replace("'max_num_seqs': 256", "'max_num_seqs': 128"))
    assert (log.value("kv_tokens"), log.value("max_num_seqs")) == (1_396_816, 128)
    assert log.found["version"].line > 8
    assert "2 starts" in log.notes[0]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", "start_up_log.unknown"),
        ("hello\nworld\n", "start_up_log.unknown"),
        (V1[: V1.index("(Worker_TP0")], "start_up_log.no_capacity"),
        ("INFO # GPU blocks: 0, # CPU blocks: 1024", "start_up_log.no_capacity"),
        ("x" * (8 * 1024**2 + 1), "start_up_log.too_long"),
    ],
)
def test_what_is_no_complete_start_is_refused(text: str, code: str) -> None:
    with pytest.raises(SpecError) as refused:
        read_start_up_log(text)
    assert refused.value.code == code
    assert refused.value.errors[0].cure


def test_odd_values_are_no_settings() -> None:
    text = (
        "vLLM API server version 0.11.0\nnon-default args: {'max_num_seqs': nan, 'block_size': 0, 'model': 5, "
        "'gpu_memory_utilization': 1e999, 'tensor_parallel_size': 2.5}\nGPU KV cache size: 1,600 tokens\n"
        "Maximum concurrency for 100 tokens per request: 16.00x\n"
    )
    log = read_start_up_log(text)
    assert log.overrides == {"block_size": 16, "num_gpu_blocks_override": 100}
    assert (log.value("model"), log.value("tp"), log.value("max_model_len")) == ("5", None, 100)
