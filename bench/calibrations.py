"""Makes the shipped calibration files out of public kernel timings: one file per GPU type and engine family.

Usage, in an environment of its own that holds the PyPI package aiconfigurator-core 0.12.0 (the product never needs it):

    python bench/calibrations.py replay/steptime/data [GPU/FAMILY ...]

It asks the package for single kernels at shapes laid on a grid, never for whole models, and keeps the grid small: the
tokens at which GEMMs are kept are those that straight lines between kept ones predict worst. The package's measured
serving runs are not read. Errors are added later by ``python bench/steptime_errors.py``.
"""

import importlib
import json
import logging
import sys
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

GPUS = {
    "a100_sxm": "A100-SXM-80GB",
    "h100_sxm": "H100-SXM",
    "h200_sxm": "H200-SXM",
    "b200_sxm": "B200-SXM",
    "b300_sxm": "B300-SXM",
    "gb200": "GB200",
    "gb300": "GB300",
    "l40s": "L40S",
    "rtx_pro_6000_server": "RTX-PRO-6000-Blackwell-SE",
    "b60": "Arc-Pro-B60",
}
TIMED = {
    "vllm": {**dict.fromkeys(GPUS, "0.24.0"), "a100_sxm": "0.14.0", "b60": "0.26.0"},
    "trtllm": {**dict.fromkeys(("h100_sxm", "h200_sxm", "l40s", "b200_sxm"), "1.3.0rc20"), "a100_sxm": "1.0.0"},
    "sglang": {**dict.fromkeys(("h100_sxm", "h200_sxm", "l40s", "b200_sxm"), "0.5.14"), "a100_sxm": "0.5.10"},
}
GEMM_FORMATS = {"bf16": "bfloat16", "fp8": "fp8", "fp8_block": "fp8_block", "nvfp4": "nvfp4"}
EXPERT_FORMATS = {**GEMM_FORMATS, "mxfp4": "w4a16_mxfp4"}
KV_FORMATS = {"bf16": "bfloat16", "fp8": "fp8"}

TOKENS = (
    1, 2, 3, 4, 5, 8, 9, 12, 16, 17, 24, 32, 33, 48, 49, 64, 65, 80, 96, 97, 112, 128, 129, 160, 192, 193, 224, 256,
    257, 320, 384, 448, 512, 513, 640, 768, 769, 1024, 1025, 1280, 1281, 1536, 1537, 1792, 2048, 2049, 2560, 2561, 3072,
    3073, 4096, 4097, 5120, 6144, 8192, 12288, 16384, 32768,
)  # fmt: skip
KEPT_TOKENS = 23
OUTPUTS = (128, 512, 1024, 2048, 4096, 6144, 8192, 12288, 16384, 65536)
INPUTS = (512, 1024, 2048, 4096, 7168, 14336, 28672)
PROBES = ((1024, 4096), (4096, 4096), (6144, 4096), (4096, 14336), (28672, 4096), (10240, 8192), (8192, 3584))
"""Outputs and inputs of the GEMMs at which the kept tokens are chosen."""

CHUNKS = (1, 16, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
CACHED = (0, 512, 4096, 16384, 65536)
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
CONTEXTS = (64, 256, 1024, 4096, 16384, 65536)
KINDS = ((128, 0), (64, 0), (64, 128))
"""Head sizes and windows of the attention kernels."""
EXPERT_TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 16384)
EXPERTS = {
    (4096, 14336, 2, 8): ("bf16", "fp8", "fp8_block", "nvfp4"),
    (6144, 16384, 2, 8): ("bf16", "fp8", "nvfp4"),
    (2048, 768, 8, 128): ("bf16", "fp8", "fp8_block", "nvfp4"),
    (4096, 1536, 8, 128): ("bf16", "fp8", "fp8_block", "nvfp4"),
    (6144, 2560, 8, 160): ("bf16", "fp8_block", "nvfp4"),
    (2880, 2880, 4, 32): ("mxfp4",),
    (2880, 2880, 4, 128): ("mxfp4",),
    (7168, 2048, 8, 256): ("fp8_block", "nvfp4"),
    (7168, 2048, 8, 384): ("fp8_block", "nvfp4"),
    (3072, 1536, 8, 256): ("bf16", "fp8_block", "nvfp4"),
}
"""Hidden size, intermediate size, experts a token, experts: shapes that the package timed, and the formats kept."""
LATENT_SHAPE = (7168, 2048)
"""Hidden and intermediate size of the models over latent keys, whose routing the package takes as less skewed."""
LATENT_HEADS = (8, 32, 128)
LATENT_FORMATS = ("fp8_block", "nvfp4")
LATENT_CHUNKS, LATENT_CACHED = (1, 64, 256, 1024, 4096, 16384), (0, 4096, 65536)
LATENT_BATCHES, LATENT_CONTEXTS = (1, 4, 16, 64, 128, 256, 512), (64, 1024, 8192, 65536)
SPLITS = ((1, 1), (2, 1), (4, 1), (8, 1), (1, 2), (1, 4), (1, 8))
"""Ranks that share an expert, ranks that share out the experts."""
REDUCED_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768)
REDUCED_WIDTH = 4096

SOURCE = (
    "Kernel timings of the PyPI package aiconfigurator-core 0.12.0 (github.com/ai-dynamo/aiconfigurator), "
    "Copyright NVIDIA CORPORATION & AFFILIATES"
)


class Timings:
    """The package's kernels on one GPU type under one engine version."""

    def __init__(self, gpu: str, family: str, version: str) -> None:
        root = "aiconfigurator_core.sdk"
        self.common: Any = importlib.import_module(f"{root}.common")
        self.operations: Any = importlib.import_module(f"{root}.operations")
        self._evaluate: Any = importlib.import_module(f"{root}.engine")._evaluate_single_op
        errors: Any = importlib.import_module(f"{root}.errors")
        self._absent = (errors.PerfDataNotAvailableError, KeyError, ValueError, RuntimeError)
        database: Any = importlib.import_module(f"{root}.perf_database")
        self.database: Any = database.get_database(gpu, family, version)

    @property
    def memory(self) -> dict[str, float]:
        gpu = self.database.system_spec["gpu"]
        return {
            "memory_gb_per_s": gpu["mem_bw"] / 1e9,
            "elementwise_share": gpu["mem_bw_empirical_scaling_factor"],
            "elementwise_us": gpu["mem_empirical_constant_latency"] * 1e6,
        }

    def _us(self, operation: Any, *, prefill: bool, batch: int, length: int, cached: int = 0) -> float | None:
        tokens = batch * length if prefill else batch
        try:
            ms = self._evaluate(
                self.database, operation, is_context=prefill, batch_size=batch, s=length, prefix=cached, x=tokens
            )
        except self._absent:
            return None
        return float(ms) * 1e3

    def gemm(self, fmt: str, outputs: int, inputs: int, tokens: int) -> float | None:
        operation = self.operations.GEMM("gemm", 1, outputs, inputs, self.common.GEMMQuantMode[GEMM_FORMATS[fmt]])
        return self._us(operation, prefill=True, batch=1, length=tokens)

    def prefill(
        self, kind: tuple[int, int], kv: str, heads: tuple[int, int], new: int, cached: int, *, norm: bool = False
    ) -> float | None:
        operation = self.operations.ContextAttention(
            "context_attention", 1, *heads, self.common.KVCacheQuantMode[KV_FORMATS[kv]],
            self.common.FMHAQuantMode.bfloat16, window_size=kind[1], head_size=kind[0], use_qk_norm=norm,
        )  # fmt: skip
        return self._us(operation, prefill=True, batch=1, length=new, cached=cached)

    def decode(self, kind: tuple[int, int], kv: str, heads: tuple[int, int], batch: int, context: int) -> float | None:
        operation = self.operations.GenerationAttention(
            "generation_attention", 1, *heads, self.common.KVCacheQuantMode[KV_FORMATS[kv]],
            window_size=kind[1], head_size=kind[0],
        )  # fmt: skip
        return self._us(operation, prefill=False, batch=batch, length=context)

    def latent(self, fmt: str, kv: str, heads: int, *, prefill: bool, row: int, column: int) -> float | None:
        """A whole attention block over latent keys: projections and attention."""
        operation = self.operations.MLAModule(
            "mla", 1, prefill, heads, self.common.KVCacheQuantMode[KV_FORMATS[kv]], self.common.FMHAQuantMode.bfloat16,
            self.common.GEMMQuantMode[GEMM_FORMATS[fmt]], native_num_heads=128,
        )  # fmt: skip
        if prefill:
            return self._us(operation, prefill=True, batch=1, length=row, cached=column)
        return self._us(operation, prefill=False, batch=row, length=column)

    def experts(self, shape: tuple[int, int, int, int], fmt: str, split: tuple[int, int], tokens: int) -> float | None:
        skew = "power_law_1.01" if shape[:2] == LATENT_SHAPE else "power_law_1.2"
        operation = self.operations.MoE(
            "moe", 1, *shape, *split, self.common.MoEQuantMode[EXPERT_FORMATS[fmt]], skew, 1
        )
        return self._us(operation, prefill=True, batch=1, length=tokens)

    def all_reduce(self, ranks: int, tokens: int) -> float | None:
        operation = self.operations.CustomAllReduce("ar", 1, REDUCED_WIDTH, ranks)
        return self._us(operation, prefill=True, batch=1, length=tokens)


def rounded(us: float) -> float:
    """Three digits, four where the first is 1: 0.05 to 0.5 % apart."""
    return float(f"{us:.4g}" if f"{us:e}".startswith("1") else f"{us:.3g}")


def full(values: Iterator[float | None]) -> list[float] | None:
    """All values rounded; ``None`` where the package lacks any."""
    found = list(values)
    return None if any(value is None for value in found) else [rounded(value) for value in found if value is not None]


def kept_tokens(time: Callable[[int, int, int], float | None]) -> list[int]:
    """The tokens to keep for one GEMM format: greedily those where lines between kept ones are most wrong."""
    curves: list[list[float]] = []
    for outputs, inputs in PROBES:
        curve = [value for value in (time(outputs, inputs, tokens) for tokens in TOKENS) if value]
        if len(curve) == len(TOKENS):
            curves.append(curve)
    kept = [0, len(TOKENS) - 1]
    while len(kept) < KEPT_TOKENS:
        error = [0.0] * len(TOKENS)
        for left, right in pairwise(kept):
            for at in range(left + 1, right):
                share = (TOKENS[at] - TOKENS[left]) / (TOKENS[right] - TOKENS[left])
                for curve in curves:
                    error[at] += abs((curve[left] + share * (curve[right] - curve[left])) / curve[at] - 1)
        worst = max(range(len(TOKENS)), key=lambda at: error[at])
        kept = sorted([*kept, worst])
    return [TOKENS[at] for at in kept]


def gemms(timings: Timings) -> dict[str, Any]:
    by_format = {}
    for fmt in GEMM_FORMATS:
        if timings.gemm(fmt, 4096, 4096, 1) is None:
            continue
        tokens = kept_tokens(lambda outputs, inputs, at, fmt=fmt: timings.gemm(fmt, outputs, inputs, at))  # type: ignore[misc]
        table = [
            [full(timings.gemm(fmt, outputs, inputs, at) for at in tokens) for inputs in INPUTS] for outputs in OUTPUTS
        ]
        if all(curve for row in table for curve in row):
            by_format[fmt] = {"tokens": tokens, "us": table}
    return {"outputs": OUTPUTS, "inputs": INPUTS, "formats": by_format}


def attentions(
    heads: list[tuple[int, int]], rows: tuple[int, ...], columns: tuple[int, ...], time: Callable[..., float | None]
) -> list[dict[str, Any]]:
    found = []
    for kind in KINDS:
        for kv in KV_FORMATS:
            for pair in heads:
                if kind[0] == 64 and pair[0] // pair[1] != min(8, pair[0]):
                    continue  # the models with small heads share keys among eight
                table = [full(time(kind, kv, pair, row, column) for column in columns) for row in rows]
                if all(table):
                    found.append(
                        {"head_dim": kind[0], "window": kind[1], "kv": kv, "heads": pair[0], "kv_heads": pair[1],
                         "us": table}
                    )  # fmt: skip
    return found


def latents(timings: Timings, *, prefill: bool) -> list[dict[str, Any]]:
    rows, columns = (LATENT_CHUNKS, LATENT_CACHED) if prefill else (LATENT_BATCHES, LATENT_CONTEXTS)
    found = []
    for fmt in LATENT_FORMATS:
        for kv in KV_FORMATS:
            for heads in LATENT_HEADS:
                table = [
                    full(timings.latent(fmt, kv, heads, prefill=prefill, row=row, column=column) for column in columns)
                    for row in rows
                ]
                if all(table):
                    found.append({"weights": fmt, "kv": kv, "heads": heads, "us": table})
    return found


def experts(timings: Timings) -> list[dict[str, Any]]:
    found = []
    for shape, formats in EXPERTS.items():
        for fmt in formats:
            splits = {}
            for split in SPLITS:
                curve = full(timings.experts(shape, fmt, split, tokens) for tokens in EXPERT_TOKENS)
                if curve:
                    splits[f"{split[0]}x{split[1]}"] = curve
            if splits:
                names = ("hidden", "intermediate", "top_k", "experts")
                found.append({**dict(zip(names, shape, strict=True)), "weights": fmt, "us": splits})
    return found


def calibration(gpu: str, family: str, date: str) -> dict[str, Any]:
    version = TIMED[family][gpu]
    timings = Timings(gpu, family, version)
    prefill_heads = [(2, 1), (4, 1), (4, 4), (8, 1), (8, 2), (8, 8)]
    prefill_heads += [(h, kv) for h in (16, 32, 64) for kv in sorted({h // g for g in (1, 4, 8, 16)})]
    decode_heads = [(1, 1), (8, 1), (16, 1), (16, 2), (32, 2), (32, 4), (64, 4), (8, 8), (32, 8), (64, 8)]
    plain = timings.prefill((128, 0), "bf16", (32, 8), 1024, 0)
    normed = timings.prefill((128, 0), "bf16", (32, 8), 1024, 0, norm=True)
    reduces = {str(n): full(timings.all_reduce(n, tokens) for tokens in REDUCED_TOKENS) for n in (2, 4, 8)}
    return {
        "id": f"{gpu}/{family}/1",
        "gpu": GPUS[gpu],
        "family": family,
        "engine_version": version,
        "date": date,
        "source": SOURCE,
        "licence": "Apache-2.0",
        "unit": "microseconds of one kernel on one GPU",
        **timings.memory,
        "qk_norm_us": rounded((normed or 0.0) - (plain or 0.0)),
        "gemm": gemms(timings),
        "prefill_attention": {
            "new": CHUNKS, "cached": CACHED, "kernels": attentions(prefill_heads, CHUNKS, CACHED, timings.prefill),
        },
        "decode_attention": {
            "batch": BATCHES, "context": CONTEXTS,
            "kernels": attentions(decode_heads, BATCHES, CONTEXTS, timings.decode),
        },
        "latent_prefill": {
            "new": LATENT_CHUNKS, "cached": LATENT_CACHED, "kernels": latents(timings, prefill=True),
        },
        "latent_decode": {
            "batch": LATENT_BATCHES, "context": LATENT_CONTEXTS, "kernels": latents(timings, prefill=False),
        },
        "experts": {"tokens": EXPERT_TOKENS, "shapes": experts(timings)},
        "all_reduce": {
            "bytes": [tokens * REDUCED_WIDTH * 2 for tokens in REDUCED_TOKENS],
            "us": {n: curve for n, curve in reduces.items() if curve},
        },
    }  # fmt: skip


def text(value: Any, depth: int = 0) -> str:
    """JSON with a line for each innermost list, so that a change of one curve is a change of one line."""
    if isinstance(value, dict):
        lines = [f"{json.dumps(key)}: {text(part, depth + 1)}" for key, part in value.items()]
        flat = all(not isinstance(part, dict | list | tuple) for part in value.values())
        return "{" + ", ".join(lines) + "}" if flat and depth else "{\n" + ",\n".join(lines) + "}"
    if isinstance(value, list | tuple):
        if any(isinstance(part, dict | list | tuple) for part in value):
            return "[\n" + ",\n".join(text(part, depth + 1) for part in value) + "]"
        return "[" + ",".join(f"{part:g}" if isinstance(part, float) else json.dumps(part) for part in value) + "]"
    return json.dumps(value)


def main() -> None:
    logging.disable(logging.WARNING)
    folder, wanted, date = Path(sys.argv[1]), sys.argv[2:], "2026-11-29"
    for family, gpus in TIMED.items():
        for gpu in gpus:
            if not wanted or f"{gpu}/{family}" in wanted:
                path = folder / f"{gpu}_{family}.json"
                path.write_text(text(calibration(gpu, family, date)) + "\n")
                print(path, path.stat().st_size)


if __name__ == "__main__":
    main()
