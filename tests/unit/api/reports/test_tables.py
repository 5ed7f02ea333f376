"""Tables: formatted for people, full precision and no formulas in CSV."""

from __future__ import annotations

import csv
import io
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from report_documents import empty_plan_document, plan_document, replay_document, without_range

from api.reports import formats, render_csv
from api.reports.tables import Column, Table, safe_cell, show, to_csv


def read(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text, newline="")))


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t", "\r"])
def test_text_that_a_spreadsheet_would_run_gets_an_apostrophe(start: str) -> None:
    assert safe_cell(f"{start}cmd|' /C calc'!A0") == f"'{start}cmd|' /C calc'!A0"


def test_numbers_stay_numbers() -> None:
    assert [safe_cell(value) for value in (-0.1, 3, None, True, 0.1 + 0.2)] == [
        "-0.1",
        "3",
        "",
        "true",
        "0.30000000000000004",
    ]


@given(st.lists(st.tuples(st.text(), st.floats(allow_nan=False, allow_infinity=False)), min_size=1, max_size=5))
def test_csv_reads_back(rows: list[tuple[str, float]]) -> None:
    table = Table("t", (Column("a", "a", "text"), Column("b", "b")), tuple(rows))
    back = list(csv.reader(io.StringIO(to_csv(table), newline="")))
    assert back[0] == ["a", "b"]
    assert [(row[0], float(row[1])) for row in back[1:]] == [(safe_cell(a), b) for a, b in rows]


def test_a_link_holds_the_table() -> None:
    table = Table("t", (Column("a", "a_s", "seconds"),), ((0.5,),))
    assert unquote(table.csv_href.split(",", 1)[1]) == "a_s\r\n0.5\r\n"


def test_a_row_that_does_not_fit_is_a_fault() -> None:
    with pytest.raises(ValueError, match="does not fit"):
        Table("t", (Column("a", "a"),), ((1, 2),))


def test_plan_as_csv_has_every_candidate() -> None:
    document = plan_document()
    rows = read(render_csv(document))
    assert [row["gpu"] for row in rows] == ["H100-SXM", "A100-SXM-80GB", "L40S", "T4", "A10G"]
    assert [row["status"] for row in rows] == ["feasible"] * 3 + ["infeasible"] * 2
    best = document["recommendations"][0]
    assert float(rows[0]["usd_per_hour"]) == best["usd_per_hour"]
    assert float(rows[0]["ttft_p99_s"]) == best["metrics"]["ttft_s"]["p99"]
    assert float(rows[0]["queue_mean_s"]) == best["metrics"]["queue_s"]["mean"]
    assert rows[0]["price_provider"] == "AWS"
    assert rows[0]["rejected"] == "too_long_for_model: 1"
    assert rows[2]["usd_per_hour"] == ""
    assert "no offer" in rows[2]["price_reason"]
    assert rows[3]["reason"] == document["infeasible"][0]["reason"]


def test_replay_as_csv_is_one_row() -> None:
    (row,) = read(render_csv(replay_document()))
    assert (row["status"], row["replicas"], row["requests"]) == ("served", "4", "20000")


def test_plan_without_an_answer_as_csv_has_the_reasons() -> None:
    assert [row["status"] for row in read(render_csv(empty_plan_document()))] == ["infeasible", "infeasible"]


def test_csv_of_hostile_names_is_safe() -> None:
    document = plan_document()
    document["model"] = "=HYPERLINK(1)"
    document["recommendations"][0]["gpu"] = "@SUM(1)"
    rows = read(render_csv(document))
    assert rows[0]["model"] == "'=HYPERLINK(1)"
    assert rows[0]["gpu"] == "'@SUM(1)"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (0.0, "0 s"),
        (0.0123, "12.3 ms"),
        (1.5e-5, "15 us"),
        (2.0, "2 s"),
        (59.96, "60 s"),
        (1234.5, "1,234 s"),
    ],
)
def test_seconds(value: float | None, text: str) -> None:
    assert formats.seconds(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(90.0, "1.5 min"), (7200.0, "2 h"), (172800.0, "2 days"), (5.0, "5 s"), (None, "-")]
)
def test_duration(value: float | None, text: str) -> None:
    assert formats.duration(value) == text


@pytest.mark.parametrize(("value", "text"), [(1234.5, "1,234.50"), (0.01234, "0.0123"), (0.0, "0.00"), (None, "-")])
def test_usd(value: float | None, text: str) -> None:
    assert formats.usd(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(1234567, "1,234,567"), (0.123456, "0.1235"), (12345.6, "12,346"), (None, "-")]
)
def test_number(value: float | None, text: str) -> None:
    assert formats.number(value) == text


def test_cells_are_shown_by_kind() -> None:
    assert show(0.5, "percent") == "50 %"
    assert show(True, "yes_no") == "yes"
    assert show(None, "usd") == "-"
    assert show(12.345, "gib") == "12.35"
    assert show("<b>", "text") == "<b>"


def test_plan_as_csv_has_the_range_of_each_count() -> None:
    document = plan_document()
    document["recommendations"][1]["certainty"] = None
    first, older, unpriced = read(render_csv(document))[:3]
    assert (first["fewest_gpus"], first["gpus"], first["most_gpus"]) == ("3", "4", "6")
    assert (first["fewest_usd_per_hour"], first["most_usd_per_hour"]) == ("7.5", "15.0")
    assert (first["certainty_step_time_error"], first["certainty_kv_error"]) == ("0.2", "0.012")
    assert (first["certainty_prefill_error"], first["certainty_decode_error"]) == ("", "")
    assert first["certainty_how_sure"].startswith("Analytic")
    assert "it fails at 4 replicas" in first["certainty_why"]
    assert (older["fewest_gpus"], older["certainty_why"], older["may_be_cheapest"]) == ("", "", "true")
    assert (unpriced["most_replicas"], unpriced["most_usd_per_hour"]) == ("8", "")
    document["recommendations"][1] = without_range(plan_document()["recommendations"][1])
    assert [row["measure_first"] for row in read(render_csv(document))[:3]] == ["false", "true", "false"]
