"""One small replay in each loop of the engine: it compiles the loop, or loads it from the cache."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from replay.deployment import Deployment, resolve_deployment
from replay.hardware.catalogue import shipped_catalogue
from replay.simulate import simulate
from replay.specs import DeploymentSpec
from replay.workload import Workload

LOOPS: dict[str, dict[str, Any]] = {
    "fast": {},
    "fast, replicas coupled": {"replicas": 2, "router": "least_outstanding"},
    "general": {"engine": {"preset": "vllm-0.11", "overrides": {"long_prefill_token_threshold": 8}}},
    "lockstep": {
        "model": "mistralai/Mixtral-8x7B-Instruct-v0.1",
        "engine": {"preset": "vllm-0.11", "overrides": {"data_parallel_size": 2}},
    },
    "disaggregated": {"disaggregation": {"prefill_replicas": 1, "decode_replicas": 1, "kv_transfer_gb_per_s": 50}},
    "static": {"engine": {"preset": "static"}},
    "vllm-v0": {"engine": {"preset": "vllm-v0", "overrides": {"enable_chunked_prefill": False}}},
    "vllm-v0, chunked": {"engine": {"preset": "vllm-v0", "overrides": {"enable_chunked_prefill": True}}},
    "sglang": {"engine": {"preset": "sglang"}},
    "trtllm": {"engine": {"preset": "trtllm"}},
    "tgi-v3": {"engine": {"preset": "tgi-v3"}},
    "tgi-v2": {"engine": {"preset": "tgi-v2"}},
}
"""A deployment for each loop, beside the model and the GPU where it names none. The most used come first."""
COMMON = tuple(LOOPS)[:3]
"""What nearly every job of vLLM replays in."""


def deployment_of(case: dict[str, Any]) -> Deployment:
    """Of an entry of ``LOOPS``, or of another one like them."""
    catalogue = shipped_catalogue()
    spec = DeploymentSpec.model_validate({"model": "meta-llama/Llama-3.1-8B-Instruct", "gpu": "H100-SXM"} | case)
    return resolve_deployment(spec, catalogue.model(spec.model), catalogue.gpu(spec.gpu))


def run_loops(names: Iterable[str]) -> Iterator[str]:
    """The names, of ``LOOPS``, each once its loop has run."""
    lengths = np.full(4, 16, dtype=np.int64)
    workload = Workload(np.arange(4, dtype=np.int64) * 10**9, lengths, lengths, span_s=1.0)
    for name in names:
        simulate(workload, deployment_of(LOOPS[name]))
        yield name
