"""Uploads in pieces after tus 1.0.0: broken lines, two writers, wrong offsets, other tenants, limits."""

import base64
import hashlib
import os
import socket
import time

import pytest
from apptools import CSV, TUS, problem

from api import resumable_uploads
from models.partial_uploads import PartialUploads
from worker import ticks

PIECE = TUS | {"Content-Type": "application/offset+octet-stream"}


SIZE = len(CSV)


def _meta(**values: str) -> str:
    return ",".join(f"{key} {base64.b64encode(value.encode()).decode()}" for key, value in values.items())


def _begin(site, length=SIZE, query="", **headers):
    answer = site.http.post(f"/v1/uploads{query}", headers=TUS | {"Upload-Length": str(length)} | headers)
    assert answer.status_code == 201, answer.text
    return answer.headers["location"]


def _send(site, where, piece, offset):
    return site.http.patch(where, content=piece, headers=PIECE | {"Upload-Offset": str(offset)})


def _offset(site, where):
    return int(site.http.head(where, headers=TUS).headers["upload-offset"])


def test_pieces_become_the_trace_that_one_body_would(local):
    where = _begin(local, query="?name=big&stream=prod&zone=UTC")
    assert _offset(local, where) == 0
    first = _send(local, where, CSV[:100], 0)
    assert (first.status_code, first.headers["upload-offset"]) == (204, "100")
    assert "content-location" not in first.headers
    last = _send(local, where, CSV[100:], 100)
    assert last.status_code == 204
    trace = local.http.get(last.headers["content-location"]).json()
    assert (trace["name"], trace["stream"]) == ("big", "prod")
    assert trace["source_sha256"] == hashlib.sha256(CSV).hexdigest()
    assert trace["options"]["time_zone"] == "UTC"
    assert last.headers["location"] == f"/v1/jobs/{trace['ingest_job_id']}"
    assert local.http.put("/v1/traces?zone=UTC&stream=prod", content=CSV).json()["id"] == trace["id"]
    assert local.made.work(trace["ingest_job_id"]) == "succeeded"


def test_a_client_that_lost_the_last_answer_finds_the_trace(local):
    where = _begin(local)
    done = _send(local, where, CSV, 0)
    again = local.http.head(where, headers=TUS)
    assert again.headers["upload-offset"] == again.headers["upload-length"] == str(len(CSV))
    assert again.headers["content-location"] == done.headers["content-location"]
    assert _send(local, where, b"", len(CSV)).headers["content-location"] == done.headers["content-location"]


def test_content_that_is_here_already_is_the_same_trace(local):
    known = local.http.put("/v1/traces", content=CSV).json()["id"]
    done = _send(local, _begin(local), CSV, 0)
    assert done.headers["content-location"] == f"/v1/traces/{known}"
    folder = local.made.services.settings.partial_path
    assert [path.suffix for path in folder.iterdir()] == [".json"], "no bytes are kept twice"


def test_what_came_of_a_broken_piece_is_kept(local):
    where = _begin(local)
    with socket.create_connection(("127.0.0.1", local.http.base_url.port)) as line:
        head = f"PATCH {where} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(CSV)}\r\nUpload-Offset: 0\r\n"
        line.sendall((head + "".join(f"{k}: {v}\r\n" for k, v in PIECE.items()) + "\r\n").encode() + CSV[:700])
        time.sleep(1)  # the server reads what it was sent before it learns that the line is gone
    deadline = time.monotonic() + 10
    while _offset(local, where) != 700 and time.monotonic() < deadline:
        time.sleep(0.02)
    assert _offset(local, where) == 700
    while (rest := _send(local, where, CSV[700:], 700)).status_code == 409 and time.monotonic() < deadline:
        time.sleep(0.02)  # the broken request still holds it
    assert "content-location" in rest.headers


def test_a_piece_for_another_place_is_refused_with_the_place(local):
    where = _begin(local)
    _send(local, where, CSV[:10], 0)
    for offset in (0, 9, 11, 10**9):
        assert "stands at 10" in problem(_send(local, where, b"x", offset), 409, "upload.offset")["detail"]
    assert _offset(local, where) == 10


def test_two_writers_do_not_mix(local):
    where = _begin(local)
    uploads = PartialUploads(local.made.services.settings.partial_path, 3600)
    held = uploads.open(uploads.get(local.made.tenants["local"], where.rsplit("/", 1)[-1]), 0)
    problem(_send(local, where, CSV, 0), 409, "upload.busy")
    held.close()
    assert _send(local, where, CSV, 0).status_code == 204


def test_more_than_was_declared_is_refused(local):
    where = _begin(local, length=50)
    problem(_send(local, where, CSV, 0), 422, "upload.too_long")
    assert _offset(local, where) == 0


def test_a_declared_hash_is_checked_at_the_end(local):
    wrong = _begin(local, **{"Upload-Metadata": _meta(sha256="0" * 64)})
    problem(_send(local, wrong, CSV, 0), 422, "digest_mismatch")
    problem(_send(local, wrong, CSV, 0), 404)
    right = _begin(local, **{"Upload-Metadata": _meta(sha256=hashlib.sha256(CSV).hexdigest(), filename="week.csv")})
    done = _send(local, right, CSV, 0)
    assert local.http.get(done.headers["content-location"]).json()["name"] == "week.csv"


def test_an_upload_given_up_is_gone(local):
    where = _begin(local)
    _send(local, where, CSV[:10], 0)
    assert local.http.delete(where, headers=TUS).status_code == 204
    assert local.http.head(where, headers=TUS).status_code == 404
    assert list(local.made.services.settings.partial_path.iterdir()) == []


def test_an_upload_that_gets_nothing_expires_and_is_swept(local):
    where = _begin(local)
    folder = local.made.services.settings.partial_path
    long_ago = time.time() - local.made.services.settings.partial_upload_ttl_s - 1
    for path in folder.iterdir():
        os.utime(path, (long_ago, long_ago))
    problem(_send(local, where, CSV, 0), 404)
    ticks.sweep(local.made.services)
    assert list(folder.iterdir()) == []


def test_another_tenant_sees_nothing(keyed):
    other, nobody = keyed.client(keyed.made.keys["b"]), keyed.client(None)
    where = _begin(keyed, length=10)
    assert other.head(where, headers=TUS).status_code == 404
    problem(other.patch(where, headers=PIECE | {"Upload-Offset": "0"}, content=b"x"), 404)
    problem(other.delete(where, headers=TUS), 404)
    problem(nobody.patch(where, headers=PIECE | {"Upload-Offset": "0"}, content=b"x"), 401)
    problem(nobody.post("/v1/uploads", headers=TUS | {"Upload-Length": "10"}), 401)
    assert _offset(keyed, where) == 0


@pytest.mark.parametrize(
    ("headers", "status", "code"),
    [
        ({"Upload-Length": "10"}, 412, "tus_version"),
        ({"Upload-Length": "10", "Tus-Resumable": "0.2.2"}, 412, "tus_version"),
        (TUS, 400, "upload.header"),
        (TUS | {"Upload-Length": "-1"}, 400, "upload.header"),
        (TUS | {"Upload-Length": "1e9"}, 400, "upload.header"),
        (TUS | {"Upload-Length": "0"}, 400, "upload.empty"),
        (TUS | {"Upload-Length": "9" * 18}, 413, "upload.too_large"),
        (TUS | {"Upload-Defer-Length": "1"}, 400, "upload.header"),
        (TUS | {"Upload-Length": "10", "Upload-Metadata": "filename !!"}, 400, "upload.header"),
        (TUS | {"Upload-Length": "10", "Upload-Metadata": _meta(sha256="abc")}, 400, "upload.header"),
        (TUS | {"Upload-Length": "10", "Upload-Metadata": _meta(filename="a\nb")}, 400, "upload.header"),
    ],
)
def test_a_creation_that_is_wrong_says_how(local, headers, status, code):
    answer = local.http.post("/v1/uploads", headers=headers)
    problem(answer, status, code)
    assert (answer.headers.get("tus-version") == "1.0.0") == (status == 412)


def test_a_piece_of_another_type_is_refused(local):
    where = _begin(local)
    problem(local.http.patch(where, content=CSV, headers=TUS | {"Upload-Offset": "0"}), 415)


def test_options_tell_what_is_spoken(local):
    answer = local.http.options("/v1/uploads")
    assert answer.status_code == 204
    assert answer.headers["tus-version"] == "1.0.0"
    assert answer.headers["tus-extension"] == "creation,expiration,termination"
    assert int(answer.headers["tus-max-size"]) == local.made.services.settings.upload_max_bytes


def test_unfinished_uploads_are_bounded(local, monkeypatch):
    monkeypatch.setattr(resumable_uploads, "MAX_OPEN", 2)
    first = _begin(local)
    _begin(local)
    problem(local.http.post("/v1/uploads", headers=TUS | {"Upload-Length": "10"}), 429, "limit.uploads")
    local.http.delete(first, headers=TUS)
    _begin(local)
