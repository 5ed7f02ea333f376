"""Timings of single kernels on one GPU type under one engine family: what a shipped calibration file holds.

A kernel belongs to a shape, not to a model: GEMMs by tokens, outputs and inputs; attention by heads, head size and
lengths; experts by their sizes; all-reduces by bytes. So the tables serve models that nobody timed.
All times in microseconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from replay.steptime.interpolation import Float64Array, along, between, grid


@dataclass(frozen=True)
class GemmTables:
    """Dense GEMMs ``(tokens, inputs) x (inputs, outputs)``, quantisation of the activations included."""

    outputs: Float64Array
    inputs: Float64Array
    tokens: Mapping[str, Float64Array]
    """By weight format."""
    us: Mapping[str, Float64Array]
    """By weight format, shape (outputs, inputs, tokens)."""

    def at(self, fmt: str, outputs: float, inputs: float, tokens: Float64Array) -> Float64Array:
        """Times of one matrix at each number of tokens."""
        curve = between(self.inputs, between(self.outputs, self.us[fmt], outputs), inputs)
        return along(self.tokens[fmt], curve, tokens)


@dataclass(frozen=True)
class AttentionKey:
    """What tells attention kernels apart, beside their number of heads."""

    head_dim: int
    window: int
    """Tokens a query sees at most; 0: all."""
    kv_dtype: str
    weights: str = ""
    """Of the projections, where they were timed with the attention (latent keys)."""


@dataclass(frozen=True)
class AttentionTables:
    """Attention of one layer on one GPU, by query and key-value heads there."""

    rows: Float64Array
    """Prefill: query tokens of a chunk. Decode: sequences."""
    columns: Float64Array
    """Prefill: tokens cached before the chunk. Decode: context tokens of each sequence."""
    us: Mapping[AttentionKey, Mapping[tuple[int, int], Float64Array]]
    """By kernel and (query heads, key-value heads), shape (rows, columns)."""

    def by_heads(self, key: AttentionKey, heads: float, kv_heads: float) -> Float64Array:
        """The table of a number of heads, in straight lines between those timed: query heads first, since prefill
        works in proportion to them; key-value heads within the grouping that was timed."""
        timed = self.us[key]
        slices = []
        knots = sorted({found for found, _ in timed})
        for found in knots:
            choices = sorted(kv for of, kv in timed if of == found)
            slices.append(_one(choices, [timed[found, kv] for kv in choices], kv_heads * found / heads))
        return between(np.array(knots, dtype=np.float64), np.stack(slices), heads)

    def by_kv_heads(self, key: AttentionKey, heads: float, kv_heads: float) -> Float64Array:
        """The same, key-value heads first, since decoding reads in proportion to them."""
        timed = self.us[key]
        slices = []
        knots = sorted({found for _, found in timed})
        for found in knots:
            choices = sorted(of for of, kv in timed if kv == found)
            slices.append(_one(choices, [timed[of, found] for of in choices], heads * found / kv_heads))
        return between(np.array(knots, dtype=np.float64), np.stack(slices), kv_heads)

    def at(self, table: Float64Array, rows: Float64Array, columns: Float64Array) -> Float64Array:
        """Times at every pair of rows and columns of a ``table``."""
        return grid(self.rows, self.columns, table, rows, columns)


def _one(choices: list[int], tables: list[Float64Array], wanted: float) -> Float64Array:
    """The table at ``wanted``, within the range of ``choices``."""
    within = min(max(wanted, choices[0]), choices[-1])
    return between(np.array(choices, dtype=np.float64), np.stack(tables), within)


@dataclass(frozen=True)
class ExpertKey:
    """One layer of routed experts as it is sharded."""

    hidden: int
    intermediate: int
    top_k: int
    experts: int
    fmt: str
    tp: int
    ep: int


@dataclass(frozen=True)
class ExpertTables:
    """Routing, gathering and both GEMMs of the experts of one layer on one GPU, under skewed routing."""

    tokens: Float64Array
    us: Mapping[ExpertKey, Float64Array]
    """Shape (tokens,)."""


@dataclass(frozen=True)
class AllReduceTables:
    """One all-reduce of 16-bit numbers, inside a captured graph where the engine does so."""

    size_bytes: Float64Array
    us: Mapping[int, Float64Array]
    """By ranks."""

    def at(self, ranks: int, size_bytes: Float64Array) -> Float64Array:
        if ranks == 1:
            return np.zeros_like(size_bytes)
        return along(self.size_bytes, self.us[ranks], size_bytes)

    def ring_of_pairs(self, ranks: int, size_bytes: Float64Array) -> Float64Array:
        """A ring in which every hop is as fast as that of the timed pair: ``2 (ranks - 1)`` hops of ``size / ranks``
        where a pair has two of ``size / 2``."""
        latency = self.us[2][0]
        return np.asarray((ranks - 1) * latency + 2 * (ranks - 1) / ranks * (self.at(2, size_bytes) - latency))


@dataclass(frozen=True)
class Elementwise:
    """Norms, residuals and activations between the timed kernels: bytes over bandwidth plus a fixed time, as the source
    of the timings reckons them."""

    memory_bytes_per_s: float
    """On the data sheet."""
    share: float
    """Of memory bandwidth that such kernels reach."""
    fixed_us: float

    def at(self, width: float, tokens: Float64Array) -> Float64Array:
        """One kernel that moves ``width`` 16-bit numbers a token."""
        return self.fixed_us + tokens * (2.0 * width / (self.share * self.memory_bytes_per_s) * 1e6)


LATENT_DIMS = {
    "hidden_size": 7168,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
}
"""The latent attention that was timed: that of DeepSeek-V3 and Kimi-K2."""
LATENT_WIDTH = LATENT_DIMS["kv_lora_rank"] + LATENT_DIMS["qk_rope_head_dim"]


@dataclass(frozen=True)
class KernelTables:
    """All kernels of one GPU type and engine family."""

    gemm: GemmTables
    prefill: AttentionTables
    decode: AttentionTables
    latent_prefill: AttentionTables
    latent_decode: AttentionTables
    """Whole attention blocks over latent keys of ``LATENT_DIMS``, projections and attention."""
    experts: ExpertTables
    all_reduce: AllReduceTables
    elementwise: Elementwise
    qk_norm_us: float
    """Normalising queries and keys of a prompt, a layer, where the model does."""
