"""Clients that left early: when, from every source that says so, and how long their answers are taken to be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from pydantic import ValidationError

from replay.errors import TraceError
from replay.specs import Transform
from replay.traces.cancels import draw_longer
from replay.traces.ingest import ingest
from replay.traces.options import IngestOptions
from replay.traces.transforms import load_workload
from replay.workload import STAYS, Leaves, Workload

MS, S = 10**9, 10**12


def lines(rows: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def leaves(workload: Workload) -> Leaves:
    assert workload.leaves is not None
    return workload.leaves


def mixed_rows(n: int = 60) -> list[dict[str, Any]]:
    """Every third is cut, after 2 s and 3 tokens; the others have prompt / 10 tokens. The 11th of the cut ones does not
    say when."""
    rows = []
    for i in range(n):
        row: dict[str, Any] = {"arrival_s": i, "prompt_tokens": 100 + 10 * i, "output_tokens": 10 + i, "status": "ok"}
        if i % 3 == 0:
            row |= {"output_tokens": 3, "status": "aborted", "cancel_after_s": None if i == 30 else 2}
        rows.append(row)
    return rows


@pytest.fixture
def cut(lab) -> Any:
    lab.read(lines(mixed_rows()))
    return lambda **change: load_workload(lab.out, Transform(**change), 5)


def test_by_default_an_aborted_request_is_as_long_as_its_tokens(cut: Any) -> None:
    workload = cut()
    assert workload.leaves is None
    assert (workload.output_tokens[::3] == 3).all()
    assert workload.notes == (
        "20 requests whose clients left early are replayed as long as the tokens that the trace counts.",
    )


def test_clients_leave_at_their_time(cut: Any) -> None:
    workload = cut(cancels="at_their_time")
    found = leaves(workload)
    timed = np.array([i % 3 == 0 and i != 30 for i in range(60)])
    assert (found.after_ps == np.where(timed, 2 * S, STAYS)).all()
    assert found.cancelled.tolist() == [i % 3 == 0 for i in range(60)]
    assert (workload.output_tokens == cut().output_tokens).all()
    assert "The clients of 19 of 20 aborted requests leave" in workload.notes[0]
    assert "of the others it does not say when" in workload.notes[0]


def test_answers_that_were_cut_are_as_long_as_others(cut: Any) -> None:
    workload = cut(cancels="at_their_time_drawn")
    timed = leaves(workload).after_ps < STAYS
    assert set(workload.output_tokens[timed].tolist()) <= {10 + i for i in range(60) if i % 3}
    assert len(set(workload.output_tokens[timed].tolist())) > 5
    assert workload.output_tokens[30] == 3, "without a time it stays as it was"
    assert (workload.output_tokens == cut(cancels="at_their_time_drawn").output_tokens).all()
    assert "drawn (seed 5)" in workload.notes[0]


def test_a_cut_answer_of_unknown_length_is_drawn_too(lab) -> None:
    rows = mixed_rows()
    rows[3]["output_tokens"] = 0
    lab.read(lines(rows))
    assert load_workload(lab.out, Transform(cancels="at_their_time"), 5).excluded == {"no_output_tokens": 1}
    workload = load_workload(lab.out, Transform(cancels="at_their_time_drawn"), 5)
    assert workload.excluded == {}
    assert workload.output_tokens[3] >= 10


def test_a_drawn_length_is_the_nearest_that_is_long_enough() -> None:
    """Against a search by hand: of the fewest neighbours by prompt that hold one, evenly any that is as long."""
    rng = np.random.default_rng(2)
    n = 3000
    prompt, output = rng.integers(1, 500, n), rng.integers(1, 400, n)
    cut, failed = rng.random(n) < 0.2, rng.random(n) < 0.1
    known = ~cut & ~failed
    output[0], cut[0], known[0] = 1000, True, False
    out, drawn = draw_longer(prompt, output, cut, known, 1)
    assert drawn == cut.sum() - 1
    assert out[0] == 1000
    assert (out[~cut] == output[~cut]).all()
    order = np.argsort(prompt[known], kind="stable")
    prompts, outputs = prompt[known][order], output[known][order]
    for i in np.flatnonzero(cut)[1:]:
        at = int(np.searchsorted(prompts, prompt[i]))
        for width in (16, 256, 4096):
            near = outputs[max(0, at - width) : at + width]
            if (near >= output[i]).any():
                break
        assert out[i] in near[near >= output[i]]
    one_prompt = np.full(n, 7)
    spread = draw_longer(one_prompt, np.where(cut, 1, output), cut, known, 1)[0][cut]
    assert len(set(spread.tolist())) > 10, "not always the same one"


def test_times_of_requests_that_finished_are_deadlines(lab) -> None:
    rows = mixed_rows(12)
    rows[1]["cancel_after_s"] = 7
    rows[2] |= {"status": "unknown", "cancel_after_s": 9}
    report = lab.read(lines(rows))
    assert report.cleaning.status_counts == {"aborted": 5, "ok": 7}
    assert report.cleaning.cancel_times == 6
    found = leaves(load_workload(lab.out, Transform(cancels="at_their_time"), 0))
    assert found.after_ps[:4].tolist() == [2 * S, 7 * S, 9 * S, 2 * S]
    assert found.cancelled[:4].tolist() == [True, False, True, True]


def test_a_trace_without_such_times_is_refused(lab, own_csv: Any) -> None:
    lab.read(own_csv(n=5))
    with pytest.raises(TraceError, match="no request of the trace says when its client left") as refusal:
        load_workload(lab.out, Transform(cancels="at_their_time"), 0)
    assert refusal.value.errors[0].field == "transform.cancels"
    assert refusal.value.errors[0].cure


def test_nothing_is_drawn_where_every_answer_was_cut(lab) -> None:
    lab.read(lines(mixed_rows()[::3]))
    with pytest.raises(TraceError, match="no request of the window finished"):
        load_workload(lab.out, Transform(cancels="at_their_time_drawn"), 0)


@pytest.mark.parametrize(
    "change",
    [
        {"agent_steps": 2, "cancels": "at_their_time"},
        {"prefix_from_sessions": True, "cancels": "at_their_time_drawn"},
    ],
)
def test_what_cannot_be_known_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match=r"leave cancels out|set cancels=at_their_time"):
        Transform(**change)


@pytest.mark.parametrize(
    "change", [{"growth": 3}, {"growth": 3, "growth_method": "shift"}, {"growth": 0.5}, {"burstiness": 2}]
)
def test_times_go_with_their_requests(cut: Any, change: dict[str, Any]) -> None:
    """The cut ones are those with 3 tokens, whatever moves, copies or drops them."""
    workload = cut(cancels="at_their_time", **change)
    found = leaves(workload)
    assert len(found.after_ps) == workload.n
    assert (found.cancelled == (workload.output_tokens == 3)).all()
    assert ((found.after_ps == 2 * S) == (found.cancelled & (workload.prompt_tokens != 400))).all()


def test_scaled_answers_keep_their_times(cut: Any) -> None:
    workload = cut(cancels="at_their_time", output_scale=4, prompt_scale=2)
    assert (workload.output_tokens[::3] == 12).all()
    assert leaves(workload).after_ps[0] == 2 * S


def test_times_come_along_when_traces_are_mixed(lab, tmp_path: Path, own_csv: Any) -> None:
    lab.read(lines(mixed_rows(12)))
    other = tmp_path / "other.parquet"
    source = tmp_path / "other.csv"
    source.write_text(own_csv(n=12))
    ingest(source, other)
    assert "cancel_after_ns" not in pl.read_parquet_schema(other)
    change = {"mix_with": [{"trace": "other", "name": "west"}], "cancels": "at_their_time"}
    workload = load_workload(lab.out, Transform.model_validate(change), 0, [other])
    assert workload.n == 24
    assert (leaves(workload).after_ps < STAYS).sum() == 4


def test_a_mapped_column_says_when(lab) -> None:
    text = "at_s,in,out,left_ms\n" + "".join(f"{i},10,20,{'' if i % 4 else 1500}\n" for i in range(40))
    mapping = {"arrival": "at_s", "prompt_tokens": "in", "output_tokens": "out", "cancel_after": "left_ms"}
    report = lab.read(text, mapping=mapping)
    assert report.assumed["cancel_after"] == "left_ms, in ms since the request was sent"
    assert report.cleaning.status_counts["aborted"] == 10
    assert (leaves(load_workload(lab.out, Transform(cancels="at_their_time"), 0)).after_ps[::4] == 1500 * MS).all()
    with pytest.raises(TraceError, match="whose name does not say in which unit") as refusal:
        lab.read(text.replace("left_ms", "left"), mapping=mapping | {"cancel_after": "left"})
    assert "left_s" in (refusal.value.errors[0].cure or "")


def test_what_is_no_duration_is_rejected(lab) -> None:
    text = "arrival_s,prompt_tokens,output_tokens,cancel_after_s\n" + "".join(
        f"{i},10,20,{cell}\n" for i, cell in enumerate(["", "null", "2.5", "0", "soon", "-1"] + [""] * 94)
    )
    report = lab.read(text, max_rejected_share=0.1)
    assert report.cleaning.rejected_by_rule == {"not_a_duration": 2}
    times = pl.read_parquet(lab.out)["cancel_after_ns"].to_list()
    assert times[:4] == [None, None, 2_500_000_000, None]


def test_aborted_streams_of_a_log_left_when_they_ended(lab) -> None:
    """Envoy: response_code 0, or the flag DC, is a client that left after ``duration``."""
    rows = [
        {
            "start_time": f"2026-03-02T09:00:{i:02d}.000Z", "duration": 100 * i, "method": "POST",
            "response_code": 0 if i % 3 == 0 else 200, "response_flags": "DC" if i % 3 == 1 else "-",
            "gen_ai.usage.input_tokens": 50, "gen_ai.usage.output_tokens": 7, "gen_ai.request.model": "m",
        }
        for i in range(30)
    ]  # fmt: skip
    report = lab.read(lines(rows))
    assert report.cleaning.status_counts == {"aborted": 20, "ok": 10}
    times = pl.read_parquet(lab.out)["cancel_after_ns"].to_list()
    assert times == [None if i % 3 == 2 or i == 0 else i * 10**8 for i in range(30)]
    assert report.cleaning.cancel_times == 19


def test_a_cancelled_request_of_aiperf_left_when_it_ended(lab) -> None:
    start = 1_772_442_000_000_000_000
    rows = [
        {
            "metadata": {
                "request_start_ns": start + i * 10**9, "request_end_ns": start + i * 10**9 + 3 * 10**8,
                "was_cancelled": i % 2 == 0, "session_num": i, "x_request_id": f"r{i}",
            },
            "metrics": {
                "input_sequence_length": {"value": 10 + i, "unit": "tokens"},
                "output_sequence_length": {"value": 5, "unit": "tokens"},
            },
            "error": None,
        }
        for i in range(20)
    ]  # fmt: skip
    lab.read(lines(rows))
    assert pl.read_parquet(lab.out)["cancel_after_ns"].to_list() == [3 * 10**8, None] * 10


def test_the_kept_trace_says_it_again(tmp_path: Path) -> None:
    source, once, twice = tmp_path / "a.jsonl", tmp_path / "a.parquet", tmp_path / "b.parquet"
    source.write_text(lines(mixed_rows()))
    ingest(source, once)
    ingest(once, twice, IngestOptions())
    columns = ["arrival_ns", "output_tokens", "status", "cancel_after_ns"]
    assert pl.read_parquet(once, columns=columns).equals(pl.read_parquet(twice, columns=columns))
