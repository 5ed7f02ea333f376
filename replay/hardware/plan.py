"""The question and the answer of memory sizing: what is asked of one GPU, and what its memory then holds."""

from __future__ import annotations

from dataclasses import dataclass

from replay.hardware.activations import Sampler
from replay.hardware.entries import Entry, GpuType, ModelSpec
from replay.hardware.kv import KvLayout
from replay.hardware.versions import EngineVersion
from replay.hardware.weights import ONE_RANK, DataParallel


@dataclass(frozen=True)
class MemoryRequest:
    """The inputs of one sizing: model and GPU, sharding, precision, and the engine's knobs under its own names.

    ``sampler``: ``auto`` takes the version's default; ``cuda_graph_gib`` and ``non_torch_gib`` replace the estimates by
    a logged figure; ``enforce_eager`` means no CUDA graphs. Formats are canonical (see ``dtypes``).
    """

    model: ModelSpec
    gpu: GpuType
    tp: int
    engine: EngineVersion
    max_num_seqs: int
    max_num_batched_tokens: int
    gpu_memory_utilization: float
    max_model_len: int
    block_size: int
    weight_dtype: str
    kv_dtype: str
    sampler: Sampler = "auto"
    enforce_eager: bool = False
    prefix_caching: bool = True
    cuda_graph_gib: float | None = None
    non_torch_gib: float | None = None
    data_parallel: DataParallel = ONE_RANK


class MemoryPlan(Entry):
    """What one GPU's memory holds. The ``_gib`` parts add up to ``total_gib``; where there is no room for any KV
    cache, to that and ``shortfall_gib``.

    ``kv_blocks``: blocks that requests can use (the engine's null block is taken off); ``kv_tokens``: what the engine's
    start-up line prints; ``max_concurrency``: requests of ``max_model_len`` tokens at once. With ``fits`` false
    ``reason`` says why and what would work, and ``shortfall_gib`` what is missing. ``kv_uncertainty_gib`` is the half
    width of a 90 % interval around ``kv_gib``.
    """

    kv_blocks: int
    kv_tokens: int
    kv_gib: float
    weights_gib: float
    activation_gib: float
    non_torch_gib: float
    cuda_graph_gib: float
    unused_gib: float
    total_gib: float
    shortfall_gib: float = 0.0
    kv_uncertainty_gib: float
    max_concurrency: float
    longest_context_tokens: int
    """The longest context of which one request fits, at most the one asked for; 0 where none does."""
    kv_bytes_per_token: int
    block_size: int
    layout: KvLayout
    tp: int
    engine_version: str
    weight_dtype: str
    kv_dtype: str
    fits: bool
    reason: str | None = None
    notes: tuple[str, ...] = ()

    def blocks_for(self, tokens: int) -> int:
        """Physical blocks that one request of ``tokens`` tokens holds."""
        return self.layout.blocks(tokens)
