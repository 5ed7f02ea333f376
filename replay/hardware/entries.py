"""Catalogue entries: GPU types, model specs and prices. Every figure carries its source and a date where it has one."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from replay.specs_base import Spec


class Entry(Spec):
    """Common behaviour: immutable, no unknown fields, finite numbers only."""


class GpuType(Entry):
    """One accelerator variant. Rates are dense, per GPU; ``None`` means not known, never zero."""

    key: str
    vendor: str
    aliases: tuple[str, ...] = ()
    memory_spec_gb: float = Field(gt=0)
    """The label on the box. Nothing is planned with it."""
    memory_total_gib: float = Field(gt=0)
    """Total memory as the runtime reports it to the engine (below the nvidia-smi figure by about 0.5 GiB)."""
    mem_bw_gb_per_s: float = Field(gt=0)
    fp16_tflops: float = Field(gt=0)
    fp8_tflops: float | None = Field(default=None, gt=0)
    fp4_tflops: float | None = Field(default=None, gt=0)
    int8_tops: float | None = Field(default=None, gt=0)
    interconnect: str = "PCIe"
    interconnect_gb_per_s_per_dir: float | None = Field(default=None, gt=0)
    pcie_gb_per_s_per_dir: float | None = Field(default=None, gt=0)
    max_scaleup_gpus: int = Field(default=1, ge=1)
    """GPUs in one fast-interconnect domain: the largest tensor-parallel group."""
    compute_capability: str | None = None
    source: str
    date: str | None = None
    notes: str = ""


class ModelSpec(Entry):
    """A model's architecture, as its ``config.json`` states it; enough to size memory and time a step."""

    key: str
    aliases: tuple[str, ...] = ()
    family: str = ""
    architecture: str = ""
    num_layers: int = Field(gt=0)
    hidden_size: int = Field(gt=0)
    intermediate_size: int = Field(ge=0)
    num_attention_heads: int = Field(gt=0)
    num_key_value_heads: int = Field(gt=0)
    head_dim: int = Field(gt=0)
    vocab_size: int = Field(gt=0)
    tie_word_embeddings: bool = False
    mlp_gated: bool = True
    attention_bias: bool = False
    attention_kind: Literal["MHA", "GQA", "MQA", "MLA"] = "GQA"
    num_experts: int = 0
    experts_per_tok: int = 0
    shared_experts: int = 0
    moe_intermediate_size: int = 0
    shared_expert_intermediate_size: int = 0
    num_moe_layers: int = 0
    q_lora_rank: int | None = None
    kv_lora_rank: int | None = None
    qk_nope_head_dim: int | None = None
    qk_rope_head_dim: int | None = None
    v_head_dim: int | None = None
    sliding_window: int | None = None
    window_kind: Literal["sliding", "chunked"] = "sliding"
    """``chunked``: attention within fixed chunks of ``sliding_window`` tokens (Llama-4)."""
    num_full_attn_layers: int = 0
    num_window_layers: int = 0
    num_linear_layers: int = 0
    full_attn_head_dim: int | None = None
    """Where full-attention layers differ from window layers (Gemma-4); ``None``: as ``head_dim``."""
    full_attn_key_value_heads: int | None = None
    attention_output_gate: bool = False
    """The query projection also yields a gate: twice its width (Qwen3-Next)."""
    linear_key_heads: int | None = None
    linear_value_heads: int | None = None
    linear_key_head_dim: int | None = None
    linear_value_head_dim: int | None = None
    linear_conv_kernel: int | None = None
    indexer_heads: int | None = None
    """Sparse attention (DSA): heads and width of the index keys that every token keeps."""
    indexer_head_dim: int | None = None
    rotary_dim: int | None = None
    """``None``: the whole head; 0: no rotary embedding."""
    rotary_rows: int | None = None
    """Rows of all rotary tables together; ``None``: ``max_position`` (linear scaling multiplies them)."""
    learned_positions: int = 0
    """Rows of a learned position embedding (OPT)."""
    expert_bias: bool = False
    vision_params_b: float | None = None
    """Billions of parameters of a vision tower with its projector, kept in 16 bit."""
    vision_peak_gib: float | None = None
    """Profiled activation of the vision tower beyond its encoder cache."""
    unquantized: tuple[str, ...] = ()
    """Parts that stay 16 bit when the weights are quantised: attention, dense_mlp, shared_experts, experts."""
    weight_dtype: str = "bf16"
    """As published: bf16, fp8, int4, mxfp4 ... ; a deployment may override it."""
    max_position: int = Field(gt=0)
    total_params_b: float | None = None
    source: str
    date: str | None = None
    notes: str = ""


class Price(Entry):
    """One offer. ``usd_per_gpu_hour`` is derived where a provider sells whole instances."""

    id: str
    provider: str
    instance_type: str = ""
    gpu: str
    gpus_per_instance: int = Field(default=1, ge=1)
    per_gpu: bool = False
    """The source states a rate per GPU and no instance: any number of GPUs is priced, in one group or several."""
    region: str
    term: str
    """on_demand, spot, marketplace_on_demand, ...: as the source names it, marketplaces apart. ``gpu_adder`` and
    ``spot_gpu_adder``: a rate of the GPU alone, whose host is billed on top, so no price of a machine."""
    usd_per_instance_hour: float = Field(gt=0)
    date: str
    source: str
    licence: str = ""
    notes: str = ""

    @property
    def usd_per_gpu_hour(self) -> float:
        return self.usd_per_instance_hour / self.gpus_per_instance
