"""A deployment with everything a replay needs: engine knobs, KV blocks, and the step-time record."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from replay.calibration.applied import own_step_time
from replay.calibration.user import UserCalibration, deployment_key, matching
from replay.engines import EngineConfig, resolve_engine
from replay.errors import FieldError, SpecError
from replay.fields import pool_refusal
from replay.hardware.dtypes import weight_format
from replay.hardware.entries import GpuType, ModelSpec
from replay.hardware.feasibility import check_parallelism
from replay.hardware.memory import MemoryPlan, size_memory
from replay.hardware.weights import DataParallel
from replay.layer_groups import LayerGroups, is_plain
from replay.layer_groups import layer_groups as find_layer_groups
from replay.specs import POOLS, DeploymentSpec, DisaggregationSpec, reads_state
from replay.steptime.choose import choose_step_time
from replay.steptime.record import StepTime

Int64Array = npt.NDArray[np.int64]

_OFFLOAD_KNOB = "engine.overrides.kv_offload_gib"
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
    decode: Deployment | None = None
    """Its decode pool; all else is then of its prefill pool, but ``spec``, which is of the whole."""

    @property
    def replicas(self) -> int:
        """All replicas, those of the decode pool included."""
        pools = self.spec.disaggregation
        return self.spec.replicas if pools is None else pools.prefill_replicas + pools.decode_replicas

    @property
    def tensor_parallel_groups(self) -> tuple[tuple[int, int], ...]:
        """Tensor-parallel groups: how many, and GPUs of each; by pool where there are two."""
        pools = self.spec.disaggregation
        if pools is None or self.decode is None:
            return ((self.spec.replicas * self.engine.data_parallel_size, self.spec.tp),)
        return ((pools.prefill_replicas, self.memory.tp), (pools.decode_replicas, self.decode.memory.tp))

    @property
    def engines(self) -> int:
        """Engines with a queue of their own: replicas, times the data-parallel ranks of each."""
        return sum(count for count, _ in self.tensor_parallel_groups)

    @property
    def gpus(self) -> int:
        return sum(count * size for count, size in self.tensor_parallel_groups)

    @property
    def block_size(self) -> int:
        """Tokens of one block: the engine's own choice may be larger than the one asked for."""
        return self.memory.block_size

    @property
    def usable_blocks(self) -> int:
        """KV blocks of a replica in the unit the scheduler counts.

        Where layers form several groups (sliding windows, recurrent states) vLLM's scheduler counts the pool's own
        blocks, of which a request takes some in each group. For other schedulers all groups are taken to grow with the
        context, which understates the capacity of such models: one block then holds ``block_size`` tokens in all of
        them.
        """
        blocks = self.engine.num_gpu_blocks_override
        physical = self.memory.kv_blocks if blocks is None else blocks - self.engine.null_blocks
        groups = 1 if self.layer_groups is not None else self.memory.layout.group_count
        return physical // groups - self.engine.reserved_blocks

    @property
    def layer_groups(self) -> LayerGroups | None:
        """The layer groups that are followed one by one; ``None`` where each block counts for all layers."""
        if is_plain(self.memory.layout) or not counts_groups(self.engine):
            return None
        engine = self.engine
        return find_layer_groups(self.memory.layout, self.model, engine.max_model_len, engine.max_num_batched_tokens)

    def most_blocks(self, tokens: Int64Array) -> Int64Array:
        """Usable blocks that requests of ``tokens`` tokens hold at most, shape as given."""
        groups = self.layer_groups
        return -(-tokens // self.block_size) if groups is None else groups.most_blocks(tokens)

    @property
    def caches_prefixes(self) -> bool:
        """Whether the replayed engine reuses prompt prefixes. Recurrent states are reused only from saved copies, which
        are not replayed."""
        return self.engine.enable_prefix_caching and self.model.num_linear_layers == 0

    def with_replicas(self, replicas: int) -> Deployment:
        """The same deployment at another replica count."""
        return replace(self, spec=self.spec.model_copy(update={"replicas": replicas}))

    def with_pools(self, prefill: int, decode: int) -> Deployment:
        """The same pools with so many replicas each."""
        apart, pool = self.spec.disaggregation, self.decode
        if apart is None or pool is None:
            raise RuntimeError("this deployment has no pools")
        split = apart.model_copy(update={"prefill_replicas": prefill, "decode_replicas": decode})
        return replace(
            self, spec=self.spec.model_copy(update={"disaggregation": split}), decode=pool.with_replicas(decode)
        )


def counts_groups(engine: EngineConfig) -> bool:
    """Whether the scheduler is replayed with a model's layer groups one by one; not where drafts may be taken back,
    nor for ranks in lockstep."""
    alone = engine.num_speculative_tokens == 0 and engine.data_parallel_size == 1
    return engine.scheduler == "vllm" and alone


def asks_for_length(spec: DeploymentSpec) -> bool:
    """Whether the user said how long a context may be; else the longest that fits is served."""
    return spec.max_model_len is not None or bool(LENGTH_KNOBS & spec.engine.overrides.keys())


def resolve_deployment(
    spec: DeploymentSpec, model: ModelSpec, gpu: GpuType, calibrations: Sequence[UserCalibration] = ()
) -> Deployment:
    """Resolves engine, memory and step time. Of the user's own ``calibrations`` the last that was made for this
    deployment counts, those for others do not.

    Where no ``max_model_len`` is asked for and the model's own does not fit, the largest that fits is used, and noted.

    Raises:
        SpecError: ``deployment.infeasible`` with the reason where it does not fit; or a bad knob.
    """
    if spec.disaggregation is not None:
        return _resolve_pools(spec, spec.disaggregation, model, gpu, calibrations)
    check_parallelism(model, gpu, spec.tp, weight_format(spec.weight_dtype, model.weight_dtype))
    engine = resolve_engine(spec.engine, gpu, model, spec.max_model_len, spec.tp)
    _check_ranks(spec, model, gpu, engine)
    if model.num_linear_layers > 0 and not counts_groups(engine):
        detail = f"{model.key} has linear-attention layers; they are replayed under vLLM's V1 scheduler only"
        cure, field = "use a vllm preset of 0.8 or later, or another model", "engine.preset"
        if engine.num_speculative_tokens > 0:
            detail = f"{model.key} has linear-attention layers; they are replayed without speculative decoding only"
            cure, field = "leave num_speculative_tokens out", "engine.overrides.num_speculative_tokens"
        raise SpecError("deployment.not_replayed", detail, [FieldError(detail, field=field, cure=cure)])
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
    if model.num_linear_layers > 0 and engine.enable_prefix_caching:
        notes.append("prefix caching of recurrent states is not replayed: every prompt is computed in full")
    if engine.kv_offload_gib > 0 and not is_plain(memory.layout):
        detail = f"kv_offload_gib is replayed for models whose layers are all alike, and {model.key} has several kinds"
        cure = "leave kv_offload_gib out, or use another model"
        raise SpecError("deployment.not_replayed", detail, [FieldError(detail, _OFFLOAD_KNOB, cure=cure)])
    if not is_plain(memory.layout) and not counts_groups(engine):
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
        version=engine.version,
        tp=spec.tp,
        weight_dtype=memory.weight_dtype,
        kv_dtype=memory.kv_dtype,
        max_num_batched_tokens=engine.max_num_batched_tokens,
        max_num_seqs=engine.max_num_seqs,
        max_model_len=engine.max_model_len,
        async_scheduling=engine.async_scheduling,
        cuda_graphs=not engine.enforce_eager,
        data_parallel=engine.data_parallel_size,
    )
    own = matching(calibrations, deployment_key(model, gpu.key, spec.tp, engine, memory.weight_dtype, memory.kv_dtype))
    if own is not None:
        step_time = own_step_time(step_time, own, engine)
    _check_timeout(spec, step_time)
    if engine.scheduler == "vllm-v0":
        notes.append("V0's work on the CPU is taken as 2 ms a step and 70 us a request, chosen on benchmarks of V0")
    return Deployment(spec, model, gpu, engine, memory, step_time, tuple(notes))


def _check_timeout(spec: DeploymentSpec, step_time: StepTime) -> None:
    """Whether a request can come to the engine before its client gives up.

    Raises:
        SpecError: ``deployment.client_timeout``.
    """
    overhead_ps = step_time.request_overhead_ps
    if spec.client_timeout_s is None or round(spec.client_timeout_s * 1e12) > overhead_ps:
        return
    overhead_s = overhead_ps / 1e12
    detail = (
        f"clients give up after {spec.client_timeout_s:g} s, and a request takes {overhead_s:.3g} s until the engine "
        "sees it"
    )
    cure = f"set client_timeout_s well above {overhead_s:.3g} s, or leave it out"
    fault = FieldError(detail, "deployment.client_timeout_s", cure=cure)
    raise SpecError("deployment.client_timeout", f"{detail}: {cure}", [fault])


def _resolve_pools(
    spec: DeploymentSpec,
    apart: DisaggregationSpec,
    model: ModelSpec,
    gpu: GpuType,
    calibrations: Sequence[UserCalibration],
) -> Deployment:
    """Both pools, each with its own parallelism, memory and step times; both serve the shorter ``max_model_len``."""
    pools = zip(POOLS, spec.pools(), strict=True)
    prefill, decode = (_resolve_pool(name, apart, pool, model, gpu, calibrations) for name, pool in pools)
    notes = [*prefill.notes, *(note for note in decode.notes if note not in prefill.notes)]
    longest = min(prefill.engine.max_model_len, decode.engine.max_model_len)
    if apart.first_token_from == "decode":  # noqa: S105 - a token of text
        notes.append("the first token comes from the decode replica: TTFT holds the KV transfer and the wait for it")
    else:
        notes.append("the first token comes from the prefill replica: the KV transfer is part of the gap to the second")
    return replace(
        prefill,
        spec=spec,
        engine=replace(prefill.engine, max_model_len=longest),
        decode=replace(decode, engine=replace(decode.engine, max_model_len=longest, enable_prefix_caching=False)),
        notes=tuple(notes),
    )


def _resolve_pool(
    name: str,
    apart: DisaggregationSpec,
    pool: DeploymentSpec,
    model: ModelSpec,
    gpu: GpuType,
    calibrations: Sequence[UserCalibration],
) -> Deployment:
    """One pool; a refusal names it."""
    try:
        found = resolve_deployment(pool, model, gpu, calibrations)
    except SpecError as error:
        raise pool_refusal(name, apart, error) from error
    engine, detail, cure, knob = found.engine, "", "", ""
    if engine.scheduler != "vllm":
        knob = "preset"
        detail = f"prefill and decode apart are replayed with the vLLM V1 scheduler only, not with {engine.preset}"
        cure = "use a vLLM preset from vllm-0.8 on, or leave disaggregation out"
    elif engine.scheduling_policy != "fcfs":
        knob = "overrides.scheduling_policy"
        detail = f"prefill and decode apart are replayed first come first served, not by {engine.scheduling_policy}"
        cure = "set scheduling_policy to fcfs, or leave disaggregation out"
    elif engine.num_speculative_tokens > 0:
        knob = "overrides.num_speculative_tokens"
        detail = "prefill and decode apart are not replayed with speculative decoding"
        cure = "leave num_speculative_tokens out, or leave disaggregation out"
    elif engine.data_parallel_size > 1:
        knob = "overrides.data_parallel_size"
        detail = "prefill and decode apart are not replayed with data-parallel ranks in lockstep"
        cure = "leave data_parallel_size out, or leave disaggregation out"
    elif engine.kv_offload_gib > 0:
        knob = "overrides.kv_offload_gib"
        detail = "prefill and decode apart are replayed without KV offload to host memory"
        cure = "leave kv_offload_gib out, or leave disaggregation out"
    elif engine.max_num_queued_reqs is not None or engine.max_num_queued_tokens is not None:
        knob = "overrides.max_num_queued_reqs"
        detail = "prefill and decode apart are replayed without limits on the queue"
        cure = "leave max_num_queued_reqs and max_num_queued_tokens out, or leave disaggregation out"
    elif found.layer_groups is not None:
        knob = "preset"
        detail = f"prefill and decode apart are replayed for models with one kind of layers; {model.key} has several"
        cure = "leave disaggregation out, or use another model"
    if detail:
        fault = FieldError(detail, f"engine.{knob}", cure=cure)
        refused = SpecError("deployment.not_replayed", f"{detail}: {cure}", [fault])
        raise pool_refusal(name, apart, refused, says=False)
    return found


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
        data_parallel=DataParallel(engine.data_parallel_size, engine.enable_expert_parallel),
        prefix_caching=engine.enable_prefix_caching,
    )


def _check_ranks(spec: DeploymentSpec, model: ModelSpec, gpu: GpuType, engine: EngineConfig) -> None:
    """Whether the ranks of one replica can share the experts here, and the time of it is known.

    Raises:
        SpecError: ``engine.knob``, ``deployment.not_replayed``; with what would work.
    """
    ranks = engine.data_parallel_size
    if ranks == 1:
        return
    gpus, largest = ranks * spec.tp, gpu.max_scaleup_gpus
    detail = cure = ""
    if gpus > largest:
        detail = (
            f"{ranks} data-parallel ranks of tp {spec.tp} are {gpus} GPUs, and {gpu.key} links {largest} by its fast "
            "interconnect: how long ranks across a network take is not known"
        )
        cure = (
            f"set data_parallel_size to {largest // spec.tp} or less" if largest >= 2 * spec.tp else "use another GPU"
        )
    elif not engine.enable_expert_parallel and model.moe_intermediate_size % gpus:
        detail = f"the expert width {model.moe_intermediate_size} of {model.key} does not divide by {gpus} GPUs"
        cure = "set enable_expert_parallel, or another data_parallel_size"
    elif spec.replicas > 1 and reads_state(spec.router):
        detail = f"several groups of data-parallel ranks are not replayed behind the router {spec.router}"
        cure = "use round_robin, random or session_affinity: the ranks of a group are chosen by vLLM's own score"
    if detail:
        field = "deployment.router" if "router" in detail else "deployment.engine.overrides.data_parallel_size"
        raise SpecError("deployment.not_replayed", f"{detail}; {cure}", [FieldError(detail, field, cure=cure)])
