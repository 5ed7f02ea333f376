"""Times prefill and decode steps of a Llama-shaped model on this machine's GPU, beside the shipped calibration.

Usage: python bench/gpu/llama_steps.py [--model KEY] [--gpu KEY] [--layers N] [--json FILE]

Needs PyTorch 2.5 or newer with CUDA, which this project does not depend on: ``pip install torch`` into an environment
of its own, this project beside it (``pip install -e .``). Weights are random, since no kernel's time depends on them
(docs/step-time.md). A decode step runs as one captured CUDA graph, as engines run it; a prefill step is one prompt,
launched kernel by kernel. What is compared is kernels with kernels: no scheduler, no sampling, no request.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from replay.errors import SpecError
from replay.hardware.catalogue import shipped_catalogue
from replay.hardware.entries import ModelSpec
from replay.steptime.calibrations import shipped_calibration
from replay.steptime.components import KernelModel

PROMPTS = (128, 512, 1024, 2048, 4096, 8192)
BATCHES = (1, 4, 16, 64, 256)
CONTEXTS = (512, 2048, 8192)
BYTES = 2
"""Of a weight and of a key or value: bfloat16."""
MEMORY_SHARE = 0.85
WARM_UPS, REPEATS = 3, 20


@dataclass(frozen=True)
class Shape:
    """The sizes of a Llama-shaped model: grouped attention with rotary embedding, gated MLP, RMS norms."""

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int

    @property
    def weight_bytes(self) -> int:
        attention = self.hidden * self.head_dim * (2 * self.heads + 2 * self.kv_heads)
        layer = attention + 3 * self.hidden * self.intermediate
        return BYTES * (self.layers * layer + 2 * self.vocab * self.hidden)

    @property
    def kv_bytes_per_token(self) -> int:
        return BYTES * 2 * self.layers * self.kv_heads * self.head_dim


@dataclass(frozen=True)
class Step:
    """A prompt of ``tokens``, or ``batch`` decodes of one token behind ``context`` tokens each."""

    phase: str
    batch: int
    tokens: int
    context: int

    @property
    def kv_tokens(self) -> int:
        return self.batch * (self.context + self.tokens)


@dataclass(frozen=True)
class Compared:
    """One step measured and predicted, in milliseconds. ``error``: predicted / measured - 1."""

    phase: str
    batch: int
    tokens: int
    context: int
    measured_ms: float
    predicted_ms: float
    error: float


def shape_of(model: ModelSpec, layers: int | None = None) -> Shape:
    """The sizes of a catalogue model, of its first ``layers`` layers where given.

    Raises:
        ValueError: a model that is not Llama-shaped, with what differs.
    """
    for differs, what in (
        (model.num_moe_layers > 0, "experts"),
        (model.attention_kind == "MLA", "latent attention"),
        (model.num_linear_layers > 0, "linear-attention layers"),
        (bool(model.sliding_window), "a sliding window"),
        (not model.mlp_gated, "an MLP without a gate"),
    ):
        if differs:
            raise ValueError(f"{model.key} has {what}: name a Llama-shaped model with --model")
    if layers is not None and not 1 <= layers <= model.num_layers:
        raise ValueError(f"--layers must be 1 to {model.num_layers} for {model.key}")
    return Shape(
        layers=layers or model.num_layers,
        hidden=model.hidden_size,
        intermediate=model.intermediate_size,
        heads=model.num_attention_heads,
        kv_heads=model.num_key_value_heads,
        head_dim=model.head_dim,
        vocab=model.vocab_size,
    )


def grid(shape: Shape, memory_bytes: float) -> list[Step]:
    """The steps whose weights and keys and values fit, prompts first."""
    steps = [Step("prefill", 1, tokens, 0) for tokens in PROMPTS]
    steps += [Step("decode", batch, 1, context) for context in CONTEXTS for batch in BATCHES]
    room = MEMORY_SHARE * memory_bytes - shape.weight_bytes
    return [step for step in steps if step.kv_tokens * shape.kv_bytes_per_token <= room]


def predicted_s(kernels: KernelModel, step: Step) -> float:
    """Kernel time of a step by a calibration, without what a served step has beyond its kernels."""
    rest = float(kernels.rest_s(np.array([float(step.batch * step.tokens)]))[0])
    if step.phase == "prefill":
        return rest + float(kernels.prefill_grid_s(np.array([float(step.tokens)]), np.zeros(1))[0, 0])
    batch, context = np.array([float(step.batch)]), np.array([float(step.context + step.tokens)])
    return rest + float(kernels.head_extra_s(batch)[0]) + float(kernels.decode_grid_s(batch, context)[0, 0])


def compared(kernels: KernelModel, measured_s: dict[Step, float]) -> list[Compared]:
    """Each measured step beside the calibration's."""
    found = []
    for step, seconds in measured_s.items():
        predicted = predicted_s(kernels, step)
        found.append(
            Compared(
                **asdict(step), measured_ms=1e3 * seconds, predicted_ms=1e3 * predicted, error=predicted / seconds - 1
            )
        )
    return found


def summed(rows: list[Compared]) -> dict[str, dict[str, float]]:
    """By phase: steps, and the median, signed median and worst error."""
    found: dict[str, dict[str, float]] = {}
    for phase in dict.fromkeys(row.phase for row in rows):
        errors = [row.error for row in rows if row.phase == phase]
        found[phase] = {
            "steps": len(errors),
            "median": median(abs(e) for e in errors),
            "signed": median(errors),
            "worst": max(errors, key=abs),
        }
    return found


def printed(card: str, calibration_id: str, date: str, rows: list[Compared]) -> str:
    """The Markdown for docs/accuracy.md."""
    lines = [f"{card}, {date}, against `{calibration_id}`:", ""]
    lines += [
        "| phase | requests | tokens | context | measured ms | calibration ms | error |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        cells = (
            row.phase,
            row.batch,
            row.tokens,
            row.context,
            f"{row.measured_ms:.3f}",
            f"{row.predicted_ms:.3f}",
            f"{row.error:+.1%}",
        )
        lines.append(f"| {' | '.join(map(str, cells))} |")
    for phase, one in summed(rows).items():
        errors = f"median {one['median']:.1%}, signed {one['signed']:+.1%}, worst {one['worst']:+.1%}"
        lines += ["", f"{phase}: {errors} of {one['steps']} steps."]
    return "\n".join(lines)


class Model:
    """The model in PyTorch, with a cache per layer that every step overwrites."""

    def __init__(self, torch: Any, shape: Shape) -> None:
        self.torch, self.shape = torch, shape
        width = shape.head_dim * (shape.heads + 2 * shape.kv_heads)
        self.layers = [
            {
                "norms": self._random(2, shape.hidden),
                "qkv": self._random(width, shape.hidden),
                "out": self._random(shape.hidden, shape.heads * shape.head_dim),
                "up": self._random(2 * shape.intermediate, shape.hidden),
                "down": self._random(shape.hidden, shape.intermediate),
            }
            for _ in range(shape.layers)
        ]
        self.embedding = self._random(shape.vocab, shape.hidden)
        self.head = self._random(shape.vocab, shape.hidden)

    def _random(self, *size: int) -> Any:
        return self.torch.randn(*size, device="cuda", dtype=self.torch.bfloat16) * 0.02

    def step(self, step: Step) -> Callable[[], Any]:
        """A function that runs the step once on buffers of its own."""
        torch, s = self.torch, self.shape
        functional = torch.nn.functional
        tokens = torch.randint(s.vocab, (step.batch, step.tokens), device="cuda")
        length = step.context + step.tokens
        caches = [
            (
                self._random(step.batch, s.kv_heads, length, s.head_dim),
                self._random(step.batch, s.kv_heads, length, s.head_dim),
            )
            for _ in range(s.layers)
        ]
        angle = torch.rand(step.tokens, s.head_dim, device="cuda")
        cos, sin = angle.cos().to(torch.bfloat16), angle.sin().to(torch.bfloat16)

        def turned(x: Any) -> Any:
            low, high = x.chunk(2, dim=-1)
            return x * cos + torch.cat((-high, low), dim=-1) * sin

        def heads(x: Any, count: int) -> Any:
            return x.view(step.batch, step.tokens, count, s.head_dim).transpose(1, 2)

        def run() -> Any:
            x = functional.embedding(tokens, self.embedding)
            for weights, (keys, values) in zip(self.layers, caches, strict=True):
                y = functional.rms_norm(x, (s.hidden,), weights["norms"][0])
                q, k, v = functional.linear(y, weights["qkv"]).split(
                    [s.heads * s.head_dim, s.kv_heads * s.head_dim, s.kv_heads * s.head_dim], dim=-1
                )
                keys[:, :, step.context :] = turned(heads(k, s.kv_heads))
                values[:, :, step.context :] = heads(v, s.kv_heads)
                q = turned(heads(q, s.heads))
                if step.phase == "prefill":
                    seen = functional.scaled_dot_product_attention(q, keys, values, is_causal=True, enable_gqa=True)
                else:  # the heads of a group are rows of one query, so that keys and values are read once
                    rows = q.reshape(step.batch, s.kv_heads, s.heads // s.kv_heads, s.head_dim)
                    seen = functional.scaled_dot_product_attention(rows, keys, values)
                    seen = seen.reshape(step.batch, s.heads, 1, s.head_dim)
                joined = seen.transpose(1, 2).reshape(step.batch, step.tokens, s.heads * s.head_dim)
                x = x + functional.linear(joined, weights["out"])
                y = functional.rms_norm(x, (s.hidden,), weights["norms"][1])
                gate, up = functional.linear(y, weights["up"]).chunk(2, dim=-1)
                x = x + functional.linear(functional.silu(gate) * up, weights["down"])
            return functional.linear(x[:, -1], self.head)

        return run


def timed_s(torch: Any, run: Callable[[], Any], *, captured: bool) -> float:
    """Median seconds of a step after warm-up, by events on the GPU."""
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(WARM_UPS):
            run()
    torch.cuda.synchronize()
    if captured:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            run()
        run = graph.replay
    times = []
    for _ in range(WARM_UPS + REPEATS):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        run()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) / 1e3)
    return float(median(times[WARM_UPS:]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="meta-llama/Llama-3.1-8B")
    parser.add_argument("--gpu", help="catalogue key; default: by the name that the driver gives")
    parser.add_argument("--layers", type=int, help="only so many layers, where the whole model does not fit")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    words = parser.parse_args()
    try:
        import torch  # not a dependency: see above
    except ModuleNotFoundError:
        sys.exit("PyTorch is not installed: pip install torch, in an environment of its own beside this project")
    if not torch.cuda.is_available():
        sys.exit("PyTorch finds no CUDA GPU on this machine")
    card = torch.cuda.get_device_name()
    try:
        gpu, spec = shipped_catalogue().gpu(words.gpu or card), shipped_catalogue().model(words.model)
        shape = shape_of(spec, words.layers)
    except (SpecError, ValueError) as error:
        sys.exit(str(error))
    calibration = shipped_calibration(gpu.key, "vllm")
    if calibration is None:
        sys.exit(f"no calibration of {gpu.key} is shipped: there is nothing to compare with")
    model = Model(torch, shape)
    measured: dict[Step, float] = {}
    with torch.inference_mode():
        for step in grid(shape, torch.cuda.get_device_properties(0).total_memory):
            measured[step] = timed_s(torch, model.step(step), captured=step.phase == "decode")
            torch.cuda.empty_cache()
    cut = spec.model_copy(update={"num_layers": shape.layers, "num_full_attn_layers": shape.layers})
    rows = compared(KernelModel(cut, calibration.tables, 1, "bf16", "bf16"), measured)
    date = f"{datetime.now(UTC):%Y-%m-%d}"
    print(printed(card, calibration.id, date, rows))
    if words.json:
        document = {"card": card, "torch": torch.__version__, "date": date, "calibration": calibration.id}
        words.json.write_text(
            json.dumps({**document, "steps": [asdict(row) for row in rows], "by": summed(rows)}, indent=1)
        )


if __name__ == "__main__":
    main()
