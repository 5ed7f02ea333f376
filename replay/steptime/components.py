"""Step times of any model on a calibrated GPU type: kernels timed one by one, put together by its architecture.

One layer runs a fused query-key-value GEMM, attention, an output GEMM, and either a gated MLP of two GEMMs or a router
with experts; between them elementwise work, and two all-reduces where it is sharded. The LM head runs on rows that
sample. Kernels come from ``KernelTables``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from replay.hardware.dtypes import KV_BYTES
from replay.hardware.entries import ModelSpec
from replay.hardware.weights import full_heads, kv_heads_per_rank, layer_counts
from replay.steptime.experts import ExpertCurve, expert_curve
from replay.steptime.interpolation import Float64Array, along
from replay.steptime.kernel_tables import LATENT_WIDTH, AttentionKey, AttentionTables, ExpertKey, KernelTables
from replay.steptime.latent import latent_attention_us, latent_key, latent_projections_us

SHARED_BESIDE_TOKENS = 256
"""Up to so many tokens vLLM runs shared experts beside the routed ones."""


@dataclass(frozen=True)
class KernelModel:
    """Kernel times of one rank of a deployment, in float seconds, without host, sampling or a served step's extra."""

    model: ModelSpec
    tables: KernelTables
    tp: int
    weight_dtype: str
    kv_dtype: str
    expert_ranks: int = 1
    """Ranks that hold whole experts (expert parallelism); 1: experts are sharded as everything else."""
    peers_over_pcie: bool = False
    """Cards that reach each other over PCIe at the rate of a pair, as on serving machines; else as timed."""

    def _format_of(self, part: str) -> str:
        weight_only_dense = part != "experts" and self.weight_dtype == "mxfp4"
        return "bf16" if part in self.model.unquantized or weight_only_dense else self.weight_dtype

    def missing(self) -> str | None:
        """Why no tables serve this deployment; ``None`` where they do."""
        m, tables = self.model, self.tables
        if m.attention_kind == "MLA" and self._latent_key() is None:
            return f"latent attention (MLA) of this size with {self._format_of('attention')} weights was not timed"
        for part in ("attention", "dense_mlp"):
            if self._format_of(part) not in tables.gemm.us:
                return f"GEMMs with {self._format_of(part)} weights are not in the tables"
        if self.tp > 1 and self.tp not in tables.all_reduce.us:
            return f"all-reduces over {self.tp} GPUs are not in the tables"
        if AttentionKey(128, 0, self.kv_dtype) not in set(tables.decode.us) & set(tables.prefill.us):
            return f"attention over a {self.kv_dtype} cache is not in the tables"
        if m.num_moe_layers and self.experts() is None:
            return f"experts like these with {self._format_of('experts')} weights are not in the tables"
        return None

    def _latent_key(self) -> AttentionKey | None:
        return latent_key(self.model, self.tables, self._format_of("attention"), self.kv_dtype)

    def experts(self) -> ExpertCurve | None:
        """Times of one layer of experts; ``None`` where no layer near enough was timed."""
        m = self.model
        key = ExpertKey(
            hidden=m.hidden_size,
            intermediate=m.moe_intermediate_size,
            top_k=m.experts_per_tok,
            experts=m.num_experts,
            fmt=self._format_of("experts"),
            tp=self.tp // self.expert_ranks,
            ep=self.expert_ranks,
        )
        return expert_curve(self.tables.experts, key, self.memory_bytes_per_s)

    def _gemm_us(self, part: str, outputs: float, inputs: float, tokens: Float64Array) -> Float64Array:
        return self.tables.gemm.at(self._format_of(part), outputs, inputs, tokens)

    def attention_projections_us(self, tokens: Float64Array) -> Float64Array:
        """Both projections of all layers; those with full attention may have their own heads."""
        m, tp = self.model, self.tp
        key = self._latent_key()
        if key is not None:
            heads = m.num_attention_heads / tp
            return m.num_layers * latent_projections_us(self.tables, key, heads, tokens)
        full, window, linear = layer_counts(m)
        total = np.zeros_like(tokens)
        for layers, kv_heads, head_dim in (
            (full, *full_heads(m)),
            (window + linear, m.num_key_value_heads, m.head_dim),
        ):
            if layers == 0:
                continue
            queries = m.num_attention_heads * head_dim / tp
            width = queries + 2 * kv_heads_per_rank(kv_heads, tp) * head_dim
            both = self._gemm_us("attention", width, m.hidden_size, tokens)
            both = both + self._gemm_us("attention", m.hidden_size, queries, tokens)
            total = total + layers * both
        return total

    def mlp_us(self, part: str, layers: int, width: float, tokens: Float64Array) -> Float64Array:
        """A gated MLP of ``width`` on one rank: up (with gate), activation, down."""
        if layers == 0 or width == 0:
            return np.zeros_like(tokens)
        d, ups = self.model.hidden_size, 2 if self.model.mlp_gated else 1
        up = self._gemm_us(part, ups * width, d, tokens)
        down = self._gemm_us(part, d, width, tokens)
        return layers * (up + self.tables.elementwise.at((ups + 1) * width, tokens) + down)

    def experts_us(self, tokens: Float64Array) -> Float64Array:
        """Router and routed experts of all their layers."""
        m = self.model
        curve = self.experts() if m.num_moe_layers else None
        if curve is None:
            return np.zeros_like(tokens)
        router = self.tables.gemm.at("bf16", m.num_experts, m.hidden_size, tokens)
        return m.num_moe_layers * (router + along(self.tables.experts.tokens, curve.us, tokens))

    def head_us(self, rows: Float64Array) -> Float64Array:
        """LM head at 16 bit on the rows that sample."""
        return self.tables.gemm.at("bf16", self.model.vocab_size / self.tp, self.model.hidden_size, rows)

    @property
    def all_reduces(self) -> int:
        """All-reduces of a step: two a layer, and one after the embedding."""
        return 2 * self.model.num_layers + 1 if self.tp > 1 else 0

    def all_reduce_us(self, tokens: Float64Array) -> Float64Array:
        """Two a layer, and one after the embedding."""
        size = tokens * (2.0 * self.model.hidden_size)
        timed = self.tables.all_reduce.at(self.tp, size)
        if self.peers_over_pcie and self.tp > 2:
            timed = np.minimum(timed, self.tables.all_reduce.ring_of_pairs(self.tp, size))
        return np.asarray((2 * self.model.num_layers + 1) * timed)

    def rest_s(self, tokens: Float64Array) -> Float64Array:
        """Everything but attention of steps of ``tokens`` (>= 1), with the LM head on one row: straight lines
        between the tokens that any kernel was timed at."""
        tables = self.tables
        reduced = tables.all_reduce.size_bytes / (2.0 * self.model.hidden_size)
        streams = np.array([SHARED_BESIDE_TOKENS, SHARED_BESIDE_TOKENS + 1.0])
        own = (*tables.gemm.tokens.values(), tables.experts.tokens, np.rint(reduced), streams)
        knots = np.unique(np.concatenate(own))
        knots = knots[knots >= 1]
        return along(knots, self._timed_rest_s(knots), tokens)

    def _timed_rest_s(self, tokens: Float64Array) -> Float64Array:
        m, tp = self.model, self.tp
        norms = 2 * m.num_layers * self.tables.elementwise.at(4 * m.hidden_size, tokens)
        dense = self.mlp_us("dense_mlp", m.num_layers - m.num_moe_layers, m.intermediate_size / tp, tokens)
        shared = self.mlp_us("shared_experts", m.num_moe_layers, m.shared_expert_intermediate_size / tp, tokens)
        routed = self.experts_us(tokens)
        beside = np.maximum(shared, routed)  # small batches run both at once, on two streams
        experts = np.where(tokens <= SHARED_BESIDE_TOKENS, beside, shared + routed)
        gemms = self.attention_projections_us(tokens) + dense + experts
        head = self.head_us(np.ones(1))[0] + self.tables.elementwise.at(m.hidden_size, tokens)
        return np.asarray((gemms + norms + head + self.all_reduce_us(tokens)) * 1e-6)

    def head_extra_s(self, rows: Float64Array) -> Float64Array:
        """LM head on ``rows`` rows beyond that on one, which ``rest_s`` holds."""
        return np.asarray((self.head_us(rows) - self.head_us(np.ones(1))[0]) * 1e-6)

    def _attention_layers(self) -> list[tuple[int, int, int, int]]:
        """Layers, key-value heads, head size and window (0: none) of each kind of attention layer."""
        m = self.model
        full, window, _ = layer_counts(m)
        kinds = [(full, *full_heads(m), 0), (window, m.num_key_value_heads, m.head_dim, m.sliding_window or 0)]
        return [kind for kind in kinds if kind[0] > 0]

    def _kernel(
        self, tables: AttentionTables, kv_heads: int, head_dim: int, window: int
    ) -> tuple[AttentionKey, float, float]:
        """The timed kernel nearest to a layer's, and heads on one rank scaled to it: work is heads times head size."""
        sizes = (64, 128) if head_dim <= 64 else (128,)
        choices = [AttentionKey(size, own, self.kv_dtype) for own in (window, 0) for size in sizes]
        choices.append(AttentionKey(128, 0, self.kv_dtype))
        key = next(choice for choice in choices if choice in tables.us)
        scale = head_dim / key.head_dim
        return key, self.model.num_attention_heads / self.tp * scale, kv_heads_per_rank(kv_heads, self.tp) * scale

    def prefill_grid_s(self, new: Float64Array, cached: Float64Array) -> Float64Array:
        """Prefill attention of one chunk, shape (new, cached)."""
        total = np.zeros((len(new), len(cached)))
        latent = self._latent_key()
        if latent is not None:
            return self._latent_s(self.tables.latent_prefill, latent, new, cached)
        tables = self.tables.prefill
        for layers, kv_heads, head_dim, window in self._attention_layers():
            key, heads, kv = self._kernel(tables, kv_heads, head_dim, window)
            us = tables.at(tables.by_heads(key, heads, kv), new, cached)
            if window != key.window:
                floor = us[0, 0]
                us = floor + (us - floor) * _window_share(new, cached, float(window))
            total = total + layers * us
        return total * 1e-6

    def _latent_s(
        self, blocks: AttentionTables, key: AttentionKey, rows: Float64Array, columns: Float64Array
    ) -> Float64Array:
        heads = self.model.num_attention_heads / self.tp
        us = latent_attention_us(self.tables, blocks, key, heads, rows, columns)
        return self.model.num_layers * 1e-6 * us

    def chunk_floor_s(self) -> float:
        """Prefill attention of one token with nothing cached: the part that a step pays once, not each chunk."""
        return float(self.prefill_grid_s(np.ones(1), np.zeros(1))[0, 0])

    def prefill_step_s(self) -> float:
        """What prefill attention costs a step once, however many chunks it holds."""
        norm = self.model.num_layers * self.tables.qk_norm_us * 1e-6 if self.model.family == "qwen3" else 0.0
        return self.chunk_floor_s() + norm

    def kv_bytes_per_token(self) -> float:
        """Keys and values of one token on one GPU, all layers."""
        if self.model.attention_kind == "MLA":
            return float(self.model.num_layers * LATENT_WIDTH * KV_BYTES[self.kv_dtype])
        width = sum(
            layers * kv_heads_per_rank(kv_heads, self.tp) * head_dim
            for layers, kv_heads, head_dim, _ in self._attention_layers()
        )
        return 2.0 * width * KV_BYTES[self.kv_dtype]

    @property
    def memory_bytes_per_s(self) -> float:
        return self.tables.elementwise.memory_bytes_per_s

    def decode_grid_s(self, batch: Float64Array, context: Float64Array) -> Float64Array:
        """Decode attention, shape (batch, context)."""
        total = np.zeros((len(batch), len(context)))
        latent = self._latent_key()
        if latent is not None:
            return self._latent_s(self.tables.latent_decode, latent, batch, context)
        tables = self.tables.decode
        for layers, kv_heads, head_dim, window in self._attention_layers():
            key, heads, kv = self._kernel(tables, kv_heads, head_dim, window)
            most = float(max(found for _, found in tables.us[key]))
            folded = max(1.0, kv / most)  # more key-value heads than timed are like more sequences
            at = np.minimum(context, float(window)) if window != key.window else context
            table = tables.by_kv_heads(key, heads / folded, kv / folded)
            total = total + layers * tables.at(table, batch * folded, at)
        return total * 1e-6


def _window_share(new: Float64Array, cached: Float64Array, window: float) -> Float64Array:
    """Query-key pairs within a window over all pairs of a chunk, shape (new, cached)."""
    q, c = new[:, None], cached[None, :]
    short = np.clip(window - c, 0.0, q)  # queries that still see everything
    seen = short * c + short * (short + 1) / 2 + (q - short) * window
    return seen / (q * c + q * (q + 1) / 2)
