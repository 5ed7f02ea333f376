"""Cost by hand: whole instances, 730 hours, tokens of the workload."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replay.hardware.entries import Price
from replay.planning.cost import Pricing, cost_of
from replay.specs import PriceFilter


def offer(name: str, gpus: int, usd: float, gpu: str = "H100-SXM") -> Price:
    return Price(
        id=name,
        provider="P",
        instance_type=name,
        gpu=gpu,
        gpus_per_instance=gpus,
        region="r1",
        term="on_demand",
        usd_per_instance_hour=usd,
        date="2026-07-20",
        source="table",
    )


def pricing(tp: int, *offers: Price, own: dict[str, float] | None = None) -> Pricing:
    return Pricing("H100-SXM", tp, PriceFilter(usd_per_gpu_hour=own or {}), offers)


def test_tokens_an_hour_are_only_those_that_are_served_in_time() -> None:
    one = pricing(1, offer("one", 1, 2.0))
    fields: dict[str, Any] = {"prompt_tokens": 100, "output_tokens": 1_000_000, "span_s": 40.0}
    assert cost_of(one, 1, **fields).usd_per_1m_output_tokens == round(2 * 40 / 3600, 6)
    for changes, why in (
        ({"saturated": True}, "cannot keep up"),
        ({"span_s": 0.0}, "one burst"),
        ({"burst": True}, "one burst"),
        ({"output_tokens": 0}, "no tokens"),
    ):
        cost = cost_of(one, 1, **{**fields, **changes})
        assert (cost.usd_per_hour, cost.usd_per_1m_output_tokens, cost.usd_per_1m_tokens) == (2.0, None, None)
        assert why in (cost.per_token_reason or "")


def test_whole_instances_are_paid_for() -> None:
    price = pricing(2, offer("eight", 8, 24.0)).price(5)
    assert price is not None
    assert (price.instances, price.paid_gpus) == (2, 16), "4 groups of 2 fit into one instance of 8"
    assert price.usd_per_gpu_hour == 3.0
    assert (price.provider, price.region, price.term, price.date) == ("P", "r1", "on_demand", "2026-07-20")


def test_a_group_never_spans_instances() -> None:
    price = pricing(3, offer("four", 4, 10.0)).price(2)
    assert price is not None
    assert price.instances == 2, "one group of 3 an instance of 4; the fourth GPU is paid and idle"


def test_cheapest_whole_not_cheapest_per_gpu() -> None:
    cheap_per_gpu, small = offer("eight", 8, 16.0), offer("one", 1, 3.0)
    assert pricing(1, cheap_per_gpu, small).usd_per_hour(2) == 6.0
    assert pricing(1, cheap_per_gpu, small).usd_per_hour(7) == 16.0


def test_ties_fall_to_the_offer_id() -> None:
    price = pricing(1, offer("b", 1, 2.0), offer("a", 1, 2.0)).price(3)
    assert price is not None
    assert price.price_id == "a"


def test_own_price_beats_the_catalogue() -> None:
    price = pricing(2, offer("one", 8, 1.0), own={"H100-SXM": 2.5}).price(3)
    assert price is not None
    assert price.price_id is None
    assert price.usd_per_instance_hour * price.instances == 15.0


def test_no_price_names_the_cause() -> None:
    assert pricing(1).price(1) is None
    assert "no offer of H100-SXM (term on_demand)" in pricing(1).reason()
    assert "largest has 4" in pricing(8, offer("four", 4, 10.0)).reason()
    cost = cost_of(pricing(1), 2, prompt_tokens=10, output_tokens=10, span_s=1.0)
    assert cost.usd_per_hour is None
    assert cost.price_reason is not None


def test_month_and_tokens_by_hand() -> None:
    cost = cost_of(pricing(1, offer("one", 1, 3.0)), 2, prompt_tokens=3_000_000, output_tokens=1_000_000, span_s=1800.0)
    assert cost.usd_per_hour == 6.0
    assert cost.usd_per_month == 4380.0
    assert cost.usd_per_1m_output_tokens == 3.0, "half an hour costs 3 USD and brings a million output tokens"
    assert cost.usd_per_1m_tokens == 0.75


def test_no_cost_per_token_without_duration() -> None:
    cost = cost_of(pricing(1, offer("one", 1, 3.0)), 1, prompt_tokens=5, output_tokens=5, span_s=0.0)
    assert cost.usd_per_hour == 3.0
    assert cost.usd_per_1m_tokens is None


OFFERS = st.lists(st.tuples(st.integers(1, 16), st.floats(0.1, 100)), min_size=1, max_size=5)


@given(OFFERS, st.integers(1, 8), st.integers(1, 60), st.floats(0.1, 500))
def test_more_replicas_never_cost_less_and_the_budget_holds(
    table: list[tuple[int, float]], tp: int, replicas: int, budget: float
) -> None:
    prices = pricing(tp, *(offer(str(i), gpus, usd) for i, (gpus, usd) in enumerate(table)))
    now, more = prices.usd_per_hour(replicas), prices.usd_per_hour(replicas + 1)
    if now is None:
        assert more is None
        assert all(gpus < tp for gpus, _ in table)
        return
    assert more is not None
    assert more >= now
    most = prices.most_replicas_within(budget, 60)
    if most > 0:
        assert prices.usd_per_hour(most) == pytest.approx(min(budget, prices.usd_per_hour(most) or 0.0))
    if most < 60:
        assert (prices.usd_per_hour(most + 1) or 0.0) > budget
