"""pydantic's findings are told in plain words, each with what to write instead."""

import pytest
from pydantic import TypeAdapter, ValidationError

from api.schemas.jobs import PlanRequest
from replay.faults import plain_faults

GOOD = {
    "trace_id": "trc_" + "0" * 32,
    "model": "m",
    "gpus": ["H100-SXM"],
    "objectives": [{"metric": "ttft", "threshold_s": 2.0}],
}


@pytest.mark.parametrize(
    ("change", "field", "says"),
    [
        ({"max_gpus": 0}, "max_gpus", "too small; give at least 1"),
        ({"max_usd_per_hour": 0}, "max_usd_per_hour", "too small; give a number above 0"),
        ({"seed": 2**31}, "seed", "too large; give a number below 2147483648"),
        ({"gpus": []}, "gpus", "too few items; give at least 1 item"),
        ({"model": ""}, "model", "too short; give at least 1 character"),
        ({"seed": "x"}, "seed", "not a whole number; give a whole number"),
        ({"seed": True}, "seed", "not a number; give a number"),
        ({"tp": [True]}, "tp", "not a number; give a number"),
        ({"objectives": [{"metric": "ttft", "threshold_s": True}]}, "objectives.0.threshold_s", "not a number"),
        ({"price": {"usd_per_gpu_hour": {"L4": False}}}, "price.usd_per_gpu_hour", "not a number; give a number"),
        ({"transform": {"growth": True}}, "transform.growth", "not a number; give a number"),
        ({"tp": [0]}, "tp.0", "too small; give at least 1"),
        ({"seed": 1.5}, "seed", "no whole number; give a whole number"),
        ({"router": "dice"}, "router", "none of the known values; use 'round_robin'"),
        ({"trace_id": "7"}, "trace_id", "not of the form expected; give an id: trc_ and 32 hexadecimal digits"),
        ({"name": "a\nb"}, "name", "not of the form expected; leave out line breaks and other control characters"),
        ({"gpu": "H100"}, "gpu", "not known here; remove it or correct its name"),
        ({"transform": 7}, "transform", "not an object; give an object"),
        ({"transform": {"window_start_s": 2, "window_end_s": 1}}, "transform", "window_end_s must be after"),
    ],
)
def test_each_finding_says_what_to_write_instead(change: dict[str, object], field: str, says: str) -> None:
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(PlanRequest).validate_python(GOOD | change)
    (fault,) = plain_faults(caught.value.errors())
    assert fault.field == field
    assert fault.detail.startswith(says)
    assert "Input should" not in fault.detail
