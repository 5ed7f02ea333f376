"""Formats, containers, compressions and times that must read exactly."""

import gzip
import io
import json
import zipfile
from collections.abc import Callable
from datetime import UTC, datetime

import polars as pl
import pytest
import zstandard

from replay.traces import delimited, lines
from replay.traces.report import ingest_answer

MAP = {"arrival": "t", "prompt_tokens": "p", "output_tokens": "o"}
NS = 10**9


def azure(n: int = 40, zone: str = "", digits: int = 7) -> str:
    rows = [f"2023-11-16 18:15:{i:02d}.{i * 1000:0{digits}d}{zone},{100 + i},{i + 1}" for i in range(n)]
    return "TIMESTAMP,ContextTokens,GeneratedTokens\r\n" + "\r\n".join(rows)


def test_azure_2023_with_crlf_seven_digits_and_no_last_newline(lab) -> None:
    report = lab.read(azure())
    assert (report.format, report.requests, report.cleaning.blank_lines) == ("azure-llm-2023", 40, 0)
    assert lab.table["arrival_ns"].to_list() == [i * NS + i * 1000 * 100 for i in range(40)]
    assert report.assumed["time_zone"].startswith("UTC: UTC assumed by the format")
    assert report.profile.start_utc == "2023-11-16T18:15:00.000+00:00"


def test_azure_2024_has_a_zone_and_assumes_none(lab) -> None:
    report = lab.read(azure(zone="+00:00", digits=6))
    assert report.format == "azure-llm-2024"
    assert report.warnings == []
    assert lab.table["arrival_ns"].to_list() == [i * NS + i * 1_000_000 for i in range(40)]


def test_a_fraction_of_zero_printed_without_digits(lab) -> None:
    data = (
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-12 00:00:00+00:00,5,1\n2024-05-12 00:00:00.500000+00:00,6,2\n"
    )
    lab.read(data)
    assert lab.table["arrival_ns"].to_list() == [0, NS // 2]


@pytest.mark.parametrize(
    ("text", "expected_ns"),
    [
        ("2024-01-01T00:00:01Z", NS),
        ("2024-01-01 00:00:01.000000001", NS + 1),
        ("2024-01-01T01:00:01+01:00", NS),
        ("2024-01-01T01:00:01+0100", NS),
        ("2023-12-31 19:00:01.25-05:00", NS + NS // 4),
        ("2024-01-01 00:00:01 UTC", NS),
        ("2024-01-01 00:00:01 +00:00", NS),
        ("2024-01-01T00:00:01.123456789Z", NS + 123_456_789),
    ],
)
def test_calendar_times(lab, text: str, expected_ns: int) -> None:
    zone = "" if text.endswith("000001") else "Z"
    lab.read(f"t,p,o\n2024-01-01T00:00:00{zone},1,1\n{text},1,1\n", mapping=MAP, time_zone=None if zone else "UTC")
    assert lab.table["arrival_ns"].to_list() == [0, expected_ns]


@pytest.mark.parametrize(
    ("start", "step", "unit"), [(1_700_000_000, 1, "s"), (1_700_000_000_000, 1000, "ms"), (17 * 10**17, NS, "ns")]
)
def test_epoch_units_are_told_apart_by_magnitude(lab, start: int, step: int, unit: str) -> None:
    report = lab.read("t,p,o\n" + "".join(f"{start + i * step},5,5\n" for i in range(10)), mapping=MAP)
    assert report.assumed["time_unit"].startswith(unit)
    assert report.span_s == 9.0
    assert report.profile.start_utc is not None


@pytest.mark.parametrize(("unit", "span_s"), [("s", 9.0), ("ms", 0.009), ("us", 9e-6), ("ns", 9e-9)])
def test_a_stated_unit_settles_it(lab, unit: str, span_s: float) -> None:
    data = "t,p,o\n" + "".join(f"{i},5,5\n" for i in range(10))
    assert lab.read(data, mapping=MAP, time_unit=unit).span_s == pytest.approx(span_s)


@pytest.mark.parametrize("name", ["arrival_ms", "Time (ms)", "t ms"])
def test_a_unit_in_the_columns_name_settles_it(lab, name: str) -> None:
    data = f"{name},p,o\n" + "".join(f"{i},5,5\n" for i in range(10))
    report = lab.read(data, mapping=MAP | {"arrival": name})
    assert report.span_s == pytest.approx(0.009)
    assert name in report.assumed["time_unit"]


def test_decimal_times_keep_every_nanosecond(lab) -> None:
    lab.read("arrival_s,prompt_tokens,output_tokens\n1700000000.000000001,1,1\n1700000000.123456789,1,1\n")
    assert lab.table["arrival_ns"].to_list() == [0, 123_456_788]


def test_local_times_in_a_zone_across_the_autumn_change(lab) -> None:
    data = "t,p,o\n2024-10-27 01:30:00,1,1\n2024-10-27 03:30:00,1,1\n"
    report = lab.read(data, mapping=MAP, time_zone="Europe/Berlin")
    assert report.span_s == 3 * 3600
    assert report.profile.heat_map_zone == "Europe/Berlin"
    assert [(c.weekday, c.hour) for c in report.profile.heat_map or [] if c.requests] == [(6, 1), (6, 3)]


TWICE = ["02:30:00", "02:59:59", "02:00:01", "02:29:00", "03:10:00"]


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("order", [0, 1799, 1801, 3540, 6000]),
        ("first", [0, 1739, 1799, 3598, 7799]),
        ("second", [0, 1739, 1799, 3598, 4199]),
    ],
)
def test_an_hour_that_occurs_twice_is_settled_as_asked(lab, how: str, expected: list[int]) -> None:
    """By the file's order the clock goes back at the third row: from there on it is the second hour."""
    data = "t,p,o\n" + "".join(f'"2024-10-27 {text}",1,1\n' for text in TWICE)
    report = lab.read(data, mapping=MAP, time_zone="Europe/Berlin", repeated_hour=how)
    assert "as asked" in report.assumed["repeated_hour"]
    assert [ns // NS for ns in lab.table["arrival_ns"].to_list()] == expected


@pytest.mark.parametrize(
    ("text", "expected_ns"),
    [
        ("2024/01/01 00:00:01.5", NS + NS // 2),
        ("2024-01-01 00:00:01,250", NS + NS // 4),
        ("2024-01-01T00:00:01", NS),
    ],
)
def test_other_spellings_of_naive_times(lab, text: str, expected_ns: int) -> None:
    lab.read(f't,p,o\n2024-01-01 00:00:00,1,1\n"{text}",1,1\n', mapping=MAP, time_zone="UTC")
    assert lab.table["arrival_ns"].to_list() == [0, expected_ns]


def test_access_log_times(lab) -> None:
    rows = [f"29/Nov/2026:10:00:0{i} +0200,5,5" for i in range(3)]
    report = lab.read("t,p,o\n" + "\n".join(rows) + "\n", mapping=MAP)
    assert report.profile.start_utc == "2026-11-29T08:00:00.000+00:00"
    assert report.span_s == 2.0


def cached_rows(*, inside: bool, total: bool) -> str:
    rows = []
    for i in range(9):
        prompt = 100 + i + (50 if inside else 0)
        rows.append(f"{i},{prompt},10,50" + (f",{100 + i + 50 + 10}" if total else ""))
    return "t_s,p,o,hits" + (",total_tokens" if total else "") + "\n" + "\n".join(rows) + "\n"


CACHED_MAP = MAP | {"arrival": "t_s", "cached_tokens": "hits"}


@pytest.mark.parametrize("inside", [True, False])
def test_a_total_settles_whether_cached_tokens_are_inside(lab, inside: bool) -> None:
    report = lab.read(cached_rows(inside=inside, total=True), mapping=CACHED_MAP)
    assert lab.table["prompt_tokens"].to_list() == [150 + i for i in range(9)]
    assert "adds up" in report.assumed["cached_tokens"]


@pytest.mark.parametrize("inside", [True, False])
def test_the_user_settles_whether_cached_tokens_are_inside(lab, inside: bool) -> None:
    lab.read(cached_rows(inside=inside, total=False), mapping=CACHED_MAP, prompt_includes_cached=inside)
    assert lab.table["prompt_tokens"].to_list() == [150 + i for i in range(9)]


def test_the_names_of_providers_settle_whether_cached_tokens_are_inside(lab) -> None:
    anthropic = {
        "input_tokens": 10,
        "cache_read_input_tokens": 100,
        "cache_creation_input_tokens": 7,
        "output_tokens": 5,
    }
    rows = [{"at_s": i, "usage": anthropic} for i in range(5)]
    mapping = {
        "arrival": "at_s",
        "prompt_tokens": "usage.input_tokens",
        "output_tokens": "usage.output_tokens",
        "cached_tokens": "usage.cache_read_input_tokens",
        "cache_write_tokens": "usage.cache_creation_input_tokens",
    }
    lab.read("".join(json.dumps(row) + "\n" for row in rows), mapping=mapping)
    assert lab.table.select("prompt_tokens", "cached_tokens").unique().rows() == [(117, 100)]
    openai = {"prompt_tokens": 110, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 100}}
    mapping = {
        "arrival": "at_s",
        "prompt_tokens": "prompt_tokens",
        "output_tokens": "completion_tokens",
        "cached_tokens": "prompt_tokens_details.cached_tokens",
    }
    lab.read("".join(json.dumps({"at_s": i} | openai) + "\n" for i in range(5)), mapping=mapping)
    assert lab.table.select("prompt_tokens", "cached_tokens").unique().rows() == [(110, 100)]


def test_a_total_shows_reasoning_outside_the_output(lab) -> None:
    rows = "".join(f"{i},100,10,30,{140}\n" for i in range(9))
    report = lab.read("t_s,p,o,r,total_tokens\n" + rows, mapping=MAP | {"arrival": "t_s", "reasoning_tokens": "r"})
    assert lab.table.select("output_tokens", "reasoning_tokens").unique().rows() == [(40, 30)]
    assert "added" in report.assumed["reasoning_tokens"]


def test_rows_that_look_like_sums_are_read_where_the_user_says_so(lab) -> None:
    data = "arrival_s,prompt_tokens,output_tokens,num_requests\n" + "".join(f"{i * 60},100,10,2\n" for i in range(30))
    assert lab.read(data, rows_are_requests=True).requests == 30


def test_a_zip_of_one_file_reads_like_plain(lab, own_csv: Callable[..., str]) -> None:
    lab.read(own_csv(n=300))
    expected = lab.table
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("__MACOSX/._trace.csv", "x")
        archive.writestr("folder/trace.csv", own_csv(n=300))
    report = lab.read(buffer.getvalue())
    assert lab.table.equals(expected)
    assert report.assumed["compression"] == "zip"


@pytest.mark.parametrize("between", ["", "\n\n", " "])
@pytest.mark.parametrize("indent", [None, 1])
def test_json_objects_without_line_breaks_between(lab, between: str, indent: int | None) -> None:
    rows = [{"arrival_s": i, "prompt_tokens": 10 + i, "output_tokens": 1} for i in range(30)]
    report = lab.read(between.join(json.dumps(row, indent=indent) for row in rows))
    assert lab.table["prompt_tokens"].to_list() == list(range(10, 40))
    assert report.cleaning.rows_read == 30


@pytest.mark.parametrize("compress", [gzip.compress, zstandard.compress])
def test_compressed_in_several_members_reads_like_plain(lab, own_csv: Callable[..., str], compress) -> None:
    plain = own_csv(n=1000).encode()
    first = lab.read(plain)
    expected = lab.table
    report = lab.read(compress(plain[:5000]) + compress(plain[5000:]))
    assert lab.table.equals(expected)
    assert report.profile == first.profile


def test_gzip_with_zero_padding_is_fine(lab, own_csv: Callable[..., str]) -> None:
    assert lab.read(gzip.compress(own_csv().encode()) + b"\0" * 512).requests == 100


@pytest.mark.parametrize("separator", [",", "\t", ";", "|"])
def test_separators_and_a_byte_order_mark(lab, own_csv: Callable[..., str], separator: str) -> None:
    data = b"\xef\xbb\xbf" + own_csv().replace(",", separator).encode()
    report = lab.read(data)
    assert (report.requests, report.format) == (100, "capreplay-csv")
    assert report.assumed["container"] == ("tsv" if separator == "\t" else "csv")


def test_quoted_cells_with_separators_quotes_and_line_breaks(lab) -> None:
    data = (
        'arrival_s,note,prompt_tokens,output_tokens,model\n0,"a, ""b""\nc",5,1,"m,1"\n\n1,plain,"6","2",\n'
        '2,"x\n\ny",7,3,"m,1"\n'
    )
    report = lab.read(data)
    assert lab.table.select("source_line", "prompt_tokens", "model").rows() == [
        (2, 5, "m,1"),
        (5, 6, None),
        (6, 7, "m,1"),
    ]
    assert report.cleaning.blank_lines == 1
    assert report.assumed["ignored_columns"] == "note"


def test_a_quoted_record_across_batches(lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "BATCH_BYTES", 64)
    monkeypatch.setattr("replay.traces.source.BLOCK_BYTES", 50)
    cell = '"' + "long text\n" * 30 + '"'
    data = "arrival_s,prompt_tokens,output_tokens,note\n" + f"1,2,3,{cell}\n" * 5
    report = lab.read(data)
    assert report.requests == 5
    assert lab.table["source_line"].to_list() == [2 + 31 * i for i in range(5)]


def test_a_quote_left_open_costs_its_own_line_only(lab, own_csv: Callable[..., str]) -> None:
    report = lab.read(own_csv('60,"5,5', *[f"{61 + i},5,5" for i in range(200)]))
    assert [(r.line, r.rule) for r in report.cleaning.rejections] == [(102, "unbalanced_quotes")]
    assert report.requests == 300


def test_the_fast_and_the_careful_csv_path_agree(
    lab, own_csv: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = own_csv(n=500)
    lab.read(data)
    fast = lab.table
    monkeypatch.setattr(delimited._Splitter, "_rectangular", lambda self, data, first: None)
    lab.read(data)
    assert lab.table.equals(fast)


def test_empty_and_unknown_words_are_missing_not_zero(lab, own_csv: Callable[..., str]) -> None:
    report = lab.read(own_csv("60,null,5", "61,-,6", "62,,7", "63, 8 ,9", "64,10.0,11"))
    tail = lab.table.tail(5)
    assert tail["prompt_tokens"].to_list() == [None, None, None, 8, 10]
    assert tail["output_tokens"].to_list() == [5, 6, 7, 9, 11]
    assert report.cleaning.share_missing_prompt_tokens == pytest.approx(3 / 105)


def test_zero_lengths_stay_as_arrivals_and_are_counted(lab, own_csv: Callable[..., str]) -> None:
    report = lab.read(own_csv("60,0,5", "61,7,0"))
    assert lab.table.tail(2).select("prompt_tokens", "output_tokens").rows() == [(None, 5), (7, None)]
    assert (report.cleaning.zero_prompt_tokens, report.cleaning.zero_output_tokens) == (1, 1)
    assert report.requests == 102
    assert any("say 0" in warning for warning in report.warnings)


def test_optional_fields_and_statuses(lab) -> None:
    rows = [
        {
            "arrival_ms": 0,
            "prompt_tokens": 10,
            "output_tokens": 5,
            "cached_tokens": 4,
            "reasoning_tokens": 2,
            "status": 200,
        },
        {"arrival_ms": "5", "prompt_tokens": "20", "output_tokens": 6, "tenant": "acme", "status": "Cancelled"},
        {
            "arrival_ms": 7.5,
            "prompt_tokens": 30,
            "output_tokens": None,
            "session": 42,
            "priority": "high",
            "status": 503,
        },
        {"arrival_ms": 8, "prompt_tokens": 30, "output_tokens": 1, "status": "cache_hit"},
        {"arrival_ms": 9, "prompt_tokens": 30, "output_tokens": 1, "status": "???"},
    ]
    for data in ("".join(json.dumps(row) + "\n" for row in rows), json.dumps(rows, indent=1)):
        report = lab.read(data)
        table = lab.table
        assert report.format == "capreplay-json"
        assert table["arrival_ns"].to_list() == [0, 5_000_000, 7_500_000, 8_000_000, 9_000_000]
        assert table["status"].to_list() == ["ok", "aborted", "failed", "cache_hit", "unknown"]
        assert table["cached_tokens"].to_list() == [4, None, None, None, None]
        assert table["session"].to_list() == [None, None, "42", None, None]
        assert table["tenant"].to_list() == [None, "acme", None, None, None]


def test_a_json_array_names_the_line_where_an_element_begins(lab) -> None:
    rows = [{"arrival_s": i, "prompt_tokens": 1, "output_tokens": 1} for i in range(40)]
    text = (
        "[\n" + ",\n".join(map(json.dumps, rows)) + ',\n{"arrival_s": 50, "prompt_tokens": -1, "output_tokens": 1}\n]'
    )
    report = lab.read(text)
    assert [(r.line, r.rule) for r in report.cleaning.rejections] == [(42, "negative")]


def test_a_json_array_across_blocks(lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "BATCH_BYTES", 16)
    monkeypatch.setattr("replay.traces.source.BLOCK_BYTES", 7)
    rows = [{"arrival_s": i, "prompt_tokens": 10 + i, "output_tokens": 1} for i in range(30)]
    lab.read(json.dumps(rows, indent=2))
    assert lab.table["prompt_tokens"].to_list() == list(range(10, 40))


def test_nested_keys_by_mapping(lab) -> None:
    rows = [{"req": {"at": f"2024-01-01T00:00:{i:02d}Z", "usage": {"in": i + 1}}, "usage.out": 9} for i in range(10)]
    mapping = {"arrival": "req.at", "prompt_tokens": "req.usage.in", "output_tokens": "usage.out"}
    report = lab.read("".join(json.dumps(row) + "\n" for row in rows), mapping=mapping)
    assert (report.format, report.span_s, report.prompt_tokens, report.output_tokens) == ("generic", 9.0, 55, 90)


def test_parquet_with_datetimes_and_block_ids(lab) -> None:
    frame = pl.DataFrame(
        {
            "at": [datetime(2024, 1, 1, 0, 0, i, tzinfo=UTC) for i in range(3)],
            "p": pl.Series([33, 20, 40], dtype=pl.UInt32),
            "o": [1.0, 2.0, 3.0],
            "ids": pl.Series([[2**64 - 1, 7, 9], [2**64 - 1, 7], None], dtype=pl.List(pl.UInt64)),
        }
    )
    buffer = io.BytesIO()
    frame.write_parquet(buffer)
    mapping = {"arrival": "at", "prompt_tokens": "p", "output_tokens": "o", "prefix_blocks": "ids"}
    report = lab.read(buffer.getvalue(), mapping=mapping, block_size=16)
    assert lab.table["prefix_blocks"].to_list() == [[2, 0, 1], [2, 0], None]
    assert report.profile.prefix is not None
    assert (report.profile.prefix.reused_blocks, report.profile.prefix.distinct_blocks) == (2, 3)


def test_mooncake_with_another_block_size_as_asked(lab) -> None:
    rows = [{"timestamp": i, "input_length": 40, "output_length": 1, "hash_ids": [1, 2, 3]} for i in range(9)]
    report = lab.read("".join(json.dumps(row) + "\n" for row in rows), block_size=16)
    assert report.profile.prefix is not None
    assert report.profile.prefix.block_size_tokens == 16
    assert "as asked" in report.assumed["block_size"]


def test_mooncake_sessions_keep_the_closed_loop(lab) -> None:
    rows = [
        {"session_id": "a", "input_length": 10, "output_length": 1, "timestamp": 5},
        {"session_id": "b", "input_length": 10, "output_length": 1, "timestamp": 9},
        {"session_id": "a", "input_length": 20, "output_length": 2, "delay": 1500},
        {"session_id": "a", "input_length": 30, "output_length": 3, "delay": 0.5},
    ]
    report = lab.read("".join(json.dumps(row) + "\n" for row in rows), time_unit="ms")
    assert report.cleaning.closed_loop_requests == 2
    assert lab.table.select("arrival_ns", "after_line", "delay_ns", "source_line").rows() == [
        (0, None, None, 1),
        (4_000_000, None, None, 2),
        (None, 1, 1_500_000_000, 3),
        (None, 3, 500_000, 4),
    ]


def test_qwen_sessions_follow_parents(lab) -> None:
    fixed = {"input_length": 20, "output_length": 1}
    pairs = enumerate([(1, -1), (2, 1), (3, 2), (4, 99), (5, -1)])
    rows = [{"chat_id": c, "parent_chat_id": p, "timestamp": i, "hash_ids": [1, i + 2]} | fixed for i, (c, p) in pairs]
    lab.read("".join(json.dumps(row) + "\n" for row in rows))
    assert lab.table["session"].to_list() == ["1", "1", "1", "99", "5"]


def test_burstgpt_v3_keeps_sessions_and_elapsed_time(lab) -> None:
    data = (
        "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
        "19440110.0,,51,ChatGPT,1021,114,1135,API log\n19440141.0,s-1,27.5,GPT-4,402,0,402,Conversation log\n"
    )
    report = lab.read(data)
    assert report.format == "burstgpt-v3"
    assert report.profile.start_utc is None, "the times are relative"
    assert lab.table.select("session", "source_e2e_ns", "status", "model", "prompt_tokens").rows() == [
        (None, 51 * NS, None, "ChatGPT", 1021),
        ("s-1", 27 * NS + NS // 2, "failed", "GPT-4", 402),
    ]


def test_a_total_that_does_not_add_up_is_named(lab) -> None:
    header = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    data = header + "1,a,5,5,11,API log\n2,a,5,5,10,API log\n"
    assert any("Total tokens" in warning for warning in lab.read(data).warnings)


def test_unordered_rows_are_sorted_and_counted_and_ties_keep_their_order(lab) -> None:
    report = lab.read("arrival_s,prompt_tokens,output_tokens\n5,1,1\n3,2,1\n5,3,1\n4,4,1\n9,5,1\n")
    assert lab.table["prompt_tokens"].to_list() == [2, 4, 1, 3, 5]
    assert report.cleaning.rows_moved_by_sorting == 2
    assert lab.table["arrival_ns"][0] == 0


def test_the_answer_of_the_command_line_has_its_keys(lab, own_csv: Callable[..., str]) -> None:
    answer = ingest_answer(lab.read(own_csv("x,1,1")))
    assert list(answer) == [
        "format", "assumed", "rows_read", "rows_kept", "rows_rejected", "rejections", "requests", "prompt_tokens",
        "output_tokens", "span_s", "warnings",
    ]  # fmt: skip
    assert answer["rejections"] == [{"line": 102, "column": "arrival_s", "rule": "not_a_time"}]
    assert answer["rows_read"] == answer["rows_kept"] + answer["rows_rejected"] == 101
    json.dumps(answer, allow_nan=False)


def test_the_canonical_file_is_sorted_typed_and_says_what_it_is(lab, own_csv: Callable[..., str]) -> None:
    from replay.traces import canonical

    lab.read(own_csv(n=5))
    used = ("arrival_ns", "prompt_tokens", "output_tokens", "source_line")
    assert dict(pl.read_parquet_schema(lab.out)) == {name: canonical.SCHEMA[name] for name in used}
    whole = canonical.scan(lab.out).collect()
    assert dict(whole.schema) == canonical.SCHEMA
    assert whole.height == 5
    meta = canonical.read_meta(lab.out)
    assert (meta.version, meta.block_size_tokens, meta.start_epoch_ns) == (canonical.VERSION, None, None)


def test_progress_counts_bytes_and_may_cancel(lab, own_csv: Callable[..., str]) -> None:
    from replay.traces.ingest import ingest
    from replay.traces.options import IngestOptions

    lab.source.write_text(own_csv())
    seen: list[tuple[int, int]] = []
    ingest(lab.source, lab.out, IngestOptions(), lambda done, total: seen.append((done, total)))
    size = lab.source.stat().st_size
    assert seen[-1] == (size, size)
    lab.out.unlink()

    def cancel(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ingest(lab.source, lab.out, IngestOptions(), cancel)
    assert [path.name for path in lab.folder.iterdir()] == ["upload"]


@pytest.mark.parametrize(
    ("header", "hint"),
    [
        (
            "request_ts,in_tok,out_tok",
            "--map arrival=request_ts --map prompt_tokens=in_tok --map output_tokens=out_tok",
        ),
        ("ts,in,out", "--map arrival=ts --map prompt_tokens=in --map output_tokens=out"),
        (
            "req ts,inputTok,completion count",
            "--map 'arrival=req ts' --map prompt_tokens=inputTok --map 'output_tokens=",
        ),
        (
            "end_time,total_tokens,response_time",
            "--map arrival=COLUMN --map prompt_tokens=COLUMN --map output_tokens=C",
        ),
    ],
)
def test_a_mapping_is_suggested_for_the_shell_and_for_the_query(lab, header: str, hint: str) -> None:
    error = lab.refuse(f"{header}\n1,2,3\n")
    assert hint in error.detail
    assert "as a map parameter of the query" in error.detail


def test_a_batch_in_which_no_row_can_be_taken_apart(lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """All cells of a later batch are faults: its column of times is empty."""
    monkeypatch.setattr(lines, "BATCH_BYTES", 64)
    monkeypatch.setattr("replay.traces.source.BLOCK_BYTES", 64)
    good = "".join(f"2024-01-01T00:00:{i:02d}.0Z,1,1\n" for i in range(40))
    report = lab.read(
        "t,p,o\n" + good + '1,"2,3,4\n' * 3 + good, mapping=MAP, max_rejected_share=0.1, keep_duplicates=True
    )
    assert report.cleaning.rows_kept == 80
