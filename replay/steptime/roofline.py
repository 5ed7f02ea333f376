"""A roofline per operator group: kernel times of one rank of a deployment from data sheets, in float seconds.

Groups: dense GEMMs, routed experts, LM head, elementwise work and fixed layer times, all-reduce, decode attention by
bytes, prefill attention by FLOPs. Efficiencies are few and physical, one row per GPU generation, chosen on the kernel
tables of aiconfigurator (docs/step-time.md says how, and how far they are off). Only ``+ - * / max sqrt`` are used, all
exactly rounded by IEEE 754, so that the integers made from these times are the same on every machine.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from replay.hardware.dtypes import KV_BYTES, WEIGHT_FORMATS, matrix_bytes
from replay.hardware.entries import GpuType, ModelSpec
from replay.hardware.weights import full_heads, kv_heads_per_rank, layer_counts

Float64Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Efficiency:
    """Shares of data-sheet peaks that one GPU generation reaches, and its fixed times."""

    gemm: float
    """Of dense peak, large 16-bit GEMMs."""
    gemm_fp8: float
    """Of dense peak, large 8-bit and 4-bit GEMMs, quantisation of the activations included."""
    moe: float
    """Of dense peak, grouped expert GEMMs."""
    bandwidth: float
    """Of memory bandwidth, streaming weights."""
    decode: float
    """Of memory bandwidth, decode attention."""
    prefill: float
    """Of dense 16-bit peak, flash attention over prompts."""
    layer_us: float
    """Fixed time of a layer inside a captured graph: about ten kernels' gaps and tails, attention's included."""
    moe_us: float
    """More of it on a layer of experts: routing, sorting, gathering."""
    quant_us: float
    """More of it where activations are quantised to 8 or 4 bits before each GEMM."""
    allreduce_us: float
    """Latency of one small all-reduce."""
    link: float
    """Of the interconnect's bandwidth per direction, large all-reduces over NVLink or the like."""


EFFICIENCY: dict[str, Efficiency] = {
    "ampere": Efficiency(0.75, 0.60, 0.44, 0.75, 0.78, 0.56, 33.0, 12.0, 5.0, 10.0, 0.50),
    "ada": Efficiency(0.63, 0.47, 0.46, 0.76, 0.78, 0.50, 18.0, 10.0, 2.0, 8.0, 0.70),
    "hopper": Efficiency(0.74, 0.51, 0.40, 0.80, 0.92, 0.63, 28.0, 35.0, 13.0, 7.0, 0.58),
    "blackwell": Efficiency(0.74, 0.45, 0.25, 0.76, 0.90, 0.55, 31.0, 28.0, 22.0, 7.0, 0.40),
    "blackwell-workstation": Efficiency(0.76, 0.60, 0.40, 0.84, 0.84, 0.57, 36.0, 30.0, 2.0, 15.0, 0.70),
    "cdna2": Efficiency(0.33, 0.33, 0.095, 0.47, 0.75, 0.35, 100.0, 120.0, 15.0, 30.0, 0.50),
    "cdna3": Efficiency(0.50, 0.30, 0.095, 0.67, 0.42, 0.35, 100.0, 150.0, 4.0, 8.0, 0.50),
    "cdna4": Efficiency(0.50, 0.45, 0.30, 0.60, 0.75, 0.35, 40.0, 30.0, 15.0, 15.0, 0.50),
    "other": Efficiency(0.50, 0.45, 0.30, 0.70, 0.75, 0.35, 40.0, 30.0, 15.0, 15.0, 0.50),
}
FROM_BENCHMARKS = ("cdna2", "cdna3", "cdna4")
"""AMD's generations: no kernel table of theirs is public. Their rows were chosen on published throughput of servers
(docs/benchmarks.md), on half of the series of each source, and hold on the other half."""
FP8_EXPERTS = 0.5
"""Share of the other formats' expert throughput that block-scaled fp8 experts reach in today's kernels."""
FP8_KV = 0.9
"""Share of the 16-bit cache's bandwidth that decode attention reaches over an 8-bit cache."""
PCIE_LINK: dict[bool, dict[int, float]] = {
    False: {2: 0.50, 4: 0.115, 8: 0.06},
    True: {2: 0.70, 4: 0.50, 8: 0.40},
}
"""Share of a PCIe link that ring all-reduces keep, by group size, on the machines behind the kernel tables: their rings
over PCIe 4 cross host bridges and sockets (key ``False``), their PCIe 5 servers have switches (``True``)."""
PCIE_LINK_SERVED: dict[bool, dict[int, float]] = {**PCIE_LINK, False: {2: 0.50, 4: 0.46, 8: 0.43}}
"""The same on the machines behind published throughput (TensorRT-LLM 0.14 and 0.17, A100 PCIe; L40S alike): peers reach
each other over PCIe 4 at nearly the rate of a pair."""

WEIGHT_BYTES = {fmt: sum(matrix_bytes(4096, 4096, fmt)) / 4096**2 for fmt in WEIGHT_FORMATS}
"""Bytes of a weight with its scales, in a large matrix."""
FP8_FORMATS = frozenset({"fp8", "fp8_block"})
WEIGHT_ONLY = frozenset({"fp32", "bf16", "w8a16", "int4", "mxfp4", "nvfp4a16"})
"""Formats whose GEMMs compute at 16 bit: nothing is quantised on the way."""


_GENERATIONS = {
    "8.0": "ampere", "8.9": "ada", "9.0": "hopper", "10.0": "blackwell", "10.3": "blackwell",
    "12.0": "blackwell-workstation", "gfx90a": "cdna2", "gfx942": "cdna3", "gfx950": "cdna4",
}  # fmt: skip
_BORROWED = {"7.0": "ampere", "7.5": "ampere", "8.6": "ada"}
"""Volta, Turing and the smaller Ampere chips: no kernel of theirs was compared with, so the nearest row is used."""


def generation(gpu: GpuType) -> str:
    """The row of ``EFFICIENCY`` for a GPU, by compute capability; it may be ``borrowed``."""
    return {**_GENERATIONS, **_BORROWED}.get(gpu.compute_capability or "", "other")


def borrowed(gpu: GpuType) -> bool:
    """Whether the row of ``EFFICIENCY`` is another generation's: no figure of its error holds for this GPU."""
    return generation(gpu) != "other" and gpu.compute_capability in _BORROWED


@dataclass(frozen=True)
class Roofline:
    """Kernel times of one rank of a deployment, in float seconds, without host, sampling or the served-step factor."""

    model: ModelSpec
    gpu: GpuType
    tp: int
    weight_dtype: str
    kv_dtype: str
    max_num_seqs: int
    data_parallel: int = 1
    """Ranks that share the experts and step together, each with the same number of tokens."""
    served: bool = False
    """Links as on serving machines, not as on those of the kernel tables."""

    @property
    def efficiency(self) -> Efficiency:
        return EFFICIENCY[generation(self.gpu)]

    @property
    def bandwidth(self) -> float:
        """Bytes per second on the data sheet."""
        return self.gpu.mem_bw_gb_per_s * 1e9

    def _peak(self, dtype: str) -> float:
        """Dense FLOP/s of a GEMM with weights of ``dtype``; weight-only formats compute at 16 bit."""
        fp8 = self.gpu.fp8_tflops
        rates = {"fp8": fp8, "fp8_block": fp8, "int8": self.gpu.int8_tops, "nvfp4": self.gpu.fp4_tflops}
        return (rates.get(dtype) or self.gpu.fp16_tflops) * 1e12

    def _format_of(self, part: str) -> str:
        """Weight format of a part of the model (``ModelSpec.unquantized`` names those left at 16 bit)."""
        return "bf16" if part in self.model.unquantized else self.weight_dtype

    @property
    def _full_layers(self) -> int:
        """Layers whose attention sees the whole context."""
        return layer_counts(self.model)[0]

    def attention_params(self) -> float:
        """Projection weights of one layer on one GPU."""
        m, tp = self.model, self.tp
        d, h = m.hidden_size, m.num_attention_heads / tp
        if m.attention_kind == "MLA":
            r, rope = m.kv_lora_rank or 0, m.qk_rope_head_dim or 0
            nope, v = m.qk_nope_head_dim or m.head_dim, m.v_head_dim or m.head_dim
            q = m.q_lora_rank * (d + h * (nope + rope)) if m.q_lora_rank else d * h * (nope + rope)
            return q + d * (r + rope) + r * h * (nope + v) + h * v * d
        return 2 * d * h * m.head_dim + 2 * d * kv_heads_per_rank(m.num_key_value_heads, tp) * m.head_dim

    def _share(self, dtype: str) -> float:
        return self.efficiency.gemm if dtype in WEIGHT_ONLY else self.efficiency.gemm_fp8

    def _roof(self, flops: Float64Array, bytes_read: Float64Array | float, peak: float, share: float) -> Float64Array:
        """Root of squares of both roofs: the larger one away from the ridge, softer at it, as kernels are."""
        compute, memory = flops / (share * peak), bytes_read / (self.efficiency.bandwidth * self.bandwidth)
        return np.sqrt(compute * compute + memory * memory)

    def dense_s(self, tokens: Float64Array) -> Float64Array:
        """Attention projections, dense MLPs and shared experts of all layers."""
        m = self.model
        ffn = (3 if m.mlp_gated else 2) * m.hidden_size / self.tp
        params = {
            "attention": m.num_layers * self.attention_params(),
            "dense_mlp": (m.num_layers - m.num_moe_layers) * ffn * m.intermediate_size,
            "shared_experts": m.num_moe_layers * ffn * m.shared_expert_intermediate_size,
        }
        total = np.zeros_like(tokens)
        for part, count in params.items():
            fmt = self._format_of(part)
            total = total + self._roof(
                2.0 * tokens * count, count * WEIGHT_BYTES[fmt], self._peak(fmt), self._share(fmt)
            )
        return total

    def experts_s(self, tokens: Float64Array) -> Float64Array:
        """Routed experts; under uniform routing ``E * (1 - (1 - k/E)^T)`` of them are touched by T tokens: those of all
        data-parallel ranks, whose GPUs share the experts."""
        m = self.model
        if m.num_moe_layers == 0:
            return np.zeros_like(tokens)
        expert = (3 if m.mlp_gated else 2) * m.hidden_size * m.moe_intermediate_size / self.tp
        everyone = tokens * self.data_parallel
        missed = np.multiply.accumulate(np.full(int(everyone.max()), 1.0 - m.experts_per_tok / m.num_experts))
        touched = m.num_experts * (1.0 - missed[everyone.astype(np.int64) - 1]) / self.data_parallel
        fmt = self._format_of("experts")
        share = self.efficiency.moe * (FP8_EXPERTS if fmt in FP8_FORMATS else 1.0)
        flops = 2.0 * tokens * m.experts_per_tok * expert * m.num_moe_layers
        bytes_read = touched * (expert * WEIGHT_BYTES[fmt] * m.num_moe_layers)
        return self._roof(flops, bytes_read, self._peak(fmt), share)

    def head_s(self, tokens: Float64Array) -> Float64Array:
        """LM head, at 16 bit, on the rows that sample: at most ``max_num_seqs``."""
        params = self.model.hidden_size * self.model.vocab_size / self.tp
        rows = np.minimum(tokens, float(self.max_num_seqs))
        return self._roof(2.0 * rows * params, params * 2.0, self._peak("bf16"), self.efficiency.gemm)

    def elementwise_s(self, tokens: Float64Array) -> Float64Array:
        """Norms, rotary, residuals, activations: about ten passes over the hidden state, plus fixed times."""
        moved = 10.0 * 2.0 * self.model.num_layers * self.model.hidden_size
        quantised = self._format_of("attention") not in WEIGHT_ONLY
        layer_us = self.efficiency.layer_us + (self.efficiency.quant_us if quantised else 0.0)
        fixed_us = self.model.num_layers * layer_us + self.model.num_moe_layers * self.efficiency.moe_us
        return tokens * (moved / (self.efficiency.bandwidth * self.bandwidth)) + fixed_us * 1e-6

    def _link(self) -> float:
        """Bytes per second and direction that a ring all-reduce of this group keeps."""
        pcie = self.gpu.pcie_gb_per_s_per_dir or 16.0
        if self.gpu.interconnect.startswith("PCIe") or self.tp > self.gpu.max_scaleup_gpus:
            shares = (PCIE_LINK_SERVED if self.served else PCIE_LINK)[pcie > 50.0]
            return pcie * 1e9 * min(share for size, share in shares.items() if size <= max(2, self.tp))
        return (self.gpu.interconnect_gb_per_s_per_dir or pcie) * 1e9 * self.efficiency.link

    def allreduce_s(self, tokens: Float64Array) -> Float64Array:
        """Two ring all-reduces a layer: ``alpha + 2 * (tp - 1) / tp * T * d * 2 / link``."""
        if self.tp == 1:
            return np.zeros_like(tokens)
        ring = (2.0 * (self.tp - 1) / self.tp / self._link()) * (tokens * (2.0 * self.model.hidden_size))
        return 2.0 * self.model.num_layers * (self.efficiency.allreduce_us * 1e-6 + ring)

    def exchange_s(self, tokens: Float64Array) -> Float64Array:
        """Data-parallel ranks on a layer of experts: an all-gather of every rank's tokens and a reduce-scatter back,
        each ``alpha + (ranks - 1) * T * d * 2 / link``."""
        if self.data_parallel == 1:
            return np.zeros_like(tokens)
        ring = ((self.data_parallel - 1) / self._link()) * (tokens * (2.0 * self.model.hidden_size))
        return 2.0 * self.model.num_moe_layers * (self.efficiency.allreduce_us * 1e-6 + ring)

    def rest_s(self, tokens: Float64Array) -> Float64Array:
        """Everything but attention for steps of ``tokens`` (>= 1) tokens."""
        gemms = self.dense_s(tokens) + self.experts_s(tokens) + self.head_s(tokens)
        return gemms + self.elementwise_s(tokens) + self.allreduce_s(tokens) + self.exchange_s(tokens)

    @property
    def _kv_bandwidth(self) -> float:
        share = self.efficiency.decode * (FP8_KV if KV_BYTES[self.kv_dtype] < 2 else 1.0)
        return share * self.bandwidth

    def decode_s_per_token(self) -> float:
        """Decode attention of the full layers, per context token: bytes over bandwidth (MLA: or FLOPs)."""
        m, heads = self.model, full_heads(self.model)
        width = 2.0 * kv_heads_per_rank(heads[0], self.tp) * heads[1] * KV_BYTES[self.kv_dtype]
        flops = 0.0
        if m.attention_kind == "MLA":
            rank, rope = m.kv_lora_rank or 0, m.qk_rope_head_dim or 0
            width = float((rank + rope) * KV_BYTES[self.kv_dtype])
            flops = 2.0 * m.num_attention_heads / self.tp * (2 * rank + rope)
        by_flops = flops / (self.efficiency.prefill * self._peak("bf16"))
        return self._full_layers * max(width / self._kv_bandwidth, by_flops)

    def window_s_per_token(self) -> float:
        """Decode attention of the sliding-window layers, per context token inside the window."""
        m = self.model
        width = 2.0 * kv_heads_per_rank(m.num_key_value_heads, self.tp) * m.head_dim * KV_BYTES[self.kv_dtype]
        return layer_counts(m)[1] * width / self._kv_bandwidth

    def prefill_s_per_pair(self) -> float:
        """Prefill attention of the full layers, per query-key pair: ``4 * hd`` FLOPs a head (MLA: expanded heads)."""
        m = self.model
        flops = 4.0 * full_heads(m)[1]
        if m.attention_kind == "MLA":
            flops = 2.0 * ((m.qk_nope_head_dim or 0) + (m.qk_rope_head_dim or 0) + (m.v_head_dim or 0))
        return self._full_layers * self._s_per_attention_flop(flops)

    def window_prefill_s_per_pair(self) -> float:
        """Prefill attention of the sliding-window layers, per query-key pair inside the window."""
        return layer_counts(self.model)[1] * self._s_per_attention_flop(4.0 * self.model.head_dim)

    def _s_per_attention_flop(self, flops_per_head: float) -> float:
        heads = self.model.num_attention_heads / self.tp
        return heads * flops_per_head / (self.efficiency.prefill * self._peak("bf16"))
