"""Routes that read JSON strictly: who asks is known before the body is read, and its size and depth are bounded."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Coroutine
from difflib import get_close_matches
from typing import Any, NoReturn

from fastapi import Request
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from api.auth import authenticate
from api.errors import MediaTypeError
from models.errors import InvalidError, TooLargeError
from replay.errors import FieldError

MAX_JSON_BYTES = 1024**2
MAX_JSON_DEPTH = 32
_INT64 = 2**63
_JSON = re.compile(r"^application/([\w.+-]+\+)?json\s*(;|$)", re.IGNORECASE)
_BAD_TEXT = re.compile("[\x00\ud800-\udfff]")
_TOKENS = re.compile(rb'"(?:[^"\\]|\\.)*+"?|[\[\]{}]', re.DOTALL)


def _refuse(detail: str, rule: str) -> NoReturn:
    raise InvalidError(detail, code="json.invalid", errors=[FieldError(detail, field="body", rule=rule)])


def _check_depth(body: bytes) -> None:
    depth = 0
    for token in _TOKENS.finditer(body):
        first = token.group()[0]
        if first in b"[{":
            depth += 1
            if depth > MAX_JSON_DEPTH:
                _refuse(f"the JSON is nested deeper than {MAX_JSON_DEPTH} levels", "depth")
        elif first in b"]}":
            depth -= 1


def _float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        _refuse(f"the number {text[:40]} is too large", "finite")
    return value


def _int(text: str) -> int:
    if len(text) > 20 or not -_INT64 <= (value := int(text)) < _INT64:
        _refuse(f"the number {text[:40]} is too large: whole numbers have at most 63 bits", "int64")
    return value


def _constant(text: str) -> NoReturn:
    _refuse(f"{text} is not JSON: numbers must be finite", "finite")


def _check_text(value: Any) -> None:
    """Refuses what no database stores: NUL, and halves of surrogate pairs."""
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, str):
            if _BAD_TEXT.search(item):
                _refuse("a text holds a NUL or half of a surrogate pair", "text")
        elif isinstance(item, dict):
            pending.extend(item.keys())
            pending.extend(item.values())
        elif isinstance(item, list):
            pending.extend(item)


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        _refuse("a name occurs twice in one JSON object", "duplicate")
    return result


def parse_json(body: bytes) -> Any:
    """JSON of at most 32 levels with finite numbers, int64 integers, storable text and no repeated names.

    Raises:
        InvalidError: naming the rule.
    """
    _check_depth(body)
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError:
        _refuse("the body is not UTF-8", "utf8")
    try:
        value = json.loads(
            text, parse_float=_float, parse_int=_int, parse_constant=_constant, object_pairs_hook=_no_duplicates
        )
    except json.JSONDecodeError as error:
        _refuse(f"the body is not JSON: {error.msg} at line {error.lineno}, column {error.colno}", "syntax")
    _check_text(value)
    return value


class _ParsedRequest(Request):
    """A request whose body was read and parsed before."""

    def __init__(self, request: Request, body: bytes, value: Any) -> None:
        super().__init__(request.scope, request.receive)
        self._parsed_body, self._parsed_value = body, value

    async def body(self) -> bytes:
        return self._parsed_body

    async def json(self) -> Any:
        return self._parsed_value


async def _read_bounded(request: Request) -> bytes:
    too_large = TooLargeError(f"a JSON body has at most {MAX_JSON_BYTES} bytes", code="too_large.json")
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > MAX_JSON_BYTES:
        raise too_large
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_JSON_BYTES:
            raise too_large
    return bytes(body)


def _query_names(dependant: Dependant) -> set[str]:
    """Names of the query parameters of a route and of all that it depends on."""
    return {field.alias for field in dependant.query_params}.union(*map(_query_names, dependant.dependencies))


def check_query(request: Request, known: frozenset[str]) -> None:
    """Raises InvalidError for a query parameter that is not ``known``."""
    unknown = sorted(set(request.query_params) - known)
    if not unknown:
        return
    faults = []
    for name in unknown[:20]:
        near = get_close_matches(name, known, n=1)
        cure = f"did you mean {near[0]}?" if near else f"this route takes {', '.join(sorted(known)) or 'none'}"
        faults.append(FieldError(f"no such query parameter; {cure}", field=name[:100], rule="unknown", cure=cure))
    raise InvalidError(f"{faults[0].field}: {faults[0].detail}", code="query.unknown", errors=faults)


class StrictRoute(APIRoute):
    """The route class of ``/v1``: authenticates first, refuses query parameters that it does not know, then reads a
    body, which must be JSON where one is expected."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler = super().get_route_handler()
        reads_json = self.body_field is not None
        known = frozenset(_query_names(self.dependant))

        async def strict(request: Request) -> Response:
            if reads_json or request.query_params:
                await run_in_threadpool(authenticate, request)
            check_query(request, known)
            if not reads_json:
                return await handler(request)
            body = await _read_bounded(request)
            if body and not _JSON.match(request.headers.get("content-type", "")):
                raise MediaTypeError("this route reads JSON: send the header Content-Type: application/json")
            request.state.body_sha256 = hashlib.sha256(body).hexdigest()
            return await handler(_ParsedRequest(request, body, parse_json(body) if body else None))

        return strict
