"""What a request's transform asks of a trace is refused by the trace's report exactly where the rows refuse it too."""

from typing import Any

import pytest

from replay.errors import TraceError
from replay.specs import Transform
from replay.specs_transform import MixedTrace
from replay.traces.checks import check_transform, facts_of, mixed_facts
from replay.traces.ingest import ingest
from replay.traces.labels import label, tenant_label
from replay.traces.options import IngestOptions
from replay.traces.transforms import load_workload

PLAIN = "arrival_s,prompt_tokens,output_tokens\n" + "".join(f"{i * 0.5},{i + 1},5\n" for i in range(201))
CLOCK = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(
    f"2026-03-02T09:{i // 60:02d}:{i % 60:02d}.0005Z,{i + 1},5\n" for i in range(0, 600, 2)
)
TENANTS = "arrival_s,prompt_tokens,output_tokens,tenant,session\n" + "".join(
    f"{i},{i + 1},5,{('a', 'b', '')[i % 3]},s{i % 7}\n" for i in range(100)
)
HALF = "arrival_s,prompt_tokens,output_tokens\n" + "".join(f"{i},{i + 1},{5 * (i % 2)}\n" for i in range(100))
BLOCKS = "".join(
    f'{{"timestamp": {i * 1000}, "input_length": 512, "output_length": 5, "hash_ids": [{i % 5}]}}\n' for i in range(60)
)

REFUSED: list[tuple[str, dict[str, Any], str, str, str]] = [
    (PLAIN, {"window_start_s": 100.1}, "window", "window_start_s", "last request arrives at 100 s"),
    (PLAIN, {"busiest_window_s": 101}, "window", "busiest_window_s", "the trace lasts 100 s"),
    (PLAIN, {"window_from": "2026-03-02T09:00:00Z"}, "window", "window_from", "give window_start_s"),
    (CLOCK, {"window_from": "2026-03-02T10:00:00"}, "window", "window_from", "to 2026-03-02T09:09:58"),
    (CLOCK, {"window_until": "2026-03-02T08:00:00"}, "window", "window_until", "end later"),
    (PLAIN, {"tenants": ["a"]}, "tenants", "tenants", "map a column to tenant"),
    (TENANTS, {"tenants": ["aa"]}, "tenants", "tenants", "did you mean 'a'"),
    (TENANTS, {"without_tenants": ["x"]}, "tenants", "without_tenants", "has a, b, (none)"),
    (TENANTS, {"tenant_growth": {"c": 2}}, "tenants", "tenant_growth", "has a, b, (none)"),
    (PLAIN, {"prefix_sharing": 0.5}, "prefix_sharing", "prefix_sharing", "leave prefix_sharing out"),
    (PLAIN, {"prefix_from_sessions": True}, "prefix_from_sessions", "prefix_from_sessions", "map a column to session"),
    (BLOCKS, {"prefix_from_sessions": True}, "prefix_from_sessions", "prefix_from_sessions", "leave"),
    (PLAIN, {"cancels": "at_their_time"}, "cancels", "cancels", "map a column to cancel_after"),
    (HALF, {}, "incomplete", "max_excluded_share", "max_excluded_share=0.500"),
    (PLAIN, {"warmup_s": 101}, "nothing_scored", "warmup_s", "the window is 100 s long"),
    (PLAIN, {"warmup_s": 60, "cooldown_s": 60}, "nothing_scored", "warmup_s", "shorten"),
    (PLAIN, {"growth": 4, "growth_method": "compress", "warmup_s": 30}, "nothing_scored", "warmup_s", "25 s long"),
]
MANY: list[tuple[str, dict[str, Any], str]] = [
    (PLAIN, {"growth": 3}, "growth"),
    (PLAIN, {"growth": 3, "growth_method": "shift"}, "growth"),
    (PLAIN, {"agent_steps": 3}, "agent_steps"),
    (PLAIN, {"growth": 2, "agent_steps": 4}, "agent_steps"),
    (PLAIN, {"growth": 20, "window_end_s": 50}, "growth"),
    (PLAIN, {"growth": 20, "window_start_s": 50}, "growth"),
    (PLAIN, {"growth": 20, "busiest_window_s": 40}, "growth"),
    (TENANTS, {"tenant_growth": {"a": 20}}, "tenant_growth"),
    (TENANTS, {"tenants": ["a", "(none)"], "growth": 10}, "growth"),
    (HALF, {"zero_output": "infer", "growth": 6}, "growth"),
]
"""Of more than 500 requests."""
FEW: list[tuple[str, dict[str, Any]]] = [
    (PLAIN, {"growth": 2}),
    (PLAIN, {"growth": 100, "growth_method": "compress"}),
    (PLAIN, {"growth": 20, "window_end_s": 10}),
    (PLAIN, {"growth": 20, "busiest_window_s": 10}),
    (PLAIN, {"growth": 20, "busiest_window_s": 10, "window_load_quantile": 0.5}),
    (TENANTS, {"tenants": ["a"], "growth": 10}),
    (TENANTS, {"without_tenants": ["a", "b"], "growth": 10}),
    (TENANTS, {"tenant_growth": {"a": 20}, "window_end_s": 10}),
    (HALF, {"max_excluded_share": 0.5, "growth": 9}),
]
FITS: list[tuple[str, dict[str, Any]]] = [
    (PLAIN, {}),
    (PLAIN, {"window_start_s": 100}),
    (PLAIN, {"busiest_window_s": 100}),
    (PLAIN, {"warmup_s": 60, "cooldown_s": 30}),
    (PLAIN, {"growth": 0.5, "growth_method": "compress", "warmup_s": 150}),
    (CLOCK, {"window_from": "2026-03-02T09:09:58.000500Z"}),
    (CLOCK, {"window_until": "2026-03-02T09:00:01"}),
    (TENANTS, {"tenants": ["(none)"]}),
    (TENANTS, {"prefix_from_sessions": True, "tenant_growth": {"a": 2}}),
    (BLOCKS, {"prefix_sharing": 0.5}),
    (HALF, {"zero_output": "infer"}),
    (HALF, {"max_excluded_share": 0.5}),
]


@pytest.mark.parametrize(("text", "change", "code", "field", "cure"), REFUSED)
def test_the_report_refuses_what_the_rows_refuse(
    lab, text: str, change: dict[str, Any], code: str, field: str, cure: str
) -> None:
    report = lab.read(text)
    transform = Transform.model_validate(change)
    with pytest.raises(TraceError) as early:
        check_transform(transform, facts_of(report))
    with pytest.raises(TraceError) as late:
        load_workload(lab.out, transform, 0)
    assert early.value.code == late.value.code == f"workload.{code}"
    assert early.value.errors[0].field == late.value.errors[0].field == f"transform.{field}"
    assert cure in early.value.detail


@pytest.mark.parametrize(("text", "change"), FITS)
def test_what_the_rows_take_is_taken(lab, text: str, change: dict[str, Any]) -> None:
    report = lab.read(text)
    transform = Transform.model_validate(change)
    check_transform(transform, facts_of(report))
    load_workload(lab.out, transform, 0)


@pytest.mark.parametrize(("text", "change", "field"), MANY)
def test_more_requests_than_one_replay_takes_are_refused(lab, text: str, change: dict[str, Any], field: str) -> None:
    facts, transform = facts_of(lab.read(text)), Transform.model_validate(change)
    with pytest.raises(TraceError) as early:
        check_transform(transform, facts, max_requests=500)
    with pytest.raises(TraceError) as late:
        load_workload(lab.out, transform, 0, max_requests=500)
    for refused in (early.value, late.value):
        assert (refused.code, refused.errors[0].field) == ("workload.too_many_requests", f"transform.{field}")
        assert "CAPREPLAY_JOB_MAX_REQUESTS" in refused.detail
        assert field in refused.detail


@pytest.mark.parametrize(("text", "change"), FEW)
def test_as_many_requests_as_one_replay_takes_are_taken(lab, text: str, change: dict[str, Any]) -> None:
    facts, transform = facts_of(lab.read(text)), Transform.model_validate(change)
    check_transform(transform, facts, max_requests=500)
    assert load_workload(lab.out, transform, 0, max_requests=500).n <= 500


@pytest.mark.parametrize(
    ("asked", "cure", "fits"),
    [
        ({"growth": 10}, r"lower growth to 2\.48 at most", {"growth": 2.48}),
        ({"agent_steps": 10}, r"lower agent_steps to 2\.48 at most", {"agent_steps": 2}),
        ({"growth": 0.5, "agent_steps": 10}, r"lower agent_steps to 4\.97 at most", {"growth": 0.5, "agent_steps": 4}),
        ({"growth": 4, "agent_steps": 3}, r"until their product is 2\.48 at most", {"growth": 1.24, "agent_steps": 2}),
    ],
)
def test_the_cure_of_too_many_requests_cures(lab, asked: dict[str, Any], cure: str, fits: dict[str, Any]) -> None:
    facts = facts_of(lab.read(PLAIN))
    with pytest.raises(TraceError, match=cure) as refused:
        check_transform(Transform.model_validate(asked), facts, max_requests=500)
    assert "one replay takes 500" in refused.value.detail
    transform = Transform.model_validate(fits)
    check_transform(transform, facts, max_requests=500)
    assert load_workload(lab.out, transform, 0, max_requests=500).n <= 500


def test_a_trace_that_is_too_long_by_itself_or_with_others_is_refused(lab) -> None:
    facts = facts_of(lab.read(PLAIN))
    with pytest.raises(TraceError, match="choose a shorter window") as alone:
        check_transform(Transform(), facts, max_requests=200)
    assert alone.value.errors[0].field == "transform.window_end_s"
    half = MixedTrace(trace="t", name="x", share=0.5)
    transform = Transform(mix_with=(half,))
    mixed = mixed_facts(facts, [(half, facts)], "start")
    check_transform(transform, mixed, max_requests=302)
    with pytest.raises(TraceError, match="smaller shares") as both:
        check_transform(transform, mixed, max_requests=300)
    assert both.value.errors[0].field == "transform.mix_with"
    with pytest.raises(TraceError, match="smaller shares"):
        load_workload(lab.out, transform, 0, [lab.out], max_requests=250)


def test_a_trace_without_any_lengths_is_refused_as_a_whole(lab) -> None:
    report = lab.read(PLAIN)
    report = report.model_copy(
        update={"cleaning": report.cleaning.model_copy(update={"share_missing_output_tokens": 1.0})}
    )
    for policy in ("count_out", "infer"):
        with pytest.raises(TraceError, match="how long its requests are") as caught:
            check_transform(Transform.model_validate({"zero_output": policy}), facts_of(report))
        assert caught.value.code == "workload.empty"


def test_a_tenant_may_be_named_as_the_file_did(lab) -> None:
    key = b"k" * 32
    lab.source.write_text(TENANTS)
    facts = facts_of(ingest(lab.source, lab.out, IngestOptions(ids="hash"), id_key=key))
    label_of = lambda name: tenant_label(key, name)  # noqa: E731
    check_transform(Transform(tenants=("a",)), facts, label_of)
    check_transform(Transform(tenants=(label(key, "tenant", "a"),)), facts, label_of)
    with pytest.raises(TraceError, match="is of tenant 'nobody'"):
        check_transform(Transform(tenants=("nobody",)), facts, label_of)


def test_where_not_all_tenants_are_known_the_rows_decide(lab) -> None:
    rows = "".join(f"{i},{i + 1},5,t{i % 150}\n" for i in range(300))
    facts = facts_of(lab.read("arrival_s,prompt_tokens,output_tokens,tenant\n" + rows))
    assert facts.tenants is None
    check_transform(Transform(tenants=("nobody",)), facts)
