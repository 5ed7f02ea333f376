"""``capreplay memory``: the documented object, and the same figures in words."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from api.cli.group import cli

BASE = ["memory", "--model", "meta-llama/Llama-3.1-8B", "--gpu", "H100-SXM"]
DOCUMENTED = {
    "kv_blocks", "kv_tokens", "kv_gib", "weights_gib", "activation_gib", "non_torch_gib", "cuda_graph_gib", "total_gib",
    "max_concurrency", "fits", "reason",
}  # fmt: skip
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}


def size(*words: str, exit_code: int = 0) -> dict[str, Any]:
    answer = CliRunner().invoke(cli, [*words, "--json"], catch_exceptions=False)
    assert answer.exit_code == exit_code, answer.output
    document: dict[str, Any] = json.loads(answer.stdout)
    return document


def test_the_documented_object() -> None:
    answer = size(*BASE)
    assert set(answer) >= DOCUMENTED
    assert answer["fits"] is True
    assert answer["reason"] is None
    parts = ("kv_gib", "weights_gib", "activation_gib", "non_torch_gib", "cuda_graph_gib", "unused_gib")
    assert sum(answer[name] for name in parts) == pytest.approx(answer["total_gib"], abs=0.01)
    assert answer["kv_tokens"] / answer["kv_blocks"] == pytest.approx(16, rel=0.001)
    assert answer["total_gib"] < 79.3, "an H100 of 80 GB has no 80 GiB"


def test_options_reach_the_sizing() -> None:
    whole = size(*BASE)
    assert size(*BASE, "--gpu-memory-utilization", "0.5")["kv_blocks"] < whole["kv_blocks"] / 1.5
    assert size(*BASE, "--kv-dtype", "fp8")["kv_tokens"] > 1.9 * whole["kv_tokens"]
    assert size(*BASE, "--weight-dtype", "fp8")["weights_gib"] < 0.7 * whole["weights_gib"]
    assert size(*BASE, "--tp", "2")["weights_gib"] < 0.6 * whole["weights_gib"]
    assert size(*BASE, "--set", "max_num_seqs=64")["max_num_seqs"] == 64
    assert size(*BASE, "--max-model-len", "8192")["max_concurrency"] > 10 * whole["max_concurrency"]
    assert size(*BASE, "--engine", "vllm-0.11")["gpu_memory_utilization"] == 0.9


def test_what_does_not_fit_is_an_answer() -> None:
    answer = size("memory", "--model", "meta-llama/Llama-3.1-70B", "--gpu", "L40S")
    assert answer["fits"] is False
    assert answer["reason"].startswith("weights "), "the sentence around it says that it does not fit"
    parts = ("kv_gib", "weights_gib", "activation_gib", "non_torch_gib", "cuda_graph_gib", "unused_gib")
    needed = answer["total_gib"] + answer["shortfall_gib"]
    assert sum(answer[name] for name in parts) == pytest.approx(needed, abs=0.01)
    assert answer["cuda_graph_gib"] > 0
    too_long = size(*BASE, "--max-model-len", "1000000")
    assert too_long["fits"] is False
    assert "131072" in too_long["reason"]


def test_releases_before_the_replayed_ones_are_sized() -> None:
    assert size(*BASE, "--engine", "vllm-0.7.3")["engine"] == "vllm-0.7.3"


def test_a_config_file_and_its_folder_are_models(tmp_path: Path) -> None:
    folder = tmp_path / "my-model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    known = size(*BASE)
    for path in (folder / "config.json", folder):
        answer = size("memory", "--model", str(path), "--gpu", "H100-SXM")
        assert answer["model"] == "my-model"
        assert answer["kv_blocks"] == known["kv_blocks"]


def test_a_config_without_a_field_names_it(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({k: v for k, v in CONFIG.items() if k != "num_hidden_layers"}))
    problem = size("memory", "--model", str(path), "--gpu", "H100-SXM", exit_code=2)
    assert "num_hidden_layers" in json.dumps(problem)


def test_a_gpu_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "gpu.json"
    entry = {"key": "Lab-GPU", "vendor": "Lab", "memory_spec_gb": 100, "memory_total_gib": 90}
    path.write_text(json.dumps(entry | {"mem_bw_gb_per_s": 2000, "fp16_tflops": 500}))
    answer = size("memory", "--model", "meta-llama/Llama-3.1-8B", "--gpu", str(path))
    assert answer["gpu"] == "Lab-GPU"
    assert answer["total_gib"] == 90


def test_in_words() -> None:
    answer = CliRunner().invoke(cli, BASE)
    document = size(*BASE)
    assert answer.stdout.startswith("Fits: meta-llama/Llama-3.1-8B on 1 x H100-SXM")
    assert f"{document['kv_tokens']:,} tokens" in answer.stdout
    assert f"{document['weights_gib']:.2f}" in answer.stdout
    nope = CliRunner().invoke(cli, ["memory", "--model", "meta-llama/Llama-3.1-70B", "--gpu", "L40S"])
    assert nope.exit_code == 0
    assert nope.stdout.startswith("Does not fit:")
    assert nope.stdout.lower().count("does not fit") == 1
    assert "missing" in nope.stdout
    assert "KV blocks and the null block of the engine," in answer.stdout


def test_the_cure_is_what_a_run_would_do() -> None:
    words = ("memory", "--model", "meta-llama/Llama-3.1-70B", "--gpu", "H100-SXM")
    reason = size(*words)["reason"]
    found = re.search(r"tp 2 fits with max_model_len (\d+), tp (\d+) fits with max_model_len 131072", reason)
    assert found is not None, reason
    assert size(*words, "--tp", "2", "--max-model-len", found[1])["fits"]
    assert not size(*words, "--tp", "2", "--max-model-len", str(int(found[1]) + 32))["fits"]
    assert size(*words, "--tp", found[2])["fits"]
    two = CliRunner().invoke(cli, [*words, "--tp", "2"]).stdout
    assert f"run and replay take {found[1]} here" in two


LOG = """\
INFO 10-08 12:00:00 [api_server.py:1839] vLLM API server version 0.11.0
INFO 10-08 12:00:00 [utils.py:233] non-default args: {'model': 'meta-llama/Llama-3.1-8B', 'max_num_seqs': 64}
INFO 10-08 12:00:31 [kv_cache_utils.py:1087] GPU KV cache size: 400,000 tokens
"""


def test_a_start_up_log_becomes_options(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.write_text(LOG)
    answer = size("memory", "--from-log", str(path))
    assert answer["found"]["kv_tokens"] == {"value": 400_000, "line": 3}
    assert answer["deployment"]["engine"]["overrides"]["num_gpu_blocks_override"] == 25_000
    said = CliRunner().invoke(cli, ["memory", "--from-log", str(path)], catch_exceptions=False).stdout
    assert "--model meta-llama/Llama-3.1-8B --engine vllm-0.11.0 --set max_num_seqs=64" in said
    assert "Not in the log" in said
    assert "max_num_batched_tokens" in said


def test_without_a_log_model_and_gpu_are_needed() -> None:
    answer = CliRunner().invoke(cli, ["memory", "--model", "x"], catch_exceptions=False)
    assert answer.exit_code == 2
    assert "--gpu is missing" in answer.output
