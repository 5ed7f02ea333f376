"""How well ``capreplay calibrate --endpoint`` finds the step law of a server, over real sockets.

Run: ``python bench/endpoint.py [--law shipped|affine|roofline] [--gpu G] [--jitter-ms X] [--max-tokens N]``. A test
server with a known law runs in a process of its own on loopback; the experiment measures it by the wall clock. Printed
are the errors of the measured steps against the law by kind, the fitted calibration, and the errors of the step times
that it gives for steps that were not measured. On a machine that is too slow or too busy for both, parts are lost, and
said.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from endpoint_server import Api, Faults, listening
from endpoint_tools import LAWS, TRUTH, deployment_of, fitted, true_law, true_s, worst_error

from api.cli.calibrate import calibration_text
from api.endpoint.client import opened
from api.endpoint.experiment import Budget, Experiment, Findings
from api.endpoint.prompts import Prompts
from replay.calibration.user import PARAMETERS
from replay.deployment import Deployment


def serve(out: Connection, gpu: str, jitter_s: float, law_name: str) -> None:
    """The server's process: sends its address, then serves until it is ended."""

    async def forever() -> None:
        deployment = deployment_of(gpu=gpu)
        law = LAWS.get(law_name) or true_law(deployment, TRUTH)
        limit = deployment.engine.max_num_batched_tokens
        api = Api(law, Faults(jitter_s=jitter_s), a0_s=float(TRUTH[4]), max_num_batched_tokens=limit)
        async with listening(api) as address:
            out.send(address)
            await asyncio.Event().wait()

    asyncio.run(forever())


@contextmanager
def server(gpu: str, jitter_s: float, law_name: str) -> Iterator[str]:
    """The address of a server in another process."""
    ours, theirs = multiprocessing.Pipe()
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=serve, args=(theirs, gpu, jitter_s, law_name), daemon=True)
    process.start()
    try:
        yield ours.recv()
    finally:
        process.terminate()
        process.join()


async def measure(address: str, deployment: Deployment, budget: Budget) -> Findings:
    """The experiment, by the wall clock."""
    found = Findings()
    async with opened(address, Prompts(deployment.model.vocab_size)) as endpoint:
        await Experiment(endpoint, deployment, budget, found, progress=lambda _stage, _share: None).run(None)
    return found


def errors_by_kind(found: Findings, deployment: Deployment, law_name: str) -> dict[str, np.ndarray]:
    """|measured / true - 1| of each measured step."""
    errors: dict[str, list[float]] = {}
    for row in found.rows:
        what = "first token" if row.kind == "ttft" else "mixed step" if row.prefill_tokens else "decode step"
        errors.setdefault(what, []).append(abs(row.time_s / true_s(row, deployment, own_law=LAWS.get(law_name)) - 1))
    return {what: np.array(values) for what, values in errors.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gpu", default="H100-SXM", help="whose step times the law is made of")
    parser.add_argument("--jitter-ms", type=float, default=0.0)
    parser.add_argument("--max-tokens", type=int, default=300_000)
    help_law = "shipped: the shipped step times with other parameters; the others have a shape of their own"
    parser.add_argument("--law", choices=("shipped", *LAWS), default="shipped", help=help_law)
    asked = parser.parse_args()
    deployment = deployment_of(gpu=asked.gpu)
    with server(asked.gpu, asked.jitter_ms / 1e3, asked.law) as address:
        found = asyncio.run(measure(address, deployment, Budget(asked.max_tokens, 180)))
    print(f"{found.requests} requests, {found.tokens:,} tokens, {found.seconds:.1f} s")
    print(*(f"not measured: {one}" for one in found.lost), *found.notes, sep="\n")
    for what, errors in errors_by_kind(found, deployment, asked.law).items():
        print(f"{what}: error {np.median(errors):.2%} in the median, {errors.max():.2%} at most, n {len(errors)}")
    with tempfile.TemporaryDirectory() as folder:
        calibration = fitted(found, Path(folder), deployment)
    print(calibration_text(calibration))
    if asked.law == "shipped":
        for name, true in zip(PARAMETERS, TRUTH.tolist(), strict=True):
            print(f"{name}: {calibration.value(name):.4g}, true {true:.4g}")
    worst = worst_error(calibration, deployment, TRUTH, law=LAWS.get(asked.law))
    print(f"steps that were not measured: error {worst:.2%} at most")


if __name__ == "__main__":
    main()
