"""A deployment with everything a replay needs: engine knobs, KV blocks, and the step-time record."""

from __future__ import annotations

from dataclasses import dataclass, replace

from replay.engines import EngineConfig, resolve_engine
from replay.errors import FieldError, SpecError
from replay.hardware.dtypes import weight_format
from replay.hardware.entries import GpuType, ModelSpec
from replay.hardware.feasibility import check_parallelism
from replay.hardware.memory import MemoryPlan, size_memory
from replay.specs import DeploymentSpec
from replay.steptime.choose import choose_step_time
from replay.steptime.record import StepTime

V0_HOST_PS = 4 * 10**9
"""Scheduling, input preparation and output of a V0 step: "several ms" (engine semantics 4.1)."""


LENGTH_KNOBS = {"max_model_len", "context_length", "max_seq_len", "max_total_tokens"}


@dataclass(frozen=True)
class Deployment:
    """A DeploymentSpec resolved on one GPU type: what ``simulate`` takes."""

    spec: DeploymentSpec
    model: ModelSpec
    gpu: GpuType
    engine: EngineConfig
    memory: MemoryPlan
    step_time: StepTime
    notes: tuple[str, ...] = ()

    @property
    def replicas(self) -> int:
        return self.spec.replicas

    @property
    def block_size(self) -> int:
        """Tokens of one block: the engine's own choice may be larger than the one asked for."""
        return self.memory.block_size

    @property
    def usable_blocks(self) -> int:
        """KV blocks of a replica in the unit the scheduler counts: one block holds ``block_size`` tokens of a request.

        Layers in several groups (sliding windows) take one physical block per group. All groups are counted as if they
        grew with the context, which understates the capacity of such models.
        """
        blocks = self.engine.num_gpu_blocks_override
        physical = self.memory.kv_blocks if blocks is None else blocks - self.engine.null_blocks
        return physical // self.memory.layout.group_count - self.engine.reserved_blocks

    def with_replicas(self, replicas: int) -> Deployment:
        """The same deployment at another replica count."""
        return replace(self, spec=self.spec.model_copy(update={"replicas": replicas}))


def asks_for_length(spec: DeploymentSpec) -> bool:
    """Whether the user said how long a context may be; else the longest that fits is served."""
    return spec.max_model_len is not None or bool(LENGTH_KNOBS & spec.engine.overrides.keys())


def resolve_deployment(spec: DeploymentSpec, model: ModelSpec, gpu: GpuType) -> Deployment:
    """Resolves engine, memory and step time.

    Where no ``max_model_len`` is asked for and the model's own does not fit, the largest that fits is used, and noted.

    Raises:
        SpecError: ``deployment.infeasible`` with the reason where it does not fit; or a bad knob.
    """
    if model.num_linear_layers > 0:
        detail = (
            f"{model.key} has linear-attention layers; their per-request state is sized (capreplay memory) "
            "but not replayed yet"
        )
        raise SpecError("deployment.not_replayed", detail, [FieldError(detail, field="model")])
    check_parallelism(model, gpu, spec.tp, weight_format(spec.weight_dtype, model.weight_dtype))
    engine = resolve_engine(spec.engine, gpu, model, spec.max_model_len, spec.tp)
    memory = _size(spec, model, gpu, engine)
    notes = list(engine.notes)
    asked = asks_for_length(spec)
    if not memory.fits and not asked:
        longest = memory.longest_context_tokens
        if longest > 0:
            shorter = resolve_engine(spec.engine, gpu, model, longest, spec.tp)
            sized = _size(spec, model, gpu, shorter)
            if sized.fits:
                notes.append(
                    f"max_model_len {engine.max_model_len} does not fit on {gpu.key} at tp {spec.tp}; "
                    f"replayed with max_model_len {longest}, the largest that fits"
                )
                engine, memory = shorter, sized
    if not memory.fits:
        detail = memory.reason or "the model does not fit"
        raise SpecError("deployment.infeasible", detail, [FieldError(detail, field="deployment")])
    if memory.layout.group_count > 1:
        notes.append("sliding-window layers are counted as if they kept the whole context: KV capacity is understated")
        replayable = memory.kv_blocks // memory.layout.group_count * memory.block_size
        if replayable < engine.max_model_len and not asked:
            engine = replace(engine, max_model_len=replayable)
            notes.append(
                f"replayed up to max_model_len {replayable} for that reason; the engine itself takes longer ones"
            )
    engine = engine.with_memory(memory.kv_blocks // memory.layout.group_count * memory.block_size)
    step_time = choose_step_time(
        model,
        gpu,
        scheduler=engine.scheduler,
        tp=spec.tp,
        weight_dtype=memory.weight_dtype,
        kv_dtype=memory.kv_dtype,
        max_num_batched_tokens=engine.max_num_batched_tokens,
        max_num_seqs=engine.max_num_seqs,
        max_model_len=engine.max_model_len,
        async_scheduling=engine.async_scheduling,
        cuda_graphs=not engine.enforce_eager,
    )
    if engine.scheduler == "vllm-v0":
        step_time = replace(step_time, host_ps=V0_HOST_PS)
        notes.append("V0's work on the CPU is taken as 4 ms a step and 20 us a request: an estimate, not a measurement")
    return Deployment(spec, model, gpu, engine, memory, step_time, tuple(notes))


def _size(spec: DeploymentSpec, model: ModelSpec, gpu: GpuType, engine: EngineConfig) -> MemoryPlan:
    return size_memory(
        model,
        gpu,
        tp=spec.tp,
        engine_version=engine.version,
        max_num_seqs=engine.max_num_seqs,
        max_num_batched_tokens=engine.profiled_tokens,
        gpu_memory_utilization=engine.gpu_memory_utilization,
        max_model_len=engine.max_model_len,
        block_size=engine.block_size,
        weight_dtype=spec.weight_dtype,
        kv_dtype=spec.kv_dtype,
        enforce_eager=engine.enforce_eager,
    )
