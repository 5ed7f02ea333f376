"""The timeline as a part of a report: where KV use is estimated, and the reason where it is not."""

from __future__ import annotations

import numpy as np
import pytest

from replay.deployment import resolve_deployment
from replay.hardware.catalogue import shipped_catalogue
from replay.planning.over_time import GROUPS_NOTE, KV_NOTE, POOLS_NOTE, RESERVED_NOTE, timeline_part
from replay.simulate import simulate
from replay.specs import DeploymentSpec
from replay.workload import Workload

LLAMA, GEMMA = "meta-llama/Llama-3.1-8B-Instruct", "google/gemma-3-12b-it"
APART = {"prefill_replicas": 1, "decode_replicas": 1, "kv_transfer_gb_per_s": 50}


@pytest.mark.parametrize(
    ("model", "preset", "more", "expected"),
    [
        (LLAMA, "vllm-0.33", {}, KV_NOTE),
        (LLAMA, "trtllm", {}, KV_NOTE),
        (LLAMA, "orca", {}, RESERVED_NOTE),
        (LLAMA, "tgi-v2", {}, RESERVED_NOTE),
        (LLAMA, "tgi-v3", {}, RESERVED_NOTE),
        (LLAMA, "vllm-0.33", {"disaggregation": APART}, POOLS_NOTE),
        (GEMMA, "vllm-0.33", {}, GROUPS_NOTE),
    ],
)
def test_kv_use_over_time_is_near_the_exact_mean_or_left_out_with_the_reason(
    model: str, preset: str, more: dict[str, object], expected: str
) -> None:
    catalogue = shipped_catalogue()
    spec = DeploymentSpec.model_validate({"model": model, "gpu": "H100-SXM", "engine": {"preset": preset}, **more})
    deployment = resolve_deployment(spec, catalogue.model(model), catalogue.gpu("H100-SXM"))
    load = Workload(np.arange(100) * 10**11, np.full(100, 2000), np.full(100, 200), 10.0)
    result = simulate(load, deployment)
    part = timeline_part(result, deployment, None)
    assert [note for note in part.notes if note.startswith("KV use")] == [expected]
    if expected is not KV_NOTE:
        assert part.kv_usage is None
        return
    assert part.kv_usage is not None
    mean = sum(part.kv_usage) * part.bin_s / (result.duration_s * result.busy_fraction)
    assert mean == pytest.approx(result.kv_usage_mean, rel=0.15)
