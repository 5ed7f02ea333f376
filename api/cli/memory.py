"""``capreplay memory``: how much KV cache one replica has."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from api.cli.options import engine_of, engine_options, options
from api.cli.output import json_option, print_json, table

if TYPE_CHECKING:
    from replay.hardware.start_up_log import StartUpLog
    from replay.specs import EngineSpec


_UTILIZATION = "--gpu-memory-utilization"


@click.command("memory", short_help="Size the KV cache of one replica on one GPU type.")
@options(
    click.option("--model", help="Catalogue key, Hugging Face id, or path to a config.json."),
    click.option("--gpu", help="GPU type: catalogue key, alias, or path to a JSON entry."),
    click.option(
        "--from-log",
        type=click.Path(path_type=Path),
        help="Read KV blocks and settings from this vLLM or SGLang start-up log instead; - is standard input.",
    ),
    click.option("--tp", type=click.IntRange(1, 64), default=1, show_default=True, help="Tensor-parallel GPUs."),
    engine_options,
    click.option(_UTILIZATION, type=float, help="Share of the GPU the engine may use; default: the engine's."),
    json_option,
)
def command(
    model: str | None,
    gpu: str | None,
    from_log: Path | None,
    tp: int,
    engine: str,
    sets: tuple[str, ...],
    weight_dtype: str | None,
    kv_dtype: str | None,
    max_model_len: int | None,
    gpu_memory_utilization: float | None,
    as_json: bool,
) -> None:
    """Size the KV cache of one replica on one GPU type.

    Says what every GiB of a GPU is used for, how many KV blocks and tokens are left, and whether it fits at all. With
    --from-log: what a running server's start-up log says of them, and the options that replay that server.
    """
    if from_log is not None:
        _print_log(from_log, model, as_json)
        return
    if model is None or gpu is None:
        missing = "--model" if model is None else "--gpu"
        raise click.UsageError(f"{missing} is missing: give --model and --gpu, or --from-log FILE")
    overrides = engine_of(engine, sets)
    if gpu_memory_utilization is not None:
        if not 0 < gpu_memory_utilization <= 1:
            cure = "give a fraction above 0 and at most 1, e.g. 0.9"
            raise click.BadParameter(f"{gpu_memory_utilization:g} is out of range; {cure}", param_hint=_UTILIZATION)
        overrides["overrides"]["gpu_memory_utilization"] = gpu_memory_utilization
    answer = size(model, gpu, tp, overrides, weight_dtype, kv_dtype, max_model_len)
    if as_json:
        print_json(answer)
        return
    click.echo(_sentence(answer))
    parts = ("weights_gib", "kv_gib", "activation_gib", "non_torch_gib", "cuda_graph_gib", "unused_gib", "total_gib")
    rows = [(name.removesuffix("_gib").replace("_", " "), f"{answer[name]:.2f}") for name in parts]
    if answer["kv_gib"] == 0 and answer["shortfall_gib"]:
        rows.insert(-1, ("missing", f"-{answer['shortfall_gib']:.2f}"))
    click.echo("\n" + table(("GiB per GPU", ""), rows))
    for note in answer["notes"]:
        click.echo(f"note: {note}")


def _print_log(path: Path, model_name: str | None, as_json: bool) -> None:
    """What the log says, what it does not say, and the options for ``replay``."""
    from api.cli.lookup import with_model
    from replay.errors import SpecError
    from replay.hardware.catalogue import shipped_catalogue
    from replay.hardware.start_up_log import MAX_TEXT_CHARACTERS, read_start_up_log

    with click.open_file(str(path), encoding="utf-8", errors="replace") as file:
        text = file.read(MAX_TEXT_CHARACTERS + 1)
    log = read_start_up_log(text)
    name = model_name or log.value("model")
    if name is not None:
        try:
            catalogue, key = with_model(shipped_catalogue(), str(name))
            log = read_start_up_log(text, catalogue.model(key))
        except SpecError:
            if model_name is not None:
                raise
    if as_json:
        print_json(log.document())
        return
    rows = [(one, str(found.value), str(found.line)) for one, found in log.found.items()]
    click.echo(table(("setting", "value", "line"), rows, left=(0,)))
    if log.missing:
        click.echo(f"\nNot in the log (the engine's defaults count): {', '.join(log.missing)}")
    click.echo(f"\nTo replay this server: {_replay_options(log)}")
    for note in log.notes:
        click.echo(f"note: {note}")


def _replay_options(log: StartUpLog) -> str:
    spec = log.deployment()
    words = []
    for option, name in (("--model", "model"), ("--tp", "tp"), ("--max-model-len", "max_model_len")):
        if name in spec:
            words += [option, str(spec[name])]
    words += ["--engine", log.preset]
    for option, name in (("--weight-dtype", "weight_dtype"), ("--kv-dtype", "kv_dtype")):
        if name in spec:
            words += [option, str(spec[name])]
    for knob, value in log.overrides.items():
        words += ["--set", f"{knob}={str(value).lower() if isinstance(value, bool) else value}"]
    return shlex.join(words)


def size(
    model_name: str,
    gpu_name: str,
    tp: int,
    engine: dict[str, Any],
    weight_dtype: str | None,
    kv_dtype: str | None,
    max_model_len: int | None,
) -> dict[str, Any]:
    """The memory plan as a JSON object, with the resolved model, GPU type and engine."""
    from api.cli.lookup import with_gpus, with_model
    from replay.deployment import LENGTH_KNOBS
    from replay.engines import resolve_engine
    from replay.hardware.catalogue import shipped_catalogue
    from replay.hardware.memory import memory_answer, size_memory
    from replay.specs import EngineSpec

    catalogue, model_key = with_model(shipped_catalogue(), model_name)
    catalogue, (gpu_key, *_) = with_gpus(catalogue, (gpu_name,))
    model, gpu = catalogue.model(model_key), catalogue.gpu(gpu_key)
    length = min(max_model_len or model.max_position, model.max_position)
    spec, sized_as = _scheduler_of(EngineSpec.model_validate(engine), length)
    # A length beyond the model's own is an answer here (it does not fit), so the engine is resolved without it.
    fitting = None if max_model_len is None else min(max_model_len, model.max_position)
    config = resolve_engine(spec, gpu, model, fitting)
    plan = size_memory(
        model,
        gpu,
        tp=tp,
        engine_version=sized_as or config.version,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        gpu_memory_utilization=config.gpu_memory_utilization,
        max_model_len=max_model_len or config.max_model_len,
        block_size=config.block_size,
        weight_dtype=weight_dtype,
        kv_dtype=kv_dtype,
        enforce_eager=config.enforce_eager,
    )
    used = {
        "model": model.key,
        "gpu": gpu.key,
        "max_model_len": max_model_len or config.max_model_len,
        "max_model_len_is_default": max_model_len is None and not LENGTH_KNOBS & engine["overrides"].keys(),
        "gpu_memory_utilization": config.gpu_memory_utilization,
        "max_num_seqs": config.max_num_seqs,
        "max_num_batched_tokens": config.max_num_batched_tokens,
    }
    return memory_answer(plan) | used


def _scheduler_of(spec: EngineSpec, length: int) -> tuple[EngineSpec, str | None]:
    """vLLM before 0.8 is sized with the batch limits that it sets by itself, memory as released.

    The V0 engine profiled 256 sequences and one whole prompt, or 2048 tokens where contexts above 32768 chunk it.
    """
    preset = spec.preset.strip().lower()
    if re.match(r"^vllm-(?:v0$|0\.[0-7](?:\D|$))", preset) is None:
        return spec, None
    tokens = max(length, 2048) if length <= 32768 else 2048
    limits = {"max_num_seqs": 256, "max_num_batched_tokens": tokens} | spec.overrides
    return spec.model_copy(update={"preset": "vllm-0.8", "overrides": limits}), preset


def _sentence(answer: dict[str, Any]) -> str:
    where = f"{answer['model']} on {answer['tp']} x {answer['gpu']} with {answer['engine']}"
    if not answer["fits"]:
        shorter = answer["longest_context_tokens"]
        alone = (
            f" Where no max_model_len is given, run and replay take {shorter} here."
            if shorter and answer["max_model_len_is_default"]
            else ""
        )
        return f"Does not fit: {where}: {answer['reason']}.{alone}"
    is_null_apart = answer["kv_tokens"] == (answer["kv_blocks"] + 1) * answer["block_size"]
    return (
        f"Fits: {where} holds {answer['kv_tokens']:,} tokens in {answer['kv_blocks']:,} KV blocks"
        f"{' and the null block of the engine' if is_null_apart else ''}, "
        f"{answer['max_concurrency']:.2f} requests of {answer['max_model_len']:,} tokens at once."
    )
