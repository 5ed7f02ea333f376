"""``capreplay catalogue``: which GPU types, models, prices, engines and knobs are known."""

from __future__ import annotations

from typing import Any

import click

from api.cli.options import options
from api.cli.output import json_option, print_json, table

_COLUMNS: dict[str, tuple[str, ...]] = {
    "gpus": ("key", "vendor", "memory_total_gib", "mem_bw_gb_per_s", "fp16_tflops", "max_scaleup_gpus"),
    "models": ("key", "family", "num_layers", "max_position", "weight_dtype"),
    "prices": ("gpu", "usd_per_gpu_hour", "provider", "region", "term", "gpus_per_instance", "date"),
    "engines": ("name", "what", "values"),
}
"""What the table shows; ``--json`` has every field."""


@click.command("catalogue", short_help="List the known GPU types, models, prices, or engines with their knobs.")
@options(
    click.argument("kind", type=click.Choice(list(_COLUMNS))),
    click.option("--find", default="", metavar="TEXT", help="Only entries in which this text occurs."),
    json_option,
)
def command(kind: str, find: str, as_json: bool) -> None:
    """List the known GPU types, models, prices, or engines with their knobs.

    These are the entries inside the program; a service has its tenants' own beside them.
    """
    rows = [row for row in entries(kind) if find.casefold() in " ".join(map(str, row.values())).casefold()]
    if as_json:
        print_json({"kind": kind, "items": rows})
        return
    head = _COLUMNS[kind]
    cells = [["-" if row[name] is None else str(row[name]) for name in head] for row in rows]
    click.echo(table([name.replace("_", " ") for name in head], cells, left=(0, 1)))
    click.echo(f"\n{len(rows)} {kind}")


def entries(kind: str) -> list[dict[str, Any]]:
    """Every entry of a kind as a JSON object."""
    from replay.engines import KNOBS, PRESETS
    from replay.hardware.catalogue import shipped_catalogue

    catalogue = shipped_catalogue()
    if kind == "gpus":
        return [gpu.model_dump(mode="json") for gpu in catalogue.gpus.values()]
    if kind == "models":
        return [model.model_dump(mode="json") for model in catalogue.models.values()]
    if kind == "prices":
        return [
            price.model_dump(mode="json") | {"usd_per_gpu_hour": round(price.usd_per_gpu_hour, 4)}
            for price in catalogue.prices
        ]
    presets = [{"name": name, "what": "engine", "values": None} for name in PRESETS]
    knobs = []
    for name, knob in KNOBS.items():
        free = {bool: "true or false", str: "text"}.get(knob.kind, f"{knob.low:g} to {knob.high:g}")
        values = " or ".join(knob.choices) or free
        knobs.append({"name": name, "what": "knob", "values": values})
    return presets + knobs
