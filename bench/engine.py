"""Speed of the replay engine: requests and steps a second of each loop, next to the same work in the naive twin.

``make bench`` prints the tables: the common loops (best of three runs on one core, except where two threads are said),
then all others (``engine_loops``). Compilation is timed apart. Loads are drawn with a fixed seed at 80 % of the
deployment's capacity.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import tracemalloc
from collections.abc import Callable
from itertools import chain
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from engine_loads import chat
from engine_loops import LOAD, loop_rows, mooncake_rows
from naive.vllm import Config as TwinConfig
from naive.vllm import Engine, Request

from replay.deployment import Deployment, resolve_deployment
from replay.engine_run import EngineRun
from replay.hardware.catalogue import shipped_catalogue
from replay.machine import Machine, make_machine, make_requests, run_deployment
from replay.simulate import simulate
from replay.specs import DeploymentSpec, EngineSpec

MODEL, GPU = "meta-llama/Llama-3.1-8B-Instruct", "H100-SXM"
TWIN_REQUESTS = 300


def deployment(replicas: int = 1, router: str = "round_robin") -> Deployment:
    """Llama-3.1-8B on one H100 with vLLM 0.11's synchronous loop and 256 slots."""
    catalogue = shipped_catalogue()
    engine = EngineSpec(preset="vllm-0.11", overrides={"max_num_seqs": 256})
    spec = DeploymentSpec.model_validate(
        {"model": MODEL, "gpu": GPU, "replicas": replicas, "router": router, "engine": engine}
    )
    return resolve_deployment(spec, catalogue.model(MODEL), catalogue.gpu(GPU))


def best(run: Callable[[], EngineRun], times: int = 3) -> tuple[float, EngineRun]:
    """Shortest wall time of ``times`` runs, and a result."""
    shortest = float("inf")
    for _ in range(times):
        started = time.perf_counter()
        result = run()
        shortest = min(shortest, time.perf_counter() - started)
    return shortest, result


def row(name: str, n: int, seconds: float, steps: int, reach: str) -> dict[str, object]:
    return {
        "what": name,
        "requests": n,
        "seconds": round(seconds, 4),
        "requests_per_s": round(n / seconds),
        "steps_per_s": round(steps / seconds),
        "reach": reach,
    }


def engine_rows(quick: bool) -> list[dict[str, object]]:
    """The engine rows of the table; ``quick`` takes a tenth of the requests."""
    scale = 10 if quick else 1
    one = deployment()
    machine = make_machine(one)
    capacity = simulate(chat(2000, 1.0), one).sustainable_rps
    rows = []

    def requests_of(n: int, replicas: int = 1) -> object:
        load = chat(n, LOAD * capacity * replicas)
        return make_requests(load.arrival_ps, load.prompt_tokens, load.output_tokens)

    small = requests_of(1000)
    started = time.perf_counter()
    machine.run(small, lambda: None)
    rows.append(row("fast loop, first call (compiles or loads)", 1000, time.perf_counter() - started, 0, "<= 3 s warm"))
    general = GeneralMachine(machine.config, machine.times)
    started = time.perf_counter()
    general.run(small, lambda: None)
    rows.append(row("general loop, first call", 1000, time.perf_counter() - started, 0, ""))

    n = 100_000 // scale
    load = requests_of(n)
    fast_s, fast = best(lambda: machine.run(load, lambda: None))
    rows.append(row("fast loop, chat", n, fast_s, fast.steps, ">= 1 M requests/s"))
    general_s, slow = best(lambda: general.run(load, lambda: None))
    assert np.array_equal(fast.last_ps, slow.last_ps), "the loops disagree"
    rows.append(row("general loop, chat", n, general_s, slow.steps, ">= 0.5 M requests/s"))
    rows.append(twin_row(machine, capacity))

    n = 1_000_000 // scale
    load = requests_of(n)
    seconds, run = best(lambda: machine.run(load, lambda: None))
    rows.append(row("fast loop, chat", n, seconds, run.steps, "1 M within 1.5 s"))
    load = requests_of(n, 16)
    seconds, run = best(lambda: run_deployment(machine, load, 16, 2, lambda: None))
    rows.append(row("fast loop, 16 replicas round robin, 2 threads", n, seconds, run.steps, ">= 1.5 M requests/s"))
    for router, reach in (("least_outstanding", ">= 0.5 M requests/s"), ("power_of_two", ""), ("vllm_dp", "")):
        coupled = make_machine(deployment(16, router))
        coupled.run(small, lambda: None)
        seconds, run = best(lambda coupled=coupled: coupled.run(load, lambda: None))
        rows.append(row(f"fast loop, 16 replicas {router}", n, seconds, run.steps, reach))
    coupled = make_machine(deployment(16, "least_outstanding"))
    general = GeneralMachine(coupled.config, coupled.times)
    head = requests_of(n // 10, 16)
    seconds, slow = best(lambda: general.run(head, lambda: None), times=1)
    assert np.array_equal(coupled.run(head, lambda: None).last_ps, slow.last_ps), "the coupled loops disagree"
    rows.append(row("general loop, 16 replicas least_outstanding", n // 10, seconds, slow.steps, ""))
    return rows


class GeneralMachine(Machine):
    """The same machine, made to take the general loop."""

    @property
    def loop(self) -> str:
        return "general"


def twin_row(machine: Machine, capacity: float) -> dict[str, object]:
    """The naive twin on the head of the same load, with the linear part of the same law."""
    load = chat(TWIN_REQUESTS, LOAD * capacity)
    config, times = machine.config, machine.times
    cost = (int(times.rest_ps[1]), 0, int(times.law[1]), int(times.law[2]), 0)
    settings = TwinConfig(config.max_num_seqs, config.max_num_batched_tokens, 16, config.num_blocks, cost)
    columns = zip(load.arrival_ps.tolist(), load.prompt_tokens.tolist(), load.output_tokens.tolist(), strict=True)
    twin = Engine(settings, [Request(i, *values) for i, values in enumerate(columns)])
    started = time.perf_counter()
    twin.run()
    return row("naive twin, chat", TWIN_REQUESTS, time.perf_counter() - started, twin.steps, "")


def memory_row(quick: bool) -> dict[str, object]:
    """Peak bytes a request that a replay allocates beyond its input."""
    n = 100_000 if quick else 1_000_000
    machine = make_machine(deployment())
    load = chat(n, 10.0)
    requests = make_requests(load.arrival_ps, load.prompt_tokens, load.output_tokens)
    machine.run(make_requests(load.arrival_ps[:9], load.prompt_tokens[:9], load.output_tokens[:9]), lambda: None)
    tracemalloc.start()
    machine.run(requests, lambda: None)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return {
        "what": "memory beyond the input",
        "requests": n,
        "bytes_a_request": round(peak / n, 1),
        "reach": "<= 64 bytes",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the requests")
    parser.add_argument("--loops", metavar="NAME", help="only the other loops whose names hold this; '' for all")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    show = (lambda text: None) if options.json else (lambda text: print(text, flush=True))
    head = f"{'requests':>10} {'seconds':>9} {'requests/s':>12} {'steps/s':>12}"
    common: list[dict[str, object]] = []
    if options.loops is None:
        show(f"{'what':47} {head}  reach")
        common = [*engine_rows(options.quick), memory_row(options.quick)]
        for line in common:
            show(_text(line))
    show(f"{'other loops, CPU seconds':47} {head}  batch  x twin  first  reach")
    others = []
    for line in chain(loop_rows(options.quick, options.loops or ""), () if options.loops else mooncake_rows()):
        others.append(line)
        show(_text(line))
    if options.json:
        print(json.dumps({"engine": common, "loops": others}))


def _text(line: dict[str, object]) -> str:
    if "seconds" not in line:
        return f"{line['what']:47} {line['requests']:>10,} {line['bytes_a_request']:>9} bytes a request"
    text = (
        f"{line['what']:47} {line['requests']:>10,} {line['seconds']:>9.3f} "
        f"{line['requests_per_s']:>12,} {line['steps_per_s']:>12,}  "
    )
    if "first_call_s" in line:
        text += f"{line['mean_batch']:>5} {line.get('times_the_twin', '-'):>7} {line['first_call_s']:>6}  "
    return text + str(line["reach"])


if __name__ == "__main__":
    main()
