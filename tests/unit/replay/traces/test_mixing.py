"""Traces mixed into a what-if: all requests of each, a drawn share, by start or clock, and stated in the notes."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from replay.errors import TraceError
from replay.specs import Transform
from replay.specs_transform import MixedTrace
from replay.traces.checks import facts_of, mixed_facts
from replay.traces.report import IngestReport
from replay.traces.transforms import load_workload

PS = 10**12
HEAD = "arrival_s,prompt_tokens,output_tokens,tenant,session\n"
DAY = 1_700_000_000
Made = Callable[[str, str], tuple[Path, IngestReport]]


def named(name: str) -> MixedTrace:
    return MixedTrace(trace="t", name=name)


@pytest.fixture
def made(lab) -> Made:
    def make(name: str, text: str) -> tuple[Path, IngestReport]:
        report = lab.read(text, **({"block_size": 16} if "prefix_blocks" in text else {}))
        return lab.out.rename(lab.folder / f"{name}.parquet"), report

    return make


def rows(n: int, first: float, step: float, prompt: int, tenant: str, sessions: int = 1) -> str:
    return HEAD + "".join(f"{first + i * step},{prompt},7,{tenant},s{i % sessions}\n" for i in range(n))


def test_all_requests_of_both_are_replayed_from_the_start_of_each(made: Made) -> None:
    east, _ = made("east", rows(50, DAY, 2.0, 100, "a"))
    west, _ = made("west", rows(30, DAY + 5000, 1.0, 900, ""))
    transform = Transform.model_validate({"mix_with": [{"trace": "trc", "name": "west"}]})
    workload = load_workload(east, transform, 0, [west])
    assert workload.n == 80
    assert workload.span_s == 98.0
    assert sorted(workload.prompt_tokens.tolist()) == [100] * 50 + [900] * 30
    times = workload.arrival_ps[workload.prompt_tokens == 900]
    assert times.tolist() == [i * PS for i in range(30)]
    assert workload.tenant is not None
    assert workload.tenant.names == ("a", "west")
    assert np.unique(workload.session).size == 2, "a session of one trace is none of the other"
    note = "Mixed from 2 traces, not recorded together: 50 of the trace and 30 of west, each from its first request on"
    assert note in workload.notes[0]
    assert "from 0 s to 29 s" in workload.notes[0]


def test_a_share_is_drawn_by_whole_sessions_and_seeded(made: Made) -> None:
    base, _ = made("base", rows(10, 0, 1.0, 100, "a"))
    other, _ = made("other", rows(4000, 0, 0.01, 900, "b", sessions=400))
    transform = Transform.model_validate({"mix_with": [{"trace": "trc", "name": "o", "share": 0.25}]})
    first, again, third = (load_workload(base, transform, seed, [other]) for seed in (1, 1, 2))
    assert np.array_equal(first.arrival_ps, again.arrival_ps)
    added = first.prompt_tokens == 900
    assert added.sum() == pytest.approx(1000, rel=0.25)
    assert first.session is not None
    assert set(np.bincount(first.session[added])) <= {0, 10}, "a session comes whole or not at all"
    assert third.n != first.n or not np.array_equal(first.arrival_ps, third.arrival_ps)
    assert "whole sessions drawn with a share of 0.25 of 4,000, seed 1" in first.notes[0]
    assert first.tenant is not None
    assert "o/b" in first.tenant.names


def test_by_the_clock_each_keeps_its_time(made: Made) -> None:
    east, _ = made("east", rows(10, DAY, 10.0, 100, ""))
    west, _ = made("west", rows(4, DAY + 25, 1.0, 900, ""))
    transform = Transform.model_validate({"mix_with": [{"trace": "t", "name": "w"}], "mix_align": "clock"})
    workload = load_workload(east, transform, 0, [west])
    assert workload.arrival_ps[workload.prompt_tokens == 900].tolist() == [t * PS for t in (25, 26, 27, 28)]
    window = transform.model_copy(update={"window_start_s": 24.0, "window_end_s": 29.0})
    assert load_workload(east, window, 0, [west]).n == 4
    later, report = made("later", rows(4, DAY + 900, 1.0, 900, ""))
    with pytest.raises(TraceError, match="never overlap"):
        load_workload(east, transform, 0, [later])
    facts = facts_of(report)
    with pytest.raises(TraceError, match="never overlap"):
        mixed_facts(facts_of(made("again", rows(10, DAY, 10.0, 100, ""))[1]), [(named("w"), facts)], "clock")


def test_growth_and_tenants_act_on_the_parts(made: Made) -> None:
    east, _ = made("east", rows(50, 0, 1.0, 100, "a"))
    west, _ = made("west", rows(50, 0, 1.0, 900, ""))
    mix = {"mix_with": [{"trace": "t", "name": "west"}]}
    grown = load_workload(east, Transform.model_validate({**mix, "tenant_growth": {"west": 3}}), 0, [west])
    assert (int((grown.prompt_tokens == 900).sum()), int((grown.prompt_tokens == 100).sum())) == (150, 50)
    only = load_workload(east, Transform.model_validate({**mix, "tenants": ["west"]}), 0, [west])
    assert set(only.prompt_tokens.tolist()) == {900}


def test_blocks_of_different_traces_are_never_the_same(made: Made) -> None:
    text = "".join(
        f'{{"arrival_s": {i}, "prompt_tokens": 32, "output_tokens": 5, "prefix_blocks": [1, 2]}}\n' for i in range(5)
    )
    one, report = made("one", text)
    two, _ = made("two", text)
    plain, _ = made("plain", rows(5, 0, 1.0, 100, ""))
    transform = Transform.model_validate({"mix_with": [{"trace": "t", "name": "x"}]})
    both = load_workload(one, transform, 0, [two])
    assert both.prefix is not None
    assert np.unique(both.prefix.ids).size == 4
    assert int((both.reusable_tokens > 0).sum()) == 8
    added = load_workload(plain, transform, 0, [two])
    assert added.prefix is not None
    assert np.unique(added.prefix.ids).size == 2
    assert (
        mixed_facts(
            facts_of(made("p", rows(5, 0, 1.0, 9, ""))[1]), [(named("x"), facts_of(report))], "start"
        ).block_size
        == 16
    )


@pytest.mark.parametrize(
    ("base", "name", "part"),
    [("west", "west", "has a tenant 'west' already"), ("west/a", "west", "has a tenant 'west' already")],
)
def test_a_name_that_is_taken_is_refused(made: Made, base: str, name: str, part: str) -> None:
    east, _ = made("east", rows(5, 0, 1.0, 100, base))
    west, _ = made("west", rows(5, 0, 1.0, 900, ""))
    transform = Transform.model_validate({"mix_with": [{"trace": "t", "name": name}]})
    with pytest.raises(TraceError, match=part) as caught:
        load_workload(east, transform, 0, [west])
    assert caught.value.errors[0].field == "transform.mix_with"


def test_known_tenants_of_a_mix(made: Made) -> None:
    _, east = made("east", rows(5, 0, 1.0, 100, "a"))
    _, west = made("west", rows(5, 0, 1.0, 900, ""))
    half = MixedTrace(trace="t", name="x", share=0.5)
    facts = mixed_facts(facts_of(east), [(named("w"), facts_of(west)), (half, facts_of(east))], "start")
    assert (facts.tenants, facts.requests) == ({"a": 5, "w": 5, "x/a": 2.5}, 12.5)
    assert mixed_facts(facts_of(west), [(named("x"), facts_of(east))], "start").tenants == {"(none)": 5, "x/a": 5}
