"""Slots of event streams are given back."""

from contextlib import ExitStack

import pytest

from api.streams import MAX_STREAMS, MAX_STREAMS_PER_TENANT, StreamSlots
from models.errors import LimitError


def test_a_tenant_has_its_share_and_gets_it_back():
    slots = StreamSlots()
    with ExitStack() as stack:
        for _ in range(MAX_STREAMS_PER_TENANT):
            stack.enter_context(slots.hold("a"))
        with pytest.raises(LimitError), slots.hold("a"):
            pass
        with slots.hold("b"):
            pass
    with slots.hold("a"):
        pass


def test_all_tenants_share_the_process():
    slots = StreamSlots()
    with ExitStack() as stack:
        for index in range(MAX_STREAMS):
            stack.enter_context(slots.hold(f"t{index}"))
        with pytest.raises(LimitError), slots.hold("other"):
            pass


def test_a_slot_is_given_back_after_an_error():
    slots = StreamSlots()
    with pytest.raises(ZeroDivisionError), slots.hold("a"):
        raise ZeroDivisionError
    assert slots._open["a"] == 0
