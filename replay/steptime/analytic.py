"""Step times from a data sheet, for GPUs that nobody measured: the roofline's kernel times made into a served step.

``step = host + m * (rest(T) + prefill attention) + decode attention + c_r * R`` (docs/step-time.md). What a served step
has beyond its kernels comes in as ``Overheads``; kernel times come from ``replay.steptime.roofline``.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from replay.errors import FieldError, SpecError
from replay.hardware.dtypes import kv_format, weight_format
from replay.hardware.entries import GpuType, ModelSpec
from replay.hardware.weights import layer_counts
from replay.steptime.interpolation import log_linear_knots
from replay.steptime.overheads import NO_OVERHEADS, Overheads
from replay.steptime.overheads import VERSION as OVERHEADS_VERSION
from replay.steptime.record import StepTime, no_table
from replay.steptime.roofline import FP8_FORMATS, Roofline, borrowed, generation

Int64Array = npt.NDArray[np.int64]

EAGER_LAYER_S = 60e-6
"""CPU launch time of one layer without a captured graph; binds only where the GPU is faster than the launches."""


VERSION = 3
"""Of this module's constants; part of the calibration id, to be raised with any of them."""


def capture_sizes(max_num_seqs: int, *, data_centre_blackwell: bool = False) -> Int64Array:
    """Token counts that vLLM 0.33 captures graphs for: 1, 2, 4, 8..248 by 8, then by 16 up to ``min(2 * S, 512)``
    (1024 on data-centre Blackwell)."""
    largest = min(2 * max_num_seqs, 1024 if data_centre_blackwell else 512)
    sizes = [1, 2, 4, *range(8, 256, 8), *range(256, largest + 1, 16)]
    return np.array([size for size in sizes if size <= largest], dtype=np.int64)


def padded_tokens(tokens: Int64Array, max_num_seqs: int, *, data_centre_blackwell: bool = False) -> Int64Array:
    """Tokens that a captured graph computes for a step of ``tokens``: the next capture size, or the same beyond all."""
    sizes = capture_sizes(max_num_seqs, data_centre_blackwell=data_centre_blackwell)
    at = np.minimum(np.searchsorted(sizes, tokens), len(sizes) - 1)
    return np.where(tokens <= sizes[-1], sizes[at], tokens)


def analytic_step_time(
    model: ModelSpec,
    gpu: GpuType,
    *,
    tp: int,
    weight_dtype: str | None,
    kv_dtype: str | None,
    max_num_batched_tokens: int,
    max_num_seqs: int,
    overheads: Overheads = NO_OVERHEADS,
    cuda_graphs: bool = True,
    data_parallel: int = 1,
) -> StepTime:
    """The step-time record of a deployment from its data sheets alone.

    ``rest_ps`` covers 0..max_num_batched_tokens tokens, non-decreasing, with graph padding baked in up to the capture
    limit. A decoding request costs ``c_r`` a step, and sliding-window layers their window, by the decode table.
    ``None`` dtypes mean as published and 16 bit.

    Raises:
        SpecError: ``steptime.tp`` where ``tp`` does not divide the attention heads.
    """
    if model.num_attention_heads % tp != 0:
        cure = f"use a tp that divides {model.num_attention_heads}"
        detail = f"tp {tp} does not divide the {model.num_attention_heads} attention heads of {model.key}"
        raise SpecError("steptime.tp", detail, [FieldError(detail, field="tp", cure=cure)])
    weights, kv = weight_format(weight_dtype, model.weight_dtype), kv_format(kv_dtype)
    roofline = Roofline(model, gpu, tp, weights, kv, max_num_seqs, data_parallel, served=True)
    m, share = overheads.kernels_factor, overheads.decode_bandwidth_share
    decode = 1.0 if share is None else roofline.efficiency.decode / share
    all_reduces = 2 * model.num_layers + 1 if tp > 1 else 0
    return StepTime(
        rest_ps=_rest_ps(roofline, max_num_batched_tokens, cuda_graphs, m, all_reduces * overheads.all_reduce_s),
        decode_request_ps=_ps(overheads.decode_row_s),
        decode_linear_ps=_ps((m if share is None else decode) * roofline.decode_s_per_token()),
        prefill_linear_ps=_ps(m * roofline.prefill_s_per_pair() / 2.0),
        decode_table_ps=_decode_table_ps(roofline, m),
        prefill_table_ps=no_table(),
        host_ps=_ps(overheads.host_s),
        host_per_request_ps=_ps(overheads.host_per_request_s),
        request_overhead_ps=_ps(overheads.request_s),
        provenance="analytic",
        calibration_id=f"analytic/{gpu.key}/{VERSION}+{OVERHEADS_VERSION}",
        notes=_notes(model, gpu, weights, data_parallel),
        graph_tokens=int(_captured(roofline)[-1]) if cuda_graphs else 0,
        shared_ps=_shared_ps(roofline, max_num_batched_tokens, cuda_graphs, m),
    )


def _ps(seconds: float) -> int:
    return round(seconds * 1e12)


def _rest_ps(roofline: Roofline, max_tokens: int, cuda_graphs: bool, factor: float, added_s: float) -> Int64Array:
    padded = _padded(roofline, max_tokens, cuda_graphs)
    seconds = _window_prefill_s(roofline) * padded + roofline.rest_s(padded.astype(np.float64))
    if not cuda_graphs:
        seconds = np.maximum(seconds, roofline.model.num_layers * EAGER_LAYER_S)
    rest = np.zeros(max_tokens + 1, dtype=np.int64)
    rest[1:] = np.rint((seconds * factor + added_s) * 1e12)
    return rest


def _captured(roofline: Roofline) -> Int64Array:
    return capture_sizes(roofline.max_num_seqs, data_centre_blackwell=generation(roofline.gpu) == "blackwell")


def _padded(roofline: Roofline, max_tokens: int, cuda_graphs: bool) -> Int64Array:
    """Tokens that a step of 1..max_tokens tokens computes."""
    tokens = np.arange(1, max_tokens + 1, dtype=np.int64)
    if not cuda_graphs:
        return tokens
    blackwell = generation(roofline.gpu) == "blackwell"
    return padded_tokens(tokens, roofline.max_num_seqs, data_centre_blackwell=blackwell)


def _shared_ps(roofline: Roofline, max_tokens: int, cuda_graphs: bool, factor: float) -> Int64Array:
    """The part of ``_rest_ps`` that data-parallel ranks do together: experts, and the exchange of tokens for them."""
    if roofline.data_parallel == 1:
        return np.zeros(0, dtype=np.int64)
    padded = _padded(roofline, max_tokens, cuda_graphs).astype(np.float64)
    shared = np.zeros(max_tokens + 1, dtype=np.int64)
    shared[1:] = np.rint((roofline.experts_s(padded) + roofline.exchange_s(padded)) * (factor * 1e12))
    return shared


def _window_prefill_s(roofline: Roofline) -> float:
    """Per token: the pairs of a full window. An upper bound for prompts shorter than the window."""
    return roofline.window_prefill_s_per_pair() * (roofline.model.sliding_window or 0)


def _decode_table_ps(roofline: Roofline, factor: float) -> Int64Array:
    """``R * window bytes of min(context, window)``: linear in R, so two rows are exact. Absent without windows."""
    window = (roofline.model.sliding_window or 0) if layer_counts(roofline.model)[1] else 0
    if not window:
        return no_table()
    knots = table_knots(window)
    per_token = factor * roofline.window_s_per_token()
    table = np.zeros((2, len(knots)), dtype=np.int64)
    table[1] = np.rint(per_token * np.minimum(knots, window).astype(np.float64) * 1e12)
    return table


def table_knots(limit: int) -> Int64Array:
    """Knots of a step-time table axis, up to two at or past ``limit``."""
    shift = max(limit.bit_length() - 4, 0)
    past = 2 if (limit >> shift) << shift == limit else 3
    return log_linear_knots(max(16, (shift << 3) + (limit >> shift) + past))


def _notes(model: ModelSpec, gpu: GpuType, weights: str, data_parallel: int) -> tuple[str, ...]:
    kind = generation(gpu)
    whose = f"borrowed from a newer generation ({kind})" if borrowed(gpu) else f"of its generation ({kind})"
    notes = [
        f"Step times are a roofline on the data sheet of {gpu.key} with efficiencies {whose}; "
        "nobody measured this deployment."
    ]
    if kind == "other":
        notes.append(
            f"No kernel of {gpu.key}'s generation was compared with: its efficiencies are guesses on the low side."
        )
    if model.num_moe_layers and weights in FP8_FORMATS:
        notes.append("8-bit experts: kernels differ widely; expect errors of a factor of two.")
    if data_parallel > 1:
        notes.append(
            "Data-parallel ranks exchange tokens at the rate of all-reduces and route evenly over the experts; "
            "an uneven spread makes the slowest rank slower."
        )
    if model.num_linear_layers:
        notes.append("Linear-attention layers are timed by their projections only.")
    return tuple(notes)
