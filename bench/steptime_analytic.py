"""How far the analytic step times are from kernel tables: prints the table of docs/step-time.md.

Usage: python bench/steptime_analytic.py [REFERENCE_DIR]   (default ../shared/reference)

Compared: single steps of up to 16,384 tokens, vLLM backend, rows that rest on measured kernel tables, experts sharded
as tensor parallelism shards them. Host time, sampling and the served-step factor are left out on our side, since the
tables leave them out too.
"""

import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
import polars as pl

from replay.hardware.catalogue import shipped_catalogue
from replay.steptime.roofline import Roofline

GPUS = {
    "a100_sxm": "A100-SXM-80GB",
    "h100_sxm": "H100-SXM",
    "h200_sxm": "H200-SXM",
    "l40s": "L40S",
    "b200_sxm": "B200-SXM",
    "b300_sxm": "B300-SXM",
    "gb200": "GB200",
    "gb300": "GB300",
    "rtx_pro_6000_server": "RTX-PRO-6000-Blackwell-SE",
}
MODELS = {
    "Llama-3.1-8B": "meta-llama/Llama-3.1-8B",
    "Llama-3.1-70B": "meta-llama/Llama-3.1-70B",
    "Qwen3-8B": "Qwen/Qwen3-8B",
    "Qwen3-32B": "Qwen/Qwen3-32B",
    "Mixtral-8x7B": "mistralai/Mixtral-8x7B-v0.1",
    "Qwen3-30B-A3B": "Qwen/Qwen3-30B-A3B",
    "Qwen3-235B-A22B": "Qwen/Qwen3-235B-A22B",
    "gpt-oss-20b": "openai/gpt-oss-20b",
    "gpt-oss-120b": "openai/gpt-oss-120b",
}
LARGEST_STEP_TOKENS = 16384
MAX_NUM_SEQS = 1024


def rows(reference: Path) -> pl.DataFrame:
    frame = pl.read_parquet(reference / "aiconfigurator" / "step_times.parquet")
    frame = frame.with_columns(pl.col(pl.Categorical).cast(pl.String))
    return frame.filter(
        (pl.col("source") == "silicon")
        & (pl.col("backend") == "vllm")
        & ((pl.col("moe_tp") == 0) | (pl.col("moe_tp") == pl.col("tp")))
        & (pl.col("prefill_tokens") + pl.col("decode_batch") <= LARGEST_STEP_TOKENS)
        & pl.col("gpu").is_in(list(GPUS))
        & pl.col("model").is_in(list(MODELS))
    )


def errors(key: tuple[object, ...], steps: pl.DataFrame) -> np.ndarray:
    """|analytic / table - 1| of each step of one combination."""
    gpu, model, tp, weights, kv = key
    catalogue = shipped_catalogue()
    spec = catalogue.model(MODELS[str(model)])
    roofline = Roofline(spec, catalogue.gpu(GPUS[str(gpu)]), int(str(tp)), str(weights), str(kv), MAX_NUM_SEQS)
    tokens = (steps["prefill_tokens"] + steps["decode_batch"]).to_numpy().astype(np.float64)
    new, cached = steps["isl_new"].to_numpy().astype(np.float64), steps["cached_ctx"].to_numpy()
    pairs = steps["prefill_batch"].to_numpy() * (new * cached + new * (new + 1) / 2)
    batch, context = steps["decode_batch"].to_numpy().astype(np.float64), steps["decode_ctx"].to_numpy()
    window = np.minimum(context, spec.sliding_window or 0)
    distinct, inverse = np.unique(tokens, return_inverse=True)
    seconds = (
        roofline.rest_s(distinct)[inverse]
        + roofline.decode_s_per_token() * batch * context
        + roofline.window_s_per_token() * batch * window
        + roofline.prefill_s_per_pair() * pairs
    )
    return np.abs(seconds / (steps["step_ms"].to_numpy() * 1e-3) - 1.0)


def main() -> None:
    reference = Path(sys.argv[1] if len(sys.argv) > 1 else "../shared/reference")
    found: dict[tuple[str, str], list[np.ndarray]] = defaultdict(list)
    combination = ["gpu", "model", "tp", "weight_dtype", "kv_dtype"]
    for key, steps in rows(reference).group_by(combination, maintain_order=True):
        spec = shipped_catalogue().model(MODELS[str(key[1])])
        kind = f"{'experts' if spec.num_moe_layers else 'dense'}, {key[3]}"
        found[str(key[0]), kind].append(errors(key, steps))
    print("| GPU | models | combinations | steps | median error | p95 error |")
    print("|---|---|---|---|---|---|")
    for gpu, name in GPUS.items():
        for kind in sorted(kind for key, kind in found if key == gpu):
            values = np.concatenate(found[gpu, kind])
            median, p95 = np.percentile(values, (50, 95)) * 100
            print(f"| {name} | {kind} | {len(found[gpu, kind])} | {len(values)} | {median:.1f} % | {p95:.1f} % |")


if __name__ == "__main__":
    main()
