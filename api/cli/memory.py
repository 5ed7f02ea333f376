"""``capreplay memory``: how much KV cache one replica has."""

from __future__ import annotations

from typing import Any

import click

from api.cli.options import engine_of, engine_options, model_option, options
from api.cli.output import json_option, print_json, table


@click.command("memory", short_help="Size the KV cache of one replica on one GPU type.")
@options(
    model_option,
    click.option("--gpu", required=True, help="GPU type: catalogue key, alias, or path to a JSON entry."),
    click.option("--tp", type=click.IntRange(1, 64), default=1, show_default=True, help="Tensor-parallel GPUs."),
    engine_options,
    click.option("--gpu-memory-utilization", type=float, help="Share of the GPU the engine may use; default: the engine's."),
    json_option,
)
def command(
    model: str,
    gpu: str,
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

    Says what every GiB of a GPU is used for, how many KV blocks and tokens are left, and whether it fits at all.
    """
    overrides = engine_of(engine, sets)
    if gpu_memory_utilization is not None:
        overrides["overrides"]["gpu_memory_utilization"] = gpu_memory_utilization
    answer = size(model, gpu, tp, overrides, weight_dtype, kv_dtype, max_model_len)
    if as_json:
        print_json(answer)
        return
    click.echo(_sentence(answer))
    parts = ("weights_gib", "kv_gib", "activation_gib", "non_torch_gib", "cuda_graph_gib", "unused_gib", "total_gib")
    rows = [(name.removesuffix("_gib").replace("_", " "), f"{answer[name]:.2f}") for name in parts if name in answer]
    click.echo("\n" + table(("GiB per GPU", ""), rows))
    for note in answer["notes"]:
        click.echo(f"note: {note}")


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
    from replay.engines import resolve_engine
    from replay.hardware.catalogue import shipped_catalogue
    from replay.specs import EngineSpec

    catalogue, model_key = with_model(shipped_catalogue(), model_name)
    catalogue, (gpu_key, *_) = with_gpus(catalogue, (gpu_name,))
    raise NotImplementedError(resolve_engine, EngineSpec, model_key, gpu_key)


def _sentence(answer: dict[str, Any]) -> str:
    where = f"{answer['model']} on {answer['tp']} x {answer['gpu']} with {answer['engine']}"
    if not answer["fits"]:
        return f"Does not fit: {where}. {answer['reason']}"
    return (
        f"Fits: {where} holds {answer['kv_tokens']:,} tokens in {answer['kv_blocks']:,} KV blocks, "
        f"{answer['max_concurrency']:.2f} requests of {answer['max_model_len']:,} tokens at once."
    )
