"""CPU seconds that the first run of each loop takes with no machine code cached, in one process: loops share helpers,
so each line counts what the loops above it had not compiled."""

from __future__ import annotations

import os
import tempfile
import time
from typing import Any

import numpy as np

_EIGHT = "mistralai/Mixtral-8x7B-Instruct-v0.1"
_GENERAL = {"engine": {"preset": "vllm-0.11", "overrides": {"long_prefill_token_threshold": 8}}}
LOOPS: dict[str, dict[str, Any]] = {
    "general": _GENERAL,
    "fast": {},
    "fast, replicas coupled": {"replicas": 2, "router": "least_outstanding"},
    "lockstep": {"model": _EIGHT, "engine": {"preset": "vllm-0.11", "overrides": {"data_parallel_size": 2}}},
    "disaggregated": {"disaggregation": {"prefill_replicas": 1, "decode_replicas": 1, "kv_transfer_gb_per_s": 50}},
    "static": {"engine": {"preset": "static"}},
    "vllm-v0": {"engine": {"preset": "vllm-v0", "overrides": {"enable_chunked_prefill": False}}},
    "vllm-v0, chunked": {"engine": {"preset": "vllm-v0", "overrides": {"enable_chunked_prefill": True}}},
    "sglang": {"engine": {"preset": "sglang"}},
    "trtllm": {"engine": {"preset": "trtllm"}},
    "tgi-v3": {"engine": {"preset": "tgi-v3"}},
}


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.environ["NUMBA_CACHE_DIR"] = folder
        from replay.deployment import resolve_deployment
        from replay.hardware.catalogue import shipped_catalogue
        from replay.simulate import simulate
        from replay.specs import DeploymentSpec
        from replay.workload import Workload

        catalogue = shipped_catalogue()
        lengths = np.full(4, 16, dtype=np.int64)
        workload = Workload(np.arange(4, dtype=np.int64) * 10**9, lengths, lengths, span_s=1.0)
        total = 0.0
        for name, case in LOOPS.items():
            spec = DeploymentSpec.model_validate(
                {"model": "meta-llama/Llama-3.1-8B-Instruct", "gpu": "H100-SXM"} | case
            )
            deployment = resolve_deployment(spec, catalogue.model(spec.model), catalogue.gpu(spec.gpu))
            started = time.process_time()
            simulate(workload, deployment)
            seconds = time.process_time() - started
            total += seconds
            print(f"{name:24} {seconds:6.1f} s", flush=True)
        print(f"{'all':24} {total:6.1f} s")


if __name__ == "__main__":
    main()
