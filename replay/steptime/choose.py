"""Which step times a deployment gets: timed kernels of its GPU type where they serve it, its data sheet where not.

Nothing is downgraded silently: a record made from a data sheet on a GPU type with timed kernels says why.
"""

from __future__ import annotations

from dataclasses import replace

from replay.hardware.catalogue import shipped_catalogue
from replay.hardware.dtypes import kv_format, weight_format
from replay.hardware.entries import GpuType, ModelSpec
from replay.steptime.accuracy import calibrated_error
from replay.steptime.analytic import analytic_step_time
from replay.steptime.calibrated import Limits, calibrated_step_time
from replay.steptime.calibrations import Calibration, shipped_calibration
from replay.steptime.components import KernelModel
from replay.steptime.overheads import VERSION, served_overheads
from replay.steptime.record import StepTime
from replay.steptime.roofline import generation

FAMILIES = {"sglang": "sglang", "trtllm": "trtllm"}
"""Engine families whose kernels were timed apart, by scheduler; all others are taken for vLLM's."""
ENGINES = {"vllm": "vLLM", "trtllm": "TensorRT-LLM", "sglang": "SGLang"}


def choose_step_time(
    model: ModelSpec,
    gpu: GpuType,
    *,
    scheduler: str,
    version: str,
    tp: int,
    weight_dtype: str | None,
    kv_dtype: str | None,
    max_num_batched_tokens: int,
    max_num_seqs: int,
    max_model_len: int,
    async_scheduling: bool,
    cuda_graphs: bool = True,
    data_parallel: int = 1,
) -> StepTime:
    """The step-time record of a deployment; raises as ``analytic_step_time``. ``version``: of the engine, which says
    what a step takes on the CPU."""
    family = FAMILIES.get(scheduler, "vllm")
    calibration = shipped_calibration(gpu.key, family) if shipped_catalogue().gpus.get(gpu.key) == gpu else None
    weights, kv = weight_format(weight_dtype, model.weight_dtype), kv_format(kv_dtype)
    overheads = served_overheads(
        model, gpu, tp=tp, scheduler=scheduler, version=version, async_scheduling=async_scheduling
    )
    reason = None
    if calibration is not None and model.num_attention_heads % tp == 0:
        over_pcie = gpu.interconnect.startswith("PCIe")
        kernels = KernelModel(model, calibration.tables, tp, weights, kv, peers_over_pcie=over_pcie)
        reason = (
            _unserved(kernels, calibration, family) if data_parallel == 1 else "no exchange between data-parallel ranks"
        )
        if reason is None:
            limits = Limits(
                max_num_batched_tokens, max_num_seqs, max_model_len, generation(gpu) == "blackwell", cuda_graphs
            )
            record = calibrated_step_time(kernels, calibration, limits, overheads)
            error = calibrated_error(calibration, kernels, gpu, family)
            calibration_id = f"{calibration.id}+{VERSION}"
            notes = _notes(calibration, family, gpu, kernels)
            return replace(record, calibration_id=calibration_id, notes=notes, stated_error=error)
    record = analytic_step_time(
        model,
        gpu,
        tp=tp,
        weight_dtype=weight_dtype,
        kv_dtype=kv_dtype,
        max_num_batched_tokens=max_num_batched_tokens,
        max_num_seqs=max_num_seqs,
        overheads=overheads,
        cuda_graphs=cuda_graphs,
        data_parallel=data_parallel,
    )
    if reason is None:
        return record
    note = (
        f"Kernels of {gpu.key} were timed, but not for this deployment: {reason}. "
        "Its step times come from the data sheet."
    )
    return replace(record, notes=(note, *record.notes))


def _unserved(kernels: KernelModel, calibration: Calibration, family: str) -> str | None:
    """Why a calibration does not serve a deployment. Latent attention is each engine's own kernel, several times apart
    at small batches: another engine's does not stand in."""
    if kernels.model.attention_kind == "MLA" and calibration.family != family:
        return f"latent attention (MLA) was timed under {ENGINES[calibration.family]} only"
    return kernels.missing()


def _notes(calibration: Calibration, family: str, gpu: GpuType, kernels: KernelModel) -> tuple[str, ...]:
    timed = f"{ENGINES[calibration.family]} {calibration.engine_version}"
    notes = [
        f"Step times are put together from single kernels timed on {gpu.key} under {timed} ({calibration.date}); "
        "nobody measured this deployment."
    ]
    if calibration.family != family:
        notes.append(f"No kernels of {ENGINES[family]} on {gpu.key} are shipped: those of vLLM stand in.")
    if kernels.peers_over_pcie and kernels.tp > 2:
        notes.append(
            "All-reduces over PCIe are taken at the rate of a pair of cards, as on published serving machines; where "
            "cards cannot reach each other directly, they take several times as long."
        )
    curve = kernels.experts() if kernels.model.num_moe_layers else None
    if curve is not None and not curve.timed:
        timed_as = curve.reference
        notes.append(
            f"Experts of this size were not timed: those of {timed_as.experts} experts of {timed_as.hidden} x "
            f"{timed_as.intermediate} ({timed_as.fmt}, {timed_as.top_k} a token) stand in, scaled by what both "
            "read and compute."
        )
    return tuple(notes)
