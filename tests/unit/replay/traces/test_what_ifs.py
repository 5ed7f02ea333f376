"""What a transform changes on a trace: windows, tenants, unknown outputs, ties, growth, bursts, lengths, sharing."""

import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from replay.errors import TraceError
from replay.specs import Transform
from replay.traces.transforms import load_workload
from replay.workload import Workload

PS = 10**12


def lines(rows: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def names(workload: Workload) -> list[str]:
    assert workload.tenant is not None
    return [workload.tenant.names[code] for code in workload.tenant.code]


@pytest.fixture
def tenants(lab) -> Callable[..., Workload]:
    """A trace of 60 requests, one a second: 40 of tenant a, 10 of b, 10 of nobody."""
    rows = [
        {"arrival_s": i, "prompt_tokens": 10 + i, "output_tokens": 5, "tenant": ["a", "a", "a", "a", "b", None][i % 6]}
        for i in range(60)
    ]
    lab.read(lines(rows))
    return lambda **change: load_workload(lab.out, Transform(**change), 3)


def test_tenants_in_and_out(tenants: Callable[..., Workload]) -> None:
    only = tenants(tenants=("a",))
    assert set(names(only)) == {"a"}
    assert (only.n, only.excluded) == (40, {"other_tenants": 20})
    assert only.notes == ("Only a: 20 requests are left out, as asked.",)
    assert only.span_s == 59, "the rate is over the same window"
    assert sorted(set(names(tenants(without_tenants=("b",))))) == ["(none)", "a"]
    assert tenants(tenants=("(none)",)).n == 10


def test_a_tenant_times_k(tenants: Callable[..., Workload]) -> None:
    more = tenants(tenant_growth={"b": 3, "a": 0.5}, growth=2)
    counts = {name: names(more).count(name) for name in ("a", "b", "(none)")}
    assert counts == {"a": 40, "b": 60, "(none)": 20}
    assert "Load times 2, tenant a times 0.5, b times 3" in more.notes[0]
    squeezed = tenants(tenant_growth={"b": 3}, growth=2, growth_method="compress")
    assert (squeezed.n, squeezed.span_s) == (80, 29.5)


@pytest.mark.parametrize(
    ("change", "field", "says"),
    [
        ({"tenants": ("aa",)}, "tenants", "did you mean 'a'"),
        ({"without_tenants": ("zebra",)}, "without_tenants", "the window has a, (none), b"),
        ({"tenant_growth": {"c": 2}}, "tenant_growth", "no request of the window is of tenant 'c'"),
    ],
)
def test_an_unknown_tenant_is_refused(
    tenants: Callable[..., Workload], change: dict[str, Any], field: str, says: str
) -> None:
    with pytest.raises(TraceError) as caught:
        tenants(**change)
    assert caught.value.code == "workload.tenants"
    assert caught.value.errors[0].field == f"transform.{field}"
    assert says in str(caught.value)


def test_tenants_of_a_trace_without_any_are_refused(lab, own_csv: Callable[..., str]) -> None:
    lab.read(own_csv(n=5))
    with pytest.raises(TraceError, match="which tenant it is of; map a column"):
        load_workload(lab.out, Transform(tenant_growth={"a": 2}), 0)


def test_the_busiest_window_is_found_wherever_it_begins(lab) -> None:
    rng = np.random.default_rng(5)
    seconds = np.unique(np.concatenate([rng.integers(0, 1000, 200), [400, 401, 402, 403, 404, 406, 407, 409]]))
    lab.read("arrival_s,prompt_tokens,output_tokens\n" + "".join(f"{s},5,5\n" for s in seconds))
    first, last = seconds[0], seconds[-1]
    workload = load_workload(lab.out, Transform(busiest_window_s=10), 0)
    best = max(int(((seconds >= s) & (seconds < s + 10)).sum()) for s in range(first, last - 8))
    assert (workload.n, workload.span_s) == (best, 10.0)
    assert "the busiest 10 s" in workload.notes[0]
    whole = [int(((seconds - first) // 50 == k).sum()) for k in range((last - first + 1) // 50)]
    for quantile in (0.1, 0.5, 0.999):
        one = load_workload(lab.out, Transform(busiest_window_s=50, window_load_quantile=quantile), 0)
        assert one.n == np.quantile(whole, quantile, method="inverted_cdf")
        assert "by load of the" in one.notes[0]
    with pytest.raises(TraceError, match="choose a shorter window"):
        load_workload(lab.out, Transform(busiest_window_s=5000), 0)


def test_a_window_by_the_clock(lab) -> None:
    lab.read(
        "arrival,prompt_tokens,output_tokens\n"
        + "".join(f"2024-05-10 0{h}:{m:02d}:00,5,5\n" for h in range(4) for m in range(60)),
        mapping={"arrival": "arrival", "prompt_tokens": "prompt_tokens", "output_tokens": "output_tokens"},
        time_zone="Europe/Berlin",
        rows_are_requests=True,
    )
    local = load_workload(lab.out, Transform(window_from="2024-05-10T01:00", window_until="2024-05-10T02:30"), 0)
    assert (local.n, local.span_s) == (90, 5400)
    utc = Transform(window_from="2024-05-09T23:00:00Z", window_until="2024-05-10T00:30:00+00:00")
    assert load_workload(lab.out, utc, 0).arrival_ps.tolist() == local.arrival_ps.tolist()
    assert "2024-05-10T01:00 to 2024-05-10T02:30" in local.notes[0]
    with pytest.raises(TraceError, match=r"the trace lasts from 2024-05-10T00:00:00\+02:00 to"):
        load_workload(lab.out, Transform(window_from="2025-01-01"), 0)
    with pytest.raises(TraceError, match="end later"):
        load_workload(lab.out, Transform(window_until="2024-05-09T00:00"), 0)


def test_a_window_by_the_clock_needs_one(lab, own_csv: Callable[..., str]) -> None:
    lab.read(own_csv(n=5))
    with pytest.raises(TraceError, match="no clock times"):
        load_workload(lab.out, Transform(window_from="2024-05-10"), 0)


def test_requests_without_output_by_policy(lab) -> None:
    rows = [{"arrival_s": i, "prompt_tokens": 10 * i + 10, "output_tokens": 0 if i % 4 == 0 else i} for i in range(40)]
    lab.read(lines(rows))
    with pytest.raises(TraceError, match="cannot be replayed"):
        load_workload(lab.out, Transform(), 0)
    one = load_workload(lab.out, Transform(zero_output="keep_as_one"), 0)
    assert (one.n, one.excluded) == (40, {})
    assert (one.output_tokens[::4] == 1).all()
    dropped = load_workload(lab.out, Transform(zero_output="drop"), 0)
    assert (dropped.n, dropped.excluded) == (30, {"zero_output": 10})
    inferred = load_workload(lab.out, Transform(zero_output="infer"), 0)
    assert inferred.n == 40
    assert (inferred.output_tokens[::4] > 0).all()
    assert (inferred.output_tokens[1::4] == one.output_tokens[1::4]).all()
    for workload in (one, dropped, inferred):
        assert "10 requests whose output is 0 or unknown" in workload.notes[0]
        assert not any("understated" in note for note in workload.notes)


@pytest.mark.parametrize("spread", ["even", "uniform"])
def test_ties_of_a_coarse_clock_are_spread(lab, spread: str) -> None:
    seconds = [3 * (i // 6) for i in range(180)]
    lab.read("arrival_s,prompt_tokens,output_tokens\n" + "".join(f"{s},{5 + i},5\n" for i, s in enumerate(seconds)))
    kept = load_workload(lab.out, Transform(), 0)
    workload = load_workload(lab.out, Transform(spread=spread), 7)
    assert workload.prompt_tokens.tolist() == kept.prompt_tokens.tolist(), "in the order of the file"
    assert (workload.arrival_ps // (3 * PS) == kept.arrival_ps // (3 * PS)).all()
    assert (kept.span_s, workload.span_s) == (87, 90), "the last tick lasts as long as the others"
    if spread == "even":
        assert workload.arrival_ps.tolist() == [i * PS // 2 for i in range(180)]
    assert "steps of 3 s" in workload.notes[0]
    window = Transform(spread=spread, window_end_s=61)
    assert load_workload(lab.out, window, 7).arrival_ps.max() < 61 * PS


def test_a_clock_without_ties_has_nothing_to_spread(lab, own_csv: Callable[..., str]) -> None:
    lab.read(own_csv(n=9))
    workload = load_workload(lab.out, Transform(spread="even"), 0)
    assert workload.arrival_ps.tolist() == load_workload(lab.out, Transform(), 0).arrival_ps.tolist()
    assert "nothing to spread" in workload.notes[0]


def test_compression_keeps_all_and_shortens_the_window(lab, own_csv: Callable[..., str]) -> None:
    lab.read(own_csv(n=101))
    base = load_workload(lab.out, Transform(), 0)
    fast = load_workload(lab.out, Transform(growth=4, growth_method="compress"), 0)
    assert (fast.n, fast.span_s) == (101, 12.5)
    assert (fast.arrival_ps == base.arrival_ps // 4).all()
    slow = load_workload(lab.out, Transform(growth=0.5, growth_method="compress"), 0)
    assert (slow.n, slow.span_s) == (101, 100.0)
    with pytest.raises(TraceError) as caught:
        load_workload(lab.out, Transform(growth=1e-6, growth_method="compress"), 0)
    assert caught.value.code == "workload.too_long"


def test_shifted_copies_have_sessions_of_their_own(lab) -> None:
    rows = [{"arrival_s": i, "prompt_tokens": 5 + i, "output_tokens": 5, "session": f"s{i // 10}"} for i in range(100)]
    lab.read(lines(rows))
    workload = load_workload(lab.out, Transform(growth=3, growth_method="shift"), 1)
    assert workload.n == 300
    assert workload.session is not None
    for one in np.unique(workload.session):
        mine = workload.session == one
        turns = workload.prompt_tokens[mine]
        assert (np.diff(turns) > 0).all(), "in the order of their turns, also where a copy passes the window's end"
        assert len({(turn - 5) // 10 for turn in turns}) == 1
    assert any("moved by one time anywhere in the window" in note for note in workload.notes)


def test_burstiness_keeps_the_mean(lab) -> None:
    rng = np.random.default_rng(2)
    times = np.sort(rng.random(2000) * 400)
    lab.read("arrival_s,prompt_tokens,output_tokens\n" + "".join(f"{t:.6f},{5 + i},5\n" for i, t in enumerate(times)))
    base = load_workload(lab.out, Transform(), 0)
    for power in (0.0, 0.5, 2.0):
        workload = load_workload(lab.out, Transform(burstiness=power), 0)
        assert (workload.n, workload.span_s) == (base.n, base.span_s)
        assert workload.prompt_tokens.tolist() == base.prompt_tokens.tolist()
        cv = [np.diff(w.arrival_ps).std() / np.diff(w.arrival_ps).mean() for w in (workload, base)]
        assert (cv[0] > cv[1]) == (power > 1)
        assert f"coefficient of variation is {cv[0]:.3g}, it was {cv[1]:.3g}" in workload.notes[0]


def test_lengths_and_the_declared_limit_change_together(lab, own_csv: Callable[..., str]) -> None:
    lab.read(own_csv(n=50))
    change = Transform(
        prompt_scale=2, prompt_shift_tokens=10, prompt_cap_tokens=250, output_scale=0.5, output_cap_tokens=20
    )
    workload = load_workload(lab.out, change, 0)
    assert workload.prompt_tokens.tolist() == [min(2 * (100 + i) + 10, 250) for i in range(50)]
    assert workload.output_tokens.tolist() == [min((10 + i + 1) // 2, 20) for i in range(50)]
    assert [note.split(":")[0] for note in workload.notes] == [
        "Prompt tokens times 2, plus 10 tokens, capped at 250 tokens",
        "Output tokens times 0.5, capped at 20 tokens",
    ]


def test_sharing_needs_block_ids(lab, own_csv: Callable[..., str]) -> None:
    lab.read(own_csv(n=5))
    with pytest.raises(TraceError) as caught:
        load_workload(lab.out, Transform(prefix_sharing=0.5), 0)
    assert caught.value.code == "workload.prefix_sharing"
    rows = [{"arrival_s": i, "prompt_tokens": 32, "output_tokens": 5, "prefix_blocks": [1, 2]} for i in range(101)]
    lab.read(lines(rows), block_size=16)
    halved = load_workload(lab.out, Transform(prefix_sharing=0.5, prompt_scale=0.5), 0)
    assert halved.prefix is not None
    assert halved.prefix.reusable_tokens.sum() == 50 * 16


def test_a_closed_loop_stays_whole_through_all_changes(lab) -> None:
    rows = []
    for k in range(40):
        rows.append(
            {
                "timestamp": 1000 * (k // 2),
                "session_id": f"s{k}",
                "input_length": 100 + k,
                "output_length": 5,
                "hash_ids": [k],
            }
        )
        rows.append({"delay": 700, "session_id": f"s{k}", "input_length": 100 + k, "output_length": 5, "hash_ids": [k]})
    lab.read(lines(rows))
    for change in (
        {"spread": "uniform"}, {"growth": 2.5, "growth_method": "shift"}, {"growth": 2, "growth_method": "compress"},
        {"burstiness": 2.0}, {"growth": 0.5, "spread": "even", "burstiness": 0.5, "prompt_scale": 1.5},
    ):  # fmt: skip
        workload = load_workload(lab.out, Transform(**change), 3)
        loop = workload.closed_loop
        assert loop is not None
        follows = np.flatnonzero(loop.after >= 0)
        assert len(follows) == workload.n // 2
        before = loop.after[follows]
        assert (before < follows).all()
        assert (workload.prompt_tokens[before] == workload.prompt_tokens[follows]).all()
        assert (workload.arrival_ps[follows] - workload.arrival_ps[before] == 700 * PS // 1000).all()
        assert (np.diff(workload.arrival_ps) >= 0).all()


EVERYTHING: Mapping[str, Any] = {
    "busiest_window_s": 50, "without_tenants": ("b",), "spread": "uniform", "growth": 1.7, "growth_method": "shift",
    "tenant_growth": {"a": 1.5}, "burstiness": 1.5, "prompt_scale": 1.3, "output_shift_tokens": 2,
}  # fmt: skip


def test_the_seed_and_the_transform_decide_everything(tenants: Callable[..., Workload], lab) -> None:
    first, again = tenants(**EVERYTHING), tenants(**EVERYTHING)
    assert first.arrival_ps.tobytes() == again.arrival_ps.tobytes()
    assert first.prompt_tokens.tobytes() == again.prompt_tokens.tobytes()
    assert first.notes == again.notes
    other = load_workload(lab.out, Transform(**EVERYTHING), 4)
    assert other.arrival_ps.tobytes() != first.arrival_ps.tobytes()
    for array in (first.arrival_ps, first.prompt_tokens, first.output_tokens):
        assert array.flags.writeable
        assert array.flags.c_contiguous


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"window_start_s": 5, "busiest_window_s": 5}, "the window is given in two ways"),
        ({"window_from": "2024-01-01", "window_end_s": 5}, "the window is given in two ways"),
        ({"window_from": "noon"}, "write it like 2026-03-02T09:00:00"),
        ({"window_load_quantile": 0.5}, "give busiest_window_s"),
        ({"growth_shift_s": 5}, "choose shift"),
        ({"tenants": ("a",), "without_tenants": ("a",)}, "remove it from one"),
        ({"tenants": ("a",), "without_tenants": ("b",)}, "not both"),
        ({"tenants": ("a",), "tenant_growth": {"b": 2}}, "which is left out"),
        ({"growth": 100, "tenant_growth": {"b": 20}}, "lower one of them"),
        ({"prefix_sharing": 1.5}, "less than or equal to 1"),
    ],
)
def test_transforms_that_contradict_themselves_are_refused(change: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        Transform(**change)
