"""Traces drawn from a description or mixed from others: seeded, at the rates asked for, and never taken for records."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from replay.errors import TraceError
from replay.specs import Transform
from replay.traces.canonical import Meta
from replay.traces.mixing import Part, mix, write_own
from replay.traces.synthetic import Description, describe, draw, weibull_shape
from replay.traces.transforms import load_workload

NS = 10**9
LENGTHS = {"prompt_tokens": {0: 10, 0.5: 100, 1: 1000}, "output_tokens": {0.5: 7}}


def described(**client: Any) -> Description:
    return Description.model_validate({"span_s": 2000, "seed": 3, "clients": [{"name": "a", **LENGTHS, **client}]})


@pytest.mark.parametrize("gaps", ["gamma", "weibull"])
@pytest.mark.parametrize("cv", [0.0, 0.5, 1.0, 3.0])
def test_rate_and_variation_are_those_described(gaps: str, cv: float) -> None:
    frame, _ = draw(described(rate_rps=20.0, gap_cv=cv, gaps=gaps))
    times = frame["arrival_ns"].to_numpy()
    assert len(times) == pytest.approx(40_000, rel=0.002 + 0.015 * cv)
    gap = np.diff(times)
    assert gap.std() / gap.mean() == pytest.approx(cv, rel=0.06, abs=1e-6)
    assert times.min() >= 0
    assert times.max() < 2000 * NS


def test_the_rate_changes_in_steps_and_may_be_zero() -> None:
    frame, _ = draw(described(rate_rps=[[0, 5], [500, 0], [1000, 20]]))
    counts = np.bincount(frame["arrival_ns"].to_numpy() // (500 * NS), minlength=4)
    assert counts[1] == 0
    assert counts[[0, 2, 3]] == pytest.approx([2500, 10_000, 10_000], rel=0.06)


def test_lengths_follow_their_quantiles() -> None:
    frame, _ = draw(described(rate_rps=20.0))
    prompts = frame["prompt_tokens"].to_numpy()
    assert np.percentile(prompts, [25, 50, 75]) == pytest.approx([10**1.5, 100, 10**2.5], rel=0.05)
    assert (prompts.min(), prompts.max()) >= (10, 900)
    assert set(frame["output_tokens"].to_list()) == {7}


def test_the_shape_of_weibull_gaps() -> None:
    assert weibull_shape(1.0) == pytest.approx(1.0)
    assert weibull_shape(5**0.5) == pytest.approx(0.5)


def test_a_drawn_trace_says_so_wherever_it_goes(lab) -> None:
    frame, note = draw(described(rate_rps=2.0))
    again, _ = draw(described(rate_rps=2.0))
    assert frame.equals(again)
    assert not frame.equals(draw(described(rate_rps=2.0).model_copy(update={"seed": 4}))[0])
    write_own(frame, lab.source, Meta(notes=note))
    report = lab.read(lab.source.read_bytes())
    assert report.requests == frame.height
    assert any(warning.startswith("Drawn from a description, not recorded") for warning in report.warnings)
    workload = load_workload(lab.out, Transform(tenants=("a",)), 0)
    assert workload.notes[0].startswith("Drawn from a description, not recorded")
    like = describe(report.profile)
    redrawn, _ = draw(like)
    assert redrawn.height == pytest.approx(frame.height, rel=0.06)
    assert np.median(redrawn["prompt_tokens"]) == pytest.approx(np.median(frame["prompt_tokens"]), rel=0.15)


def test_a_description_is_an_upload_like_any_other(lab) -> None:
    description = described(rate_rps=[[0, 1], [1000, 3]])
    report = lab.read(description.model_dump_json(indent=2))
    frame, note = draw(description)
    assert (report.title, report.requests) == ("Drawn from a description", frame.height)
    assert report.warnings[0] == note
    assert lab.table["prompt_tokens"].sum() == frame["prompt_tokens"].sum()
    refusal = lab_refuses(lab, '{"span_s": -1, "clients": []}')
    assert refusal.code == "trace.synthetic"
    assert {one.field for one in refusal.errors} == {"span_s", "clients"}


def lab_refuses(lab, text: str) -> TraceError:
    lab.source.write_text(text)
    with pytest.raises(TraceError) as caught:
        lab.read(text)
    return caught.value


@pytest.mark.parametrize(
    ("client", "says"),
    [
        ({"rate_rps": [[5, 1]]}, "times rising from 0"),
        ({"rate_rps": 0.0}, "not all 0"),
        ({"rate_rps": 1.0, "prompt_tokens": {0: 10, 1: 5}}, "must not fall"),
        ({"rate_rps": 1.0, "prompt_tokens": {50: 10}}, "between 0 and 1"),
    ],
)
def test_descriptions_that_make_no_sense_are_refused(client: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        described(**client)


def test_too_many_and_none_are_refused() -> None:
    with pytest.raises(TraceError, match="lower rates"):
        draw(described(rate_rps=1e6))
    with pytest.raises(TraceError, match="no request was drawn"):
        draw(described(rate_rps=1e-9, gap_cv=0.0))


def own(lab, target: Path, text: str, **options: Any) -> Path:
    lab.read(text, **options)
    lab.out.rename(target)
    return target


def test_traces_are_mixed_by_start_or_clock(lab, tmp_path: Path) -> None:
    head = "arrival_s,prompt_tokens,output_tokens,tenant,session\n"
    day = 1_700_000_000
    east = own(lab, tmp_path / "e.parquet", head + "".join(f"{day + 10 * i},{i + 1},1,t{i % 2},s\n" for i in range(6)))
    west = own(lab, tmp_path / "w.parquet", head + "".join(f"{day + 25 + i},{i + 50},2,,s\n" for i in range(4)))
    parts = [Part(east, "east"), Part(west, "west")]
    note = mix(parts, "clock", tmp_path / "both.parquet")
    assert "6 of east and 4 of west, at the times of their clocks" in note
    report = lab.read((tmp_path / "both.parquet").read_bytes())
    assert note in report.warnings
    table = lab.table
    assert table["arrival_ns"].to_list() == [t * NS for t in (0, 10, 20, 25, 26, 27, 28, 30, 40, 50)]
    assert table["prompt_tokens"].sum() == 21 + 206
    assert sorted(set(table["tenant"])) == ["east/t0", "east/t1", "west"]
    assert sorted(set(table["session"])) == ["east/s", "west/s"]
    mix(parts, "start", tmp_path / "both.parquet")
    lab.read((tmp_path / "both.parquet").read_bytes())
    assert lab.table["arrival_ns"].to_list()[:3] == [0, 0, 1 * NS]
    with pytest.raises(TraceError, match="same name"):
        mix([Part(east, "x"), Part(west, "x")], "start", tmp_path / "both.parquet")


def test_blocks_of_mixed_traces_are_never_shared(lab, tmp_path: Path) -> None:
    text = "".join(
        f'{{"arrival_s": {i}, "prompt_tokens": 32, "output_tokens": 5, "prefix_blocks": [1, 2]}}\n' for i in range(5)
    )
    parts = [Part(own(lab, tmp_path / f"{name}.parquet", text, block_size=16), name) for name in "ab"]
    mix(parts, "start", tmp_path / "both.parquet")
    report = lab.read((tmp_path / "both.parquet").read_bytes())
    assert report.profile.prefix is not None
    assert report.profile.prefix.block_size_tokens == 16, "the file says so itself"
    assert (report.profile.prefix.distinct_blocks, report.profile.prefix.reused_blocks) == (4, 16)
    other = own(lab, tmp_path / "c.parquet", text.replace("32", "64"), block_size=32)
    with pytest.raises(TraceError, match="blocks of 16 and 32 tokens"):
        mix([parts[0], Part(other, "c")], "start", tmp_path / "both.parquet")
    with pytest.raises(TraceError, match="no clock times"):
        mix(parts, "clock", tmp_path / "both.parquet")


def test_requests_that_follow_others_are_not_mixed(lab, tmp_path: Path) -> None:
    chain = own(
        lab,
        tmp_path / "c.parquet",
        '{"timestamp": 0, "session_id": "s", "input_length": 100, "output_length": 5, "hash_ids": [1]}\n'
        '{"delay": 700, "session_id": "s", "input_length": 100, "output_length": 5, "hash_ids": [1]}\n',
    )
    with pytest.raises(TraceError, match="only when another has ended"):
        mix([Part(chain, "c")], "start", tmp_path / "both.parquet")
