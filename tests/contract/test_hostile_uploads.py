"""Hostile uploads end to end at the HTTP level: each is a 4xx problem, or a job that failed and says why."""

import gzip
import io
import json
import random
import struct
import tarfile
import zipfile
import zlib
from contextlib import ExitStack

import polars as pl
import pytest
import zstandard
from apptools import CSV, PLAN, problem, start_site

AZURE = b"TIMESTAMP,ContextTokens,GeneratedTokens\n"
ROW = b"2023-11-16 18:17:03.9799600,4808,10\n"
LIMITS = {
    "upload_max_bytes": 8 * 1024**2,
    "ingest_max_decompressed_bytes": 64 * 1024**2,
    "ingest_max_rows": 10_000,
    "ingest_max_line_bytes": 64 * 1024,
    "ingest_max_columns": 100,
}


def _rows(*cells: str) -> bytes:
    """An Azure file in which every row has these cells."""
    return AZURE + b"".join(f"{','.join(cells)}\n".encode() for _ in range(30))


def _jsonl(**change: object) -> bytes:
    row = {"timestamp": 1, "input_length": 5, "output_length": 2, "hash_ids": [1]} | change
    return b"".join(json.dumps(row).encode() + b"\n" for _ in range(30))


def _zeros(megabytes: int) -> bytes:
    packer = zlib.compressobj(9, wbits=31)
    block = b"0" * 1024**2
    return b"".join(packer.compress(block) for _ in range(megabytes)) + packer.flush()


def _parquet(frame: pl.DataFrame) -> bytes:
    out = io.BytesIO()
    frame.write_parquet(out)
    return out.getvalue()


def _zip() -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("../../etc/cron.d/x", CSV)
        archive.writestr("second-../../etc/cron.d/x", CSV)
    return out.getvalue()


def _tar() -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        info = tarfile.TarInfo("../../trace.csv")
        info.size = len(CSV)
        archive.addfile(info, io.BytesIO(CSV))
    return out.getvalue()


CASES: dict[str, bytes] = {
    "empty": b"",
    "one byte": b"x",
    "one newline": b"\n",
    "only newlines": b"\n" * 1000,
    "only blanks": b" " * 1000,
    "header only": AZURE,
    "header without its newline": AZURE.strip(),
    "header twice and nothing": AZURE + AZURE,
    "rows without a header": ROW * 50,
    "wrong columns": b"a,b,c\n1,2,3\n4,5,6\n",
    "one right column": b"TIMESTAMP,x,y\n2023-11-16 18:17:03,1,2\n",
    "a header of nothing": b",,\n1,2,3\n",
    "the same column twice": b"TIMESTAMP,TIMESTAMP,ContextTokens\n1,2,3\n",
    "not a number": _rows("2023-11-16 18:17:03", "many", "10"),
    "NaN tokens": _rows("2023-11-16 18:17:03", "NaN", "10"),
    "infinite tokens": _rows("2023-11-16 18:17:03", "inf", "10"),
    "negative tokens": _rows("2023-11-16 18:17:03", "-4808", "10"),
    "1e30 tokens": _rows("2023-11-16 18:17:03", "1e30", "10"),
    "tokens beyond int64": _rows("2023-11-16 18:17:03", "9" * 40, "10"),
    "half a token": _rows("2023-11-16 18:17:03", "0.5", "10"),
    "no time": _rows("", "10", "10"),
    "a time that is no time": _rows("yesterday", "10", "10"),
    "a day that is not in the calendar": _rows("2023-02-30 18:17:03", "10", "10"),
    "NaN time": _rows("NaN", "10", "10"),
    "formula cells": _rows("=cmd|' /C calc'!A0", "10", "10"),
    "rows cut short": AZURE + b"2023-11-16 18:17:03\n" * 50,
    "rows too long": AZURE + b"2023-11-16 18:17:03,1,2,3,4,5,6\n" * 50,
    "a quote that never ends": AZURE + b'"2023-11-16 18:17:03,1,2\n' * 50,
    "too many rows": AZURE + ROW * 10_001,
    "too many columns": b",".join(b"c%d" % i for i in range(101)) + b"\n",
    "a line that never ends": AZURE + b"2" * 4 * 1024**2,
    "a header that never ends": b"T" * 4 * 1024**2,
    "nul bytes": b"\0" * 100_000,
    "noise": random.Random(1).randbytes(100_000),
    "noise with newlines": random.Random(2).randbytes(100_000).replace(b"\x07", b"\n"),
    "utf-16": ("\ufeff" + CSV.decode()).encode("utf-16-le"),
    "utf-32": ("\ufeff" + CSV.decode()).encode("utf-32-be"),
    "latin-1 in a number": AZURE + b"2023-11-16 18:17:03,\xe9\xe8,10\n" * 30,
    "truncated gzip": gzip.compress(CSV * 100)[:-20],
    "gzip with a bad checksum": gzip.compress(CSV, mtime=0)[:-8] + b"\0" * 8,
    "a gzip header alone": b"\x1f\x8b\x08\x00",
    "gzip in gzip": gzip.compress(gzip.compress(CSV)),
    "gzip bomb": _zeros(2048),
    "gzip bomb behind good rows": gzip.compress(CSV) + _zeros(2048),
    "truncated zstd": zstandard.compress(CSV * 100)[:-10],
    "zstd bomb": zstandard.compress(b"0" * 256 * 1024**2),
    "zip of two files": _zip(),
    "tar in gzip": _tar(),
    "a json array cut short": json.dumps([{"timestamp": 1, "input_length": 5, "output_length": 2}] * 30).encode()[:-40],
    "a json array of arrays": json.dumps([[1, 5, 2]] * 30).encode(),
    "json without fields": b'{"a": 1}\n' * 30,
    "json with broken lines": b'{"timestamp": 1, "input_length": \n' * 30,
    "json nested deeply": b'{"timestamp": ' + b"[" * 20_000 + b"]" * 20_000 + b"}\n",
    "json negative": _jsonl(input_length=-5),
    "json 1e30": _jsonl(output_length=1e30),
    "json strings for numbers": _jsonl(input_length="five"),
    "json times that go to nan": b'{"timestamp": NaN, "input_length": 5, "output_length": 2}\n' * 30,
    "json hash ids of text": _jsonl(hash_ids="abc"),
    "parquet magic alone": b"PAR1" + struct.pack("<i", 2**31 - 1) + b"PAR1",
    "parquet cut short": _parquet(pl.DataFrame({"arrival": [1.0], "prompt_tokens": [1], "output_tokens": [1]}))[:-30],
    "parquet with other columns": _parquet(pl.DataFrame({"x": [1.0], "y": [1]})),
    "parquet with negative tokens": _parquet(
        pl.DataFrame({"arrival": [1.0] * 9, "prompt_tokens": [-5] * 9, "output_tokens": [1] * 9})
    ),
    "html": b"<!doctype html><html><body>log in first</body></html>\n",
    "git lfs pointer": b"version https://git-lfs.github.com/spec/v1\noid sha256:abc\nsize 12345\n",
}


@pytest.fixture(scope="module")
def site(tmp_path_factory, template):
    """One service for all of them: it must stay healthy."""
    with ExitStack() as stack:
        yield start_site(stack, tmp_path_factory.mktemp("hostile"), template, LIMITS)


@pytest.mark.parametrize("name", CASES)
def test_a_hostile_upload_is_refused_with_a_reason(site, name):
    answer = site.http.put("/v1/traces", params={"name": name}, content=CASES[name])
    if answer.status_code != 202:
        assert 400 <= answer.status_code < 500
        problem(answer, answer.status_code)
    else:
        trace = answer.json()
        assert site.made.work(trace["ingest_job_id"]) == "failed"
        job = site.http.get(answer.headers["location"])
        error = job.json()["error"]
        assert job.json()["status"] == "failed"
        assert error["code"] not in ("internal", "worker_lost"), error
        assert error["detail"]
        assert error["errors"], error
        for fault in error["errors"]:
            assert fault["cure"] or fault["detail"] or fault["rule"]
        assert "Traceback" not in job.text
        assert "polars" not in job.text.lower()
        assert ".py" not in job.text
        assert site.http.get(f"/v1/traces/{trace['id']}").json()["status"] == "failed"
        refused = problem(site.http.get(f"/v1/traces/{trace['id']}/cleaning-report"), 422, error["code"])
        assert refused["detail"] == error["detail"]
        problem(site.http.post("/v1/plans", json={**PLAN, "trace_id": trace["id"]}), 409, "trace.failed")
    assert site.http.get("/v1/reports").json()["items"] == []
    assert site.http.get("/readyz").status_code == 200


def test_there_are_fifty_of_them():
    assert len(CASES) >= 50


def test_unknown_columns_say_what_was_found_and_what_is_needed(site):
    answer = site.http.put("/v1/traces", content=b"when,in,out\n1,2,3\n4,5,6\n")
    site.made.work(answer.json()["ingest_job_id"])
    refused = site.http.get(f"{answer.headers['content-location']}/cleaning-report")
    text = json.dumps(problem(refused, 422))
    for word in ("when", "in", "out", "arrival", "prompt_tokens", "output_tokens", "map"):
        assert word in text


def test_bad_rows_are_named_by_line_column_and_rule(site):
    answer = site.http.put("/v1/traces", content=AZURE + ROW * 3 + b"2023-11-16 18:17:04,minus one,10\n" * 5)
    site.made.work(answer.json()["ingest_job_id"])
    refused = problem(site.http.get(f"{answer.headers['content-location']}/cleaning-report"), 422)
    places = [(fault.get("line"), fault.get("column")) for fault in refused["errors"] if fault.get("line")]
    assert (5, "ContextTokens") in places
    assert all(fault["rule"] for fault in refused["errors"] if fault.get("line"))


def test_a_failed_upload_may_be_repeated_and_a_good_one_still_works(site):
    bad = b"a,b\n1,2\n"
    first = site.http.put("/v1/traces", content=bad).json()
    site.made.work(first["ingest_job_id"])
    second = site.http.put("/v1/traces", content=bad)
    assert second.status_code == 202
    assert second.json()["id"] != first["id"]
    good = site.http.put("/v1/traces", content=CSV)
    assert site.made.work(good.json()["ingest_job_id"]) == "succeeded"
    assert site.http.get(f"/v1/traces/{good.json()['id']}").json()["requests"] == 60
