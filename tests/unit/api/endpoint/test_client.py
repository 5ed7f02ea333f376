"""Addresses, keys, waits and the server's own words; whole conversations are in test_experiment."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import httpx
import pytest

from api.endpoint.client import Endpoint, base_url, opened
from api.endpoint.faults import PassingFaultError, said
from api.endpoint.prompts import Prompts
from replay.errors import SpecError


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("http://gpu-1:8000", "http://gpu-1:8000/v1/"),
        (" http://gpu-1:8000/v1/ ", "http://gpu-1:8000/v1/"),
        ("https://example.org/llm", "https://example.org/llm/v1/"),
    ],
)
def test_addresses_with_and_without_v1_are_one(given: str, meant: str) -> None:
    assert base_url(given) == meant


@pytest.mark.parametrize(
    "given", ["gpu-1:8000", "ftp://gpu-1", "http://", "http://a:b@c", "http://a/?key=1", "http://a\x01b"]
)
def test_what_is_no_address_is_refused(given: str) -> None:
    with pytest.raises(SpecError) as refused:
        base_url(given)
    assert refused.value.code == "endpoint.address"
    assert refused.value.errors[0].cure


def asked(response: httpx.Response, *, key: str | None = None) -> Exception:
    """What a request comes to that is answered so."""

    async def whole() -> None:
        transport = httpx.MockTransport(lambda _request: response)
        async with opened("http://test", Prompts(32_000, seed=1), key=key, transport=transport) as endpoint:
            await endpoint.find_model(None)

    with pytest.raises((SpecError, PassingFaultError)) as found:
        asyncio.run(whole())
    return found.value


def test_waits_are_seconds_or_dates() -> None:
    fault = asked(httpx.Response(429, headers={"retry-after": "7"}))
    assert isinstance(fault, PassingFaultError)
    assert (fault.retry_after_s, fault.is_limit) == (7.0, True)
    later = format_datetime(datetime.now(UTC) + timedelta(hours=1), usegmt=True)
    fault = asked(httpx.Response(503, headers={"retry-after": later}))
    assert isinstance(fault, PassingFaultError)
    assert fault.retry_after_s is not None
    assert 3000 < fault.retry_after_s <= 3600
    fault = asked(httpx.Response(503, headers={"retry-after": "soon"}))
    assert isinstance(fault, PassingFaultError)
    assert fault.retry_after_s is None


@pytest.mark.parametrize(
    ("response", "code", "words"),
    [
        (httpx.Response(302, headers={"location": "http://login"}), "redirect", "sends on to http://login"),
        (httpx.Response(403, json={"error": {"message": "no"}}), "unauthorised", "HTTP 403: no"),
        (httpx.Response(200, text="<html>"), "model", "does not list models"),
        (httpx.Response(200, json={"data": []}), "model", "serves 0 models"),
        (httpx.Response(404, text="nothing here"), "model", "nothing here"),
    ],
)
def test_each_answer_that_ends_it_is_a_sentence(response: httpx.Response, code: str, words: str) -> None:
    refusal = asked(response)
    assert isinstance(refusal, SpecError)
    assert refusal.code == f"endpoint.{code}"
    assert words in refusal.detail


def test_a_key_that_no_header_carries_is_refused() -> None:
    refusal = asked(httpx.Response(200), key="sk-\n1")
    assert isinstance(refusal, SpecError)
    assert refusal.code == "endpoint.key"
    assert "sk-" not in str(vars(refusal))


def test_the_servers_words_are_short_printable_and_without_the_key() -> None:
    assert said("bad\x1b[31m key sk-1\n now", "sk-1") == "bad [31m key *** now"
    assert len(said("x" * 10_000, None)) == 200


def test_the_key_goes_to_the_server_alone() -> None:
    seen: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(200, json={"data": [{"id": "m"}]})

    async def whole() -> Endpoint:
        transport = httpx.MockTransport(answer)
        async with opened("http://test", Prompts(32_000), key="sk-1", transport=transport) as endpoint:
            await endpoint.find_model(None)
            return endpoint

    assert asyncio.run(whole()).model == "m"
    assert seen[0].headers["authorization"] == "Bearer sk-1"
    assert str(seen[0].url) == "http://test/v1/models"
