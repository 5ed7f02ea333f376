import pytest
from planning_doubles import TRACE, make_plan
from pydantic import ValidationError

from replay.errors import SpecError
from replay.hardware.catalogue import shipped_catalogue
from replay.planning.parts import MemoryBreakdown, MemoryPart
from replay.planning.resolve import Candidate, ResolvedPlan, TraceRef, resolve_plan, resolve_replay
from replay.specs import DeploymentSpec, DisaggregationSpec, EngineSpec, PoolsSpec, ReplaySpec


def test_candidates_are_distinct_and_in_order() -> None:
    plan = make_plan(gpus=("L40S", "H100-SXM", "l40s"), tp=(4, 1, 4))
    assert plan.candidates() == (
        Candidate("L40S", 1),
        Candidate("L40S", 4),
        Candidate("H100-SXM", 1),
        Candidate("H100-SXM", 4),
    )


def test_equal_requests_hash_equal_and_any_change_differs() -> None:
    plan = make_plan()
    assert plan.input_hash() == make_plan().input_hash()
    changed = [
        make_plan(seed=1),
        make_plan(tp=(2,)),
        make_plan(transform={"growth": 1.5}),
        make_plan(price={"usd_per_gpu_hour": {"H100-SXM": 2.1}}),
    ]
    assert len({plan.input_hash(), *(other.input_hash() for other in changed)}) == 5


def test_round_trip_through_json_keeps_the_hash() -> None:
    plan = make_plan(price={})
    assert ResolvedPlan.model_validate_json(plan.model_dump_json()).input_hash() == plan.input_hash()
    assert plan.prices, "on-demand offers of the shipped catalogue"
    assert {price.term for price in plan.prices} == {"on_demand"}


def test_own_prices_go_to_the_gpu_they_name_by_any_spelling() -> None:
    plan = make_plan(price={"usd_per_gpu_hour": {"h100-sxm": 3.0}})
    assert plan.spec.price.usd_per_gpu_hour == {"H100-SXM": 3.0}


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"gpus": ("H1000",)}, "catalogue.unknown_gpu"),
        ({"model": "no/such-model"}, "catalogue.unknown_model"),
        ({"weight_dtype": "int3"}, "memory.weight_dtype"),
        ({"kv_dtype": "int4"}, "memory.kv_dtype"),
        ({"engine": {"preset": "vllm-9"}}, "engine.unknown_preset"),
        ({"engine": {"overrides": {"max_num_seq": 8}}}, "engine.knob"),
        ({"price": {"provider": "nobody"}}, "price.unknown"),
        ({"price": {"region": "us-eest-1"}}, "price.unknown"),
        ({"price": {"term": "on-demand"}}, "price.unknown"),
        ({"price": {"term": "On_Demand"}}, "price.unknown"),
        ({"price": {"usd_per_gpu_hour": {"H1000": 2.0}}}, "catalogue.unknown_gpu"),
        ({"price": {"usd_per_gpu_hour": {"H100-SXM": 2.0, "h100-sxm": 3.0}}}, "price.twice"),
    ],
)
def test_mistakes_are_refused_at_once(changes: dict[str, object], code: str) -> None:
    with pytest.raises(SpecError) as caught:
        make_plan(**changes)
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("changes", "field", "says"),
    [
        ({"gpus": ("H1000",)}, "gpus", "H100-SXM"),
        ({"price": {"usd_per_gpu_hour": {"H1000": 2.0}}}, "price.usd_per_gpu_hour", "H100-SXM"),
        ({"price": {"provider": "awss"}}, "price.provider", "did you mean AWS"),
        ({"model": "meta-llama/Llama-3.1-9B"}, "model", "Llama-3.1-8B"),
        ({"engine": EngineSpec(overrides={"max_num_seq": 4})}, "engine.overrides.max_num_seq", "max_num_seq"),
        (
            {"disaggregation": PoolsSpec(kv_transfer_gb_per_s=50, decode_overrides={"max_num_seq": 4})},
            "disaggregation.decode_overrides.max_num_seq",
            "decode replicas",
        ),
        ({"price": {"term": "on-demand"}}, "price.term", "on_demand"),
    ],
)
def test_refusals_name_the_field_of_the_request_and_what_is_there(
    changes: dict[str, object], field: str, says: str
) -> None:
    with pytest.raises(SpecError) as caught:
        make_plan(**changes)
    assert [fault.field for fault in caught.value.errors] == [field]
    assert says in caught.value.detail


@pytest.mark.parametrize(("tp", "code"), [(3, "deployment.infeasible"), (64, "parallelism.scale_up")])
def test_a_replay_that_cannot_be_sharded_is_refused_before_it_is_queued(tp: int, code: str) -> None:
    deployment = DeploymentSpec(model="meta-llama/Llama-3.1-8B", gpu="H100-SXM", tp=tp)
    with pytest.raises(SpecError) as caught:
        resolve_replay(ReplaySpec(deployment=deployment), shipped_catalogue(), trace=TRACE)
    assert (caught.value.code, caught.value.errors[0].field) == (code, "deployment.tp")


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"gpu": "H1000"}, "deployment.gpu"),
        ({"model": "meta-llama/Llama-3.1-9B"}, "deployment.model"),
        ({"weight_dtype": "fp9"}, "deployment.weight_dtype"),
        ({"engine": EngineSpec(overrides={"max_num_seq": 4})}, "deployment.engine.overrides.max_num_seq"),
        ({"engine": EngineSpec(preset="vllm-99")}, "deployment.engine.preset"),
        (
            {
                "disaggregation": DisaggregationSpec(
                    prefill_replicas=1, decode_replicas=1, kv_transfer_gb_per_s=50, decode_overrides={"max_num_seq": 4}
                )
            },
            "deployment.disaggregation.decode_overrides.max_num_seq",
        ),
    ],
)
def test_a_replays_refusals_name_the_field_of_its_request(changes: dict[str, object], field: str) -> None:
    deployment = DeploymentSpec(model="meta-llama/Llama-3.1-8B", gpu="H100-SXM").model_copy(update=changes)
    with pytest.raises(SpecError) as caught:
        resolve_replay(ReplaySpec(deployment=deployment), shipped_catalogue(), trace=TRACE)
    assert [fault.field for fault in caught.value.errors] == [field]


def test_a_model_of_the_users_own_needs_no_catalogue() -> None:
    catalogue = shipped_catalogue()
    own = catalogue.model("meta-llama/Llama-3.1-8B").model_copy(update={"key": "mine", "aliases": ()})
    spec = make_plan().spec.model_copy(update={"model": "mine"})
    plan = resolve_plan(spec, catalogue, trace=TRACE, model=own)
    assert plan.model.key == plan.spec.model == "mine"
    replay = resolve_replay(
        ReplaySpec(deployment=DeploymentSpec(model="x", gpu="L40S")), catalogue, trace=TraceRef(sha256="1"), model=own
    )
    assert replay.spec.deployment.model == "mine"


def test_a_memory_stack_that_does_not_add_up_is_no_document() -> None:
    parts = (MemoryPart(name="weights", gib=10.0), MemoryPart(name="KV cache", gib=5.0))
    with pytest.raises(ValidationError, match="add up"):
        MemoryBreakdown(parts=parts, total_gib=16.0, kv_blocks=1, kv_tokens=16, block_size=16)
