"""What adds up and is yet wrong: units off by a thousand, spreadsheets, rounded and grouped numbers, wrong columns."""

import json

import pytest

OWN = "arrival_s,prompt_tokens,output_tokens\n"
BURST = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
MAP = {"arrival": "t", "prompt_tokens": "p", "output_tokens": "o"}
STEPS = [i * 1_700 + i * i * 37 % 1_301 for i in range(60)]
"""Milliseconds, one request every 1.7 s or so."""


def rows(template: str, times: list = STEPS) -> str:
    return "".join(template.format(t=t, p=300 + 7 * i, o=20 + i) + "\n" for i, t in enumerate(times))


IN_MS = {
    "burstgpt-v1": BURST + rows("{t},GPT-4,{p},{o},9,API log"),
    "vidur": "arrived_at,num_prefill_tokens,num_decode_tokens\n" + rows("{t},{p},{o}"),
    "capreplay-csv": OWN + rows("{t},{p},{o}"),
    "mooncake": "".join(
        json.dumps({"timestamp": t * 1000, "input_length": 300 + i, "output_length": 20}) + "\n"
        for i, t in enumerate(STEPS)
    ),
}


@pytest.mark.parametrize("name", IN_MS)
def test_whole_times_a_thousand_times_too_slow_are_asked_about(lab, name: str) -> None:
    refusal = lab.refuse(IN_MS[name])
    assert refusal.code == "trace.ambiguous_unit"
    assert all(error.column and error.cure.startswith("time_unit=") for error in refusal.errors)
    finer = "us" if name == "mooncake" else "ms"
    assert f"time_unit={finer}" in [error.cure for error in refusal.errors]
    report = lab.read(IN_MS[name], time_unit=finer)
    assert (report.format, round(report.span_s)) == (name, 102)


def test_the_unit_of_sparse_times_with_fractions_is_believed(lab) -> None:
    assert lab.read(OWN + rows("{t}.5,{p},{o}")).requests == 60


def test_days_of_traffic_whose_hours_are_all_alike_are_asked_about(lab) -> None:
    flat = [i * 25 + i * i * 37 % 23 for i in range(10_500)]
    assert lab.refuse(BURST + rows("{t},GPT-4,{p},{o},9,API log", flat)).code == "trace.ambiguous_unit"
    by_day = [day * 86_400 + hour * 3600 + i * 7 for day in range(4) for hour in range(8, 18) for i in range(260)]
    assert lab.read(BURST + rows("{t},GPT-4,{p},{o},9,API log", by_day)).requests == len(by_day)


def test_mooncake_in_seconds_is_known_by_its_load(lab) -> None:
    text = "".join(
        json.dumps({"timestamp": i * 4, "input_length": 9000 + i % 90, "output_length": 20}) + "\n" for i in range(300)
    )
    assert lab.refuse(text).code == "trace.ambiguous_unit"
    assert lab.read(text, time_unit="s").span_s == 1196


@pytest.mark.parametrize("header", [OWN, BURST, "t,p,o\n"])
def test_days_of_a_spreadsheet_are_no_times(lab, header: str) -> None:
    row = "{t},GPT-4,{p},{o},9,API log" if header == BURST else "{t},{p},{o}"
    text = header + rows(row, [f"{46083.375 + t / 86_400_000:.8f}" for t in STEPS])
    options = {"mapping": MAP} if header.startswith("t,") else {}
    refusal = lab.refuse(text, **options)
    assert (refusal.code, refusal.errors[0].column) == ("trace.spreadsheet_days", header.split(",", 1)[0])
    assert lab.read(text, time_unit="s", **options).span_s < 0.01, "the user's word counts"


@pytest.mark.parametrize("times", [["1.77E+12"] * 30 + ["1.78E+12"] * 30, ["1.7e18"] * 60])
def test_times_that_lost_their_digits_are_refused(lab, times: list[str]) -> None:
    assert lab.refuse("t,p,o\n" + rows("{t},{p},{o}", times), mapping=MAP).code == "trace.lost_digits"


@pytest.mark.parametrize(
    "cell", ['"1,234"', "1.234", "1 234", "1'234", "1_234", "1\u202f234", '"12,345,678"', '"1.234,0"']
)
def test_one_number_with_thousands_set_apart_refuses_the_file(lab, cell: str) -> None:
    refusal = lab.refuse(OWN + rows("{t}.5,{p},{o}") + f"200000,{cell},5\n")
    assert (refusal.code, refusal.errors[0].column, refusal.errors[0].line) == (
        "trace.grouped_digits",
        "prompt_tokens",
        62,
    )


@pytest.mark.parametrize(("cell", "tokens"), [("1.55e+03", None), ("1.550E+03", 1550), ("2e+03", 2000), ("123.0", 123)])
def test_rounded_numbers_are_rejected_and_exact_ones_read(lab, cell: str, tokens: int | None) -> None:
    report = lab.read(OWN + rows("{t}.5,{p},{o}") + f"200000,{cell},5\n")
    assert report.cleaning.rejected_by_rule == ({"rounded": 1} if tokens is None else {})
    assert (lab.table["prompt_tokens"][-1] == tokens) is (tokens is not None)


@pytest.mark.parametrize(
    ("column", "said"),
    [
        ("prompt_chars", "chars"),
        ("requestBytes", "bytes"),
        ("prompt_ktokens", "ktokens"),
        ("input_cost", "cost"),
        ("max_new_tokens", "a limit"),
        ("total_tokens", "together"),
        ("avg_prompt_tokens", "avg"),
        ("prompt_tokens_p50", "p50"),
        ("promptTps", "tps"),
    ],
)
def test_a_column_that_counts_something_else_is_refused(lab, column: str, said: str) -> None:
    refusal = lab.refuse(
        f"t_s,{column},o\n" + rows("{t}.5,{p},{o}"), mapping=MAP | {"arrival": "t_s", "prompt_tokens": column}
    )
    assert (refusal.code, refusal.errors[0].column) == ("trace.not_tokens", column)
    assert said in refusal.detail


@pytest.mark.parametrize("column", ["message.tokens", "user_message_tokens", "input_tokens_total", "words.n"])
def test_names_that_only_look_like_it_are_believed(lab, column: str) -> None:
    report = lab.read(
        f"t_s,{column},o\n" + rows("{t}.5,{p},{o}"), mapping=MAP | {"arrival": "t_s", "prompt_tokens": column}
    )
    assert report.requests == 60


def test_arrivals_from_a_column_of_ends_are_said(lab) -> None:
    report = lab.read("end_time_s,p,o\n" + rows("{t}.5,{p},{o}"), mapping=MAP | {"arrival": "end_time_s"})
    assert any("when requests ended" in warning for warning in report.warnings)


@pytest.mark.parametrize("beside", ["Prompt_Tokens", "prompt_tokens.1", "prompt_tokens_2"])
def test_two_columns_of_nearly_one_name_are_asked_about(lab, beside: str) -> None:
    header = f"arrival_s,prompt_tokens,output_tokens,{beside}\n"
    assert lab.refuse(header + rows("{t}.5,{p},{o},7")).code == "trace.duplicate_columns"
    assert lab.read(header + rows("{t}.5,{p},{o},{p}")).requests == 60, "equal values leave nothing to ask"


def test_a_total_that_is_more_than_its_parts_is_asked_about(lab) -> None:
    header = "arrival_s,prompt_tokens,output_tokens,total_tokens\n"
    assert lab.refuse(header + rows("{t}.5,{p},{o},9999")).code == "trace.contradicting_total"
    right = header + "".join(f"{t}.5,300,{i},{300 + i}\n" for i, t in enumerate(STEPS, 1))
    assert lab.read(right).warnings == []
    assert any("total_tokens" in warning for warning in lab.read(right + "200000,300,5,400\n").warnings)


def test_a_second_header_in_another_order_is_refused(lab) -> None:
    swapped = "arrival_s,output_tokens,prompt_tokens\n" + rows("9{t}.5,{o},{p}")
    refusal = lab.refuse(OWN + rows("{t}.5,{p},{o}") + swapped)
    assert (refusal.code, refusal.errors[0].line) == ("trace.columns_change", 62)


def test_exports_that_overlap_are_refused(lab) -> None:
    lines = rows("{t}.5,{p},{o}").splitlines(keepends=True)
    refusal = lab.refuse(OWN + "".join(lines[:40] + lines[35:]))
    assert (refusal.code, refusal.errors[0].field) == ("trace.duplicates", "keep_duplicates")


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ("<!DOCTYPE html><html><body>502 Bad Gateway</body></html>", "a web page"),
        ("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12\n", "Git LFS"),
        ("arrival_s prompt_tokens output_tokens\n1.5 3 4\n", "separate the columns"),
    ],
)
def test_what_is_no_table_is_called_by_its_name(lab, data: str, said: str) -> None:
    assert said in lab.refuse(data).detail


def test_a_table_of_markdown_is_read(lab) -> None:
    text = "| arrival_s | prompt_tokens | output_tokens |\n|---|---|---|\n" + rows("| {t}.5 | {p} | {o} |")
    report = lab.read(text)
    assert (report.requests, report.cleaning.rejected_by_rule) == (60, {"not_a_time": 1})


BODY = {"usage": {"in": 12, "out": 3}}
INSIDE = {"arrival": "t_s", "prompt_tokens": "body.usage.in", "output_tokens": "body.usage.out"}


def test_a_mapping_leads_into_json_text(lab) -> None:
    cell = json.dumps(BODY)
    quoted = '"' + cell.replace('"', '""') + '"'
    lab.read("t_s,body\n" + "".join(f"{t}.5,{quoted}\n" for t in STEPS), mapping=INSIDE)
    table = lab.table
    lab.read("".join(json.dumps({"t_s": t + 0.5, "body": cell}) + "\n" for t in STEPS), mapping=INSIDE)
    assert table.equals(lab.table.with_columns(table["source_line"]))
    assert table.select("prompt_tokens", "output_tokens").unique().rows() == [(12, 3)]


def test_text_that_is_no_json_is_a_rejected_row(lab) -> None:
    good = "".join(json.dumps({"t_s": t + 0.5, "body": json.dumps(BODY)}) + "\n" for t in STEPS)
    report = lab.read(good + json.dumps({"t_s": 200_000.5, "body": "{cut"}) + "\n", mapping=INSIDE)
    assert report.cleaning.rejected_by_rule == {"not_a_number": 1}
    assert report.cleaning.rejections[0].column == "body.usage.in"


def test_a_file_that_may_be_cut_off_says_so(lab) -> None:
    text = OWN + rows("{t}.5,{p},{o}")
    assert lab.read(text).warnings == []
    assert any("line break" in warning for warning in lab.read(text[:-2]).warnings)


def test_a_mark_for_unknown_is_no_output(lab) -> None:
    report = lab.read(OWN + rows("{t}.5,{p},{o}") + "200000,9,9999999\n200001,2000000,9\n")
    assert report.cleaning.rejected_by_rule == {"tokens_above_limit": 1}
    assert lab.table["prompt_tokens"].max() == 2_000_000


def test_latencies_in_another_unit_are_said(lab) -> None:
    header = "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    for per_token, said in ((0.02, False), (20, True)):
        text = header + "".join(f"{i},s{i},{(20 + i) * per_token},m,{300 + i},{20 + i},9,API log\n" for i in range(60))
        assert any("latencies" in warning for warning in lab.read(text).warnings) is said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[{"arrival_s": 1},\n]', "comma before the closing"),
        ('{"arrival_s": 1},\n{"arrival_s": 2},\n', "comma between lines"),
        ('[\n// exported\n{"arrival_s": 1}]', "a comment"),
    ],
)
def test_what_breaks_json_is_named(lab, text: str, said: str) -> None:
    refusal = lab.refuse(text)
    assert refusal.code == "trace.json"
    assert said in refusal.detail


def test_turns_that_give_only_what_they_add_are_asked_about(lab) -> None:
    def turns(grow: int) -> str:
        made = [
            {"session_id": f"s{k}", "input_length": 500 + turn * grow, "output_length": 50}
            | ({"timestamp": k * 1000} if turn == 0 else {"delay": 100})
            for k in range(5)
            for turn in range(4)
        ]
        return "".join(json.dumps(row) + "\n" for row in made)

    refusal = lab.refuse(turns(0))
    assert (refusal.code, refusal.errors[0].field) == ("trace.ambiguous_turns", "turn_lengths")
    assert [error.cure for error in refusal.errors] == ["turn_lengths=added", "turn_lengths=whole"]
    assert lab.read(turns(0), turn_lengths="whole").prompt_tokens == 5 * 4 * 500
    report = lab.read(turns(0), turn_lengths="added")
    assert report.prompt_tokens == 5 * (500 + 1050 + 1600 + 2150)
    assert "added" in report.assumed["turn_lengths"]
    assert lab.read(turns(90)).prompt_tokens == 5 * (500 + 590 + 680 + 770)


def test_added_turns_share_their_text_within_the_session(lab) -> None:
    """Dynamo's own example: 4 tokens, 2 out, 2 added make a prompt of 8. Blocks follow it."""
    rows = [
        {"session_id": s, "input_length": 600, "output_length": 300, "hash_ids": [7, k], "timestamp": k}
        for k, s in enumerate("ab")
    ]
    rows += [
        {"session_id": s, "input_length": 200, "output_length": 10, "hash_ids": [90 + k], "delay": 5}
        for k, s in enumerate("abab")
    ]
    lab.read("".join(json.dumps(row) + "\n" for row in rows), turn_lengths="added")
    table = lab.table.sort("source_line")
    assert table["prompt_tokens"].to_list() == [600, 600, 1100, 1100, 1310, 1310]
    blocks = table["prefix_blocks"].to_list()
    assert [len(ids) for ids in blocks] == [2, 2, 3, 3, 3, 3]
    assert len({ids[0] for ids in blocks}) == 1, "the first full block is the one that both sessions begin with"
    assert blocks[2][:2] == blocks[4][:2]
    assert blocks[2][1] != blocks[3][1]
    assert blocks[2][2] != blocks[4][2], "a block that is not full is nobody else's"


def test_added_turns_in_another_order_are_refused(lab) -> None:
    """The last turn would seem to have no history, and the first all of it."""
    rows = [
        {"session_id": s, "input_length": 200, "output_length": 100, "timestamp": 1000 * turn}
        for turn in range(5)
        for s in "ab"
    ]
    lines = [json.dumps(row) + "\n" for row in rows]
    assert lab.read("".join(lines), turn_lengths="added").prompt_tokens == 2 * (200 + 500 + 800 + 1100 + 1400)
    refusal = lab.refuse_again("".join(lines[::-1]), turn_lengths="added")
    assert (refusal.code, refusal.errors[0].column) == ("trace.turn_order", "timestamp")
    assert lab.read("".join(lines[::-1]), turn_lengths="whole").prompt_tokens == 2000


def test_after_a_turn_without_lengths_added_prompts_are_unknown(lab) -> None:
    lengths = [(100, 10), (20, None), (30, 5)]
    rows = [
        {"session_id": "a", "input_length": prompt, "output_length": output}
        | ({"delay": 1} if turn else {"timestamp": 0})
        for turn, (prompt, output) in enumerate(lengths)
    ]
    rows.append({"session_id": "b", "input_length": 4, "output_length": 2, "timestamp": 9})
    lab.read("".join(json.dumps(row) + "\n" for row in rows), turn_lengths="added")
    assert lab.table.sort("source_line")["prompt_tokens"].to_list() == [100, None, None, 4]


@pytest.mark.parametrize("name", ["mooncake", "own"])
def test_seconds_in_a_column_of_ms_are_known_by_their_rush(lab, name: str) -> None:
    times = [t // 1000 for t in STEPS]
    text = {
        "mooncake": "".join(
            json.dumps({"timestamp": t, "input_length": 300 + i, "output_length": 20}) + "\n"
            for i, t in enumerate(times)
        ),
        "own": "arrival_ms,prompt_tokens,output_tokens\n" + rows("{t},{p},{o}", times),
    }[name]
    refusal = lab.refuse(text)
    assert (refusal.code, refusal.errors[0].cure) == ("trace.ambiguous_unit", "time_unit=s")
    assert lab.read(text, time_unit="ms").requests == 60


def test_a_slow_file_in_ms_is_believed(lab) -> None:
    assert lab.read("arrival_ms,prompt_tokens,output_tokens\n" + rows("{t},{p},{o}")).requests == 60


def test_counters_of_a_server_are_no_requests(lab) -> None:
    text = OWN + "".join(f"{i * 0.7:.1f},{1000 * i + i * i},{200 * i + i * i * i}\n" for i in range(1, 61))
    refusal = lab.refuse(text)
    assert (refusal.code, refusal.errors[0].field) == ("trace.aggregate", "rows_are_requests")
    assert "counters" in refusal.detail
    assert lab.read(text, rows_are_requests=True).requests == 60


def test_a_session_whose_prompts_grow_is_no_counter(lab) -> None:
    text = OWN + "".join(f"{i * 0.7:.1f},{1000 * i},{200 + i * 37 % 101}\n" for i in range(1, 61))
    assert lab.read(text).requests == 60


@pytest.mark.parametrize("column", ["api_requests", "observationCount", "count"])
def test_a_column_that_counts_requests_is_known_by_more_names(lab, column: str) -> None:
    text = OWN.strip() + f",{column}\n" + rows("{t}.5,{p},{o},3")
    assert lab.refuse(text).code == "trace.aggregate"
    assert lab.read(text.replace(",3\n", ",1\n")).requests == 60


def test_times_of_buckets_are_no_arrivals(lab) -> None:
    """Hours that some sums lack, and two sums in one minute, have no even step."""
    hours = "hour,p,o\n" + "".join(
        f"2026-11-{1 + h // 24:02d}T{h % 24:02d}:00:00Z,{3000 + h},{400 + h * 7 % 90}\n"
        for h in (int(i * 1.4) for i in range(60))
    )
    refusal = lab.refuse(hours, mapping=MAP | {"arrival": "hour"})
    assert (refusal.code, refusal.errors[0].column) == ("trace.aggregate", "hour")
    assert lab.read(hours.replace("hour,", "t,", 1), mapping=MAP).requests == 60


def test_cached_tokens_beside_our_own_names_are_asked_about(lab) -> None:
    text = "arrival_s,prompt_tokens,cache_read_input_tokens,output_tokens\n" + rows("{t}.5,{p},40,{o}")
    assert lab.refuse(text).code == "trace.ambiguous_cached"
    assert lab.read(text, prompt_includes_cached=True).requests == 60


def test_json_lines_that_were_cut_off_are_said(lab) -> None:
    text = "".join(json.dumps({"arrival_s": t / 1000, "prompt_tokens": 300, "output_tokens": 20}) + "\n" for t in STEPS)
    report = lab.read(text[:-9])
    assert (report.requests, report.cleaning.rejected_by_rule) == (59, {"malformed_json": 1})
    assert any("cut off" in warning for warning in report.warnings)
    assert not any("cut off" in warning for warning in lab.read(text[:-1]).warnings)


def test_gmt_is_utc(lab) -> None:
    text = "t,p,o\n" + "".join(f"2026-11-29 09:00:{i:02d} GMT,{300 + i},20\n" for i in range(30))
    assert lab.read(text, mapping=MAP).profile.start_utc == "2026-11-29T09:00:00.000+00:00"


def test_a_column_of_rounded_numbers_is_refused(lab) -> None:
    """One ``2e+03`` among plain numbers is exact, as R writes it; a spreadsheet rounds all of a column."""
    rows = "".join(f"{i}.5,{i % 9 + 1}E+03,10\n" for i in range(30))
    refusal = lab.refuse("arrival_s,prompt_tokens,output_tokens\n" + rows)
    assert (refusal.code, refusal.errors[0].rule) == ("trace.too_many_rejected", "rounded")


@pytest.mark.parametrize(
    "second",
    [
        "arrival_s,prompt_tokens,total_tokens",
        "arrival_ms,prompt_tokens,output_tokens",
        "ARRIVAL_S,Output_Tokens,Prompt_Tokens",
    ],
)
def test_a_header_of_other_names_in_the_middle_is_refused(lab, own_csv, second: str) -> None:
    refusal = lab.refuse(own_csv(second, *(f"{60 + i}.5,10,20" for i in range(50))))
    assert refusal.code == "trace.columns_change"


@pytest.mark.parametrize(
    "second", ["arrival_s, prompt_tokens ,output_tokens", "\ufeffarrival_s,prompt_tokens,output_tokens"]
)
def test_the_same_header_again_is_one_rejected_row(lab, own_csv, second: str) -> None:
    report = lab.read(own_csv(second, *(f"{60 + i}.5,10,20" for i in range(50))))
    assert (report.requests, report.cleaning.rejected_by_rule) == (150, {"not_a_time": 1})


@pytest.mark.parametrize(
    ("first", "step", "code"),
    [
        (20261103090001, 3, "trace.date_digits"),
        (202611030901, 1, "trace.date_digits"),
        (20261103, 0, "trace.date_digits"),
        (639_292_932_000_000_000, 31_000_000, "trace.other_clock"),
        (134_381_700_000_000_000, 31_000_000, "trace.other_clock"),
        (13_438_170_000_000_000, 3_100_000, "trace.other_clock"),
    ],
)
def test_numbers_of_other_clocks_get_no_unit(lab, first: int, step: int, code: str) -> None:
    """Each unit that could be said would be wrong by a constant factor, or by calendar."""
    text = "ts,p,o\n" + "".join(f"{first + step * i},{100 + i},{10 + i}\n" for i in range(12))
    assert lab.refuse(text, mapping=MAP | {"arrival": "ts"}).code == code
    if code == "trace.other_clock":
        assert lab.refuse(text, mapping=MAP | {"arrival": "ts"}, time_unit="ns").code == code
