"""The plan form and ``PlanSpec`` say the same in both directions; faults land at their fields."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.pages import plan_form
from api.pages.forms import Faults, Form
from replay.specs import Objective, PlanSpec

FULL = PlanSpec.model_validate(
    {
        "name": "next year",
        "model": "meta-llama/Llama-3.1-8B",
        "gpus": ["H100-SXM", "L40S"],
        "tp": [1, 4],
        "objectives": [
            {"metric": "ttft", "percentile": 99.0, "threshold_s": 2.0},
            {"metric": "itl", "percentile": 95.0, "threshold_s": 0.05},
            {"metric": "e2e", "percentile": None, "threshold_s": 12.5},
            {"metric": "tpot", "percentile": 99.9, "threshold_s": 0.08},
            {"metric": "tpot", "percentile": 99.99999, "threshold_s": 0.9},
            {"metric": "queue", "percentile": 50.0, "threshold_s": 1.0},
            {"metric": "ttft", "percentile": None, "attainment": 0.995, "threshold_s": 3.0},
        ],
        "transform": {
            "growth": 1.5,
            "window_start_s": 60.0,
            "window_end_s": 3600.0,
            "warmup_s": 30.0,
            "cooldown_s": 12.5,
            "prefix_from_sessions": True,
            "growth_method": "shift",
            "growth_shift_s": 600.0,
            "tenants": ["a, b", "c=d"],
            "tenant_growth": {"a, b": 2.0},
            "prompt_cap_tokens": 8000,
            "burstiness": 0.0,
        },
        "engine": {"preset": "vllm-0.11", "overrides": {"max_num_seqs": 64, "enforce_eager": True, "watermark": 0.02}},
        "router": "least_outstanding",
        "router_snapshot_s": 0.25,
        "disaggregation": {"kv_transfer_gb_per_s": 50.0, "decode_overrides": {"max_num_seqs": 64}},
        "weight_dtype": "fp8",
        "kv_dtype": "fp8",
        "max_model_len": 8192,
        "price": {"provider": "AWS", "region": "us-east-1", "term": "spot", "usd_per_gpu_hour": {"L40S": 0.90000012}},
        "max_gpus": 64,
        "max_usd_per_hour": 200.0,
        "seed": 7,
    }
)


def changed(form: Form, **fields: str) -> Form:
    """The form with other texts in some fields."""
    pairs = [(name, value) for name, values in form._values.items() if name not in fields for value in values]
    return Form([*pairs, *fields.items()])


def read(form: Form) -> tuple[PlanSpec | None, Faults]:
    faults = Faults()
    return plan_form.to_spec(form, faults), faults


def test_a_plan_comes_back_from_its_form() -> None:
    spec, faults = read(plan_form.from_spec(FULL))
    assert faults.by_field == {}
    assert spec == FULL


@given(
    st.lists(
        st.builds(
            Objective,
            metric=st.sampled_from(["ttft", "itl", "tpot", "e2e", "queue"]),
            percentile=st.sampled_from([None, 50.0, 90.0, 95.0, 99.0, 99.9]),
            threshold_s=st.floats(1e-3, 1e4).map(lambda x: float(f"{x:.6g}")),
        ),
        min_size=1,
        max_size=20,
        unique_by=lambda one: one.name,
    )
)
def test_objectives_come_back(objectives: list[Objective]) -> None:
    spec, _ = read(plan_form.from_spec(FULL.model_copy(update={"objectives": tuple(objectives)})))
    assert spec is not None
    assert [one.name for one in spec.objectives] == [one.name for one in objectives]
    for ours, theirs in zip(spec.objectives, objectives, strict=True):
        assert ours.threshold_s == pytest.approx(theirs.threshold_s, rel=1e-9)


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        ("prompt_scale", "not of the form field=value"),
        ("spread=even\nspread=uniform", "given twice"),
        ("growth=2", "a field of its own"),
        ("spread=wide", "none of the known values"),
        ("colour=red", "not known here"),
        ("busiest_window_s=60", "the window is given in two ways"),
    ],
)
def test_changes_of_the_load_that_cannot_be_read(lines: str, says: str) -> None:
    spec, faults = read(changed(plan_form.from_spec(FULL), changes=lines))
    assert spec is None
    assert any(says in sentence for sentence in faults.of("changes")), faults.by_field


def test_the_default_form_lacks_only_what_nobody_can_guess() -> None:
    spec, faults = read(plan_form.defaults())
    assert spec is None
    assert set(faults.by_field) == {"model", "gpus"}
    spec, _ = read(changed(plan_form.defaults(), model="m", gpus="H100-SXM"))
    assert spec is not None
    assert [(one.name, one.threshold_s) for one in spec.objectives] == [("ttft_p99", 2.0), ("itl_p99", 0.1)]
    assert spec.tp == (1, 2, 4, 8)


@pytest.mark.parametrize(
    ("field", "text", "at", "says"),
    [
        ("growth", "fast", "growth", "not a number"),
        ("growth", "-2", "growth", "above 0"),
        ("growth", "nan", "growth", "finite"),
        ("max_gpus", "3.5", "max_gpus", "whole number"),
        ("max_gpus", "0", "max_gpus", "at least 1"),
        ("limit_0", "soon", "limit_0", "not a number"),
        ("limit_0", "-1", "slo", "above 0"),
        ("statistic_0", "p101", "slo", "below 100"),
        ("statistic_0", "median", "slo", "number"),
        ("knobs", "max_num_seqs", "knobs", "name=value"),
        ("own_prices", "H100-SXM=free", "own_prices", "number"),
        ("window_end_s", "5", "changes", "after window_start_s"),
        ("pools", "first_token_from=decode", "pools", "kv_transfer_gb_per_s"),
        ("pools", "kv_transfer_gb_per_s=50\nprefill_replicas=2", "pools", "not known here"),
        ("tp", "two", "tp", "whole number"),
        ("tp", "", "tp", "at least one"),
        ("model", "", "model", "name a model"),
        ("router", "carrier pigeon", "router", "round_robin"),
        ("router", "random", "router_snapshot_s", "reads no state"),
    ],
)
def test_faults_land_at_their_fields(field: str, text: str, at: str, says: str) -> None:
    spec, faults = read(changed(plan_form.from_spec(FULL), **{field: text}))
    assert spec is None
    assert any(says in sentence for sentence in faults.of(at)), faults.by_field


def test_the_same_objective_twice_is_a_fault() -> None:
    spec, faults = read(changed(plan_form.from_spec(FULL), metric_1="ttft", statistic_1="p99"))
    assert spec is None
    assert "twice" in faults.of("slo")[0]


def test_room_for_more_objectives_is_always_shown() -> None:
    assert len(plan_form.rows_shown(plan_form.defaults())) == 4
    assert len(plan_form.rows_shown(plan_form.from_spec(FULL))) == 9
    assert len(plan_form.rows_shown(Form([("limit_19", "1")]))) == 20


def test_unusual_sizes_and_prices_come_back() -> None:
    price = FULL.price.model_copy(update={"usd_per_gpu_hour": {"L40S": 1234.56789}})
    spec = FULL.model_copy(update={"tp": (3, 32), "price": price})
    form = plan_form.from_spec(spec)
    assert plan_form.tps_shown(form) == ["1", "2", "3", "4", "8", "16", "32"]
    again, faults = read(form)
    assert faults.by_field == {}
    assert again == spec
