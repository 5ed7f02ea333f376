"""Step-time records from timed kernels: a calibrated GPU type, any model whose kernels are in its tables.

``step = host + m * (rest(T) + prefill attention) + decode attention + c_r * R``. Kernels come from
``replay.steptime.components``; what a served step has beyond its kernels comes in as ``Overheads``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from replay.steptime.analytic import EAGER_LAYER_S, padded_tokens, table_knots
from replay.steptime.calibrations import Calibration
from replay.steptime.components import KernelModel
from replay.steptime.interpolation import Float64Array, never_falling
from replay.steptime.overheads import NO_OVERHEADS, Overheads
from replay.steptime.record import StepTime, no_table

Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Limits:
    """How far the tables of a record reach."""

    max_num_batched_tokens: int
    max_num_seqs: int
    max_context_tokens: int
    data_centre_blackwell: bool = False
    """Graphs are captured for larger batches."""
    cuda_graphs: bool = True


def calibrated_step_time(
    kernels: KernelModel, calibration: Calibration, limits: Limits, overheads: Overheads = NO_OVERHEADS
) -> StepTime:
    """The record of a deployment that ``kernels.missing()`` finds nothing against."""
    m = overheads.kernels_factor
    contexts, batches = table_knots(limits.max_context_tokens), table_knots(limits.max_num_seqs)
    share = overheads.decode_bandwidth_share
    if share is None:
        decode, decode_linear_s = decode_table_s(kernels, batches, contexts), 0.0
    else:
        decode = np.repeat(_head_extra_s(kernels, batches), 2, axis=1)
        decode_linear_s = kernels.kv_bytes_per_token() / share / kernels.memory_bytes_per_s
    return StepTime(
        rest_ps=_rest_ps(kernels, limits, m, kernels.all_reduces * overheads.all_reduce_s),
        decode_request_ps=_ps(overheads.decode_row_s),
        decode_linear_ps=_ps(decode_linear_s),
        prefill_linear_ps=0,
        decode_table_ps=_table_ps(m * decode),
        prefill_table_ps=_table_ps(m * prefill_table_s(kernels, table_knots(limits.max_num_batched_tokens), contexts)),
        host_ps=_ps(overheads.host_s),
        host_per_request_ps=_ps(overheads.host_per_request_s),
        request_overhead_ps=_ps(overheads.request_s),
        provenance="transported",
        calibration_id=calibration.id,
        prefill_step_ps=_ps(m * kernels.prefill_step_s()),
    )


def prefill_table_s(kernels: KernelModel, chunks: Int64Array, contexts: Int64Array) -> Float64Array:
    """Prefill attention of one chunk beyond what a step pays once, at knots of chunk length and cached tokens."""
    whole = kernels.prefill_grid_s(_at_least_one(chunks), contexts.astype(np.float64))
    table = np.maximum(whole - kernels.chunk_floor_s(), 1e-12)  # any chunk takes some time: its step pays the fixed one
    table[chunks == 0] = 0.0
    return table


def decode_table_s(kernels: KernelModel, batches: Int64Array, contexts: Int64Array) -> Float64Array:
    """Decode attention, and the LM head on a row for each decode beyond the first, at knots of batch and context."""
    table = kernels.decode_grid_s(_at_least_one(batches), _at_least_one(contexts)) + _head_extra_s(kernels, batches)
    table[batches == 0] = 0.0
    return table


def _head_extra_s(kernels: KernelModel, batches: Int64Array) -> Float64Array:
    """Shape (batches, 1); a head that is faster on a few rows than on one is taken to cost nothing more."""
    return np.maximum(never_falling(kernels.head_extra_s(_at_least_one(batches))), 0.0)[:, None]


def _at_least_one(knots: Int64Array) -> Float64Array:
    return np.maximum(knots, 1).astype(np.float64)


def _ps(seconds: float) -> int:
    return round(seconds * 1e12)


def _table_ps(seconds: Float64Array) -> Int64Array:
    return np.rint(seconds * 1e12).astype(np.int64) if seconds.any() else no_table()


def _rest_ps(kernels: KernelModel, limits: Limits, factor: float, added_s: float) -> Int64Array:
    tokens = np.arange(1, limits.max_num_batched_tokens + 1, dtype=np.int64)
    if limits.cuda_graphs:
        tokens = padded_tokens(tokens, limits.max_num_seqs, data_centre_blackwell=limits.data_centre_blackwell)
    seconds = kernels.rest_s(tokens.astype(np.float64))
    if not limits.cuda_graphs:
        seconds = np.maximum(seconds, kernels.model.num_layers * EAGER_LAYER_S)
    rest = np.zeros(limits.max_num_batched_tokens + 1, dtype=np.int64)
    rest[1:] = np.rint((seconds * factor + added_s) * 1e12)
    return rest
