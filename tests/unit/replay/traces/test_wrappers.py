"""Lines of a known log inside the envelopes of a log system: read as if they stood alone, or refused by name."""

import csv
import io
import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from replay.traces.wrappers import WRAPPERS

COLUMNS = ("arrival_ns", "prompt_tokens", "output_tokens", "status", "model")
AT = 1_772_442_000
CALLS = [
    json.dumps(
        {
            "start_time": AT + 3 * i,
            "model": "m",
            "usage": {"prompt_tokens": 100 + i, "completion_tokens": 10 + i},
            "status_code": 500 if i == 4 else 200,
        }
    )
    for i in range(30)
]
PARAMS = "params: SamplingParams(n=1, max_tokens=512)"
SERVER = [
    line
    for i in range(10)
    for line in (
        f"INFO 03-02 09:00:{i:02d} [logger.py:39] Received request r{i}: prompt: None, {PARAMS}, "
        f"prompt_token_ids: [{', '.join('7' * (i + 3))}], lora_request: None.",
        f"INFO 03-02 09:00:{i + 20:02d} [logger.py:71] Generated response r{i} (streaming complete): output: 'hi', "
        f"output_token_ids: [{', '.join('9' * (i + 2))}], finish_reason: stop",
    )
]


def iso(number: int) -> str:
    return f"2026-03-02T09:{number // 60:02d}:{number % 60:02d}.250Z"


def jsonl(rows: Sequence[dict[str, Any]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def docker(lines: list[str]) -> str:
    """Docker's json-file driver: every line with its break, a long one in two parts."""
    rows = []
    for i, line in enumerate(lines):
        parts = [line[:60], line[60:] + "\n"] if i == 2 else [line + "\n"]
        rows += [{"log": part, "stream": "stdout", "time": iso(i)} for part in parts]
    return jsonl(rows)


def fluent_bit(lines: list[str]) -> str:
    return jsonl(
        [
            {"log": line, "stream": "stdout", "@timestamp": iso(i), "kubernetes": {"pod_name": "p"}}
            for i, line in enumerate(lines)
        ]
    )


def cloudwatch(lines: list[str]) -> str:
    events = [
        {"timestamp": (AT + i) * 1000, "message": line, "ingestionTime": 1, "eventId": str(i), "logStreamName": "s"}
        for i, line in enumerate(lines)
    ]
    return json.dumps({"events": events, "searchedLogStreams": []}, indent=1)


def cloudwatch_lines(lines: list[str]) -> str:
    return jsonl([{"timestamp": (AT + i) * 1000, "message": line, "ingestionTime": 1} for i, line in enumerate(lines)])


def subscription(lines: list[str]) -> str:
    halves = (lines[:6], lines[6:])
    return jsonl(
        [
            {
                "messageType": "DATA_MESSAGE",
                "logGroup": "g",
                "logEvents": [{"id": str(i), "timestamp": (AT + i) * 1000, "message": x} for i, x in enumerate(half)],
            }
            for half in halves
        ]
    )


def insights(lines: list[str]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["@timestamp", "@message"])
    writer.writerows((f"2026-03-02 09:00:{i % 60:02d}.000", line) for i, line in enumerate(lines))
    return out.getvalue()


def loki(lines: list[str]) -> str:
    values = [[str((AT + i) * 10**9), line] for i, line in enumerate(lines)]
    result = [{"stream": {"app": "x"}, "values": values}]
    return json.dumps({"status": "success", "data": {"resultType": "streams", "result": result, "stats": {}}})


def logcli(lines: list[str]) -> str:
    return jsonl([{"labels": {"app": "x"}, "line": line, "timestamp": iso(i)} for i, line in enumerate(lines)])


def elastic(lines: list[str]) -> str:
    hits = [
        {"_index": "i", "_id": str(i), "_source": {"@timestamp": iso(i), "message": line, "host": {"name": "h"}}}
        for i, line in enumerate(lines)
    ]
    return json.dumps({"took": 1, "hits": {"total": {"value": len(hits), "relation": "eq"}, "hits": hits}})


def elastic_dump(lines: list[str]) -> str:
    return jsonl([{"_index": "i", "_id": str(i), "_source": {"message": line}} for i, line in enumerate(lines)])


def datadog(lines: list[str]) -> str:
    rows = [
        {
            "id": str(i),
            "type": "log",
            "attributes": {"timestamp": iso(i), "message": line, "attributes": {}, "tags": []},
        }
        for i, line in enumerate(lines)
    ]
    return json.dumps({"data": rows, "meta": {}})


def datadog_archive(lines: list[str]) -> str:
    return jsonl(
        [
            {"_id": str(i), "date": iso(i), "service": "s", "attributes": {}, "message": line}
            for i, line in enumerate(lines)
        ]
    )


def google(lines: list[str]) -> str:
    rows = [{"insertId": str(i), "logName": "l", "timestamp": iso(i), "textPayload": x} for i, x in enumerate(lines)]
    return json.dumps(rows, indent=1)


def journal(lines: list[str]) -> str:
    rows: list[dict[str, Any]] = [
        {"__REALTIME_TIMESTAMP": str((AT + i) * 10**6), "MESSAGE": line, "_SYSTEMD_UNIT": "u"}
        for i, line in enumerate(lines)
    ]
    rows[1]["MESSAGE"] = list(str(rows[1]["MESSAGE"]).encode())
    return jsonl(rows)


def splunk(lines: list[str]) -> str:
    return jsonl([{"preview": False, "result": {"_raw": line, "host": "h"}} for line in lines])


Wrap = Callable[[list[str]], str]
WRAPS: list[Wrap] = [
    docker, fluent_bit, cloudwatch, cloudwatch_lines, subscription, insights, loki, logcli, elastic, elastic_dump,
    datadog, datadog_archive, google, journal, splunk,
]  # fmt: skip


def kubernetes(lines: list[str]) -> str:
    """The runtime's own file: time, stream, whole or partial."""
    return "".join(f"{iso(i)} stdout F {line}\n" for i, line in enumerate(lines))


PREFIXES: list[Wrap] = [
    kubernetes,
    lambda lines: "".join(f"{iso(i)} {line}\n" for i, line in enumerate(lines)),
    lambda lines: "".join(f"gateway-1  | {line}\n" for line in lines),
    lambda lines: "".join(f"Mar  2 09:00:00 host gateway[12]: {line}\n" for line in lines),
    lambda lines: "".join(f"{iso(i)}\tapp.log\t{line}\n" for i, line in enumerate(lines)),
]


@pytest.mark.parametrize("wrap", WRAPS + PREFIXES)
def test_json_lines_inside_are_read_as_if_they_stood_alone(lab, wrap: Wrap) -> None:
    lab.read("\n".join(CALLS) + "\n")
    alone = lab.table.select(COLUMNS)
    report = lab.read(wrap(CALLS))
    assert report.format == "openai-usage-log"
    assert lab.table.select(COLUMNS).equals(alone)
    assert "messages inside were read" in report.assumed["envelope"]


@pytest.mark.parametrize("wrap", WRAPS)
def test_lines_of_an_engine_inside_are_read(lab, wrap: Wrap) -> None:
    report = lab.read(wrap(SERVER))
    assert (report.format, report.requests) == ("vllm-request-log", 10)
    assert report.prompt_tokens == sum(i + 3 for i in range(10))


@pytest.mark.parametrize("wrap", WRAPS)
def test_lines_of_no_known_log_are_refused_by_the_name_of_the_envelope(lab, wrap: Wrap) -> None:
    refusal = lab.refuse(wrap([f"something happened number {i}, and it took long" for i in range(12)]))
    assert refusal.code == "trace.wrapped"
    assert any(f"this is {one.name}, and its messages are lines of no log" in refusal.detail for one in WRAPPERS)
    assert any(one.alone in str(refusal.errors[0].cure) for one in WRAPPERS)


def test_records_inside_may_be_mapped_with_the_time_of_the_envelope(lab) -> None:
    lines = [json.dumps({"in": 10 + i, "out": 5}) for i in range(30)]
    refusal = lab.refuse(logcli(lines))
    assert refusal.code == "trace.unknown_columns"
    assert "log_time, in, out" in refusal.detail
    mapping = {"arrival": "log_time", "prompt_tokens": "in", "output_tokens": "out"}
    assert lab.read(logcli(lines), mapping=mapping).profile.start_utc == "2026-03-02T09:00:00.250+00:00"
    outer = {"arrival": "timestamp", "prompt_tokens": "line.in", "output_tokens": "line.out"}
    assert lab.read(logcli(lines), mapping=outer).prompt_tokens == sum(10 + i for i in range(30))


def test_other_lines_are_counted_and_cut_records_rejected(lab) -> None:
    report = lab.read(logcli([*CALLS, "starting", "listening on 8000", CALLS[0][:40]]))
    assert report.cleaning.not_requests == {"log lines that are no JSON": 2}
    assert report.cleaning.rejected_by_rule == {"malformed_json": 1}
    assert report.requests == 30


@pytest.mark.parametrize(
    ("change", "said"),
    [(lambda body: body["hits"]["total"].update(value=900), "30 of 900 hits"), (lambda body: None, None)],
)
def test_hits_that_are_not_in_the_answer_are_missing_load(lab, change, said: str | None) -> None:
    body = json.loads(elastic(CALLS))
    change(body)
    warnings = [one for one in lab.read(json.dumps(body)).warnings if "last page" in one]
    assert len(warnings) == (said is not None)
    assert said is None or said in warnings[0]


def test_a_further_page_is_missing_load(lab) -> None:
    body = json.loads(cloudwatch(CALLS)) | {"nextToken": "x"}
    assert any("nextToken" in one for one in lab.read(json.dumps(body)).warnings)


@pytest.mark.parametrize("odd", [{"values": 3}, {"values": [["x"]]}, "stream"])
def test_envelopes_that_are_not_as_they_should_be_are_rejected(lab, odd: object) -> None:
    broken = json.loads(loki(CALLS))
    broken["data"]["result"] = [odd]
    one = json.dumps(broken) + "\n"
    report = lab.read(loki(CALLS) + "\n" + one, max_rejected_share=0.1)
    assert (report.requests, report.cleaning.rejected_by_rule) == (30, {"not_unpacked": 1})
    assert lab.refuse_again(one).code in ("trace.no_messages", "trace.unknown_columns")


def test_parsed_records_are_taken_as_they_are(lab) -> None:
    calls = [json.loads(line) for line in CALLS]
    for rows in (
        [{"_index": "i", "_source": call} for call in calls],
        [{"insertId": "1", "timestamp": iso(0), "jsonPayload": call} for call in calls],
        [{"_id": "1", "date": iso(0), "service": "s", "message": "done", "attributes": call} for call in calls],
    ):
        assert lab.read(jsonl(rows)).format == "openai-usage-log"
        assert lab.table["status"].to_list().count("failed") == 1


def test_a_text_log_with_its_newest_lines_first_is_refused(lab) -> None:
    assert (
        lab.refuse(jsonl([json.loads(row) for row in reversed(logcli(SERVER).splitlines())])).code
        == "trace.newest_first"
    )
    lab.read(jsonl([json.loads(row) for row in reversed(logcli(CALLS).splitlines())]))
    assert lab.table["arrival_ns"].is_sorted()
