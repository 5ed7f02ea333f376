"""Options of a deployment whose prefill and decode replicas are apart."""

from __future__ import annotations

from typing import Any

import click

from api.cli.options import ROUTERS, options, pairs
from api.scalars import scalar

_counts = options(
    click.option(
        "--prefill-replicas", type=click.IntRange(1, 4096), help="Prefill and decode apart: prefill replicas."
    ),
    click.option("--decode-replicas", type=click.IntRange(1, 4096), help="Prefill and decode apart: decode replicas."),
    click.option(
        "--prefill-tp", type=click.IntRange(1, 64), help="Tensor-parallel GPUs a prefill replica; default: --tp."
    ),
    click.option(
        "--decode-tp", type=click.IntRange(1, 64), help="Tensor-parallel GPUs a decode replica; default: --tp."
    ),
)

open_pool_options = options(
    click.option(
        "--kv-transfer-gb-per-s",
        type=float,
        metavar="GB/S",
        help="Prefill and decode apart: what one replica sends or receives over all its links, in 10^9 bytes a second, "
        "e.g. 50.",
    ),
    click.option(
        "--kv-transfer-latency-s", type=float, metavar="SECONDS", help="Latency of one KV transfer; default 0."
    ),
    click.option(
        "--first-token-from",
        type=click.Choice(["prefill", "decode"]),
        help="Which side gives the user's first token; default: prefill.",
    ),
    click.option(
        "--decode-router",
        type=click.Choice([name for name in ROUTERS if name != "prefix_aware"]),
        help="How requests are spread over decode replicas; default: least_outstanding.",
    ),
    click.option(
        "--prefill-set", "prefill_sets", multiple=True, metavar="KNOB=VALUE", help="As --set, prefill replicas alone."
    ),
    click.option(
        "--decode-set", "decode_sets", multiple=True, metavar="KNOB=VALUE", help="As --set, decode replicas alone."
    ),
)
"""Of pools whose replicas are searched for."""

pool_options = options(_counts, open_pool_options)
"""Of pools with so many replicas."""

OPEN_POOL_OPTIONS = (
    *("kv_transfer_gb_per_s", "kv_transfer_latency_s", "first_token_from", "decode_router"),
    *("prefill_sets", "decode_sets"),
)
"""The names under which a command gets them."""

POOL_OPTIONS = ("prefill_replicas", "decode_replicas", "prefill_tp", "decode_tp", *OPEN_POOL_OPTIONS)


def disaggregation_of(
    prefill_sets: tuple[str, ...], decode_sets: tuple[str, ...], *, counted: bool = True, **chosen: Any
) -> dict[str, Any] | None:
    """The spec's ``disaggregation`` of ``pool_options``, or of ``open_pool_options`` where replicas are not
    ``counted``; ``None`` where none of them is given.

    Raises:
        click.UsageError: where one is given without those that every such deployment needs.
    """
    spec: dict[str, Any] = {name: value for name, value in chosen.items() if value is not None}
    for name, sets in (("prefill_overrides", prefill_sets), ("decode_overrides", decode_sets)):
        if sets:
            option = f"--{name.split('_')[0]}-set"
            spec[name] = {knob: scalar(text) for knob, text in pairs(sets, option, "max_num_seqs=256").items()}
    if not spec:
        return None
    needed = ("prefill_replicas", "decode_replicas") * counted + ("kv_transfer_gb_per_s",)
    missing = [f"--{name.replace('_', '-')}" for name in needed if name not in spec]
    if missing:
        counts = "--prefill-replicas 2 --decode-replicas 1 " if counted else ""
        cure = f"e.g. {counts}--kv-transfer-gb-per-s 50"
        raise click.UsageError(f"prefill and decode apart also need {' and '.join(missing)}, {cure}")
    return spec
