"""The KV cache's layout: bytes of a block, layer groups that share the pool, and blocks one request needs.

Plain models have one group of all layers. Models that mix attention kinds are cut into groups of equal layer count, all
of which draw from one pool of equally large blocks (docs/memory.md section 4).
"""

from __future__ import annotations

from typing import Literal

from replay.errors import FieldError, SpecError
from replay.hardware.dtypes import KV_BYTES
from replay.hardware.entries import Entry, ModelSpec
from replay.hardware.versions import EngineVersion
from replay.hardware.weights import full_heads, kv_heads_per_rank, layer_counts

GroupKind = Literal["full", "sliding", "chunked", "state"]
_DSA_INDEX_SCALE_BYTES = 4
_DSA_FP8_BYTES = 656
"""The fp8 layout of sparse MLA: 512 fp8 values, four fp32 scales, 64 bf16 rotary values."""


class KvGroup(Entry):
    """One or more equal groups of layers. ``window_tokens``: the most tokens one request keeps live (``None``: all)."""

    kind: GroupKind
    count: int
    block_tokens: int
    window_tokens: int | None = None
    extra_blocks: int = 0
    state_blocks: int = 0

    def blocks(self, tokens: int) -> int:
        """Blocks that one request of ``tokens`` tokens holds in all ``count`` groups."""
        if self.kind == "state":
            return self.count * self.state_blocks
        live = tokens if self.window_tokens is None else min(tokens, self.window_tokens)
        return self.count * (-(-live // self.block_tokens) + self.extra_blocks)


class KvLayout(Entry):
    """How one rank lays out its cache. ``block_bytes``: one physical block over the layers of one group."""

    groups: tuple[KvGroup, ...]
    block_bytes: int
    block_tokens: int
    bytes_per_token: int
    """Summed over the attention layers of the rank, for a token that every layer keeps."""

    @property
    def group_count(self) -> int:
        return sum(group.count for group in self.groups)

    def blocks(self, tokens: int) -> int:
        """Physical blocks that one request of ``tokens`` tokens needs."""
        return sum(group.blocks(tokens) for group in self.groups)


def attention_token_bytes(model: ModelSpec, tp: int, kv_dtype: str, *, window: bool = False) -> int:
    """Bytes that one token takes in one attention layer on one rank. MLA caches are replicated, not sharded."""
    width = KV_BYTES[kv_dtype]
    if model.kv_lora_rank:
        if model.indexer_head_dim:
            index = model.indexer_head_dim + _DSA_INDEX_SCALE_BYTES
            latent = model.kv_lora_rank + (model.qk_rope_head_dim or 0)
            return (_DSA_FP8_BYTES if kv_dtype == "fp8" else latent * width) + index
        return (model.kv_lora_rank + (model.qk_rope_head_dim or 0)) * width
    heads, dim = (model.num_key_value_heads, model.head_dim) if window else full_heads(model)
    return 2 * kv_heads_per_rank(heads, tp) * dim * width


def lay_out(
    model: ModelSpec,
    *,
    tp: int,
    kv_dtype: str,
    block_size: int,
    engine: EngineVersion,
    max_num_batched_tokens: int,
    prefix_caching: bool,
) -> KvLayout:
    """The cache layout of ``model`` on one rank.

    Raises:
        SpecError: ``memory.layout`` when the layers' pages cannot be made equal, or the state's shape is not known.
    """
    full, window, linear = layer_counts(model)
    if linear:
        return _with_state(model, full, window, linear, tp, kv_dtype, block_size, engine, prefix_caching)
    full_bytes = attention_token_bytes(model, tp, kv_dtype)
    window_bytes = attention_token_bytes(model, tp, kv_dtype, window=True)
    per_token = full * full_bytes + window * window_bytes
    if window and not _windows_apply(model, engine, mixed=full > 0):
        full, window = full + window, 0
        full_bytes = per_token // full
    if not window:
        group = KvGroup(kind="full", count=1, block_tokens=block_size)
        return KvLayout(
            groups=(group,), block_bytes=per_token * block_size, block_tokens=block_size, bytes_per_token=per_token
        )
    if not full:
        group = _window_group(model, 1, block_size, engine, max_num_batched_tokens)
        return KvLayout(
            groups=(group,), block_bytes=per_token * block_size, block_tokens=block_size, bytes_per_token=per_token
        )
    page = max(full_bytes, window_bytes) * block_size
    if page % full_bytes or page % window_bytes:
        raise _layout_error(model, "its full and window layers have cache pages that do not divide each other")
    size = group_size(full, window)
    groups = (
        KvGroup(kind="full", count=-(-full // size), block_tokens=page // full_bytes),
        _window_group(model, -(-window // size), page // window_bytes, engine, max_num_batched_tokens),
    )
    return KvLayout(groups=groups, block_bytes=size * page, block_tokens=block_size, bytes_per_token=per_token)


def group_size(first: int, second: int) -> int:
    """Layers per group for two kinds: the smaller count, or the larger if that is less than half as large again."""
    small, large = sorted((first, second))
    return large if large < 1.5 * small else small


def _windows_apply(model: ModelSpec, engine: EngineVersion, *, mixed: bool) -> bool:
    """Whether windows save memory: not in mixed models before 0.11, nor for chunked attention before 0.19."""
    if engine.legacy:
        return False
    if model.window_kind == "chunked":
        return engine.at_least(0, 19)
    return engine.at_least(0, 11) or not mixed


def _window_group(model: ModelSpec, count: int, block: int, engine: EngineVersion, batch_tokens: int) -> KvGroup:
    window = model.sliding_window
    if not window:
        raise _layout_error(model, "it has window layers but no sliding_window")
    in_flight = batch_tokens * (2 if engine.at_least(0, 33) else 1)
    if model.window_kind == "chunked":
        return KvGroup(kind="chunked", count=count, block_tokens=block, window_tokens=window + in_flight)
    return KvGroup(
        kind="sliding", count=count, block_tokens=block, window_tokens=window - 1 + in_flight, extra_blocks=1
    )


def _with_state(
    model: ModelSpec, full: int, window: int, linear: int, tp: int, kv_dtype: str, block_size: int,
    engine: EngineVersion, prefix_caching: bool,
) -> KvLayout:  # fmt: skip
    """Gated-delta hybrids: each linear layer keeps one fixed state, and attention blocks are enlarged to its size."""
    state = _state_bytes(model, tp)
    if state is None or window or not full:
        raise _layout_error(model, "the shape of its recurrent state is not known")
    token_bytes = attention_token_bytes(model, tp, kv_dtype)
    block = max(block_size, -(-state // (token_bytes * 16)) * 16)
    size = group_size(full, linear)
    per_state = 2 if prefix_caching and engine.at_least(0, 20) else 1
    groups = (
        KvGroup(kind="full", count=-(-full // size), block_tokens=block),
        KvGroup(kind="state", count=-(-linear // size), block_tokens=block, state_blocks=per_state),
    )
    return KvLayout(
        groups=groups, block_bytes=size * block * token_bytes, block_tokens=block, bytes_per_token=full * token_bytes
    )


def _state_bytes(model: ModelSpec, tp: int) -> int | None:
    """Convolution state (16 bit) and recurrent state (32 bit) of one gated-delta layer on one rank."""
    keys, values = model.linear_key_heads, model.linear_value_heads
    key_dim, value_dim, kernel = model.linear_key_head_dim, model.linear_value_head_dim, model.linear_conv_kernel
    if not (keys and values and key_dim and value_dim and kernel):
        return None
    conv = (kernel - 1) * (2 * keys * key_dim + values * value_dim) * 2
    return (conv + values * value_dim * key_dim * 4) // tp


def _layout_error(model: ModelSpec, why: str) -> SpecError:
    cure = "choose another model, or add one whose config.json states the missing shape"
    return SpecError("memory.layout", f"cannot size the KV cache of {model.key}: {why}", [FieldError(cure, "model")])
