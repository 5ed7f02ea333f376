"""Columns that say how requests ended are read in tables that nobody defined, or asked about; never passed over."""

import json

import polars as pl
import pytest

from replay.traces.formats.outcomes import kind_of, outcome

MAP = {"arrival": "t", "prompt_tokens": "p", "output_tokens": "o"}


def table(columns: str, *cells: str, n: int = 40) -> str:
    rows = (f"{i},{10 + i},5,{cells[i % len(cells)]}\n" for i in range(n))
    return f"t,p,o,{columns}\n" + "".join(rows)


def statuses(lab) -> list[str | None]:
    return lab.table.sort("source_line")["status"].to_list()


@pytest.mark.parametrize(
    ("column", "cells", "expected"),
    [
        ("status_code", ["200", "429", "500", "499", ""], ["ok", "failed", "failed", "aborted", None]),
        ("httpStatus", ["200.0", "503 Service Unavailable"], ["ok", "failed"]),
        ("status", ["success", "Timeout", "rate-limited", "canceled"], ["ok", "failed", "failed", "aborted"]),
        ("status", ["pending", "SUCCEEDED"], ["unknown", "ok"]),
        ("finish_reason", ["stop", "length", "tool_calls", "error", "abort"], ["ok", "ok", "ok", "failed", "aborted"]),
        ("success", ["true", "False", "1", "0"], ["ok", "failed", "ok", "failed"]),
        ("error", ["", "null", "0", "False"], [None, None, "ok", "ok"]),
        ("error", ["connection reset", "cancelled"], ["failed", "aborted"]),
        ("error", ["no error", "nan", "NoError", "0: OK", "no error handler"], ["ok", None, "ok", "ok", "failed"]),
        ("error_code", ["200", "200.0", "499", "429", "0"], ["ok", "ok", "aborted", "failed", "ok"]),
        ("is_error", ["true", "false"], ["failed", "ok"]),
        ("cancelled", ["1", "0"], ["aborted", None]),
        ("result", ["OK", "failed"], ["ok", "failed"]),
        ("status_code,error", ["200,", "200,overloaded", "499,gone"], ["ok", "failed", "aborted"]),
    ],
)
def test_well_known_columns_are_read(lab, column: str, cells: list[str], expected: list[str | None]) -> None:
    report = lab.read(table(column, *cells), mapping=MAP, time_unit="s")
    assert statuses(lab)[: len(expected)] == expected
    assert report.assumed["status"] == f"read from {column.replace(',', ', ')}"
    own = table(column, *cells).replace("t,p,o,", "arrival_s,prompt_tokens,output_tokens,", 1)
    if column != "status":
        lab.read(own)
        assert statuses(lab)[: len(expected)] == expected


def test_a_failed_call_keeps_what_is_stated(lab) -> None:
    report = lab.read(table("status_code", "200", "500"), mapping=MAP, time_unit="s")
    assert report.cleaning.status_counts == {"ok": 20, "failed": 20}
    assert report.requests == report.profile.prompt_tokens.n == 40


@pytest.mark.parametrize(
    ("column", "cell"), [("status", "purple"), ("status_code", "302"), ("success", "maybe"), ("finish_reason", "x")]
)
def test_what_is_not_understood_is_asked_and_each_cure_cures(lab, column: str, cell: str) -> None:
    text = table(column, "200" if column != "success" else "1", cell)
    refusal = lab.refuse(text, mapping=MAP, time_unit="s")
    assert refusal.code == "trace.ambiguous_status"
    assert [error.cure for error in refusal.errors] == [f"map=status={column}", "ignore_status=true"]
    report = lab.read(text, mapping=MAP | {"status": column}, time_unit="s")
    assert statuses(lab)[1] == "unknown"
    assert any("no status that is known" in warning for warning in report.warnings)
    lab.read(text, mapping=MAP, time_unit="s", ignore_status=True)
    assert statuses(lab)[:2] == [None, None]


@pytest.mark.parametrize("own", [False, True])
def test_a_column_of_errors_that_says_something_of_most_calls_is_asked_about(lab, own: bool) -> None:
    """It says that all is well in words of its own: taken for errors, every call would have failed."""
    text = table("error", "all good", "all good", "boom")
    if own:
        text = text.replace("t,p,o,", "arrival_s,prompt_tokens,output_tokens,", 1)
    options = {} if own else {"mapping": MAP, "time_unit": "s"}
    refusal = lab.refuse(text, **options)
    assert refusal.code == "trace.ambiguous_status"
    assert "'aaa aaaa'" in str(refusal)
    assert [error.field for error in refusal.errors] == ["file" if own else "map", "ignore_status"]
    lab.read(text, **options, ignore_status=True)
    assert set(statuses(lab)) == {None}
    if own:
        lab.read(text.replace(",error\n", ",status\n").replace("all good", "ok").replace("boom", "failed"))
        assert statuses(lab)[:3] == ["ok", "ok", "failed"]
    else:
        lab.read(text, **(options | {"mapping": MAP | {"status": "error"}}))
        assert statuses(lab)[:3] == ["failed"] * 3


def test_a_mapped_column_of_errors_says_errors(lab) -> None:
    """``true`` in a column of errors is a failure, though ``true`` as a status is none."""
    lab.read(table("is_error", "true", "false"), mapping=MAP | {"status": "is_error"}, time_unit="s")
    assert statuses(lab)[:2] == ["failed", "ok"]


def test_columns_that_may_mean_anything_are_read_where_all_is_understood(lab) -> None:
    report = lab.read(table("state", "Texas", "ok"), mapping=MAP, time_unit="s")
    assert "status" not in report.assumed
    assert set(statuses(lab)) == {None}


def test_json_is_read_inside_objects_and_where_only_failed_calls_say_anything(lab) -> None:
    rows = [{"t": i, "p": 10 + i, "o": 5, "response": {"status_code": 200}} for i in range(400)]
    rows[350]["error"] = {"code": "overloaded"}
    rows[3]["response"] = {"status_code": 429, "choices": [1, 2]}
    lab.read("".join(json.dumps(row) + "\n" for row in rows), mapping=MAP, time_unit="s")
    found = statuses(lab)
    assert (found[3], found[350], found.count("ok")) == ("failed", "failed", 398)


def test_the_status_of_our_own_format_has_the_same_words(lab) -> None:
    text = table("status", "done", "rate_limited", "200.0", "", "purple").replace(
        "t,p,o,", "arrival_s,prompt_tokens,output_tokens,", 1
    )
    report = lab.read(text)
    assert statuses(lab)[:5] == ["ok", "failed", "ok", None, "unknown"]
    assert any("no status that is known" in warning for warning in report.warnings)


def test_a_status_that_only_late_rows_have_is_read_beside_other_columns(lab) -> None:
    rows = [{"arrival_s": i, "prompt_tokens": 10 + i, "output_tokens": 5, "success": True} for i in range(400)]
    rows[350]["status"] = "failed"
    lab.read("".join(json.dumps(row) + "\n" for row in rows))
    assert (statuses(lab)[350], statuses(lab).count("ok")) == ("failed", 399)


def test_parquet_is_read_too(lab) -> None:
    n = 40
    frame = pl.DataFrame(
        {"t": range(n), "p": range(10, 10 + n), "o": [5] * n, "success": [i % 2 == 0 for i in range(n)]}
    )
    frame.with_columns(http_status=pl.lit(200)).write_parquet(lab.source)
    lab.read(lab.source.read_bytes(), mapping=MAP, time_unit="s")
    assert statuses(lab)[:2] == ["ok", "failed"]


def test_names_and_words() -> None:
    assert [kind_of(name) for name in ("a.b.statusCode", "status.code", "code", "error", "p")] == [
        "word",
        "word",
        None,
        "bad",
        None,
    ]
    assert [outcome("word", text) for text in ("200 OK", "1", "", "N/A")] == ["ok", None, "", ""]
