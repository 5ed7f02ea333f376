"""An OpenAI-compatible server whose true step law is known, in virtual or in real time.

``Engine`` batches continuously: each step takes all decodes and as much of the waiting prompts as fits, and lasts what
the law says. ``Api`` answers as vLLM does, with the ``Faults`` wanted. ``InProcess`` is reached without sockets and
runs with ``run_virtual`` on a clock that jumps, so that times are exact on any machine; ``listening`` is on a socket.
"""

from __future__ import annotations

import asyncio
import json
import random
import selectors
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import httpx

T = TypeVar("T")
Chunk = tuple[int, int]
"""Prompt tokens of one request in a step, and those before them."""
Law = Callable[[list[Chunk], int, int], float]
"""Chunks of prompts, decodes, their context tokens -> seconds."""


@dataclass
class Job:
    """One request in the engine; the queue gets a count of tokens after each step, or None at the end."""

    prompt_tokens: int
    max_tokens: int
    computed: int = 0
    generated: int = 0
    out: asyncio.Queue[None] = field(default_factory=asyncio.Queue)
    gone: bool = False


class Engine:
    """Continuous batching with chunked prefill: decodes first, then prompts in order of arrival."""

    def __init__(
        self, law: Law, *, max_num_batched_tokens: int = 8192, max_num_seqs: int = 256, mixes: bool = True
    ) -> None:
        """``mixes``: prompts and decodes share steps; else, as in SGLang, decodes wait while prompts are computed."""
        self._law = law
        self._mixes = mixes
        self._limit = max_num_batched_tokens
        self._seats = max_num_seqs
        self._jobs: list[Job] = []
        self._arrived = asyncio.Event()
        self.steps = 0

    def submit(self, job: Job) -> None:
        self._jobs.append(job)
        self._arrived.set()

    async def run(self) -> None:
        clock = asyncio.get_running_loop()
        end_s = clock.time()
        while True:
            self._jobs = [job for job in self._jobs if not job.gone and job.generated < job.max_tokens]
            if not self._jobs:
                self._arrived.clear()
                await self._arrived.wait()
                end_s = clock.time()
                continue
            running = self._jobs[: self._seats]
            decodes = [job for job in running if job.computed == job.prompt_tokens]
            if not self._mixes and len(decodes) < len(running):
                decodes = []
            room = self._limit - len(decodes)
            chunks: list[tuple[Job, int]] = []
            for job in running:
                take = min(job.prompt_tokens - job.computed, room)
                if take > 0:
                    chunks.append((job, take))
                    room -= take
            context = sum(job.prompt_tokens + job.generated for job in decodes)
            end_s += self._law([(take, job.computed) for job, take in chunks], len(decodes), context)
            await asyncio.sleep(end_s - clock.time())
            self.steps += 1
            for job, take in chunks:
                job.computed += take
            for job in [*decodes, *(job for job, _ in chunks if job.computed == job.prompt_tokens)]:
                job.generated += 1
                job.out.put_nowait(None)


@dataclass
class Faults:
    """What the server does otherwise than it should."""

    jitter_s: float = 0.0
    """Each chunk is late by up to so much, uniformly."""
    errors: dict[int, tuple[int, dict[str, str]]] = field(default_factory=dict)
    """Status and headers instead of an answer, by number of the completion request, from 0."""
    cut: set[int] = field(default_factory=set)
    """Completion requests whose stream breaks off after three tokens."""
    hang: set[int] = field(default_factory=set)
    """Completion requests that are never answered."""
    most_requests: int | None = None
    """More at once are answered with 429."""
    key: str | None = None
    routes: tuple[str, ...] = ("completions", "chat/completions")
    takes_ids: bool = True
    takes_extras: bool = True
    usage_by_chunk: bool = True
    usage: bool = True
    tokens_per_chunk: int = 1
    one_chunk: bool = False
    bursts: bool = False
    """All chunks, but only once the answer is complete."""
    ends_after: int | None = None
    """Output tokens after which the model ends, where ignore_eos is not heard."""
    ignores_limit: bool = False
    most_prompt_tokens: int | None = None
    """Longer prompts are answered with 400."""
    cached_tokens: int = 0
    replicas: int = 1
    max_model_len: int | None = 32768
    models: tuple[str, ...] = ("served",)
    lists_models: bool = True


class Api:
    """The HTTP side: a request's method, path, headers and body -> status, headers and a stream of bytes."""

    def __init__(self, law: Law, faults: Faults | None = None, *, a0_s: float = 0.0, **engine: int) -> None:
        self.faults = faults or Faults()
        self._a0_s = a0_s
        self.engines = [Engine(law, **engine) for _ in range(self.faults.replicas)]
        self._random = random.Random(5)
        self._open = 0
        self.asked: list[dict[str, Any]] = []
        self.prompts: list[str | list[int]] = []

    async def answer(
        self, method: str, path: str, headers: dict[str, str], body: bytes
    ) -> tuple[int, dict[str, str], AsyncIterator[bytes]]:
        faults = self.faults
        if faults.key and headers.get("authorization") != f"Bearer {faults.key}":
            return self._error(401, f"wrong key {headers.get('authorization')}")
        if (method, path) == ("GET", "/v1/models") and faults.lists_models:
            listed = [{"id": name, "object": "model", "max_model_len": faults.max_model_len} for name in faults.models]
            return 200, {}, _once(json.dumps({"object": "list", "data": listed}))
        route = path.removeprefix("/v1/")
        if method != "POST" or route not in faults.routes:
            return self._error(404, "Not Found")
        asked = json.loads(body)
        number = len(self.asked)
        self.asked.append(asked)
        if number in faults.errors:
            status, own = faults.errors[number]
            return self._error(status, "as the test wants it", own)
        prompt = asked["prompt"] if route == "completions" else asked["messages"][0]["content"]
        if isinstance(prompt, list) and not faults.takes_ids:
            return self._error(400, "prompt must be a string")
        if "ignore_eos" in asked and not faults.takes_extras:
            return self._error(422, "Unrecognized request argument: ignore_eos")
        if "stream_options" in asked and not faults.usage:
            return self._error(400, "Unrecognized request argument: stream_options")
        if faults.most_prompt_tokens is not None and _length(prompt) > faults.most_prompt_tokens:
            return self._error(400, "the prompt is too long")
        if faults.most_requests is not None and self._open >= faults.most_requests:
            return self._error(429, "too many requests", {"retry-after": "1"})
        self.prompts.append(prompt)
        if number in faults.hang:
            await asyncio.Event().wait()
        return (
            200,
            {"content-type": "text/event-stream"},
            self._stream(number, asked, prompt, chat=route != "completions"),
        )

    def _error(
        self, status: int, message: str, headers: dict[str, str] | None = None
    ) -> tuple[int, dict[str, str], AsyncIterator[bytes]]:
        return status, headers or {}, _once(json.dumps({"error": {"message": message}}))

    async def _stream(
        self, number: int, asked: dict[str, Any], prompt: str | list[int], *, chat: bool
    ) -> AsyncIterator[bytes]:
        faults, clock = self.faults, asyncio.get_running_loop()
        length = _length(prompt)
        wanted = asked["max_tokens"] + (500 if faults.ignores_limit else 0)
        early = faults.ends_after is not None and faults.ends_after < wanted
        job = Job(length, faults.ends_after if early and faults.ends_after else wanted, faults.cached_tokens)
        self._open += 1
        try:
            await asyncio.sleep(self._a0_s)
            self.engines[number % len(self.engines)].submit(job)
            if chat:
                yield _event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
            last_s, held = 0.0, b""
            per = wanted if faults.one_chunk else faults.tokens_per_chunk
            options = asked.get("stream_options", {})
            each = options.get("continuous_usage_stats", False) and faults.usage_by_chunk
            for count in range(1, job.max_tokens + 1):
                await job.out.get()
                if count % per and count != job.max_tokens:
                    continue
                last_s = max(last_s, clock.time() + self._random.uniform(0.0, faults.jitter_s))
                await asyncio.sleep(last_s - clock.time())
                ended = ("stop" if early else "length") if count == job.max_tokens else None
                own = {"delta": {"content": " w"}} if chat else {"text": " w"}
                event: dict[str, Any] = {"choices": [{"index": 0, **own, "finish_reason": ended}]}
                if each:
                    event["usage"] = self._usage(length, count)
                if faults.bursts and count < job.max_tokens:
                    held += _event(event)
                    continue
                yield held + _event(event)
                if number in faults.cut and count >= 3:
                    return
            if options.get("include_usage"):
                yield _event({"choices": [], "usage": self._usage(length, job.max_tokens)})
            yield b"data: [DONE]\n\n"
        finally:
            job.gone = True
            self._open -= 1

    def _usage(self, prompt: int, output: int) -> dict[str, Any]:
        cached = {"prompt_tokens_details": {"cached_tokens": self.faults.cached_tokens}}
        return {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output, **cached}


def _length(prompt: str | list[int]) -> int:
    """Tokens of a prompt: of words, what a tokeniser with a chat template might make of them."""
    return len(prompt) if isinstance(prompt, list) else round(len(prompt.split()) * 1.25) + 7


def _event(data: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps({"id": "x", "object": "completion", **data}).encode() + b"\n\n"


async def _once(text: str) -> AsyncIterator[bytes]:
    yield text.encode()


class _Body(httpx.AsyncByteStream):
    def __init__(self, parts: AsyncIterator[bytes]) -> None:
        self._parts = parts

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for part in self._parts:
            yield part

    async def aclose(self) -> None:
        await self._parts.aclose()  # type: ignore[attr-defined] # all of them are generators


class InProcess(httpx.AsyncBaseTransport):
    """Reaches an ``Api`` without sockets; its engines run while the transport is open."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> InProcess:
        self._tasks = [asyncio.create_task(engine.run()) for engine in self._api.engines]
        return self

    async def __aexit__(self, *_: object) -> None:
        await _stopped(self._tasks)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        status, headers, parts = await self._api.answer(
            request.method, request.url.path, dict(request.headers), request.content
        )
        return httpx.Response(status, headers=headers, stream=_Body(parts))


async def _stopped(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@asynccontextmanager
async def listening(api: Api) -> AsyncIterator[str]:
    """The ``Api`` on a loopback socket; gives its address."""
    tasks = [asyncio.create_task(engine.run()) for engine in api.engines]
    server = await asyncio.start_server(lambda reader, writer: _serve(api, reader, writer), "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        await _stopped(tasks)


async def _serve(api: Api, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """HTTP/1.1 with kept connections, as much as the client needs."""
    try:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            method, path, _ = head[0].split(" ")
            headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:] if line)}
            body = await reader.readexactly(int(headers.get("content-length", "0")))
            status, own, parts = await api.answer(method, path, headers, body)
            lines = [f"HTTP/1.1 {status} X", *(f"{name}: {value}" for name, value in own.items())]
            writer.write("\r\n".join([*lines, "transfer-encoding: chunked", "", ""]).encode())
            async for part in parts:
                writer.write(b"%x\r\n%s\r\n" % (len(part), part))
            writer.write(b"0\r\n\r\n")
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    finally:
        writer.close()


class _VirtualLoop(asyncio.SelectorEventLoop):
    """A loop whose clock jumps to the next timer as soon as nothing else is left to do."""

    def __init__(self) -> None:
        self.now_s = 0.0
        super().__init__(_Jumping(self))

    def time(self) -> float:
        return self.now_s


class _Jumping(selectors.DefaultSelector):
    def __init__(self, loop: _VirtualLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise RuntimeError("everything waits for everything else")
        self._loop.now_s += max(timeout, 0.0)
        return super().select(0)


def run_virtual(coroutine: Coroutine[Any, Any, T]) -> T:
    """Runs the coroutine on a virtual clock."""
    with asyncio.Runner(loop_factory=_VirtualLoop) as runner:
        return runner.run(coroutine)
