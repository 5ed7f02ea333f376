"""Problems encode whatever text an error carries."""

import json

from starlette.requests import Request

from api.problems import app_error_response, replay_error_response
from models.errors import ConflictError, LimitError
from replay.errors import FieldError, TraceError


def _request(path: str = "/v1/x") -> Request:
    scope = {"type": "http", "method": "GET", "path": path, "headers": [], "query_string": b"", "server": ("h", 1)}
    return Request({**scope, "scheme": "http", "state": {"request_id": "r1"}})


def test_lone_surrogates_and_long_texts_are_told_safely():
    error = TraceError(
        "trace.bad", "a\ud800b" + "x" * 10_000, [FieldError("c\udfff", column="\ud800", line=3, rule="r")]
    )
    body = json.loads(replay_error_response(_request(), error).body)
    assert body["detail"].startswith("a?b")
    assert len(body["detail"]) <= 2000
    assert body["errors"] == [{"detail": "c?", "column": "?", "line": 3, "rule": "r"}]
    assert body["status"] == 422


def test_retry_after_is_a_header():
    answer = app_error_response(_request(), LimitError("wait", retry_after_s=7))
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "7")


def test_twenty_errors_at_most():
    error = ConflictError("many", errors=[FieldError(str(i)) for i in range(50)])
    body = json.loads(app_error_response(_request(), error).body)
    assert [fault["detail"] for fault in body["errors"]] == [str(i) for i in range(20)]


def test_the_path_is_bounded():
    body = json.loads(app_error_response(_request("/" + "x" * 5000), ConflictError("c")).body)
    assert len(body["instance"]) == 500
