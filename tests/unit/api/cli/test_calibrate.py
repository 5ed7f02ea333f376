"""``capreplay calibrate --endpoint``: the plan, a run over real sockets, what is kept, and what is refused."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from endpoint_server import Api, Faults, listening
from endpoint_tools import DEPLOYMENT, LAWS, SHORT, TRUTH, fitted, measured, true_law

from api.cli.calibrate import calibration_text
from api.cli.endpoint import with_findings
from api.cli.group import cli
from api.endpoint import experiment
from api.endpoint.experiment import Findings

WHERE = ("--model", "meta-llama/Llama-3.1-8B-Instruct", "--gpu", "H100-SXM", "--engine", "vllm-0.11")


def calibrate(*words: str) -> Result:
    return CliRunner().invoke(cli, ["calibrate", *WHERE, *words])


class Interrupting(Api):
    """Sends Ctrl-C to the process of the test at its tenth completion request."""

    async def answer(
        self, method: str, path: str, headers: dict[str, str], body: bytes
    ) -> tuple[int, dict[str, str], AsyncIterator[bytes]]:
        if len(self.asked) == 9:
            os.kill(os.getpid(), signal.SIGINT)
        return await super().answer(method, path, headers, body)


@contextmanager
def serving(kind: type[Api], faults: Faults | None = None) -> Iterator[str]:
    """The address of a server on a loop and thread of its own."""
    started, addresses, stops = threading.Event(), [], []

    async def serve() -> None:
        stop = asyncio.Event()
        stops.append((asyncio.get_running_loop(), stop))
        async with listening(kind(true_law(DEPLOYMENT, TRUTH), faults, a0_s=float(TRUTH[4]))) as address:
            addresses.append(address)
            started.set()
            await stop.wait()

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    assert started.wait(60)
    try:
        yield addresses[0]
    finally:
        loop, stop = stops[0]
        loop.call_soon_threadsafe(stop.set)
        thread.join()


@pytest.fixture(autouse=True)
def _any_machine_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """How late a busy machine reads is no matter of these tests."""
    monkeypatch.setattr(experiment, "LATE_SHARES", dict.fromkeys(experiment.LATE_SHARES, 1e9))


def test_over_sockets_it_measures_fits_and_keeps_what_from_reads(tmp_path: Path) -> None:
    kept, output = tmp_path / "kept.json", tmp_path / "mine.json"
    with serving(Api, Faults(key="sk-1")) as address:
        options = ("--endpoint", address, "--api-key", "sk-1", "--max-tokens", "6000", "--max-seconds", "60")
        done = calibrate(*options, "--save-measurements", str(kept), "--output", str(output), "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["sources"] == [f"{address} (served)"]
    assert found["measurements"] >= 8
    assert found["experiment"]["tokens"] <= 6000
    assert found["experiment"]["served_model"] == "served"
    assert json.loads(output.read_text())["parameters"] == found["parameters"]
    assert "sk-1" not in kept.read_text() + done.output
    again = calibrate("--from", str(kept), "--json")
    assert json.loads(again.stdout)["parameters"] == found["parameters"]


def test_an_interrupted_run_keeps_what_was_measured(tmp_path: Path) -> None:
    kept = tmp_path / "kept.json"
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    try:
        with serving(Interrupting) as address:
            done = calibrate("--endpoint", address, "--save-measurements", str(kept))
    finally:
        signal.signal(signal.SIGINT, before)
    assert done.exit_code == 130
    assert f"measurements written to {kept}" in done.stderr
    assert len(json.loads(kept.read_text())["steps"]) >= 4
    assert calibrate("--from", str(kept)).exit_code == 0


def test_a_server_of_another_kind_than_named_is_said(tmp_path: Path) -> None:
    as_named = measured(budget=SHORT)
    assert not any("check model" in note for note in noted(as_named, tmp_path))
    other = measured(
        budget=SHORT, law=lambda chunks, n, context: 0.02 + 1e-5 * sum(q for q, _ in chunks) + 1e-4 * n + 1e-8 * context
    )
    other.lost.append("one part: a reason")
    notes = noted(other, tmp_path)
    assert any("check model, GPU type" in note for note in notes)
    assert notes[-1] == "Not measured: one part: a reason"


def test_a_curve_of_its_own_is_shown_knot_by_knot(tmp_path: Path) -> None:
    found = fitted(measured(law=LAWS["roofline"]), tmp_path)
    assert found.shape is not None
    text = calibration_text(found)
    assert "knot, tokens" in text
    for knot in found.shape.knots:
        assert f" {knot.tokens:,} {knot.factor:.3f} " in " ".join(text.split())
    assert "check model, GPU type" in text


def noted(found: Findings, folder: Path) -> tuple[str, ...]:
    return with_findings(fitted(found, folder), found, "http://a").notes


def test_the_dry_run_prints_the_plan_and_sends_nothing() -> None:
    text = calibrate("--endpoint", "http://nowhere.invalid:8000", "--dry-run")
    assert text.exit_code == 0, text.output
    assert "Nothing was sent" in text.stdout
    assert "tells" in text.stdout
    plan: dict[str, Any] = json.loads(calibrate("--endpoint", "http://nowhere.invalid", "--dry-run", "--json").stdout)
    assert plan["tokens"] <= 300_000
    assert plan["requests"] == sum(part["requests"] + part["added"] for part in plan["parts"])
    assert {part["kind"] for part in plan["parts"]} == {"single", "decode", "mixed"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "--from, or a server with --endpoint"),
        (("--from", "a.csv", "--endpoint", "http://a"), "not both"),
        (("--from", "a.csv", "--dry-run"), "--dry-run goes with --endpoint"),
        (("--from", "a.csv", "--served-model", "m"), "--served-model goes with --endpoint"),
        (("--endpoint", "http://a", "--save-measurements", "x.csv"), "ends in .json"),
        (("--endpoint", "http://a", "--save-measurements", "/nowhere/x.json"), "does not exist"),
        (("--endpoint", "ftp://a", "--dry-run"), "is no http address"),
        (("--endpoint", "http://user:pw@a", "--dry-run"), "more than host, port and path"),
        (("--endpoint", "http://a", "--dry-run", "--max-tokens", "1000"), "raise --max-tokens"),
        (
            (
                "--endpoint",
                "http://a",
                "--set",
                "num_speculative_tokens=2",
                "--set",
                "acceptance_rate=0.7",
                "--dry-run",
            ),
            "without speculative decoding",
        ),
    ],
)
def test_what_cannot_be_is_refused(words: tuple[str, ...], said: str) -> None:
    done = calibrate(*words)
    assert done.exit_code == 2
    assert said in done.stderr


def test_a_server_that_is_not_there_is_said() -> None:
    done = calibrate("--endpoint", "http://127.0.0.1:9")
    assert done.exit_code == 2
    assert "no connection to http://127.0.0.1:9/v1/" in done.stderr
    assert "check the address" in done.stderr
