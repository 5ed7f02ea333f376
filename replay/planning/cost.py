"""What a deployment costs: the cheapest matching offer in whole instances, or the user's own price.

Tensor-parallel groups live inside one instance, so an instance of 8 GPUs holds two groups of 4 or one of 5. Prices of
unmatched regions, terms or GPU types are never extrapolated. A month is 730 hours.
"""

from __future__ import annotations

from dataclasses import dataclass

from replay.hardware.entries import Price
from replay.planning.document import Cost, PriceUsed
from replay.specs import PriceFilter

HOURS_PER_MONTH = 730
_LARGEST_INSTANCE = 72
"""Groups: what a split of two pools costs repeats with the groups that one instance holds."""

Groups = tuple[tuple[int, int], ...]
"""Tensor-parallel groups: how many, and GPUs of each."""


@dataclass(frozen=True)
class Pricing:
    """The prices of one candidate: offers of its GPU type that passed the filter, and the filter itself."""

    gpu_key: str
    tp: int
    price_filter: PriceFilter
    offers: tuple[Price, ...]
    ranks: int = 1
    """Groups of a replica: its data-parallel ranks."""
    apart: bool = False
    """Prefill and decode are pools, each in instances of its own: a count costs what its cheapest split does."""

    def price(self, replicas: int, groups: Groups | None = None) -> PriceUsed | None:
        """The cheapest way to run ``replicas``, or these ``groups``; ties by offer id. ``None``:
        see ``reason``."""
        groups = ((replicas * self.ranks, self.tp),) if groups is None else groups
        own = self.price_filter.usd_per_gpu_hour.get(self.gpu_key)
        if own is not None:
            return _own_price(own, _gpus(groups))
        largest = max(size for _, size in groups)
        fitting = [(_instances(offer, groups), offer) for offer in self.offers if self._fits(offer, largest)]
        if not fitting:
            return None
        instances, offer = min(fitting, key=lambda pair: (_total(pair[0], pair[1].usd_per_instance_hour), pair[1].id))
        return PriceUsed(
            price_id=offer.id,
            provider=offer.provider,
            region=offer.region,
            term=offer.term,
            date=offer.date,
            instance_type=offer.instance_type,
            gpus_per_instance=offer.gpus_per_instance,
            instances=instances,
            paid_gpus=instances * offer.gpus_per_instance,
            usd_per_instance_hour=offer.usd_per_instance_hour,
            usd_per_gpu_hour=offer.usd_per_gpu_hour,
            source=offer.source,
            notes=offer.notes,
        )

    def usd_per_hour(self, replicas: int, groups: Groups | None = None) -> float | None:
        """Dollars per hour, arguments as of ``price``; never falls as replicas grow. ``None`` where nothing prices
        them."""
        if self.apart and groups is None:
            splits = (self.split(one, replicas - one) for one in range(1, min(replicas, 1 + _LARGEST_INSTANCE)))
            costs = (self.usd_per_hour(replicas, groups) for groups in splits)
            return min((cost for cost in costs if cost is not None), default=None)
        price = self.price(replicas, groups)
        return None if price is None else _total(price.instances, price.usd_per_instance_hour)

    def split(self, prefill: int, decode: int) -> Groups:
        """The groups of two pools of so many replicas."""
        return (prefill, self.tp), (decode, self.tp)

    def reason(self) -> str:
        """Why there is no price."""
        wanted = [f"term {self.price_filter.term}"]
        wanted += [f"provider {self.price_filter.provider}"] if self.price_filter.provider else []
        wanted += [f"region {self.price_filter.region}"] if self.price_filter.region else []
        asked = ", ".join(wanted)
        if self.offers:
            largest = max(offer.gpus_per_instance for offer in self.offers)
            return (
                f"no offer of {self.gpu_key} ({asked}) has instances that hold a group of {self.tp} GPUs: "
                f"the largest has {largest}; give your own price per GPU-hour"
            )
        return f"the catalogue has no offer of {self.gpu_key} ({asked}); give your own price per GPU-hour"

    def most_replicas_within(self, usd_per_hour: float, limit: int) -> int:
        """The largest count up to ``limit`` within ``usd_per_hour``; 0 where one is too dear or has no price."""
        low, high = 0, limit
        while low < high:
            middle = (low + high + 1) // 2
            cost = self.usd_per_hour(middle)
            if cost is not None and cost <= usd_per_hour:
                low = middle
            else:
                high = middle - 1
        return low

    def _fits(self, offer: Price, group: int) -> bool:
        return offer.gpu == self.gpu_key and (offer.per_gpu or offer.gpus_per_instance >= group)


def _gpus(groups: Groups) -> int:
    return sum(count * size for count, size in groups)


def _instances(offer: Price, groups: Groups) -> int:
    """Whole instances; those of one size are filled before the next, and sizes do not share one."""
    if offer.per_gpu:
        return -(-_gpus(groups) // offer.gpus_per_instance)
    return sum(-(-count // (offer.gpus_per_instance // size)) for count, size in groups)


def cost_of(
    pricing: Pricing,
    replicas: int,
    *,
    prompt_tokens: int,
    output_tokens: int,
    span_s: float,
    saturated: bool = False,
    burst: bool = False,
    groups: Groups | None = None,
) -> Cost:
    """Cost of a deployment under a workload that brings these tokens in ``span_s`` seconds. ``groups`` where it is more
    than ``replicas`` equal ones.

    Cost per token divides what is paid by what is *served*, so that idle capacity shows: ``usd_per_hour / (tokens an
    hour) * 1e6``. ``None`` per token, with a reason, where these are no tokens an hour: no tokens, a ``burst`` (no
    offered rate), or a ``saturated`` deployment, which does not serve them in ``span_s``.
    """
    price = pricing.price(replicas, groups)
    if price is None:
        return Cost(price_reason=pricing.reason())
    usd = _total(price.instances, price.usd_per_instance_hour)
    reason = None
    if saturated:
        reason = (
            "No cost per token: the deployment cannot keep up, so it does not serve these tokens in the time they come"
        )
    elif burst or span_s <= 0:
        reason = "No cost per token: the requests come as one burst, so there are no tokens an hour"
    elif output_tokens <= 0:
        reason = "No cost per token: no tokens are served"
    hours = None if reason else span_s / 3600.0
    return Cost(
        usd_per_hour=usd,
        usd_per_month=round(usd * HOURS_PER_MONTH, 6),
        usd_per_1m_output_tokens=_per_million(usd, output_tokens, hours),
        usd_per_1m_tokens=_per_million(usd, prompt_tokens + output_tokens, hours),
        per_token_reason=reason,
        price=price,
    )


def _total(instances: int, usd_per_instance_hour: float) -> float:
    """Rounded to micro-dollars, so that equal costs compare equal."""
    return round(instances * usd_per_instance_hour, 6)


def _per_million(usd_per_hour: float, tokens: int, hours: float | None) -> float | None:
    return None if hours is None else round(usd_per_hour * hours / tokens * 1e6, 6)


def _own_price(usd_per_gpu_hour: float, gpus: int) -> PriceUsed:
    return PriceUsed(
        price_id=None,
        provider="your own price",
        region="as given",
        term="as given",
        date=None,
        instance_type="single GPU",
        gpus_per_instance=1,
        instances=gpus,
        paid_gpus=gpus,
        usd_per_instance_hour=usd_per_gpu_hour,
        usd_per_gpu_hour=usd_per_gpu_hour,
        source="the request",
    )
