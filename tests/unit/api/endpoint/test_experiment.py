"""A server whose step law is known is measured on a virtual clock: the law comes back, whatever else goes wrong."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from endpoint_server import Api, Faults
from endpoint_tools import (
    DEPLOYMENT,
    LAWS,
    SHORT,
    TRUTH,
    deployment_of,
    fitted,
    measured,
    true_law,
    true_s,
    worst_error,
)

from api.endpoint import experiment
from api.endpoint.experiment import Budget, Findings
from replay.calibration.user import PARAMETERS
from replay.errors import SpecError


def refused(faults: Faults, **changes: object) -> tuple[SpecError, Findings]:
    """The refusal of an experiment, and what had been found by then."""
    found = Findings()
    with pytest.raises(SpecError) as refusal:
        measured(faults, found=found, budget=SHORT, **changes)  # type: ignore[arg-type] # as measured takes them
    (error,) = refusal.value.errors
    assert error.field
    assert error.cure
    return refusal.value, found


def test_the_true_law_comes_back_within_3_percent(tmp_path: Path) -> None:
    found = measured(budget=Budget(300_000, 180))
    assert found.lost == []
    assert [note.split()[0] for note in found.notes] == ["Measured"]
    calibration = fitted(found, tmp_path)
    assert all(one.identified for one in calibration.parameters)
    for name, value in zip(PARAMETERS, TRUTH.tolist(), strict=True):
        assert calibration.value(name) == pytest.approx(value, rel=0.03)
    assert worst_error(calibration, DEPLOYMENT, TRUTH) < 0.01
    assert all(error.median < 0.01 < error.shipped_median for error in calibration.errors)


@pytest.mark.parametrize("name", sorted(LAWS))
def test_a_law_of_another_shape_comes_back_within_3_percent(tmp_path: Path, name: str) -> None:
    calibration = fitted(measured(law=LAWS[name], budget=Budget(300_000, 180)), tmp_path)
    assert calibration.shape is not None
    assert worst_error(calibration, DEPLOYMENT, TRUTH, law=LAWS[name]) < 0.03
    assert all(error.median < 0.03 for error in calibration.errors)


@pytest.mark.parametrize("name", sorted(LAWS))
def test_with_jitter_another_shape_is_found_too(tmp_path: Path, name: str) -> None:
    found = measured(Faults(jitter_s=1e-3), law=LAWS[name], budget=Budget(300_000, 180))
    calibration = fitted(found, tmp_path)
    assert calibration.shape is not None
    assert worst_error(calibration, DEPLOYMENT, TRUTH, law=LAWS[name]) < 0.03


def test_each_measured_step_is_what_the_law_says() -> None:
    rows = measured(budget=SHORT).rows
    assert [row.time_s for row in rows] == pytest.approx([true_s(row) for row in rows], rel=1e-3)


def test_with_jitter_it_still_comes_back(tmp_path: Path) -> None:
    calibration = fitted(measured(Faults(jitter_s=4e-3), budget=Budget(300_000, 180)), tmp_path)
    assert worst_error(calibration, DEPLOYMENT, TRUTH) < 0.03
    assert calibration.value("kernels_factor") == pytest.approx(TRUTH[0], rel=0.03)
    # half of the jitter is part of the time to first token, as in any run
    assert calibration.value("request_s") == pytest.approx(TRUTH[4] + 2e-3, abs=1.5e-3)


def test_asynchronous_scheduling_hides_the_host(tmp_path: Path) -> None:
    deployment = deployment_of("vllm-0.33")
    truth = np.array([0.9, 1.0, 40e-6, 0.5e-3, 5e-3])
    calibration = fitted(measured(deployment=deployment, truth=truth), tmp_path, deployment)
    assert worst_error(calibration, deployment, truth) < 0.03
    host = next(one for one in calibration.parameters if one.name == "host_s")
    assert not host.identified
    assert "asynchronous" in host.reason


def test_an_engine_that_keeps_prompts_and_decodes_apart_is_measured_too(tmp_path: Path) -> None:
    deployment = deployment_of("sglang")
    truth = np.array([1.2, 1.0, 30e-6, 1e-3, 8e-3])
    found = measured(deployment=deployment, truth=truth, budget=Budget(300_000, 180), mixes=False)
    assert found.lost == []
    assert worst_error(fitted(found, tmp_path, deployment), deployment, truth) < 0.03


def test_errors_limits_and_cut_streams_are_tried_again(tmp_path: Path) -> None:
    busy, down = (429, {"retry-after": "2"}), (503, {})
    faults = Faults(errors={0: busy, 3: down, 7: busy, 30: down}, cut={12, 40}, jitter_s=1e-3, hang={5})
    found = measured(faults, budget=Budget(400_000, 180))
    assert found.lost == []
    assert worst_error(fitted(found, tmp_path), DEPLOYMENT, TRUTH) < 0.03


def test_a_limit_on_concurrency_loses_only_what_is_above_it(tmp_path: Path) -> None:
    found = measured(Faults(most_requests=10), budget=Budget(300_000, 180))
    assert found.lost
    assert all(one.split()[0] in ("16", "32", "64", "128") for one in found.lost)
    assert "limits requests" in found.lost[0]
    assert all("refused 16 requests at once" in one for one in found.lost[1:])
    assert {row.decode_requests for row in found.rows} == {0, 1, 4, 8}
    assert worst_error(fitted(found, tmp_path), DEPLOYMENT, TRUTH, decodes=(1, 3, 8)) < 0.03


def test_prompts_that_the_server_refuses_lose_their_parts() -> None:
    found = measured(Faults(most_prompt_tokens=1000), budget=SHORT)
    assert any("the prompt is too long" in one for one in found.lost)
    assert max(row.prefill_tokens for row in found.rows) == 512


def test_a_machine_that_reads_late_measures_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experiment, "LATE_SHARES", {**experiment.LATE_SHARES, "decode": -1.0})
    found = measured(budget=SHORT)
    assert {row.decode_requests for row in found.rows if not row.prefill_tokens} == set()
    assert any("this machine reads 0.0 ms late" in one for one in found.lost)


def test_a_longer_wait_than_the_time_left_is_not_waited_for() -> None:
    refusal, _ = refused(Faults(errors={0: (429, {"retry-after": "3600"})}))
    assert refusal.code == "endpoint.unreachable"
    assert "3600 s" in refusal.detail


def test_a_server_that_fails_in_the_middle_ends_the_experiment_but_not_its_result() -> None:
    found = measured(Faults(errors={number: (500, {}) for number in range(8, 400)}), budget=SHORT)
    assert found.rows
    assert "not begun, as 3 in a row had failed" in found.lost[-1]
    assert "HTTP 500" in found.lost[0]


def test_time_and_tokens_are_never_exceeded() -> None:
    slow = true_law(DEPLOYMENT, TRUTH)
    found = measured(budget=Budget(300_000, 20), law=lambda *step: 4 * slow(*step))
    assert found.seconds <= 20
    assert any("--max-seconds" in one for one in found.lost)
    found = measured(Faults(errors={9: (500, {})}), budget=Budget(8_000, 180))
    assert found.tokens <= 8_000


@pytest.mark.parametrize(
    ("faults", "code", "said"),
    [
        (Faults(key="right"), "unauthorised", "CAPREPLAY_ENDPOINT_API_KEY"),
        (Faults(routes=()), "dialect", "takes no streamed completion"),
        (Faults(models=("a", "b")), "model", "serves 2 models (a, b)"),
        (Faults(lists_models=False), "model", "does not list models"),
        (Faults(errors={number: (503, {}) for number in range(400)}), "unreachable", "HTTP 503"),
        (Faults(hang=set(range(400))), "unreachable", "no answer"),
        (Faults(one_chunk=True), "stream", "in one chunk"),
        (Faults(bursts=True), "stream", "at once after a long wait"),
        (Faults(tokens_per_chunk=4), "stream", "output tokens per streamed chunk"),
        (Faults(tokens_per_chunk=4, usage_by_chunk=False), "stream", "does not say how many in each"),
        (Faults(ignores_limit=True), "stream", "ignores the limit"),
        (Faults(replicas=2), "stream", "several servers"),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_what_cannot_be_measured_is_refused_with_the_cure(faults: Faults, code: str, said: str) -> None:
    refusal, found = refused(faults)
    assert refusal.code == f"endpoint.{code}"
    assert found.rows == []
    assert said in refusal.detail + str(refusal.errors[0].cure)


def test_the_key_is_sent_and_never_shown() -> None:
    assert measured(Faults(key="sk-right"), key="sk-right", budget=SHORT).rows
    refusal, _ = refused(Faults(key="sk-right"), key="sk-wrong")
    assert "sk-wrong" not in str(vars(refusal))
    assert "***" in refusal.detail


def test_a_model_may_be_named() -> None:
    assert measured(Faults(models=("a", "b")), served_model="b", budget=SHORT).model == "b"
    assert measured(Faults(lists_models=False), served_model="c", budget=SHORT).model == "c"
    refusal, _ = refused(Faults(models=("a",)), served_model="x")
    assert "does not serve 'x'; it serves a" in refusal.detail


@pytest.mark.parametrize(
    ("faults", "dialect"),
    [
        (Faults(takes_ids=False), "/v1/completions, prompts as words, ends forced with ignore_eos"),
        (Faults(takes_extras=False), "/v1/completions, prompts as token ids, no ignore_eos"),
        (Faults(usage=False, takes_extras=False), "/v1/completions, prompts as token ids, no ignore_eos"),
        (Faults(routes=("chat/completions",)), "/v1/chat/completions, prompts as words, ends forced"),
        (
            Faults(routes=("chat/completions",), takes_extras=False),
            "/v1/chat/completions, prompts as words, no ignore_eos",
        ),
    ],
    ids=["words", "no extras", "no usage", "chat", "chat without extras"],
)
def test_servers_are_asked_as_they_understand(tmp_path: Path, faults: Faults, dialect: str) -> None:
    found = measured(faults, budget=Budget(100_000, 60))
    assert found.dialect.startswith(dialect)
    assert found.lost == []
    assert worst_error(fitted(found, tmp_path), DEPLOYMENT, TRUTH) < 0.03


def test_answers_that_end_early_lose_their_part_and_are_said() -> None:
    found = measured(Faults(takes_extras=False, ends_after=40), budget=SHORT)
    assert any("honour ignore_eos" in note for note in found.notes)
    assert {row.decode_requests for row in found.rows} > {0, 1}
    found = measured(Faults(takes_extras=False, ends_after=6), budget=SHORT)
    assert {row.decode_requests for row in found.rows} == {0}
    assert any("answers end early" in one for one in found.lost)


def test_a_smaller_server_than_named_is_noticed() -> None:
    found = measured(budget=SHORT, max_num_seqs=4)
    assert any("max_num_seqs" in one for one in found.lost)
    found = measured(budget=SHORT, max_num_batched_tokens=512)
    assert any("give max_num_batched_tokens" in one for one in found.lost)


def test_prompts_are_unlike_and_cached_tokens_are_counted_as_such() -> None:
    api = Api(true_law(DEPLOYMENT, TRUTH), Faults(cached_tokens=16), a0_s=float(TRUTH[4]))
    found = measured(api=api, budget=SHORT)
    beginnings = [tuple(prompt[:16]) for prompt in api.prompts if isinstance(prompt, list)]
    assert len(set(beginnings)) == len(beginnings) == len(api.prompts)
    assert any("prefix cache" in note for note in found.notes)
    assert all(row.cached_tokens == 16 for row in found.rows if row.kind == "ttft")


def test_a_shorter_context_limit_of_the_server_is_kept() -> None:
    found = measured(Faults(max_model_len=1500), budget=SHORT)
    assert max(row.prefill_tokens for row in found.rows) <= 1500


def test_progress_rises_to_the_end() -> None:
    seen: list[float] = []
    measured(budget=SHORT, progress=lambda _stage, share: seen.append(share))
    assert seen == sorted(seen)
    assert seen[-1] == 1.0
