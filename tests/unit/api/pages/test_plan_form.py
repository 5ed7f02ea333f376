"""The plan form and ``PlanSpec`` say the same in both directions; faults land at their fields."""

from __future__ import annotations

from html.parser import HTMLParser

import httpx
import pytest
from apptools import TestApp
from hypothesis import given
from hypothesis import strategies as st

from api.pages import plan_form
from api.pages.forms import Faults, Form
from replay.errors import FieldError, SpecError
from replay.hardware.catalogue import shipped_catalogue
from replay.planning.resolve import TraceRef, resolve_plan
from replay.specs import EngineSpec, Objective, PlanSpec, PriceFilter, Transform
from replay.specs_transform import MixedTrace

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
        "engine": {
            "preset": "vllm-0.11",
            "overrides": {
                "max_num_seqs": 64,
                "enforce_eager": True,
                "watermark": 0.02,
                "acceptance_rate": "0.7, 0.45,0.2",
                "num_speculative_tokens": 3,
            },
        },
        "router": "least_outstanding",
        "router_snapshot_s": 0.25,
        "disaggregation": {"kv_transfer_gb_per_s": 50.0, "decode_overrides": {"max_num_seqs": 64}},
        "weight_dtype": "fp8",
        "kv_dtype": "fp8",
        "max_model_len": 8192,
        "price": {"provider": "AWS", "region": "us-east-1", "term": "spot", "usd_per_gpu_hour": {"L40S": 0.90000012}},
        "max_gpus": 64,
        "max_usd_per_hour": 200.0,
        "calibration": "cal_" + "0f" * 16,
        "seed": 7,
    }
)
ALONE = {"disaggregation": None, "client_timeout_s": 30.5, "survive_failures": 2}
"""Fields that ``FULL`` cannot have beside its pools."""


class Shown(HTMLParser):
    """What a browser sends of a page's last form when nothing is changed."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.pairs: list[tuple[str, str]] = []
        self._select, self._options, self._area = "", [("", False)], ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        name, value = values.get("name") or "", values.get("value")
        if tag == "form":
            self.pairs = []
        elif tag == "input" and name and (values.get("type") != "checkbox" or "checked" in values):
            self.pairs.append((name, value or ""))
        elif tag == "select":
            self._select, self._options = name, []
        elif tag == "option" and self._select:
            self._options.append((value if value is not None else "(text)", "selected" in values))
        elif tag == "textarea":
            self._area = name
            self.pairs.append((name, ""))

    def handle_data(self, data: str) -> None:
        if self._area:
            self.pairs[-1] = (self._area, self.pairs[-1][1] + data)
        elif self._select and self._options and self._options[-1][0] == "(text)":
            self._options[-1] = (data, self._options[-1][1])

    def handle_endtag(self, tag: str) -> None:
        if tag == "textarea":
            self._area = ""
        elif tag == "select":
            chosen = [value for value, is_chosen in self._options if is_chosen] or [self._options[0][0]]
            self.pairs.append((self._select, chosen[-1]))
            self._select = ""


def changed(form: Form, **fields: str) -> Form:
    """The form with other texts in some fields."""
    pairs = [(name, value) for name, values in form._values.items() if name not in fields for value in values]
    return Form([*pairs, *fields.items()])


def read(form: Form) -> tuple[PlanSpec | None, Faults]:
    faults = Faults()
    return plan_form.to_spec(form, faults), faults


def comes_back(spec: PlanSpec) -> bool:
    again, faults = read(plan_form.from_spec(spec))
    return faults.by_field == {} and again == spec


def test_a_plan_comes_back_from_its_form() -> None:
    assert comes_back(FULL)
    assert comes_back(FULL.model_copy(update=ALONE))


def test_no_field_of_a_plan_is_left_out_of_the_tests_here() -> None:
    for name, field in PlanSpec.model_fields.items():
        default = field.get_default(call_default_factory=True)
        values = [getattr(FULL, name), ALONE.get(name, default)]
        assert field.is_required() or any(value != default for value in values), name


def changes_of(field: str, values: st.SearchStrategy[object]) -> st.SearchStrategy[dict[str, object]]:
    return values.map(lambda value: {field: value})


SOME = st.floats(1e-3, 1e4)
CHANGES = st.one_of(
    changes_of("name", st.text("ab c=,\"'<é", max_size=20).map(str.strip)),
    changes_of("model", st.sampled_from(["m", "org/model-1.5", "mine, too"])),
    changes_of("gpus", st.lists(st.sampled_from(["H100-SXM", "L40S", "My GPU"]), min_size=1, unique=True).map(tuple)),
    changes_of("tp", st.lists(st.integers(1, 64), min_size=1, max_size=8, unique=True).map(sorted).map(tuple)),
    changes_of("router", st.sampled_from(["vllm_dp", "least_outstanding"])),
    changes_of("router_snapshot_s", st.none() | st.floats(0, 86_400)),
    changes_of("weight_dtype", st.sampled_from([None, "bf16", "int4"])),
    changes_of("kv_dtype", st.sampled_from([None, "fp8"])),
    changes_of("max_model_len", st.none() | st.integers(1, 2**24)),
    changes_of("max_gpus", st.none() | st.integers(1, 10**6)),
    changes_of("max_usd_per_hour", st.none() | SOME),
    changes_of("calibration", st.sampled_from(["auto", "shipped", "cal_" + "1" * 32])),
    changes_of("seed", st.integers(0, 2**31 - 1)),
    st.builds(lambda seconds: ALONE | {"client_timeout_s": seconds}, SOME),
    st.builds(lambda spare: ALONE | {"survive_failures": spare}, st.integers(1, 64)),
    changes_of("price", st.builds(PriceFilter, usd_per_gpu_hour=st.dictionaries(st.sampled_from("ab"), SOME))),
    changes_of("price", st.builds(PriceFilter, provider=st.sampled_from([None, "aws"]), region=st.just("eu, west"))),
    changes_of("transform", st.builds(Transform, growth=SOME.filter(lambda x: x <= 100), window_start_s=SOME)),
    changes_of("transform", st.builds(Transform, warmup_s=SOME, cooldown_s=SOME, prompt_scale=st.floats(0.1, 9))),
    changes_of("transform", st.builds(Transform, tenants=st.lists(st.text('a,="b', min_size=1)).map(tuple))),
    changes_of("transform", st.just(Transform(mix_with=(MixedTrace(trace="trc_" + "2" * 32),), mix_align="clock"))),
    changes_of("engine", st.builds(EngineSpec, overrides=st.dictionaries(st.sampled_from("xy"), SOME | st.booleans()))),
    changes_of("engine", st.just(EngineSpec(preset="sglang", overrides={"schedule_policy": "lpm", "page_size": 16}))),
    changes_of(
        "objectives",
        st.builds(
            Objective,
            metric=st.just("ttft"),
            percentile=st.none() | st.floats(1, 99.99),
            threshold_s=SOME | st.floats(1e-9, 1.0),
        ).map(lambda one: (one,)),
    ),
    changes_of(
        "objectives",
        st.builds(
            lambda percent, threshold_s: (
                Objective(metric="e2e", percentile=None, attainment=percent / 10_000, threshold_s=threshold_s),
            ),
            st.integers(1, 10_000),
            SOME,
        ),
    ),
)
"""One field of ``FULL`` changed, or a few that go together."""


@given(CHANGES)
def test_every_field_of_a_plan_comes_back_exactly(changes: dict[str, object]) -> None:
    assert comes_back(PlanSpec.model_validate(FULL.model_copy(update=changes).model_dump()))


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


@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("engine.overrides.max_model_len", "knobs"),
        ("disaggregation.decode_overrides.seed", "pools"),
        ("price.usd_per_gpu_hour.tp", "own_prices"),
        ("transform.tenant_growth.name", "changes"),
        ("transform.warmup_s", "warmup_s"),
    ],
)
def test_a_users_own_name_is_no_field_of_the_form(path: str, field: str) -> None:
    faults = Faults()
    faults.take(SpecError("engine.knob", "no", [FieldError("no", field=path)]), plan_form.FIELDS)
    assert faults.by_field == {field: ["no"]}


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


@pytest.mark.parametrize("changes", [{}, ALONE, {"calibration": "shipped"}])
def test_a_browser_sends_an_earlier_plan_as_it_was(
    made: TestApp, http: httpx.Client, changes: dict[str, object]
) -> None:
    engine = {"preset": "vllm-0.11", "overrides": {"max_num_seqs": 64}}
    price = FULL.price.model_copy(update={"provider": "aws", "region": None, "term": "on_demand"})
    transform = Transform(warmup_s=1.5, tenant_growth={"a": 0.3})
    spec = PlanSpec.model_validate(
        FULL.model_copy(update={"price": price, "transform": transform, "calibration": "auto", **changes}).model_dump()
        | {"engine": engine}
    )
    trace = TraceRef(sha256="ab" * 32, name="t")
    plan = resolve_plan(spec, shipped_catalogue(), trace=trace)
    gone = plan.spec.model_copy(update={"gpus": (*plan.spec.gpus, "Sold-GPU"), "calibration": "cal_" + "9" * 32})
    for asked in (plan.spec, gone):
        stored = plan.model_copy(update={"spec": asked}).model_dump(mode="json")
        job = made.add_job(kind="plan", status="succeeded", spec={"schema_version": 1, "plan": stored})
        page = http.get(f"/plans/new?job={job}")
        assert page.status_code == 200
        again, faults = read(Form(Shown(page.text).pairs))
        assert faults.by_field == {}
        assert again is not None
        assert again.model_copy(update={"gpus": tuple(sorted(again.gpus))}) == asked.model_copy(
            update={"gpus": tuple(sorted(asked.gpus))}
        )
