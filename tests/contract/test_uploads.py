"""PUT /v1/traces: the order of guide section 6, byte for byte."""

import base64
import errno
import gzip
import hashlib
import socket
import time
from pathlib import Path

import httpx
import pytest
from apptools import CSV, problem

from models.blobs import UploadWriter
from models.tables import Trace


def _leftovers(site) -> list[Path]:
    folder = site.made.services.settings.tmp_path
    return list(folder.iterdir()) if folder.exists() else []


def _traces(site) -> int:
    return len(site.http.get("/v1/traces").json()["items"])


def _digest(data: bytes) -> str:
    return f"sha-256=:{base64.b64encode(hashlib.sha256(data).digest()).decode()}:"


def test_upload_answers_202_with_the_job_and_the_trace(local):
    answer = local.http.put("/v1/traces", params={"name": "chat", "stream": "prod"}, content=CSV)
    assert answer.status_code == 202
    body = answer.json()
    assert answer.headers["location"] == f"/v1/jobs/{body['ingest_job_id']}"
    assert answer.headers["content-location"] == f"/v1/traces/{body['id']}"
    assert answer.headers["retry-after"] == "1"
    assert (body["name"], body["stream"], body["status"]) == ("chat", "prod", "ingesting")
    assert body["source_sha256"] == hashlib.sha256(CSV).hexdigest()
    assert body["source_bytes"] == len(CSV)
    assert body["requests"] is None
    job = local.http.get(answer.headers["location"]).json()
    assert (job["kind"], job["status"], job["trace_id"]) == ("ingest", "queued", body["id"])
    assert _leftovers(local) == []


def test_the_stored_bytes_are_the_bytes_sent(local):
    local.http.put("/v1/traces", content=CSV)
    with local.made.services.blobs.open(hashlib.sha256(CSV).hexdigest()) as file:
        assert file.read() == CSV


def test_ids_become_labels_unless_the_upload_keeps_them(local):
    made = local.http.put("/v1/traces", content=CSV).json()
    with local.made.services.database.read() as session:
        assert session.get_one(Trace, made["id"]).options["ids"] == "hash"
    other = local.http.put("/v1/traces?ids=keep", content=CSV).json()
    assert other["id"] != made["id"]
    assert problem(local.http.put("/v1/traces?ids=drop", content=CSV), 422)["errors"][0]["field"] == "ids"


def test_the_same_upload_is_one_trace(local):
    first = local.http.put("/v1/traces?name=one", content=CSV).json()
    again = local.http.put("/v1/traces?name=two", content=CSV)
    assert again.json()["id"] == first["id"]
    assert _traces(local) == 1


def test_a_ready_trace_uploaded_again_is_200(local):
    trace_id = local.http.put("/v1/traces", content=CSV).json()["id"]
    with local.made.services.database.write() as session:
        session.get(Trace, trace_id).status = "ready"
    again = local.http.put("/v1/traces", content=CSV)
    assert again.status_code == 200
    assert "location" not in again.headers


def test_other_options_make_another_trace(local):
    local.http.put("/v1/traces", content=CSV)
    local.http.put("/v1/traces?zone=Europe/Berlin", content=CSV)
    assert _traces(local) == 2


def test_gzip_is_stored_as_it_is(local):
    packed = gzip.compress(CSV, mtime=0)
    answer = local.http.put("/v1/traces", content=packed, headers={"Content-Encoding": "gzip"})
    assert answer.status_code == 202
    assert answer.json()["source_sha256"] == hashlib.sha256(packed).hexdigest()


def test_unknown_content_encoding_is_415(local):
    problem(local.http.put("/v1/traces", content=CSV, headers={"Content-Encoding": "br"}), 415)


def test_every_parameter_reaches_the_options(local):
    parameters = [
        ("map", "arrival=ts"),
        ("map", "prompt_tokens=in"),
        ("map", "output_tokens=out"),
        ("time_unit", "ms"),
        ("zone", "Europe/Berlin"),
        ("repeated_hour", "order"),
        ("clock_restarts", "follow"),
        ("keep_far_off", "true"),
        ("prompt_includes_cached", "false"),
        ("rows_are_requests", "true"),
        ("keep_duplicates", "true"),
        ("ignore_status", "true"),
        ("turn_lengths", "added"),
        ("block_size", "16"),
        ("max_rejected_share", "0.5"),
        ("ids", "keep"),
        ("year", "2024"),
        ("format", "generic"),
    ]
    body = local.http.put("/v1/traces", params=parameters, content=b"ts,in,out\n1,2,3\n").json()
    assert body["options"] == {
        "format": "generic",
        "mapping": {"arrival": "ts", "prompt_tokens": "in", "output_tokens": "out"},
        "time_unit": "ms",
        "time_zone": "Europe/Berlin",
        "repeated_hour": "order",
        "clock_restarts": "follow",
        "keep_far_off": True,
        "prompt_includes_cached": False,
        "rows_are_requests": True,
        "keep_duplicates": True,
        "ignore_status": True,
        "turn_lengths": "added",
        "block_size": 16,
        "max_rejected_share": 0.5,
        "ids": "keep",
        "year": 2024,
    }


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("time_unit=min", "time_unit"),
        ("zone=Mars/Olympus", "zone"),
        ("zone=../../etc/passwd", "zone"),
        ("map=arrival", "map"),
        ("map=nonsense=x", "map"),
        ("map=arrival=a&map=arrival=b", "map"),
        ("max_rejected_share=2", "max_rejected_share"),
        ("max_rejected_share=nan", "max_rejected_share"),
        ("block_size=0", "block_size"),
        ("name=" + "x" * 201, "name"),
        ("name=a%00b", "name"),
        ("stream=a/b", "stream"),
        ("format=" + "x" * 200, "format"),
    ],
)
def test_a_bad_parameter_is_named(local, query, field):
    body = problem(local.http.put(f"/v1/traces?{query}", content=CSV), 422)
    assert [error for error in body["errors"] if (error.get("field") or "").split(".")[0] == field]
    assert _traces(local) == 0


def test_an_empty_body_is_refused(local):
    problem(local.http.put("/v1/traces", content=b""), 422, "upload.empty")
    assert _leftovers(local) == []


def test_a_declared_length_over_the_limit_is_413_before_a_byte_is_read(serve):
    site = serve(upload_max_bytes=100)
    with _raw(site) as line:
        line.sendall(_head(site, "Content-Length: 101\r\nExpect: 100-continue\r\n"))
        answer = line.recv(65536)
    assert answer.startswith(b"HTTP/1.1 413")
    assert b"100 Continue" not in answer
    assert b"application/problem+json" in answer


def test_a_chunked_body_is_413_the_moment_the_limit_is_passed(serve):
    site = serve(upload_max_bytes=100_000)
    with _raw(site) as line:
        line.sendall(_head(site, "Transfer-Encoding: chunked\r\n"))
        for _ in range(11):
            line.sendall(b"2710\r\n" + b"x" * 10_000 + b"\r\n")
        answer = _until_closed(line)  # our body has not ended: only the limit can have ended it
    assert answer.startswith(b"HTTP/1.1 413")
    assert b"upload.too_large" in answer
    assert b"connection: close" in answer.lower()
    assert _leftovers(site) == []
    assert _traces(site) == 0


def test_the_limit_itself_is_allowed(serve):
    site = serve(upload_max_bytes=len(CSV))
    assert site.http.put("/v1/traces", content=CSV).status_code == 202


def test_a_matching_digest_is_accepted(local):
    answer = local.http.put("/v1/traces", content=CSV, headers={"Content-Digest": f"md5=:AAAA:, {_digest(CSV)}"})
    assert answer.status_code == 202


def test_a_wrong_digest_is_refused_and_nothing_is_kept(local):
    problem(
        local.http.put("/v1/traces", content=CSV, headers={"Content-Digest": _digest(b"other")}), 422, "digest_mismatch"
    )
    assert _leftovers(local) == []
    assert _traces(local) == 0
    assert not local.made.services.blobs.exists(hashlib.sha256(CSV).hexdigest())


@pytest.mark.parametrize("header", ["nonsense", "sha-512=:AAAA:", "sha-256=:AAAA:", "sha-256=:!!:", "sha-256=abc"])
def test_an_unreadable_digest_is_refused(local, header):
    problem(local.http.put("/v1/traces", content=CSV, headers={"Content-Digest": header}), 422, "upload.digest")


def test_a_truncated_body_leaves_nothing(local):
    with _raw(local) as line:
        line.sendall(_head(local, "Content-Length: 1000000\r\n") + b"x" * 1000)
    _wait_until(lambda: _leftovers(local) == [])
    assert _traces(local) == 0
    assert local.http.get("/healthz").status_code == 200


@pytest.mark.parametrize(("number", "word"), [(errno.ENOSPC, "full"), (errno.EIO, "storage")])
def test_a_disk_that_fails_is_a_503_and_nothing_is_kept(local, monkeypatch, number, word):
    def fails(*_args):
        raise OSError(number, "at /secret/place")

    monkeypatch.setattr(UploadWriter, "finish", fails)
    answer = local.http.put("/v1/traces", content=CSV)
    assert word in problem(answer, 503, "upload.storage")["detail"]
    assert "/secret/place" not in answer.text
    assert _leftovers(local) == []
    monkeypatch.undo()
    assert local.http.put("/v1/traces", content=CSV).status_code == 202


def test_no_key_is_401_before_the_body_is_read(keyed):
    with _raw(keyed) as line:
        line.sendall(_head(keyed, "Content-Length: 1000000\r\nExpect: 100-continue\r\n"))
        answer = line.recv(65536)
    assert answer.startswith(b"HTTP/1.1 401")
    assert b"100 Continue" not in answer


def test_a_quota_that_is_used_up_is_429(serve):
    site = serve(max_stored_bytes=len(CSV))
    assert site.http.put("/v1/traces", content=CSV).status_code == 202
    body = problem(site.http.put("/v1/traces?zone=UTC", content=CSV + b"2023-11-16 19:00:00,1,1\n"), 429)
    assert body["code"].startswith("limit")


def test_the_file_name_is_a_label_only(local):
    body = local.http.put("/v1/traces", params={"name": "../../etc/passwd"}, content=CSV).json()
    assert body["name"] == "../../etc/passwd"
    root = local.made.services.settings.data_dir
    assert not [path for path in root.rglob("*") if "passwd" in path.name]


def _raw(site) -> socket.socket:
    url = httpx.URL(site.address)
    return socket.create_connection((url.host, url.port), timeout=10)


def _until_closed(line: socket.socket) -> bytes:
    received = b""
    while data := line.recv(65536):
        received += data
    return received


def _head(site, extra: str) -> bytes:
    host = httpx.URL(site.address).netloc.decode()
    return f"PUT /v1/traces HTTP/1.1\r\nHost: {host}\r\n{extra}\r\n".encode()


def _wait_until(condition) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_chunked_body_is_429_the_moment_the_tenants_storage_is_full(serve):
    site = serve(max_stored_bytes=100_000)
    with _raw(site) as line:
        line.sendall(_head(site, "Transfer-Encoding: chunked\r\n"))
        for _ in range(11):
            line.sendall(b"2710\r\n" + b"x" * 10_000 + b"\r\n")
        answer = _until_closed(line)  # our body has not ended: only the limit can have ended it
    assert answer.startswith(b"HTTP/1.1 429")
    assert b"limit.stored_bytes" in answer
    assert _leftovers(site) == []
