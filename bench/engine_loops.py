"""Rows of the engine's bench beside the fast and the general loop on chat: other schedulers, memory and clusters.

Every row replays through ``simulate``, at 80 % of what the deployment sustains. Seconds are of CPU time on one core,
so a busy machine changes little. The first call of a row compiles its loop, or loads it where it was compiled before.
"""

from __future__ import annotations

import gzip
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine_loads import chat, documents_in_a_rush, turns_as_blocks, turns_as_texts, turns_in_a_closed_loop
from engine_twins import twin_steps_per_s

from replay.deployment import Deployment, resolve_deployment
from replay.hardware.catalogue import shipped_catalogue
from replay.simulate import simulate
from replay.specs import DeploymentSpec
from replay.specs_transform import Transform
from replay.traces.ingest import ingest
from replay.traces.options import IngestOptions
from replay.traces.transforms import load_workload
from replay.workload import Workload

LOAD = 0.8
LLAMA, GPU = "meta-llama/Llama-3.1-8B-Instruct", "H100-SXM"
MOONCAKE = Path(__file__).parent.parent.parent / "shared" / "traces" / "mooncake" / "conversation_trace.jsonl.gz"
_TGI = {"max_concurrent_requests": 10_000, "max_tokens_default": 256}


@dataclass(frozen=True)
class Loop:
    """One row: a deployment and the kind of load it gets."""

    name: str
    preset: str = "vllm-0.11"
    knobs: dict[str, Any] = field(default_factory=dict)
    spec: dict[str, Any] = field(default_factory=dict)
    load: Callable[[int, float], Workload] = chat

    def deployment(self) -> Deployment:
        catalogue = shipped_catalogue()
        engine = {"preset": self.preset, "overrides": self.knobs}
        spec = DeploymentSpec.model_validate({"model": LLAMA, "gpu": GPU, "engine": engine, **self.spec})
        return resolve_deployment(spec, catalogue.model(spec.model), catalogue.gpu(spec.gpu))


LOOPS = (
    Loop("sarathi", "sarathi"),
    Loop("orca", "orca"),
    Loop("priority by predicted length (srpt)", knobs={"scheduling_policy": "srpt"}),
    Loop("vllm-v0", "vllm-v0"),
    Loop("vllm-v0, chunked prefill", "vllm-v0", {"enable_chunked_prefill": True}),
    Loop("sglang", "sglang", {"max_tokens_default": 256}),
    Loop("trtllm", "trtllm", {"max_tokens_default": 256}),
    Loop("tgi-v3", "tgi-v3", _TGI),
    Loop("tgi-v2", "tgi-v2", _TGI),
    Loop("static batches of 64", "static", {"max_num_seqs": 64}),
    Loop("prefix cache, block ids", load=turns_as_blocks),
    Loop("prefix cache, turns of sessions", load=turns_as_texts),
    Loop("prefix cache, blocked head", load=documents_in_a_rush),
    Loop("prefix cache, 16 GiB host tier", knobs={"kv_offload_gib": 16.0}, load=turns_as_blocks),
    Loop("sglang radix cache", "sglang", {"max_tokens_default": 256}, load=turns_as_texts),
    Loop(
        "sglang radix cache, lpm",
        "sglang",
        {"max_tokens_default": 256, "schedule_policy": "lpm"},
        load=turns_as_texts,
    ),
    Loop("speculation, 3 drafts", knobs={"num_speculative_tokens": 3, "acceptance_rate": 0.7}),
    Loop("layer groups (gpt-oss-20b)", spec={"model": "openai/gpt-oss-20b"}),
    Loop(
        "prefill and decode pools, 1 + 1",
        spec={"disaggregation": {"prefill_replicas": 1, "decode_replicas": 1, "kv_transfer_gb_per_s": 50}},
    ),
    Loop(
        "4 ranks in lockstep (Qwen3-30B-A3B)",
        knobs={"data_parallel_size": 4, "enable_expert_parallel": True},
        spec={"model": "Qwen/Qwen3-30B-A3B"},
    ),
    Loop("closed-loop sessions", load=turns_in_a_closed_loop),
    Loop("clients that give up after 60 s", spec={"client_timeout_s": 60.0}),
    Loop(
        "4 replicas, one lost for a minute",
        spec={"replicas": 4, "failures": [{"replica": 1, "at_s": 30.0, "back_after_s": 60.0}]},
    ),
)


def loop_rows(quick: bool, only: str = "") -> Iterator[dict[str, object]]:
    """One row a loop whose name holds ``only``; ``quick`` takes a fifth of the requests."""
    for loop in LOOPS:
        if only in loop.name:
            yield _row(loop, 2_000 if quick else 10_000)


def _row(loop: Loop, n: int) -> dict[str, object]:
    deployment = loop.deployment()
    started = time.process_time()
    capacity = simulate(loop.load(500, 1.0), deployment).sustainable_rps
    first_s = time.process_time() - started
    row = _timed(loop.name, loop.load(n, LOAD * capacity), deployment, first_s)
    twin = twin_steps_per_s(deployment, loop.load(200, LOAD * capacity))
    return row | ({} if twin is None else {"times_the_twin": round(float(str(row["steps_per_s"])) / twin)})


def _timed(name: str, load: Workload, deployment: Deployment, first_s: float) -> dict[str, object]:
    shortest = float("inf")
    for _ in range(3):
        started = time.process_time()
        result = simulate(load, deployment, judge_load=False)
        shortest = min(shortest, time.process_time() - started)
    return {
        "what": name,
        "requests": load.n,
        "seconds": round(shortest, 4),
        "requests_per_s": round(load.n / shortest),
        "steps_per_s": round(result.steps / shortest),
        "mean_batch": round(result.batch_mean, 1),
        "first_call_s": round(first_s, 1),
        "reach": "",
    }


def mooncake_rows() -> Iterator[dict[str, object]]:
    """The Mooncake conversation trace on 8 replicas with prefix caching; no row where the trace is not at hand."""
    if not MOONCAKE.exists():
        return
    with tempfile.TemporaryDirectory() as folder:
        plain, canonical = Path(folder) / "trace.jsonl", Path(folder) / "trace.parquet"
        plain.write_bytes(gzip.decompress(MOONCAKE.read_bytes()))
        ingest(plain, canonical, IngestOptions())
        load = load_workload(canonical, Transform(), 0)
    loop = Loop("Mooncake conversation, 8 replicas, prefix cache", "vllm-0.33", spec={"replicas": 8})
    deployment = loop.deployment()
    started = time.process_time()
    simulate(load, deployment, judge_load=False)
    first_s = time.process_time() - started
    yield _timed(loop.name, load, deployment, first_s) | {"reach": "whole trace within 1 s"}
