"""What a served step has beyond its kernels timed alone, and what a request waits for before the engine sees it.

``step = host + m * (rest(T) + prefill attention) + KV bytes / (eta * bandwidth) + c_r * R``. The constants are few;
they were fitted on measured runs of vLLM servers with ``bench/fit_overheads.py``, which prints how well they carry over
to a deployment that was left out (docs/accuracy.md). Kernels themselves come from elsewhere and know nothing of this.
"""

from __future__ import annotations

from dataclasses import dataclass

from replay.hardware.entries import GpuType, ModelSpec
from replay.hardware.weights import layer_counts
from replay.steptime.roofline import EFFICIENCY, FROM_BENCHMARKS, generation

VERSION = 2
"""Of this module's constants; part of the calibration id, to be raised with any of them."""


@dataclass(frozen=True)
class Overheads:
    """What a served step has beyond its kernels timed alone. The defaults add nothing."""

    kernels_factor: float = 1.0
    """A served step over the sum of its kernels."""
    decode_bandwidth_share: float | None = None
    """Decode attention as KV bytes over this share of memory bandwidth; ``None``: as timed."""
    decode_row_s: float = 0.0
    """Sampling and bookkeeping of one decode in one step."""
    all_reduce_s: float = 0.0
    """Of each all-reduce beyond its kernel: ranks wait for the last of them."""
    host_s: float = 0.0
    host_per_request_s: float = 0.0
    """Scheduler, input preparation and output of a step."""
    request_s: float = 0.0
    """From sending to the engine's seeing the request."""


NO_OVERHEADS = Overheads()

KERNELS_FACTOR = {"ampere": 1.02}
KERNELS_FACTOR_ELSEWHERE = 1.04
"""m by GPU generation. H100: 1.04 (13 of 14 sound runs are best within 2 % of it)."""
EXPERTS_KERNELS_FACTOR = 0.94
FEW_EXPERTS = 8
"""m of models with so few experts, and of all models with experts under TensorRT-LLM: kernels were timed under more
skewed routing than the served models show. Of many experts, skewed routing wakes fewer: served steps of gpt-oss,
DeepSeek and Scout under vLLM and SGLang take what dense ones do."""
DECODE_BANDWIDTH_SHARE = 0.92
"""eta: decode attention in a captured graph, of the memory bandwidth on the data sheet."""
DECODE_ROW_S = 5e-6
DECODE_ROW_PER_VOCAB_S = {"ampere": 0.75e-9}
DECODE_ROW_PER_VOCAB_ELSEWHERE_S = 0.15e-9
"""c_r: bookkeeping of a decode, and sampling over the vocabulary by GPU generation. The measured servers sampled as
their models' own settings say, which for most means top-p or top-k."""
ALL_REDUCE_S = 1.5e-6
"""Per all-reduce and doubling of the ranks."""
REQUEST_S = 7.5e-3
"""API server and tokeniser: 6.5 to 9.5 ms on one node."""


@dataclass(frozen=True)
class Host:
    """CPU time of a step and of each request in it."""

    step_s: float
    request_s: float


HOST_OVERLAPPED = Host(0.5e-3, 5e-6)
"""Where it overlaps the GPU: it binds only where the GPU is faster; runs of 7 B and above show none of it."""
HOST_V1 = Host(1.5e-3, 20e-6)
"""Synchronous vLLM V1, and any other engine without overlap."""
HOST_V1_FIRST = Host(0.5e-3, 20e-6)
"""vLLM 0.8, as its 70 B runs show."""
HOST_V0 = Host(2e-3, 70e-6)
"""Scheduling, input preparation and output of a V0 step, in Python for each sequence: chosen on static batches of 1 to
64 under releases of 2024 (docs/benchmarks.md), half of them left out and no worse."""
_FIRST_V1 = ("vllm-0.8", "vllm-0.9")


def host_of(scheduler: str, version: str, async_scheduling: bool) -> Host:
    """CPU time of a step by engine. ``version``: ``vllm-0.11`` and the like."""
    if async_scheduling:
        return HOST_OVERLAPPED
    if scheduler == "vllm-v0":
        return HOST_V0
    return HOST_V1_FIRST if version in _FIRST_V1 else HOST_V1


def sampling_row_s(model: ModelSpec, gpu: GpuType) -> float:
    """The part of a decode's row that is sampling with top-p or top-k; greedy decoding has none of it."""
    return DECODE_ROW_PER_VOCAB_S.get(generation(gpu), DECODE_ROW_PER_VOCAB_ELSEWHERE_S) * model.vocab_size


def served_overheads(
    model: ModelSpec, gpu: GpuType, *, tp: int, scheduler: str, version: str, async_scheduling: bool
) -> Overheads:
    """The overheads of a deployment.

    Decode attention is bytes over bandwidth, except with latent keys (MLA), where arithmetic counts too, and with
    sliding windows, where the bytes depend on each request's context: there it is as timed. GPUs of a generation that
    nobody compared keep the low guess for theirs.
    """
    kind = generation(gpu)
    host = host_of(scheduler, version, async_scheduling)
    factor = KERNELS_FACTOR.get(kind, KERNELS_FACTOR_ELSEWHERE)
    share = EFFICIENCY[kind].decode if kind in ("other", *FROM_BENCHMARKS) else DECODE_BANDWIDTH_SHARE
    discounted = model.num_moe_layers > 0 and (scheduler == "trtllm" or model.num_experts <= FEW_EXPERTS)
    by_bytes = model.attention_kind != "MLA" and layer_counts(model)[1] == 0
    return Overheads(
        kernels_factor=EXPERTS_KERNELS_FACTOR if discounted else factor,
        decode_bandwidth_share=share if by_bytes else None,
        decode_row_s=DECODE_ROW_S + sampling_row_s(model, gpu),
        all_reduce_s=ALL_REDUCE_S * (tp.bit_length() - 1),
        host_s=host.step_s,
        host_per_request_s=host.request_s,
        request_s=REQUEST_S,
    )
