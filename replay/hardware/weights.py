"""Bytes of model weights on one tensor-parallel rank, tensor by tensor, as the engine allocates them.

Formula and evidence: docs/memory.md section 2. Projections are fused as the engine fuses them (QKV, gate and up,
experts), because the allocator rounds each tensor on its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from replay.hardware.dtypes import matrix_bytes
from replay.hardware.entries import ModelSpec
from replay.hardware.versions import EngineVersion

MIB = 2**20
GIB = 2**30


@dataclass(frozen=True)
class WeightBytes:
    """Allocated bytes of one rank by part; ``total`` is what a start-up log calls the model's weights."""

    embeddings: int
    attention: int
    mlp: int
    experts: int
    rotary: int
    vision: int
    other: int

    @property
    def total(self) -> int:
        return self.embeddings + self.attention + self.mlp + self.experts + self.rotary + self.vision + self.other


def allocated(size: int) -> int:
    """Bytes that PyTorch's caching allocator counts for a tensor of ``size`` bytes.

    512-byte granularity; a tensor of 10 MiB or more gets a segment of whole 2 MiB and keeps the tail when that is at
    most 1 MiB (too small to be split off).
    """
    size = -(-size // 512) * 512
    if size < 10 * MIB:
        return size
    segment = -(-size // (2 * MIB)) * 2 * MIB
    return segment if segment - size <= MIB else size


def _matrix(rows: int, cols: int, fmt: str) -> int:
    return sum(allocated(size) for size in matrix_bytes(rows, cols, fmt))


class DataParallel(NamedTuple):
    """Data-parallel ranks that share their experts, each of ``tp`` GPUs; all else is on every rank."""

    size: int = 1
    expert_parallel: bool = False
    """Whole experts a GPU, instead of a slice of each."""


ONE_RANK = DataParallel()


def size_weights(
    model: ModelSpec, tp: int, fmt: str, engine: EngineVersion, data_parallel: DataParallel = ONE_RANK
) -> WeightBytes:
    """Weights of one GPU at tensor parallelism ``tp`` in format ``fmt`` (see ``dtypes.weight_format``).

    Embedding, head, router and norms stay 16 bit; KV heads are replicated when ``tp`` exceeds them; so are MLA
    down-projections, routers and norms on every rank.
    """
    layers = model.num_layers
    moe = model.num_moe_layers if model.num_experts else 0
    dense = layers - moe
    plain = {part: "bf16" if part in model.unquantized and fmt != "fp32" else fmt for part in
             ("attention", "dense_mlp", "shared_experts", "experts")}  # fmt: skip

    embed_rows = -(-(-(-model.vocab_size // 64) * 64) // tp)
    embedding = allocated(embed_rows * model.hidden_size * 2)
    embeddings = embedding * (1 if model.tie_word_embeddings else 2)
    embeddings += allocated(model.learned_positions * model.hidden_size * 2) if model.learned_positions else 0

    attention = _attention_layers(model, tp, plain["attention"])
    mlp = dense * _mlp(model, model.intermediate_size, tp, plain["dense_mlp"])
    shared = model.shared_expert_intermediate_size
    if moe and shared:
        mlp += moe * _mlp(model, shared, tp, plain["shared_experts"])
    experts = moe * _experts(model, tp, plain["experts"], engine, data_parallel) if moe else 0
    router = moe * allocated(model.num_experts * model.hidden_size * 2)
    norms = (2 * layers + 1) * allocated(model.hidden_size * 2)
    vision = round((model.vision_params_b or 0.0) * 2e9 / tp)
    return WeightBytes(embeddings, attention, mlp, experts, _rotary(model), vision, router + norms)


def _attention_layers(model: ModelSpec, tp: int, fmt: str) -> int:
    full, window, linear = layer_counts(model)
    total = 0
    if model.kv_lora_rank:
        total += full * _mla(model, tp, fmt)
    else:
        total += full * _gqa(model, tp, fmt, *full_heads(model))
        total += window * _gqa(model, tp, fmt, model.num_key_value_heads, model.head_dim)
    return total + linear * _gated_delta(model, tp, fmt)


def layer_counts(model: ModelSpec) -> tuple[int, int, int]:
    """Layers with full attention, with a window and with linear attention; all full where the spec does not say."""
    full, window, linear = model.num_full_attn_layers, model.num_window_layers, model.num_linear_layers
    if full + window + linear == 0:
        return model.num_layers, 0, 0
    return full, window, linear


def full_heads(model: ModelSpec) -> tuple[int, int]:
    """KV heads and head width of the full-attention layers."""
    return (
        model.full_attn_key_value_heads or model.num_key_value_heads,
        model.full_attn_head_dim or model.head_dim,
    )


def kv_heads_per_rank(heads: int, tp: int) -> int:
    """KV heads on one rank: sharded, or replicated when there are fewer heads than ranks."""
    return max(1, heads // tp)


def _gqa(model: ModelSpec, tp: int, fmt: str, kv_heads: int, head_dim: int) -> int:
    queries = model.num_attention_heads // tp
    kv = kv_heads_per_rank(kv_heads, tp)
    qkv_rows = (queries * (2 if model.attention_output_gate else 1) + 2 * kv) * head_dim
    bias = allocated(qkv_rows * 2) if model.attention_bias else 0
    return _matrix(qkv_rows, model.hidden_size, fmt) + _matrix(model.hidden_size, queries * head_dim, fmt) + bias


def _mla(model: ModelSpec, tp: int, fmt: str) -> int:
    heads, rank = model.num_attention_heads // tp, model.kv_lora_rank or 0
    nope, rope, value = model.qk_nope_head_dim or 0, model.qk_rope_head_dim or 0, model.v_head_dim or 0
    hidden, q_rank = model.hidden_size, model.q_lora_rank
    total = _matrix(heads * (nope + value), rank, fmt) + _matrix(hidden, heads * value, fmt)
    if q_rank:
        total += _matrix(q_rank + rank + rope, hidden, fmt) + _matrix(heads * (nope + rope), q_rank, fmt)
    else:
        total += _matrix(rank + rope, hidden, fmt) + _matrix(heads * (nope + rope), hidden, fmt)
    absorbed = allocated(heads * rank * nope * 2) + allocated(heads * rank * value * 2)
    if model.indexer_heads and model.indexer_head_dim:
        total += _matrix(model.indexer_heads * model.indexer_head_dim, q_rank or hidden, fmt)
        total += _matrix(model.indexer_head_dim + model.indexer_heads, hidden, "bf16")
    return total + absorbed


def _gated_delta(model: ModelSpec, tp: int, fmt: str) -> int:
    if not model.num_linear_layers:
        return 0
    keys = (model.linear_key_heads or 0) * (model.linear_key_head_dim or 0)
    values = (model.linear_value_heads or 0) * (model.linear_value_head_dim or 0)
    hidden = model.hidden_size
    conv = allocated((2 * keys + values) // tp * (model.linear_conv_kernel or 0) * 2)
    gates = allocated(2 * (model.linear_value_heads or 0) // tp * hidden * 2)
    return _matrix((2 * keys + 2 * values) // tp, hidden, fmt) + _matrix(hidden, values // tp, fmt) + conv + gates


def _mlp(model: ModelSpec, width: int, tp: int, fmt: str) -> int:
    if not width:
        return 0
    rank_width = width // tp
    return _matrix(rank_width * (2 if model.mlp_gated else 1), model.hidden_size, fmt) + _matrix(
        model.hidden_size, rank_width, fmt
    )


def _experts(model: ModelSpec, tp: int, fmt: str, engine: EngineVersion, data_parallel: DataParallel) -> int:
    """Routed experts of one layer: two stacked tensors (and their scales) for all experts of the GPU."""
    hidden, gpus = model.hidden_size, tp * data_parallel.size
    width, count = model.moe_intermediate_size // gpus, model.num_experts
    if data_parallel.expert_parallel:
        width, count = model.moe_intermediate_size, -(-model.num_experts // gpus)
    if fmt == "mxfp4":
        hidden, width = _mxfp4_padding(hidden, width, engine)
    total = 0
    for rows, cols in ((width * (2 if model.mlp_gated else 1), hidden), (hidden, width)):
        total += sum(allocated(count * size) for size in matrix_bytes(rows, cols, fmt))
        total += allocated(count * rows * 2) if model.expert_bias else 0
    return total


def _mxfp4_padding(hidden: int, width: int, engine: EngineVersion) -> tuple[int, int]:
    """Kernel padding: Marlin (on Hopper up to 0.11) pads both sides, the Triton kernels after it the hidden side."""
    hidden = -(-hidden // 256) * 256
    if engine.at_least(0, 12):
        return hidden, width
    return hidden, -(-width // 128) * 128


def _rotary(model: ModelSpec) -> int:
    rows = model.rotary_rows or model.max_position
    width = model.rotary_dim
    if width is None:
        width = model.qk_rope_head_dim if model.kv_lora_rank and model.qk_rope_head_dim else model.head_dim
    return allocated(rows * width * 2) if width else 0
