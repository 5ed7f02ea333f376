"""Jobs with real workers in both modes: ends, kills, cancels, repeats, deploys."""

from __future__ import annotations

import json
import signal

import pytest
from measurement_files import BENCHED, bench
from services.process import wait_until
from stack import PATIENCE_S, SAMPLE, SERVER, SLOW, Stack, kill, long_replay, plan_spec, quick_replay

from models.broker import send_run
from models.errors import ConflictError
from models.hashing import canonical_json
from models.use_cases import calibrations
from replay.calibration.request import MeasuredDeployment
from replay.hardware.catalogue import shipped_catalogue
from replay.specs import ReplaySpec
from replay.traces.options import IngestOptions
from worker.runner import run_plan_locally

pytestmark = pytest.mark.timeout(400)


def test_a_killed_worker_costs_nothing_but_time(stack: Stack) -> None:
    """Upload, plan, kill -9 of the worker in mid-job, restart: one report, with the bytes of an undisturbed run."""
    worker = stack.start()
    trace_id = stack.ready_trace()
    spec = plan_spec(growth=2, router="least_outstanding", engine=SLOW)
    started = stack.plan(trace_id, spec)
    assert started.created
    wait_until(
        lambda: any(c.status == "running" and c.heartbeat_at > c.started_at for c in stack.children(started.job.id)),
        "a candidate to run",
        PATIENCE_S,
    )
    kill(worker.pid)
    worker.wait()
    stack.start()
    detail = stack.wait(started.job.id)
    assert detail.job.status == "succeeded", stack.tail()
    assert max(child.attempt for child in stack.children(started.job.id)) == 2
    assert stack.count_reports() == 1
    document = stack.document(started.job.id)

    again = stack.plan(trace_id, spec)
    assert not again.created
    assert again.job.id == started.job.id

    local = run_plan_locally(SAMPLE, spec, shipped_catalogue(), IngestOptions(), threads=2)
    assert canonical_json(local).encode() == document


def test_a_killed_job_process_is_replaced_and_the_job_tried_again(stack: Stack) -> None:
    worker = stack.start()
    job = stack.replay(stack.ready_trace(), long_replay()).job
    stack.wait_running(job.id)
    kill(stack.job_process(worker))
    detail = stack.wait(job.id)
    assert (detail.job.status, detail.job.attempt) == ("succeeded", 2), stack.tail()
    assert worker.poll() is None
    assert stack.count_reports() == 1


@pytest.mark.parametrize("stack", ["embedded"], indirect=True)
def test_a_job_that_kills_its_process_again_and_again_fails(stack: Stack) -> None:
    worker = stack.start(job_max_attempts="3")
    job = stack.replay(stack.ready_trace(), long_replay()).job
    for attempt in range(1, 4):
        wait_until(lambda: _running_attempt(stack, job.id) == attempt, f"attempt {attempt}", PATIENCE_S)  # noqa: B023
        stack.wait_running(job.id)
        kill(stack.job_process(worker))
    detail = stack.wait(job.id)
    assert (detail.job.status, detail.job.error_code, detail.job.attempt) == ("failed", "worker_lost", 3)
    assert stack.count_reports() == 0


def _running_attempt(stack: Stack, job_id: str) -> int | None:
    stack.tick()
    job = stack.detail(job_id).job
    return job.attempt if job.status == "running" else None


@pytest.mark.parametrize("stack", ["embedded"], indirect=True)
def test_measurements_are_fitted_by_a_worker_and_count_for_the_next_replay(stack: Stack) -> None:
    stack.start()
    trace_id = stack.ready_trace()
    server = MeasuredDeployment(model=BENCHED.model.key, gpu=BENCHED.gpu.key)
    spec = ReplaySpec(deployment=server.spec())
    before = stack.replay(trace_id, spec).job
    started = stack.calibrate(server, json.dumps(bench(4.0, factor=1.12)).encode())
    detail = stack.wait(started.job.id)
    assert detail.job.status == "succeeded", (detail.job.error_detail, stack.tail())
    with stack.services.database.read() as session:
        kept = calibrations.get_calibration(session, stack.principal, detail.calibration_id or "")
    assert kept.calibration.value("kernels_factor") == pytest.approx(1.12, rel=0.03)
    assert kept.counts
    sent = [one["sha256"] for one in detail.job.spec["calibrate"]["files"]]
    wait_until(lambda: not any(map(stack.services.blobs.exists, sent)), "what was sent to be deleted", PATIENCE_S)
    again = stack.replay(trace_id, spec)
    assert again.created
    for job, provenance in ((before, "transported"), (again.job, "measured")):
        stack.wait(job.id)
        assert json.loads(stack.document(job.id))["step_time"]["provenance"] == provenance
    poisoned = bench(4.0, n=40) | {"ttfts": [-0.1] * 40}
    detail = stack.wait(stack.calibrate(server, json.dumps(poisoned).encode()).job.id)
    assert (detail.job.status, detail.job.error_code) == ("failed", "calibration.latency")


def test_cancel_before_while_and_after(stack: Stack) -> None:
    waiting = stack.upload()
    assert stack.cancel(waiting.job.id).status == "cancelled"

    stack.start()
    trace_id = stack.ready_trace()
    assert trace_id != waiting.trace.id
    running = stack.replay(trace_id, long_replay()).job
    stack.wait_running(running.id)
    assert stack.cancel(running.id).status == "running"
    renewed = stack.replay(trace_id, long_replay())
    assert renewed.created, "an equal request must not find the dying job"
    assert stack.wait(running.id).job.status == "cancelled"
    stack.cancel(renewed.job.id)
    assert stack.wait(renewed.job.id).job.status == "cancelled"

    done = stack.replay(trace_id, quick_replay()).job
    assert stack.wait(done.id).job.status == "succeeded"
    with pytest.raises(ConflictError):
        stack.cancel(done.id)
    assert stack.detail(done.id).job.status == "succeeded"
    assert stack.count_reports() == 1


@pytest.mark.parametrize("stack", [SERVER], indirect=True)
def test_cancelling_a_plan_ends_all_its_candidates(stack: Stack) -> None:
    stack.start()
    job = stack.plan(stack.ready_trace(), plan_spec(growth=2, router="least_outstanding", engine=SLOW)).job
    wait_until(lambda: any(c.status == "running" for c in stack.children(job.id)), "a candidate to run", PATIENCE_S)
    assert stack.cancel(job.id).status == "cancelled"
    wait_until(lambda: {c.status for c in stack.children(job.id)} == {"cancelled"}, "all to be cancelled", PATIENCE_S)
    assert stack.count_reports() == 0


def test_a_message_delivered_many_times_runs_once(stack: Stack) -> None:
    job = stack.upload().job
    for _ in range(5):
        send_run(stack.celery, job.id, "replay")
    stack.start()
    assert stack.wait(job.id).job.status == "succeeded"
    marker = stack.replay(_only_trace(stack), quick_replay()).job  # queued behind the repeats
    assert stack.wait(marker.id).job.status == "succeeded"
    assert stack.detail(job.id).job.attempt == 1


def _only_trace(stack: Stack) -> str:
    from models.paging import PageRequest
    from models.use_cases.traces import list_traces

    with stack.services.database.read() as session:
        (trace,) = list_traces(session, stack.principal, PageRequest()).items
    return trace.id


def test_a_deploy_puts_the_running_job_back(stack: Stack) -> None:
    worker = stack.start()
    job = stack.replay(stack.ready_trace(), long_replay()).job
    stack.wait_running(job.id)
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(40) == 0, stack.tail()
    row = stack.detail(job.id).job
    assert (row.status, row.attempt, row.max_attempts) == ("queued", 1, stack.settings.job_max_attempts + 1)
    stack.start()
    detail = stack.wait(job.id)
    assert (detail.job.status, detail.job.attempt) == ("succeeded", 2)
    assert stack.count_reports() == 1


@pytest.mark.parametrize("stack", ["embedded"], indirect=True)
def test_a_file_that_is_no_trace_fails_with_a_reason(stack: Stack) -> None:
    stack.start()
    bad = stack.settings.data_dir / "bad.csv"
    bad.write_text("when,what\n1,2\n")
    created = stack.upload(bad)
    job = stack.wait(created.job.id).job
    assert job.status == "failed"
    assert job.error_code == "trace.unknown_columns"
    assert job.attempt == 1
    with pytest.raises(ConflictError, match="could not be read"):
        stack.plan(created.trace.id)
    again = stack.upload(bad)
    assert again.created, "a failed upload can be tried again"
