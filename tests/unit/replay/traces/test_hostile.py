"""Hostile and broken uploads: each is refused with its own code, or loses exactly its bad rows with line and rule."""

import gzip
import io
import json
import os
import pickle
import zipfile
from collections.abc import Callable
from datetime import date, datetime

import polars as pl
import pytest
import zstandard
from pydantic import ValidationError

from replay.errors import TraceError
from replay.traces.ingest import ingest
from replay.traces.options import IngestOptions

HEADER = "arrival_s,prompt_tokens,output_tokens\n"
GOOD = HEADER + "".join(f"{i}.5,100,10\n" for i in range(50))
MAP = {"arrival": "t", "prompt_tokens": "p", "output_tokens": "o"}


def mapped(*times: object) -> str:
    return "t,p,o\n" + "".join(f"{time},100,10\n" for time in times)


def jsonl(*rows: object) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def mooncake(n: int = 40, size: int = 512, **changes: object) -> list[dict[str, object]]:
    return [
        {"timestamp": i * 100, "input_length": 1000, "output_length": 10, "hash_ids": list(range(-(-1000 // size)))}
        | changes
        for i in range(n)
    ]


def parquet(frame: pl.DataFrame) -> bytes:
    buffer = io.BytesIO()
    frame.write_parquet(buffer)
    return buffer.getvalue()


def zipped(*files: str | bytes, name: str = "trace{}.csv", kind: int = zipfile.ZIP_STORED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", kind) as archive:
        for number, data in enumerate(files):
            archive.writestr(name.format(number), data)
    return buffer.getvalue()


GZ = gzip.compress(GOOD.encode(), mtime=0)
ZST = zstandard.compress(GOOD.encode() * 50)
BLANK_BOMB = gzip.compress(b"\n" * 40_000_000, mtime=0)

# name -> (bytes, options, code, part of the detail)
REFUSED: dict[str, tuple[bytes | str, dict[str, object], str, str]] = {
    "empty": (b"", {}, "trace.empty", "empty"),
    "blank lines only": ("\n\n  \n", {}, "trace.empty", "blank lines"),
    "byte order mark only": (b"\xef\xbb\xbf", {}, "trace.empty", "blank lines"),
    "gzip of nothing": (gzip.compress(b""), {}, "trace.empty", "nothing once decompressed"),
    "header only": (HEADER, {}, "trace.no_rows", "no rows"),
    "gzip cut off": (GZ[:-20], {}, "trace.truncated", "ends in the middle"),
    "gzip cut off in its trailer": (GZ[:-3], {}, "trace.truncated", "ends in the middle"),
    "gzip header alone": (GZ[:10], {}, "trace.truncated", "ends in the middle"),
    "gzip damaged": (GZ[:60] + bytes([GZ[60] ^ 255]) + GZ[61:], {}, "trace.corrupt", "damaged"),
    "gzip with a wrong checksum": (GZ[:-8] + b"\0\0\0\0" + GZ[-4:], {}, "trace.corrupt", "damaged"),
    "gzip and garbage": (GZ + b"garbage", {}, "trace.corrupt", "damaged"),
    "gzip bomb of blank lines": (BLANK_BOMB, {}, "trace.ratio", "bomb"),
    "gzip bomb of one line": (gzip.compress(b"a" * 40_000_000), {}, "trace.ratio", "bomb"),
    "zstd bomb": (zstandard.compress(b"\n" * 100_000_000), {}, "trace.ratio", "bomb"),
    "zstd cut off": (ZST[:-5], {}, "trace.truncated", "ends in the middle"),
    "zstd damaged": (ZST[:10] + b"\xff\xff\xff\xff" + ZST[14:], {}, "trace.corrupt", "damaged"),
    "gzip in gzip": (gzip.compress(GZ), {}, "trace.nested", "inside a compressed file"),
    "zstd in gzip": (gzip.compress(ZST), {}, "trace.nested", "inside a compressed file"),
    "Parquet in gzip": (gzip.compress(b"PAR1" + b"x" * 50), {}, "trace.nested", "inside a compressed file"),
    "zip of two files": (zipped(GOOD, GOOD), {}, "trace.container", "holds 2 files"),
    "zip of nothing": (zipped(), {}, "trace.container", "empty zip"),
    "zip cut off": (zipped(GOOD)[:-30], {}, "trace.corrupt", "damaged"),
    "zip with a wrong checksum": (zipped(GOOD).replace(b"1.5,100", b"1.5,900"), {}, "trace.corrupt", "damaged"),
    "zip of a gzip": (zipped(GZ), {}, "trace.nested", "inside a compressed file"),
    "zip bomb": (zipped(b"\n" * 40_000_000, kind=zipfile.ZIP_DEFLATED), {}, "trace.ratio", "bomb"),
    "Excel workbook": (zipped(GOOD, name="[Content_Types].xml"), {}, "trace.container", "Excel"),
    "xz": (b"\xfd7zXZ\x00" + b"x" * 50, {}, "trace.container", "xz"),
    "bzip2": (b"BZh9" + b"x" * 50, {}, "trace.container", "bzip2"),
    "Python pickle": (pickle.dumps({"a": 1}, protocol=4), {}, "trace.container", "pickle"),
    "SQLite": (b"SQLite format 3\x00" + b"x" * 50, {}, "trace.container", "SQLite"),
    "UTF-16 with a mark": (GOOD.encode("utf-16"), {}, "trace.encoding", "UTF-16"),
    "UTF-16 without one": (GOOD.encode("utf-16-le"), {}, "trace.binary", "NUL"),
    "UTF-16 in gzip": (gzip.compress(GOOD.encode("utf-16")), {}, "trace.encoding", "UTF-16"),
    "UTF-32": (GOOD.encode("utf-32"), {}, "trace.encoding", "UTF-32"),
    "binary": (bytes(range(256)) * 40, {}, "trace.binary", "NUL"),
    "a line over the limit": (
        HEADER + "1" * 200 + ",1,1\n",
        {"limits": {"max_line_bytes": 100}},
        "trace.line_too_long",
        "line 2",
    ),
    "more rows than the limit": (GOOD, {"limits": {"max_rows": 49}}, "trace.too_many_rows", "49"),
    "more bytes than the limit": (GZ, {"limits": {"max_decompressed_bytes": 300}}, "trace.too_large", "300"),
    "more columns than the limit": (",".join(f"c{i}" for i in range(501)) + "\n", {}, "trace.too_many_columns", "501"),
    "a repeated column": (
        "arrival_s,prompt_tokens,prompt_tokens,output_tokens\n1,2,3,4\n",
        {},
        "trace.duplicate_columns",
        "prompt_tokens",
    ),
    "no header": ("0.5,100,10\n1.5,100,10\n", {}, "trace.no_header", "data, not column names"),
    "other columns": ("when,size\n1,2\n", {}, "trace.unknown_columns", "when, size"),
    "a web page": ("<!DOCTYPE html>\n<html><body>502</body></html>\n", {}, "trace.container", "a web page"),
    "line breaks of CR alone": (GOOD.replace("\n", "\r"), {}, "trace.line_breaks", "CR alone"),
    "a mapping to no column": (
        mapped(1),
        {"mapping": MAP | {"arrival": "when"}},
        "trace.unknown_columns",
        "arrival=when",
    ),
    "half a mapping": (mapped(1), {"mapping": {"arrival": "t"}}, "trace.unknown_columns", "no known format"),
    "one column for two fields": (mapped(1), {"mapping": MAP | {"output_tokens": "p"}}, "trace.mapping", "two fields"),
    "a mapping and a format": (GOOD, {"mapping": MAP, "format": "capreplay-csv"}, "trace.mapping", "fixes its own"),
    "an unknown format": (GOOD, {"format": "parrot"}, "trace.unknown_format", "parrot"),
    "the wrong format": (GOOD, {"format": "mooncake"}, "trace.wrong_format", "input_length"),
    "times of no stated unit": (mapped(1, 2, 3), {"mapping": MAP}, "trace.ambiguous_unit", "time_unit"),
    "epoch s and ms mixed": (
        mapped(1_700_000_000, 1_700_000_000_500),
        {"mapping": MAP},
        "trace.ambiguous_unit",
        "mix units",
    ),
    "Excel day numbers": (mapped(45_123.5, 45_123.6), {"mapping": MAP}, "trace.ambiguous_unit", "time_unit"),
    "zones mixed": (
        mapped("2024-01-01T00:00:00Z", "2024-01-01T00:00:01"),
        {"mapping": MAP},
        "trace.mixed_zones",
        "mixes",
    ),
    "times in words": (mapped("yesterday", "today"), {"mapping": MAP}, "trace.time_unreadable", "'yesterday'"),
    "day first or month first": (
        mapped("05/06/2024 10:00", "05/06/2024 10:01"),
        {"mapping": MAP},
        "trace.time_unreadable",
        "05/06",
    ),
    "all lengths zero": (HEADER + "1,0,0\n2,0,0\n", {}, "trace.no_lengths", "prompt_tokens"),
    "all outputs empty": (HEADER + "1,5,\n2,6,\n", {}, "trace.no_lengths", "output_tokens"),
    "a JSON array of junk": ('[1, "a", null, [], true]', {}, "trace.unknown_columns", "no known format"),
    "JSON lines with half of a surrogate pair in a key": (r'{"a\ud800b":1,"x":2}', {}, "trace.json", r"a\ud800b"),
    "JSON lines with NUL in a key": (r'{"a\u0000b":1,"x":2}', {}, "trace.json", r"a\u0000b"),
    "a JSON array with NUL in a key": (r'[{"a\u0000b":1,"x":2}]', {}, "trace.unknown_columns", "no known format"),
    "an empty JSON array": ("[]", {}, "trace.unknown_columns", "no known format"),
    "a JSON array cut off": (
        '[{"arrival_s":1,"prompt_tokens":2,"output_tokens":3},\n{"arr',
        {},
        "trace.json",
        "line 2",
    ),
    "a JSON array and more": (
        '[{"arrival_s":1,"prompt_tokens":2,"output_tokens":3}]\n[]',
        {},
        "trace.json",
        "closing bracket",
    ),
    "a JSON array without commas": (
        '[{"arrival_s":1,"prompt_tokens":2,"output_tokens":3} {}]',
        {},
        "trace.json",
        "',' expected",
    ),
    "JSON nested without end": ("[" * 200_000, {}, "trace.json", "line 1"),
    "one JSON object over many lines": (json.dumps({"data": [1]}, indent=1), {}, "trace.unknown_columns", "data"),
    "one JSON object that is cut off": (json.dumps({"data": [1]}, indent=1)[:-3], {}, "trace.json", "line 1"),
    "one JSON object over the limit": (
        json.dumps({"data": [1] * 99}, indent=1),
        {"limits": {"max_document_bytes": 100}},
        "trace.unknown_columns",
        "data",
    ),
    "JSON lines with commas between": (
        '{"arrival_s":1,"prompt_tokens":2,"output_tokens":3},\n' * 3,
        {},
        "trace.json",
        "line 1",
    ),
    "naive times": (
        mapped("2024-01-01 00:00:00", "2024-01-01 00:00:01"),
        {"mapping": MAP},
        "trace.ambiguous_zone",
        "zone",
    ),
    "an hour that occurs twice": (
        mapped("2024-10-27 02:30:00", "2024-10-27 04:30:00"),
        {"mapping": MAP, "time_zone": "Europe/Berlin"},
        "trace.ambiguous_hour",
        "2024-10-27 02:30:00",
    ),
    "epoch seconds in a column of ms": (
        "arrival_ms,p,o\n" + "".join(f"{1_700_000_000 + i},100,10\n" for i in range(5)),
        {"mapping": MAP | {"arrival": "arrival_ms"}},
        "trace.ambiguous_unit",
        "look like epoch s",
    ),
    "cached tokens, inside or outside": (
        "t_s,p,o,cache_hits\n" + "".join(f"{i},100,10,50\n" for i in range(5)),
        {"mapping": MAP | {"arrival": "t_s", "cached_tokens": "cache_hits"}},
        "trace.ambiguous_cached",
        "prompt_includes_cached",
    ),
    "Anthropic's cached tokens forgotten": (
        "t_s,p,o,cache_read_input_tokens\n" + "".join(f"{i},100,10,5000\n" for i in range(5)),
        {"mapping": MAP | {"arrival": "t_s"}},
        "trace.ambiguous_cached",
        "map cached_tokens=cache_read_input_tokens",
    ),
    "sums with a count of requests": (
        "arrival_s,prompt_tokens,output_tokens,num_requests\n" + "".join(f"{i * 7 % 50},100,10,4\n" for i in range(30)),
        {},
        "trace.aggregate",
        "num_requests",
    ),
    "a row a minute": (HEADER + "".join(f"{i * 60},1000,10\n" for i in range(30)), {}, "trace.aggregate", "60 s"),
    "a huge row every 10 s": (
        HEADER + "".join(f"{i * 10},90000,10\n" for i in range(30)),
        {},
        "trace.aggregate",
        "10 s",
    ),
    "dotted thousands": (
        HEADER + "".join(f"{i},1.000,2.000\n" for i in range(9)),
        {},
        "trace.grouped_digits",
        "9 of 9",
    ),
    "JSON lines of other keys": (jsonl({"a": 1}), {}, "trace.unknown_columns", "Found (jsonl): a"),
    "block ids of another size": (jsonl(*mooncake(size=16)), {}, "trace.block_size", "block_size=16 fits"),
    "another wrong format": (GOOD, {"format": "mooncake-sessions"}, "trace.wrong_format", "delay"),
    "Mooncake times with fractions": (jsonl(*mooncake(timestamp=0.5)), {}, "trace.ambiguous_unit", "fractions"),
    "own ids without a block size": (
        jsonl({"arrival_s": 1, "prompt_tokens": 9, "output_tokens": 1, "prefix_blocks": [1]}),
        {},
        "trace.block_size",
        "how many tokens",
    ),
    "sessions without any time": (
        jsonl({"session_id": "a", "input_length": 1, "output_length": 1, "delay": 5, "timestamp": None}),
        {},
        "trace.too_many_rejected",
        "missing_predecessor",
    ),
    "Parquet cut off": (parquet(pl.DataFrame({"a": [1]}))[:-9], {}, "trace.parquet", "cannot be read"),
    "Parquet magic and noise": (b"PAR1" + os.urandom(500) + b"PAR1", {}, "trace.parquet", "cannot be read"),
    "Parquet of other columns": (parquet(pl.DataFrame({"a": [1]})), {}, "trace.unknown_columns", "Found (parquet): a"),
    "Parquet without rows": (
        parquet(pl.DataFrame(schema={"arrival_s": pl.Float64, "prompt_tokens": pl.Int64, "output_tokens": pl.Int64})),
        {},
        "trace.no_rows",
        "no rows",
    ),
    "Parquet with dates for times": (
        parquet(pl.DataFrame({"arrival_s": [date(2024, 1, 1)], "prompt_tokens": [1], "output_tokens": [1]})),
        {},
        "trace.time_unreadable",
        "2024-01-01",
    ),
    "Parquet with true and false for tokens": (
        parquet(pl.DataFrame({"arrival_s": [1.0], "prompt_tokens": [True], "output_tokens": [1]})),
        {},
        "trace.too_many_rejected",
        "not_a_number",
    ),
    "quotes that never add up": (HEADER + '"1,2,3\n' * 300, {}, "trace.quotes", "do not add up"),
    "times that are mostly words": (HEADER + "x,1,1\ny,1,1\nz,1,1\n5,1,-1\n", {}, "trace.time_unreadable", "'x'"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_is_refused_with_its_own_reason(lab, name: str) -> None:
    data, options, code, part = REFUSED[name]
    error = lab.refuse(data, **options)
    assert (error.code, part in error.detail) == (code, True), error.detail


def test_a_line_of_two_gibibytes_is_refused_after_some_megabytes(lab) -> None:
    with lab.source.open("wb") as handle:
        handle.write(HEADER.encode() + b"1")
        handle.truncate(2**31)
    read = 0

    def progress(done: int, total: int) -> None:
        nonlocal read
        read = max(read, done)

    with pytest.raises(TraceError) as caught:
        ingest(lab.source, lab.out, IngestOptions(), progress)
    assert caught.value.code == "trace.line_too_long"
    assert read < 64 * 2**20


# A bad row among 100 good ones -> the rule it breaks, and the column; its line is 102.
BAD_ROWS: dict[str, tuple[str, str, str | None]] = {
    "NaN tokens": ("60,NaN,10", "not_a_number", "prompt_tokens"),
    "infinite tokens": ("60,inf,10", "not_a_number", "prompt_tokens"),
    "negative tokens": ("60,100,-1", "negative", "output_tokens"),
    "1e30 tokens": ("60,1e30,10", "tokens_above_limit", "prompt_tokens"),
    "tokens beyond 64 bits": ("60,99999999999999999999,10", "tokens_above_limit", "prompt_tokens"),
    "17 M tokens": ("60,17000000,10", "tokens_above_limit", "prompt_tokens"),
    "half a token": ("60,10.5,10", "not_an_integer", "prompt_tokens"),
    "tokens in words": ("60,many,10", "not_a_number", "prompt_tokens"),
    "tokens in hexadecimal": ("60,0x10,10", "not_a_number", "prompt_tokens"),
    "tokens in Arabic digits": ("60,٣٤,10", "not_a_number", "prompt_tokens"),
    "no arrival": (",100,10", "missing_arrival", "arrival_s"),
    "NaN arrival": ("NaN,100,10", "not_a_time", "arrival_s"),
    "infinite arrival": ("inf,100,10", "not_a_time", "arrival_s"),
    "an arrival before zero": ("-1,100,10", "time_out_of_range", "arrival_s"),
    "an arrival beyond 2100": ("5000000000,100,10", "time_out_of_range", "arrival_s"),
    "an arrival of 10^40": ("1e40,100,10", "not_a_time", "arrival_s"),
    "an arrival in words": ("soon,100,10", "not_a_time", "arrival_s"),
    "a cell too few": ("60,100", "too_few_cells", None),
    "a cell too many": ("60,100,10,9", "too_many_cells", None),
    "a quote that does not close": ('60,"100,10', "unbalanced_quotes", None),
    "text after a closing quote": ('60,"100"0,10', "unbalanced_quotes", None),
}


@pytest.mark.parametrize("name", BAD_ROWS)
def test_a_bad_row_is_rejected_alone(lab, own_csv: Callable[..., str], name: str) -> None:
    row, rule, column = BAD_ROWS[name]
    report = lab.read(own_csv(row, "70,100,10"))
    cleaning = report.cleaning
    assert [(r.line, r.column, r.rule) for r in cleaning.rejections] == [(102, column, rule)]
    assert cleaning.rejections[0].cure
    assert len(cleaning.rejections[0].value or "") < 60
    assert cleaning.rejected_by_rule == {rule: 1}
    assert (cleaning.rows_read, cleaning.rows_kept, cleaning.rows_rejected) == (102, 101, 1)
    assert report.prompt_tokens == sum(range(100, 200)) + 100, "the other rows are untouched"
    assert lab.table["source_line"].to_list()[-1] == 103


def test_a_few_bad_rows_pass_and_more_fail_with_the_first(lab, own_csv: Callable[..., str]) -> None:
    assert lab.read(own_csv(*["x,1,1"] * 5, n=95)).cleaning.rows_rejected == 5
    lab.out.unlink()
    error = lab.refuse(own_csv(*["x,1,1"] * 140, n=195))
    assert error.code == "trace.too_many_rejected"
    assert [(e.line, e.column, e.rule) for e in error.errors] == [(197, "arrival_s", "not_a_time")]
    assert error.errors[0].detail == "not_a_time in 140 rows, first 'x'"
    assert lab.read(own_csv(*["x,1,1"] * 40, n=95), max_rejected_share=0.5).cleaning.rows_rejected == 40


def test_rejecting_every_row_fails_even_where_all_may_be_lost(lab) -> None:
    error = lab.refuse(HEADER + "1,-1,1\n2,-1,1\n", max_rejected_share=1.0)
    assert error.code == "trace.too_many_rejected"


def test_a_line_that_is_not_utf8_is_rejected_alone(lab, own_csv: Callable[..., str]) -> None:
    data = own_csv("60,100,10", n=50).encode() + b"61,1\xff0,10\n62,100,10\n"
    cleaning = lab.read(data).cleaning
    assert [(r.line, r.rule) for r in cleaning.rejections] == [(53, "not_utf8")]
    assert cleaning.rows_read == 53


JSON_ROWS: dict[str, tuple[str, str, str | None]] = {
    "cut off": ('{"arrival_s": 60, "prompt', "malformed_json", None),
    "not an object": ("[1, 2]", "not_an_object", None),
    "two objects": ('{"arrival_s": 60} {"arrival_s": 61}', "malformed_json", None),
    "a repeated key": ('{"arrival_s":60,"prompt_tokens":5,"prompt_tokens":6,"output_tokens":1}', "duplicate_key", None),
    "nested without end": ('{"a":' * 100_000, "nested_too_deep", None),
    "half of a surrogate pair in a value": (
        r'{"arrival_s":60,"prompt_tokens":5,"output_tokens":1,"session_id":"a\ud800"}',
        "not_text",
        "session_id",
    ),
    "half of a pair behind an escaped backslash": (
        r'{"arrival_s":60,"prompt_tokens":5,"output_tokens":1,"session_id":"\\ud83d\udc00"}',
        "not_text",
        "session_id",
    ),
    "half of a surrogate pair in a key": (
        r'{"arrival_s":60,"prompt_tokens":5,"output_tokens":1,"a\udc00b":1}',
        "not_text",
        r"a\udc00b",
    ),
    "NUL in a nested value": (
        r'{"arrival_s":60,"prompt_tokens":5,"output_tokens":1,"x":{"y":["\u0000"]}}',
        "not_text",
        "x.y",
    ),
    "NUL in a key": (r'{"arrival_s":60,"prompt_tokens":5,"output_tokens":1,"a\u0000b":1}', "not_text", r"a\u0000b"),
    "NaN": ('{"arrival_s":60,"prompt_tokens":NaN,"output_tokens":1}', "not_a_number", "prompt_tokens"),
    "true": ('{"arrival_s":60,"prompt_tokens":true,"output_tokens":1}', "not_a_number", "prompt_tokens"),
    "an object for a number": (
        '{"arrival_s":60,"prompt_tokens":{"n":1},"output_tokens":1}',
        "not_a_number",
        "prompt_tokens",
    ),
    "an integer of 400 digits": (
        '{"arrival_s":60,"prompt_tokens":1' + "0" * 400 + ',"output_tokens":1}',
        "tokens_above_limit",
        "prompt_tokens",
    ),
    "no arrival": ('{"prompt_tokens":5,"output_tokens":1}', "missing_arrival", "arrival_s"),
}


@pytest.mark.parametrize("name", JSON_ROWS)
def test_a_bad_json_line_is_rejected_alone(lab, name: str) -> None:
    row, rule, column = JSON_ROWS[name]
    good = [{"arrival_s": i, "prompt_tokens": 100, "output_tokens": 10} for i in range(50)]
    cleaning = lab.read(jsonl(*good[:25]) + row + "\n" + jsonl(*good[25:])).cleaning
    assert [(r.line, r.column, r.rule) for r in cleaning.rejections] == [(26, column, rule)]
    assert cleaning.rows_read == 51


@pytest.mark.parametrize(
    ("ids", "rule"),
    [
        (["a"], "not_block_ids"),
        ([-1, 2], "not_block_ids"),
        ([2**64, 1], "not_block_ids"),
        ([1.5, 2], "not_block_ids"),
        ([True, 2], "not_block_ids"),
        ([1], "block_count"),
        ([1, 2, 3], "block_count"),
        ("1,2", "not_block_ids"),
    ],
)
def test_bad_block_ids_are_rejected_alone(lab, ids: object, rule: str) -> None:
    rows = mooncake(60)
    rows[30]["hash_ids"] = ids
    cleaning = lab.read(jsonl(*rows)).cleaning
    assert [(r.line, r.column, r.rule) for r in cleaning.rejections] == [(31, "hash_ids", rule)]


def test_lengths_that_contradict_each_other_are_rejected(lab, own_csv: Callable[..., str]) -> None:
    header = "arrival_s,prompt_tokens,output_tokens,cached_tokens,reasoning_tokens"
    cleaning = lab.read(own_csv("60,10,5,11,", "61,10,5,,6", "62,10,5,10,5", header=header)).cleaning
    assert [(r.line, r.column, r.rule) for r in cleaning.rejections] == [
        (102, "cached_tokens", "cached_above_prompt"),
        (103, "reasoning_tokens", "reasoning_above_output"),
    ]


def test_a_row_that_breaks_two_rules_is_counted_once(lab, own_csv: Callable[..., str]) -> None:
    cleaning = lab.read(own_csv("soon,-5,1e30")).cleaning
    assert cleaning.rejected_by_rule == {"not_a_time": 1}


def test_calendar_times_out_of_range_are_rejected(lab) -> None:
    good = [f"2024-01-01T00:00:{i % 60:02d}Z" for i in range(60)]
    report = lab.read(mapped(*good, "1970-01-01T00:00:00Z", "2024-02-30T00:00:00Z"), mapping=MAP)
    assert [(r.line, r.rule) for r in report.cleaning.rejections] == [(62, "time_out_of_range"), (63, "not_a_time")]


@pytest.mark.parametrize("fraction", ["", ".25"])
def test_years_that_nanoseconds_do_not_reach_are_out_of_range(lab, fraction: str) -> None:
    good = [f"2024-01-01T00:00:{i % 60:02d}{fraction}Z" for i in range(60)]
    far = [f"{year}-01-01T00:00:00{fraction}Z" for year in ("0001", "1500", "1699", "2100", "2600", "9999")]
    report = lab.read(mapped(*good, *far), mapping=MAP, max_rejected_share=1)
    assert report.cleaning.rejected_by_rule == {"time_out_of_range": 6}


def test_a_local_time_that_daylight_saving_skipped_is_rejected(lab) -> None:
    good = [datetime(2024, 3, 31, 1, 0, i).isoformat(" ") for i in range(40)]
    data = mapped(*good, "2024-03-31 02:30:00")
    report = lab.read(data, mapping=MAP, time_zone="Europe/Berlin")
    assert [(r.line, r.rule) for r in report.cleaning.rejections] == [(42, "time_does_not_exist")]


def test_one_time_in_another_unit_is_rejected(lab) -> None:
    report = lab.read(
        mapped(*range(1_700_000_000, 1_700_000_100), 1_700_000_000_000, 5), mapping=MAP, max_rejected_share=1
    )
    assert report.cleaning.rejected_by_rule == {"other_time_unit": 2}


def test_an_unknown_zone_is_refused_before_any_reading() -> None:
    with pytest.raises(ValidationError, match="unknown time zone"):
        IngestOptions(time_zone="Mars/Olympus")


def test_there_are_at_least_fifty_hostile_inputs() -> None:
    assert len(REFUSED) + len(BAD_ROWS) + len(JSON_ROWS) >= 50


def test_a_rejected_row_shows_its_value_once_and_shortened(lab) -> None:
    bad = "x" * 500
    error = lab.refuse(f"arrival_s,prompt_tokens,output_tokens\n1,1,1\n2,{bad},1\n")
    fault = error.errors[0]
    assert (fault.line, fault.column, fault.cure is not None) == (3, "prompt_tokens", True)
    said = f"not_a_number in 1 row, first '{'a' * 40}...'"
    assert fault.detail == said, "neither the place nor the cure is said again"


def test_a_header_alone_is_named_so(lab) -> None:
    assert "header" in lab.refuse("arrival_s,prompt_tokens,output_tokens\n").detail
