"""An OpenAI-compatible server as seen from here: its models, the dialect it takes, and one timed answer."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

import httpx

from api.endpoint.dialect import DIALECTS
from api.endpoint.faults import PassingFaultError, refusal, said
from api.endpoint.prompts import Prompts
from api.endpoint.stream import EventStream, answer_of, runs_on, too_long
from replay.experiment.answers import Answer, UnusableAnswersError

STALL_S = 60.0
"""Silence after which an answer is given up."""
_CONNECT_S = 10.0
_KEEP_S = 4.0
"""Servers close an idle connection after 5 s (uvicorn), just when the next request may be on its way."""
_MOST_BODY_BYTES = 2**20
_REFUSED_BODY = (400, 413, 415, 422)
_NO_ROUTE = (404, 405, 501)


def base_url(text: str) -> str:
    """The address up to ``/v1``, as ``http://host:8000/v1/``.

    Raises:
        SpecError: ``endpoint.address`` for anything but an http address without a key in it.
    """
    example = "give it as http://HOST:PORT, with or without /v1"
    try:
        url = httpx.URL(text.strip())
    except httpx.InvalidURL as error:
        raise refusal("address", "the address cannot be read", example) from error
    if url.scheme not in ("http", "https") or not url.host:
        raise refusal("address", f"{text[:200]!r} is no http address", example)
    if url.userinfo or url.query or url.fragment:
        raise refusal(
            "address", "the address holds more than host, port and path", f"{example}, and a key by --api-key"
        )
    path = url.path.rstrip("/")
    return str(url.copy_with(path=(path if path.endswith("/v1") else f"{path}/v1") + "/"))


class Endpoint:
    """A server that answers; make it with ``opened``. Times are of the running loop's clock, which is monotonic."""

    def __init__(self, client: httpx.AsyncClient, prompts: Prompts, key: str | None) -> None:
        self._client = client
        self._prompts = prompts
        self._key = key
        self.model = ""
        self.dialect = DIALECTS[0]
        self.longest_tokens: int | None = None
        """The longest context that the server says it serves."""
        self.spent_tokens = 0
        """Prompt and output tokens so far: of answers as the server counts them, of those that broke as asked for."""

    async def find_model(self, wanted: str | None) -> None:
        """Takes the model that the server serves, or the ``wanted`` one.

        Raises:
            SpecError: where there are several or none; or as ``ask`` does.
        """
        served = await self._served(required=wanted is None)
        if wanted is None:
            if len(served) != 1:
                names = ", ".join(served)[:300] or "none"
                detail = f"the server serves {len(served)} models ({names})"
                raise refusal("model", detail, "name one with --served-model", "served_model")
            wanted = next(iter(served))
        elif served and wanted not in served:
            detail = f"the server does not serve {wanted[:200]!r}; it serves {', '.join(served)[:300]}"
            raise refusal("model", detail, "name one of those with --served-model", "served_model")
        self.model, self.longest_tokens = wanted, served.get(wanted)

    async def _served(self, *, required: bool) -> dict[str, int | None]:
        """Served models and their longest contexts; empty where the server has no such list and none is required."""
        try:
            async with asyncio.timeout(STALL_S):
                answer = await self._client.get("models")
            if answer.status_code in _NO_ROUTE and not required:
                return {}
            self._check(answer.status_code, answer.headers, answer.text)
            listed = answer.json()["data"]
            found = {str(one["id"]): one.get("max_model_len") for one in listed}
        except (TimeoutError, httpx.TransportError) as error:
            raise self._unreachable(error) from error
        except (_RefusedBodyError, ValueError, KeyError, TypeError, AttributeError) as error:
            detail = f"{self._client.base_url}models does not list models: {said(str(error), self._key)}"
            raise refusal("model", detail, "check that the address is of an OpenAI-compatible server") from error
        return {name: value if isinstance(value, int) and value > 0 else None for name, value in found.items()}

    async def agree(self) -> None:
        """Finds the first dialect that the server takes, by short requests, which also warm it up.

        Raises:
            SpecError: ``endpoint.dialect`` where it takes none.
        """
        refused: list[str] = []
        missing: set[str] = set()
        for dialect in DIALECTS:
            if dialect.path in missing:
                continue
            self.dialect = dialect
            try:
                await self._try_out()
            except _RefusedBodyError as error:
                refused.append(f"/v1/{dialect.path}: {error.detail}")
                if error.no_route:
                    missing.add(dialect.path)
                continue
            return
        detail = f"the server takes no streamed completion ({'; '.join(dict.fromkeys(refused))})"
        cure = "check address and --served-model, and that the server is vLLM, SGLang or another OpenAI-compatible one"
        raise refusal("dialect", detail[:1500], cure)

    async def _try_out(self) -> None:
        short = await self._asked(32, 2)
        if not self.dialect.ids:
            long = await self._asked(256, 2)
            self._prompts.learn((32, short.prompt_tokens), (256, long.prompt_tokens))

    async def ask(self, prompt_tokens: int, max_tokens: int, heard: asyncio.Event | None = None) -> Answer:
        """Sends a new prompt and reads the whole answer. ``heard`` is set once some tokens came.

        Raises:
            PassingFaultError: a fault that may be gone at the next try.
            UnusableAnswersError: an answer that no time can be told from, or a request that the server will not take.
            SpecError: a server that will not answer at all.
        """
        try:
            return await self._asked(prompt_tokens, max_tokens, heard)
        except _RefusedBodyError as error:
            cure = "where the server's contexts are shorter, give --max-model-len as it has"
            raise UnusableAnswersError(f"the server refused the request ({error.detail})", cure) from error

    async def _asked(self, prompt_tokens: int, max_tokens: int, heard: asyncio.Event | None = None) -> Answer:
        ids = self.dialect.ids
        prompt = self._prompts.ids(prompt_tokens) if ids else self._prompts.words(prompt_tokens)
        request = self._client.build_request(
            "POST", self.dialect.path, json=self.dialect.body(self.model, prompt, max_tokens)
        )
        clock = asyncio.get_running_loop()
        stream = EventStream()
        self.spent_tokens += prompt_tokens + max_tokens
        sent_s = clock.time()
        try:
            async with asyncio.timeout(STALL_S) as stalled:
                response = await self._client.send(request, stream=True)
                try:
                    if response.status_code != 200:
                        self.spent_tokens -= prompt_tokens + max_tokens
                        await self._raise_for(response)
                    async for data in response.aiter_raw():
                        now_s = clock.time()
                        stream.feed(data, now_s)
                        stalled.reschedule(now_s + STALL_S)
                        if heard is not None and len(stream.events) > 2:
                            heard.set()
                        if runs_on(stream, max_tokens):
                            raise too_long(len(stream.events), max_tokens)
                finally:
                    await response.aclose()
        except TimeoutError as error:
            raise PassingFaultError(f"no answer, or no more of it, within {STALL_S:.0f} s") from error
        except httpx.ConnectError as error:
            raise self._unreachable(error) from error
        except httpx.TransportError as error:
            raise PassingFaultError(f"the connection broke ({_words(error)})") from error
        finally:
            if heard is not None:
                heard.set()
        answer = answer_of(stream, sent_s, max_tokens, prompt_tokens if ids else None, self._key)
        self.spent_tokens += answer.prompt_tokens + answer.output_tokens - prompt_tokens - max_tokens
        return answer

    async def _raise_for(self, response: httpx.Response) -> None:
        text = b""
        async for data in response.aiter_raw():
            text += data
            if len(text) > _MOST_BODY_BYTES:
                break
        self._check(response.status_code, response.headers, text.decode("utf-8", "replace"))

    def _check(self, status: int, headers: httpx.Headers, text: str) -> None:
        """Raises what the status means; nothing for 200."""
        words = said(_message(text), self._key)
        if status == 200:
            return
        if status in (401, 403):
            cure = "give the server's key by the variable CAPREPLAY_ENDPOINT_API_KEY, or by --api-key"
            raise refusal(
                "unauthorised", f"the server refuses the key, or wants one (HTTP {status}: {words})", cure, "api_key"
            )
        if 300 <= status < 400:
            target = said(headers.get("location", "nowhere"), self._key)
            raise refusal("redirect", f"the server sends on to {target}", "name that address, if it is the server's")
        if status in _REFUSED_BODY or status in _NO_ROUTE:
            raise _RefusedBodyError(f"HTTP {status}: {words}", no_route=status in _NO_ROUTE)
        if status == 429:
            limits = f"the server limits requests (HTTP 429: {words})"
            raise PassingFaultError(limits, _retry_after_s(headers), is_limit=True)
        raise PassingFaultError(f"the server failed (HTTP {status}: {words})", _retry_after_s(headers))

    def _unreachable(self, error: Exception) -> PassingFaultError:
        return PassingFaultError(f"no connection to {self._client.base_url} ({_words(error)})")


class _RefusedBodyError(Exception):
    """The server understood that it was asked, but not what."""

    def __init__(self, detail: str, *, no_route: bool) -> None:
        super().__init__(detail)
        self.detail = detail
        self.no_route = no_route


@asynccontextmanager
async def opened(
    address: str, prompts: Prompts, *, key: str | None = None, transport: httpx.AsyncBaseTransport | None = None
) -> AsyncIterator[Endpoint]:
    """A connection to the server at ``address``: direct, as a proxy would be measured too.

    ``transport``: instead of sockets. Raises SpecError ``endpoint.address``.
    """
    url = base_url(address)
    headers = {"accept-encoding": "identity", "user-agent": "capreplay"}
    if key:
        if not key.isascii() or not key.isprintable():
            raise refusal(
                "key", "the key holds characters that no header can carry", "check how it was copied", "api_key"
            )
        headers["authorization"] = f"Bearer {key}"
    async with httpx.AsyncClient(
        base_url=url,
        headers=headers,
        transport=transport,
        verify=ssl.create_default_context(),
        trust_env=False,
        timeout=httpx.Timeout(None, connect=_CONNECT_S),
        limits=httpx.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=_KEEP_S),
    ) as client:
        yield Endpoint(client, prompts, key)


def _message(text: str) -> str:
    """The sentence in an error's body."""
    try:
        body = json.loads(text)
    except (ValueError, RecursionError):
        return text
    for name in ("error", "detail", "message"):
        if isinstance(body, dict) and body.get(name):
            body = body[name]
    return body if isinstance(body, str) else text


def _retry_after_s(headers: httpx.Headers) -> float | None:
    """Seconds of ``Retry-After``, which holds seconds or a date."""
    text = headers.get("retry-after", "").strip()
    if not text:
        return None
    try:
        return max(float(text), 0.0)
    except ValueError:
        pass
    try:
        return max((parsedate_to_datetime(text) - datetime.now(UTC)).total_seconds(), 0.0)
    except (ValueError, TypeError):
        return None


def _words(error: Exception) -> str:
    return str(error) or type(error).__name__
