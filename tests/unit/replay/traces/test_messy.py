"""Files as people really upload them: read with odd rows named, or refused with the reason; never quietly wrong."""

import json
from typing import Any

import pytest
from trace_makers import aiperf, calls, dynamo, jsonl, llmservingsim, mooncake, mooncake_sessions

OWN = "arrival_s,prompt_tokens,output_tokens\n"
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
BURST = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
SPLIT = "request_id,request_type,application_id,arrival_timestamp,batch_size,prompt_size,token_size\n"
MAP = {"arrival": "t", "prompt_tokens": "p", "output_tokens": "o"}
CALLS = calls(40)


def lines(n: int, template: str) -> str:
    """``n`` rows of a template: ``{i}`` counts, ``{i2}`` has two digits, ``{t}`` is an epoch second."""
    return "".join(template.format(i=i, i2=f"{i:02d}", t=1_700_000_000 + i) + "\n" for i in range(n))


def changed(data: bytes, **changes: Any) -> bytes:
    return jsonl(json.loads(line) | changes for line in data.decode().splitlines())


def table(times: str, n: int = 50) -> str:
    return "t,p,o\n" + lines(n, f"{times},5{{i}},6")


def nested(data: bytes, unit: int) -> bytes:
    """Epoch times of a load generator or server in a coarser unit than its format's."""
    rows = [json.loads(line) for line in data.decode().splitlines()]
    for row in rows:
        if "metadata" in row:
            row["metadata"]["request_start_ns"] //= unit
        elif "request" in row["event"]:
            row["event"]["request"]["request_received_ms"] //= unit
    return jsonl(rows)


READ: dict[str, tuple[str | bytes, dict[str, Any], int, dict[str, int]]] = {
    "columns in another order": (
        "GeneratedTokens,TIMESTAMP,ContextTokens\n" + lines(30, "1{i},2023-11-16 18:15:{i2}.5,9{i}"),
        {},
        30,
        {},
    ),
    "everything quoted, CR LF": (
        (
            '"TIMESTAMP","ContextTokens","GeneratedTokens"\n' + lines(30, '"2023-11-16 18:15:{i2}.5","9{i}","1{i}"')
        ).replace("\n", "\r\n"),
        {},
        30,
        {},
    ),
    "pandas index column": (
        ",TIMESTAMP,ContextTokens,GeneratedTokens\n" + lines(30, "{i},2023-11-16 18:15:{i2}.5,9{i},5"),
        {},
        30,
        {},
    ),
    "whole numbers as floats": (AZURE + lines(30, "2023-11-16 18:15:{i2}.5,9{i}.0,5.0"), {}, 30, {}),
    "semicolons": (AZURE.replace(",", ";") + lines(30, "2023-11-16 18:15:{i2};9{i};5"), {}, 30, {}),
    "blanks after commas": ("arrival_s, prompt_tokens, output_tokens\n" + lines(30, "{i}.5, 9{i}, 10"), {}, 30, {}),
    "a separator at the ends of lines": (OWN.replace("\n", ",\n") + lines(30, "{i}.5,9{i},10,"), {}, 30, {}),
    "the header again in the middle": (
        OWN + lines(30, "{i}.5,9{i},10") + OWN + lines(30, "1{i2}.75,8{i},10"),
        {},
        60,
        {"not_a_time": 1},
    ),
    "a row of totals with a word": (OWN + lines(50, "{i}.5,9{i},10") + "Total,5000,500\n", {}, 50, {"not_a_time": 1}),
    "a row of totals without a time": (
        OWN + lines(50, "{i}.5,9{i},10") + ",5000,500\n",
        {},
        50,
        {"missing_arrival": 1},
    ),
    "AM and PM": (table("2023-11-16 06:15:{i2} PM"), {"mapping": MAP, "time_zone": "UTC"}, 50, {}),
    "a Unicode minus": (OWN + lines(50, "{i}.5,9{i},10") + "51,\u2212100,10\n", {}, 50, {"not_a_number": 1}),
    "negative tokens in parentheses": (OWN + lines(50, "{i}.5,9{i},10") + "51,(100),10\n", {}, 50, {"not_a_number": 1}),
    "an epoch time among relative ones": (
        OWN + lines(50, "{i}.5,9{i},10") + "1700000000,100,10\n",
        {},
        50,
        {"other_time_unit": 1},
    ),
    "a zero among epoch times": (
        "arrival_s,prompt_tokens,output_tokens\n" + lines(50, "{t},9{i},10") + "0,1,1\n",
        {},
        50,
        {"other_time_unit": 1},
    ),
    "epoch us as text": (table('"{t}000000"'), {"mapping": MAP}, 50, {}),
    "epoch ms, a few in s": (table("{t}000") + "1700000099,5,5\n", {"mapping": MAP}, 50, {"other_time_unit": 1}),
    "epoch in scientific notation": (table("1.7000000{i2}e+09"), {"mapping": MAP}, 50, {}),
    "UTC as a word": (table("2023-11-16 06:15:{i2}.5 UTC"), {"mapping": MAP}, 50, {}),
    "an offset of hours only": (table("2023-11-16 06:15:{i2}+01"), {"mapping": MAP}, 50, {}),
    "24:00 is no time": (
        table("2023-11-16 23:15:{i2}Z") + "2023-11-16 24:00:00Z,5,5\n",
        {"mapping": MAP},
        50,
        {"not_a_time": 1},
    ),
    "byte order mark and JSON lines": (
        "\ufeff" + lines(50, '{{"arrival_s": {i}, "prompt_tokens": 9{i}, "output_tokens": 6}}'),
        {},
        50,
        {},
    ),
    "JSON array, one element a line": (
        "[\n" + lines(30, '{{"arrival_s": {i}, "prompt_tokens": 9{i}, "output_tokens": 6}},') + "{}\n]",
        {},
        30,
        {"missing_arrival": 1},
    ),
    "a failed call in BurstGPT": (
        BURST + lines(50, "{i},GPT-4,9{i},6,11,API log") + "51,GPT-4,5,0,5,API log\n",
        {},
        51,
        {},
    ),
    "a retried id in a simulator's table": (SPLIT + lines(30, "7,2,0,{i}.5,1,9{i},10"), {}, 30, {}),
    "rows in the order of their ends": (
        OWN + "".join(reversed(lines(30, "{i}.5,9{i},10").splitlines(True))),
        {},
        30,
        {},
    ),
}

REFUSED: dict[str, tuple[str | bytes, dict[str, Any], str]] = {
    "month and day in doubt": (AZURE + lines(30, "11/10/2023 18:{i2},9{i},5"), {}, "trace.time_unreadable"),
    "zones from some row on": (
        AZURE + lines(30, "2023-11-16 18:15:{i2}.5,9{i},5") + "2023-11-16 18:16:00.5+00:00,5,5\n",
        {},
        "trace.mixed_zones",
    ),
    "a zone's abbreviation": (table("2023-11-16 06:15:{i2} CET"), {"mapping": MAP}, "trace.named_zone"),
    "naive local times": (table("2023-11-16 06:15:{i2}"), {"mapping": MAP}, "trace.ambiguous_zone"),
    "times of day without a day": (table("06:15:{i2}"), {"mapping": MAP}, "trace.time_unreadable"),
    "days without a time": (table("2023-11-{i2}", 28), {"mapping": MAP}, "trace.time_unreadable"),
    "two-digit years": (table("23-11-16 06:15:{i2}"), {"mapping": MAP}, "trace.time_unreadable"),
    "times that lost their digits": (table("1.7e18"), {"mapping": MAP}, "trace.lost_digits"),
    "thousands separators everywhere": (OWN + lines(30, '{i}.5,"1,0{i2}",10'), {}, "trace.grouped_digits"),
    "dotted thousands": (OWN + lines(30, "{i}.5,1.0{i2},10"), {}, "trace.grouped_digits"),
    "thousands with blanks": (OWN + lines(30, "{i}.5,1 000,10"), {}, "trace.grouped_digits"),
    "decimal commas": (OWN + lines(30, '"{i},5",9{i},10'), {}, "trace.time_unreadable"),
    "tokens with a unit": (OWN + lines(30, "{i}.5,100 tokens,10"), {}, "trace.too_many_rejected"),
    "tokens in thousands": (OWN + lines(30, "{i}.5,1.2k,10"), {}, "trace.too_many_rejected"),
    "a separator more in rows than in the header": (OWN + lines(30, "{i}.5,9{i},10,"), {}, "trace.too_many_rejected"),
    "another separator in rows than in the header": (OWN + lines(30, "{i}.5;9{i};10"), {}, "trace.too_many_rejected"),
    "two formats in one file": (
        AZURE + lines(30, "2023-11-16 18:15:{i2}.5,9{i},5") + BURST + lines(30, "{i},GPT-4,5,6,11,API log"),
        {},
        "trace.too_many_rejected",
    ),
    "two columns of times": (
        "arrival_s,arrival_ms,prompt_tokens,output_tokens\n" + lines(30, "{i},{i}000,9,10"),
        {},
        "trace.unknown_columns",
    ),
    "epoch seconds under a name in ms": (
        "arrival_ms,prompt_tokens,output_tokens\n" + lines(30, "{t},9{i},10"),
        {},
        "trace.ambiguous_unit",
    ),
    "epoch ms under a name in s": (OWN + lines(30, "{t}000,9{i},10"), {}, "trace.ambiguous_unit"),
    "totals that look like a request": (OWN + lines(30, "{i}.5,100,10") + "31,3000,300\n", {}, "trace.totals_row"),
    "a file that holds its rows twice": (OWN + lines(30, "{i}.5,9{i},10") * 2, {}, "trace.duplicates"),
    "equal requests, the file twice": (OWN + lines(30, "{i}.5,90,10") * 2, {}, "trace.duplicates"),
    "a batch size": (SPLIT + lines(30, "{i},2,0,{i}.5,4,9{i},10"), {}, "trace.too_many_rejected"),
    "Mooncake in seconds": (
        jsonl({"timestamp": i, "input_length": 10 + i, "output_length": 5} for i in range(40)),
        {},
        "trace.ambiguous_unit",
    ),
    "Mooncake in epoch seconds": (changed(mooncake(CALLS), timestamp=1_700_000_000), {}, "trace.ambiguous_unit"),
    "Mooncake ids as text": (changed(mooncake(CALLS), hash_ids=["1"]), {}, "trace.too_many_rejected"),
    "Mooncake with an id too many": (changed(mooncake(CALLS), hash_ids=[1, 2, 3, 4, 5, 6, 7]), {}, "trace.block_size"),
    "Mooncake delays in seconds": (
        mooncake_sessions(CALLS).replace(b'"delay": 250', b'"delay": 0.25'),
        {},
        "trace.ambiguous_unit",
    ),
    "Mooncake turns in another order": (
        b"\n".join(reversed(mooncake_sessions(CALLS).splitlines())) + b"\n",
        {},
        "trace.too_many_rejected",
    ),
    "AIPerf in seconds": (nested(aiperf(CALLS), 10**9), {}, "trace.ambiguous_unit"),
    "Dynamo in seconds": (nested(dynamo(CALLS), 1000), {}, "trace.ambiguous_unit"),
    "Dynamo segments that overlap": (dynamo(CALLS) + dynamo(CALLS[:9]), {}, "trace.too_many_rejected"),
    "LLMServingSim in seconds": (
        jsonl(
            row | {"arrival_time_ns": row["arrival_time_ns"] / 1e9}
            for row in map(json.loads, llmservingsim(CALLS).splitlines())
        ),
        {},
        "trace.ambiguous_unit",
    ),
    "NaN for unknown": (
        lines(40, '{{"arrival_s": {i}, "prompt_tokens": NaN, "output_tokens": 6}}'),
        {},
        "trace.too_many_rejected",
    ),
    "Python's dictionaries": (
        lines(40, "{{'arrival_s': {i}, 'prompt_tokens': 5, 'output_tokens': 6}}"),
        {},
        "trace.json",
    ),
    "a comma after the last element": ('[{"arrival_s":1,"prompt_tokens":5,"output_tokens":6},]', {}, "trace.json"),
    "columns of a JSON object": (
        '{"arrival_s":[0,1],"prompt_tokens":[5,5],"output_tokens":[6,6]}',
        {},
        "trace.time_unreadable",
    ),
    "an object around the rows": ('{"data": [{"arrival_s": 1, "prompt_tokens": 5}]}', {}, "trace.unknown_columns"),
    "a spreadsheet's first line": ("sep=,\n" + OWN + lines(30, "{i}.5,9{i},10"), {}, "trace.no_header"),
    "Latin-1": (
        (OWN.replace("\n", ",n\n") + lines(30, "{i}.5,9{i},10,é")).encode("latin-1"),
        {},
        "trace.too_many_rejected",
    ),
    "a hole of NULs at the end": (OWN + lines(30, "{i}.5,9{i},10") + "\0" * 50, {}, "trace.binary"),
}


@pytest.mark.parametrize("name", READ)
def test_is_read_with_its_odd_rows_named(lab, name: str) -> None:
    data, options, kept, rejected = READ[name]
    report = lab.read(data, **options)
    assert (report.requests, report.cleaning.rejected_by_rule) == (kept, rejected)
    assert report.span_s < 3_600, "no odd row stretches the time"


@pytest.mark.parametrize("name", REFUSED)
def test_is_refused_with_a_reason(lab, name: str) -> None:
    data, options, code = REFUSED[name]
    error = lab.refuse(data, **options)
    assert error.code == code, error.detail


def test_what_settles_a_doubt_is_taken(lab) -> None:
    """Every refusal above that names a parameter reads well once it is given."""
    twice = OWN + lines(30, "{i}.5,9{i},10") * 2
    assert lab.read(twice, keep_duplicates=True, clock_restarts="overlap").requests == 60
    seconds = jsonl({"timestamp": i, "input_length": 10 + i, "output_length": 5} for i in range(40))
    assert lab.read(seconds, time_unit="s").span_s == 39
    assert lab.read(seconds, time_unit="ms").span_s == pytest.approx(0.039)
    delays = mooncake_sessions(CALLS).replace(b'"delay": 250', b'"delay": 0.25')
    lab.read(delays, time_unit="ms")
    assert lab.table["delay_ns"].drop_nulls().unique().to_list() == [250_000]
    local = table("2023-11-16 06:15:{i2}")
    assert lab.read(local, mapping=MAP, time_zone="Europe/Berlin").profile.start_utc == "2023-11-16T05:15:00.000+00:00"
    totals = OWN + lines(30, "{i}.5,100,10") + "31,3000,300\n"
    assert lab.read(totals, rows_are_requests=True).requests == 31
