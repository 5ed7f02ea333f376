"""Rows that are no requests of their own: parts of one call, rows around calls, several calls in one row."""

import json
from collections.abc import Callable

import pytest

MAP = {"arrival": "at", "prompt_tokens": "p", "output_tokens": "o"}
N = 30


def at(i: float) -> str:
    return f"2026-11-03T09:00:{i * 1.7 % 60:06.3f}Z"


def jsonl(rows: list[dict[str, object]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def call(i: int) -> dict[str, object]:
    return {"at": at(i), "p": 100 + 7 * i, "o": 20 + i * 13 % 29}


def streams(i: int) -> list[dict[str, object]]:
    """The counts so far of one answer, as they stood at three moments."""
    return [call(i) | {"at": at(i + k / 10), "request_id": f"r{i}", "o": 5 * (k + 1)} for k in range(3)]


def starts_and_ends(i: int) -> list[dict[str, object]]:
    return [call(i) | {"event": event, "at": at(i + k / 3)} for k, event in enumerate(("started", "finished"))]


def instruments(i: int) -> list[dict[str, object]]:
    return [call(i) | {"requestId": f"r{i}", "at": at(i + k / 40), "source": k} for k in range(2)]


def kinds(i: int) -> list[dict[str, object]]:
    return [call(i) | {"run_type": kind, "at": at(i + k / 50)} for k, kind in enumerate(("chain", "llm"))]


def parents(i: int) -> list[dict[str, object]]:
    around = {"at": at(i), "span_id": f"w{i}", "parent_id": None, "p": 300 + 3 * i, "o": 30}
    inner = [
        {"at": at(i + k / 9), "span_id": f"c{i}{k}", "parent_id": f"w{i}", "p": 100 + i, "o": 10} for k in range(3)
    ]
    return [around, *inner]


def last_call(i: int) -> list[dict[str, object]]:
    """The span around three calls has the counts of the last."""
    around, *inner = parents(i)
    inner = [row | {"p": 100 + i + k} for k, row in enumerate(inner)]
    return [around | {"p": 102 + i, "o": 10}, *inner]


def spans(i: int) -> list[dict[str, object]]:
    """Counts of the span around that fit nothing inside."""
    made = parents(i)
    made[0]["p"] = 700
    return [{"parent_span_id" if name == "parent_id" else name: row[name] for name in row} for row in made]


@pytest.mark.parametrize(
    ("rows", "code", "field"),
    [
        (last_call, "trace.wrappers", "rows_are_requests"),
        (spans, "trace.wrappers", "rows_are_requests"),
        (streams, "trace.repeated_ids", "keep_duplicates"),
        (instruments, "trace.repeated_ids", "keep_duplicates"),
        (starts_and_ends, "trace.two_rows_a_call", "rows_are_requests"),
        (kinds, "trace.wrappers", "rows_are_requests"),
        (parents, "trace.wrappers", "rows_are_requests"),
    ],
)
def test_calls_that_would_count_twice_are_asked_about(
    lab, rows: Callable[[int], list[dict[str, object]]], code: str, field: str
) -> None:
    made = [row for i in range(N) for row in rows(i)]
    refusal = lab.refuse(jsonl(made), mapping=MAP)
    assert (refusal.code, refusal.errors[0].field) == (code, field)
    assert lab.read(jsonl(made), mapping=MAP, **{field: True}).requests == len(made)


@pytest.mark.parametrize(
    ("column", "value"),
    [("num_turns", "{k}"), ("batch_size", "8"), ("n", "4"), ("best_of", "2"), ("choice_count", "{k}")],
)
def test_several_calls_in_a_row_are_asked_about(lab, column: str, value: str) -> None:
    rows = "".join(f"{i * 5 + i % 3}.5,{100 + 7 * i},{20 + i},{value.format(k=i % 4 + 1)}\n" for i in range(N))
    text = f"arrival_s,prompt_tokens,output_tokens,{column}\n{rows}"
    assert lab.refuse(text).code == "trace.aggregate"
    assert lab.read(text, rows_are_requests=True).requests == N


@pytest.mark.parametrize(
    "beside",
    [
        lambda i: {"request_id": f"r{i - i % 5 // 4}"},  # a fifth are retries
        lambda i: {"id": f"model-{i % 2}"},
        lambda i: {"request_id": "-"},
        lambda i: {"type": "chat"},
        lambda i: {"type": ("llm", "embedding")[i % 2]},
        lambda i: {"id": f"turn{i}", "parent_id": f"turn{i - 1}"},
        lambda i: {"n": 1},
        lambda i: {"n": i},
    ],
)
def test_requests_of_their_own_are_read(lab, beside: Callable[[int], dict[str, object]]) -> None:
    assert lab.read(jsonl([call(i) | beside(i) for i in range(N)]), mapping=MAP).requests == N


def usage(i: float, name: str, **more: object) -> dict[str, object]:
    counts = {"prompt_tokens": 100 + int(i), "completion_tokens": 10}
    return {"start_time": at(i), "request_id": name, "model": "m", "usage": counts} | more


def test_calls_logged_by_two_services_are_asked_about(lab) -> None:
    rows = [usage(i + k / 40, f"r{i}") for i in range(N) for k in range(2)]
    refusal = lab.refuse(jsonl(rows))
    assert (refusal.code, refusal.errors[0].field) == ("trace.repeated_ids", "keep_duplicates")
    assert lab.read(jsonl(rows), keep_duplicates=True).requests == 2 * N


def test_retries_of_failed_calls_stay_requests(lab) -> None:
    failed = {"usage": None, "error": "timeout"}
    rows = [row for i in range(N) for row in (usage(i, f"r{i}", **failed), usage(i + 0.5, f"r{i}"))]
    assert lab.read(jsonl(rows)).cleaning.retries_by_id == N


def test_sums_of_each_session_so_far_are_no_requests(lab) -> None:
    rows, sums = [], {}
    for i in range(60):
        p, o = sums.get(i % 7, (0, 0))
        sums[i % 7] = p + 50 + i * 11 % 40, o + 5 + i * 3 % 8
        rows.append({"at": at(i / 2), "s": f"s{i % 7}", "p": sums[i % 7][0], "o": sums[i % 7][1]})
    mapping = MAP | {"session": "s"}
    assert lab.refuse(jsonl(rows), mapping=mapping).code == "trace.aggregate"
    named = [{"session_id" if name == "s" else name: row[name] for name in row} for row in rows]
    assert lab.refuse(jsonl(named), mapping=MAP).code == "trace.aggregate", "the first rows tell it without a mapping"
    assert lab.read(jsonl(rows), mapping=mapping, rows_are_requests=True).requests == 60
    growing = [row | {"o": 5 + i * 3 % 8} for i, row in enumerate(rows)]
    assert lab.read(jsonl(growing), mapping=mapping).requests == 60, "prompts of a chat grow from turn to turn"
