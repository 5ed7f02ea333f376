"""Workloads from canonical traces: exact, seeded, everything left out counted."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from replay.errors import TraceError
from replay.specs import Transform
from replay.traces.transforms import load_workload

PS = 10**12


def test_the_trace_as_it_was_sent(lab, own_csv: Callable[..., str]) -> None:
    lab.read(own_csv(n=10))
    workload = load_workload(lab.out, Transform(), 0)
    assert workload.arrival_ps.tolist() == [i * PS // 2 for i in range(10)]
    assert workload.prompt_tokens.tolist() == list(range(100, 110))
    assert workload.output_tokens.tolist() == list(range(10, 20))
    assert (workload.span_s, workload.excluded, workload.notes) == (4.5, {}, ())
    for array in (workload.arrival_ps, workload.prompt_tokens, workload.output_tokens):
        assert array.dtype == np.int64
        assert array.flags.c_contiguous
        assert array.flags.writeable


def test_what_is_left_out_is_counted_by_reason(lab) -> None:
    rows = [
        {"arrival_s": 0, "prompt_tokens": 5, "output_tokens": 5},
        {"arrival_s": 1, "prompt_tokens": None, "output_tokens": 5},
        {"arrival_s": 2, "prompt_tokens": 5, "output_tokens": 0},
        {"arrival_s": 3, "prompt_tokens": 5, "output_tokens": 5, "status": "cache_hit"},
        {"arrival_s": 4, "prompt_tokens": 5, "output_tokens": 5, "status": "failed"},
    ]
    lab.read("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(TraceError, match=r"50\.0% of the requests cannot be replayed") as refusal:
        load_workload(lab.out, Transform(), 0)
    assert refusal.value.code == "workload.incomplete"
    assert "max_excluded_share=0.500" in (refusal.value.errors[0].cure or "")
    workload = load_workload(lab.out, Transform(max_excluded_share=0.5), 0)
    assert workload.n == 2
    assert workload.excluded == {"gateway_cache_hit": 1, "no_prompt_tokens": 1, "no_output_tokens": 1}
    assert "understated" in workload.notes[0]


def test_a_window_starts_at_zero_and_excludes_its_end(lab, own_csv: Callable[..., str]) -> None:
    lab.read(own_csv(n=100))
    workload = load_workload(lab.out, Transform(window_start_s=10, window_end_s=20), 0)
    assert workload.arrival_ps.tolist() == [i * PS // 2 for i in range(20)]
    assert workload.prompt_tokens[0] == 120
    assert (workload.span_s, workload.excluded) == (10.0, {"outside_window": 80})
    assert "Window 10 s to 20 s" in workload.notes[0]


def test_a_window_past_the_end_is_cut_to_the_trace(lab, own_csv: Callable[..., str]) -> None:
    lab.read(own_csv(n=100))
    workload = load_workload(lab.out, Transform(window_start_s=40, window_end_s=500), 0)
    assert (workload.n, workload.span_s) == (20, 9.5)


@pytest.mark.parametrize("growth", [1.5, 2.0, 3.25])
def test_growth_keeps_the_first_copy_and_draws_the_rest(lab, own_csv: Callable[..., str], growth: float) -> None:
    lab.read(own_csv(n=2000))
    base = load_workload(lab.out, Transform(), 0)
    grown = load_workload(lab.out, Transform(growth=growth), 3)
    assert grown.n == pytest.approx(growth * base.n, rel=0.03)
    assert np.all(np.diff(grown.arrival_ps) >= 0)
    assert grown.arrival_ps[0] >= 0
    assert grown.arrival_ps[-1] <= base.arrival_ps[-1]
    assert grown.span_s == base.span_s
    pairs = set(zip(grown.arrival_ps.tolist(), grown.prompt_tokens.tolist(), strict=True))
    assert pairs >= set(zip(base.arrival_ps.tolist(), base.prompt_tokens.tolist(), strict=True))
    _, copies = np.unique(grown.prompt_tokens, return_counts=True)
    assert set(copies.tolist()) <= {int(growth), int(growth) + 1}
    same = grown.prompt_tokens - 100 == grown.output_tokens - 10
    assert same.all(), "prompt and output stay together"
    assert f"Load times {growth:g}" in grown.notes[0]
    assert "seed 3" in grown.notes[0]


def test_thinning_keeps_times_and_order(lab, own_csv: Callable[..., str]) -> None:
    lab.read(own_csv(n=2000))
    base = load_workload(lab.out, Transform(), 0)
    thin = load_workload(lab.out, Transform(growth=0.25), 1)
    assert thin.n == pytest.approx(500, rel=0.1)
    assert set(thin.arrival_ps.tolist()) < set(base.arrival_ps.tolist())
    assert np.all(np.diff(thin.arrival_ps) > 0)


def test_the_seed_decides_and_nothing_else(lab, own_csv: Callable[..., str]) -> None:
    lab.read(own_csv(n=500))
    first = load_workload(lab.out, Transform(growth=1.7), 5)
    again = load_workload(lab.out, Transform(growth=1.7), 5)
    other = load_workload(lab.out, Transform(growth=1.7), 6)
    assert first.arrival_ps.tobytes() == again.arrival_ps.tobytes()
    assert first.prompt_tokens.tobytes() == again.prompt_tokens.tobytes()
    assert first.arrival_ps.tobytes() != other.arrival_ps.tobytes()


def test_a_growth_that_leaves_nothing_is_refused(lab, own_csv: Callable[..., str]) -> None:
    lab.read(own_csv(n=3))
    with pytest.raises(TraceError, match="leaves no request"):
        load_workload(lab.out, Transform(growth=1e-9), 0)


def test_a_window_without_usable_requests_is_refused(lab, own_csv: Callable[..., str]) -> None:
    lab.read(own_csv("100,50,"))
    with pytest.raises(TraceError) as caught:
        load_workload(lab.out, Transform(window_start_s=90), 0)
    assert caught.value.code == "workload.empty"
    with pytest.raises(TraceError) as caught:
        load_workload(lab.out, Transform(window_start_s=5000), 0)
    assert caught.value.code == "workload.window"


def test_a_span_beyond_what_picoseconds_count_is_refused_with_a_cure(lab) -> None:
    days = 86_400
    lab.read("arrival_s,prompt_tokens,output_tokens\n" + "".join(f"{d * days},5,5\n" for d in range(0, 120, 10)))
    with pytest.raises(TraceError) as caught:
        load_workload(lab.out, Transform(), 0)
    assert caught.value.code == "workload.too_long"
    assert "window_end_s" in str(caught.value.errors[0].field)
    workload = load_workload(lab.out, Transform(window_start_s=20 * days, window_end_s=100 * days), 0)
    assert workload.arrival_ps[-1] == 70 * days * PS


def test_another_parquet_is_not_taken_for_canonical(tmp_path: Path) -> None:
    path = tmp_path / "other.parquet"
    pl.DataFrame({"arrival_ns": [1]}).write_parquet(path)
    with pytest.raises(TraceError) as caught:
        load_workload(path, Transform(), 0)
    assert caught.value.code == "trace.not_canonical"
    path.write_bytes(b"noise")
    with pytest.raises(TraceError):
        load_workload(path, Transform(), 0)


def test_bursts_grow_with_the_load(lab, own_csv: Callable[..., str]) -> None:
    rows = [f"{300 * burst + k / 100:.2f},100,10" for burst in range(12) for k in range(100)]
    lab.read("arrival_s,prompt_tokens,output_tokens\n" + "\n".join(rows) + "\n")
    for growth in (2, 4, 8):
        workload = load_workload(lab.out, Transform(growth=growth), 0)
        per_two_seconds = np.bincount((workload.arrival_ps + PS // 2) // (2 * PS))
        assert per_two_seconds.max() >= 0.95 * growth * 100
        assert any("Bursts grow with the load" in note for note in workload.notes)
        assert workload.arrival_ps.min() >= 0
        assert workload.arrival_ps.max() <= workload.span_s * PS


@pytest.mark.parametrize(
    ("given", "read"),
    [(["2", None, "-1"], [2, 0, -1]), ([None] * 3, None), (["1", "high", "2"], None), (["1.5", "1", "1"], None)],
)
def test_priorities_are_whole_numbers_or_none(lab, given: list[str | None], read: list[int] | None) -> None:
    rows = [
        {"arrival_s": i, "prompt_tokens": 5, "output_tokens": 5, "priority": priority}
        for i, priority in enumerate(given)
    ]
    lab.read("".join(json.dumps(row) + "\n" for row in rows))
    priority = load_workload(lab.out, Transform(), 7).priority
    assert (None if priority is None else priority.tolist()) == read
    assert load_workload(lab.out, Transform(), 7).seed == 7


def test_copies_keep_the_priority_of_their_request(lab) -> None:
    rows = [{"arrival_s": i, "prompt_tokens": 5 + i, "output_tokens": 5, "priority": str(i % 3)} for i in range(30)]
    lab.read("".join(json.dumps(row) + "\n" for row in rows))
    grown = load_workload(lab.out, Transform(growth=2.0), 0)
    assert grown.priority is not None
    assert (grown.priority == (grown.prompt_tokens - 5) % 3).all()


def test_sessions_are_numbered_and_copies_have_their_own(lab) -> None:
    rows = [
        {"arrival_s": i, "prompt_tokens": 5, "output_tokens": 5, "session": name}
        for i, name in enumerate(["b", "a", None, "b", "a", "c"])
    ]
    lab.read("".join(json.dumps(row) + "\n" for row in rows))
    assert load_workload(lab.out, Transform(), 4).session.tolist() == [1, 0, -1, 1, 0, 2]
    assert load_workload(lab.out, Transform(), 4).seed == 4
    grown = load_workload(lab.out, Transform(growth=2.0), 0).session
    assert sorted(grown.tolist()) == [-1, -1, 0, 0, 1, 1, 2, 3, 3, 4, 4, 5]


def test_a_trace_without_sessions_has_none(lab, own_csv: Callable[..., str]) -> None:
    lab.read(own_csv(n=10))
    assert load_workload(lab.out, Transform(), 0).session is None


def test_a_declared_max_tokens_column_is_read_where_a_canonical_trace_has_one(
    lab, own_csv: Callable[..., str], tmp_path: Path
) -> None:
    lab.read(own_csv(n=4))
    plain = load_workload(lab.out, Transform(), 0)
    assert plain.max_tokens is None
    declared = tmp_path / "declared.parquet"
    table = pl.read_parquet(lab.out).with_columns(pl.Series("max_tokens", [64, None, 256, 8]))
    table.write_parquet(declared, metadata=pl.read_parquet_metadata(lab.out))
    workload = load_workload(declared, Transform(window_start_s=0.5, growth=2.0), 0)
    by_prompt = dict(zip(workload.prompt_tokens.tolist(), workload.max_tokens.tolist(), strict=True))
    assert by_prompt == {101: 0, 102: 256, 103: 8}


def test_warm_up_and_cool_down_mark_what_is_scored(lab, own_csv: Callable[..., str]) -> None:
    lab.read(own_csv(n=100))
    whole = load_workload(lab.out, Transform(), 0)
    assert whole.scored is None
    assert whole.scored_part == slice(0, 100)
    both = load_workload(lab.out, Transform(warmup_s=5, cooldown_s=4.5), 0)
    assert both.n == 100, "all are replayed"
    assert both.scored == (10, 90), "sent from 5 s on and before 45 s of 49.5 s"
    assert "Scored are the 80 of 100 requests" in both.notes[0]
    window = Transform(window_start_s=10, window_end_s=20, cooldown_s=2)
    assert load_workload(lab.out, window, 0).scored == (0, 16)
    grown = load_workload(lab.out, Transform(growth=2.5, warmup_s=5), 1)
    assert grown.scored == (int((grown.arrival_ps < 5 * PS).sum()), grown.n)
    with pytest.raises(TraceError, match="no request is sent between") as caught:
        load_workload(lab.out, Transform(warmup_s=40, cooldown_s=30), 0)
    assert caught.value.code == "workload.nothing_scored"
    assert caught.value.errors[0].field == "transform.warmup_s"


def test_tenants_and_priorities_come_along(lab) -> None:
    rows = [
        {"arrival_s": i, "prompt_tokens": 5 + i, "output_tokens": 5, "tenant": tenant}
        for i, tenant in enumerate(["b", None, "a", "b", "b", "a"])
    ]
    rows[3]["output_tokens"] = 0
    lab.read("".join(json.dumps(row) + "\n" for row in rows))
    workload = load_workload(lab.out, Transform(max_excluded_share=0.5), 0)
    assert workload.priority_class is None
    assert workload.tenant is not None
    assert [workload.tenant.names[code] for code in workload.tenant.code] == ["b", "(none)", "a", "b", "a"]
    grown = load_workload(lab.out, Transform(growth=3, max_excluded_share=0.5), 2)
    assert grown.tenant is not None
    of = {5: "b", 6: "(none)", 7: "a", 9: "b", 10: "a"}
    names = [grown.tenant.names[code] for code in grown.tenant.code]
    assert names == [of[int(prompt)] for prompt in grown.prompt_tokens]
