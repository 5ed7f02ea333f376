"""Attention over latent keys (MLA): blocks timed whole, projections and attention together.

A step's tokens pay the projections in ``rest``; what a block takes beyond its projections is its attention, in the
tables of chunks and decodes. Both parts of a step of one prompt, or of decodes alone, add up to the block as timed.
"""

from __future__ import annotations

import numpy as np

from replay.hardware.entries import ModelSpec
from replay.steptime.interpolation import Float64Array, never_falling
from replay.steptime.kernel_tables import LATENT_DIMS, LATENT_WIDTH, AttentionKey, AttentionTables, KernelTables


def latent_key(model: ModelSpec, tables: KernelTables, weights: str, kv_dtype: str) -> AttentionKey | None:
    """The timed block of a model; ``None`` where it was not timed."""
    if model.indexer_heads or any(getattr(model, name) != value for name, value in LATENT_DIMS.items()):
        return None
    key = AttentionKey(LATENT_WIDTH, 0, kv_dtype, weights)
    return key if key in tables.latent_prefill.us and key in tables.latent_decode.us else None


def latent_projections_us(tables: KernelTables, key: AttentionKey, heads: float, tokens: Float64Array) -> Float64Array:
    """Down to the latents, up to the queries, and out, of one layer on one GPU; keys are absorbed.

    As single GEMMs, but never more than a whole block of as many tokens takes: blocks were timed in a captured graph.
    """
    d = LATENT_DIMS
    down = d["q_lora_rank"] + LATENT_WIDTH
    queries = heads * (d["qk_nope_head_dim"] + d["qk_rope_head_dim"])
    parts = ((down, d["hidden_size"]), (queries, d["q_lora_rank"]), (d["hidden_size"], heads * d["v_head_dim"]))
    least = np.zeros_like(tokens)
    for outputs, inputs in parts:
        least = least + tables.gemm.at(key.weights, outputs, inputs, tokens)
    for blocks in (tables.latent_prefill, tables.latent_decode):
        whole = blocks.at(blocks.by_heads(key, heads, 1.0), tokens, blocks.columns[:1])[:, 0]
        least = np.where(tokens <= blocks.rows[-1], np.minimum(least, whole), least)
    return least


def latent_attention_us(
    tables: KernelTables,
    blocks: AttentionTables,
    key: AttentionKey,
    heads: float,
    rows: Float64Array,
    columns: Float64Array,
) -> Float64Array:
    """A block of one layer beyond its projections, shape (rows, columns). ``rows``: tokens of the block, rising."""
    whole = blocks.at(blocks.by_heads(key, heads, 1.0), rows, columns)
    beyond = whole - latent_projections_us(tables, key, heads, rows)[:, None]
    return never_falling(np.maximum(beyond, 0.0))
