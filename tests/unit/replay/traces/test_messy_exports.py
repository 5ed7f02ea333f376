"""Exports that look whole and are not, or whose first remedy would not help."""

import json

import pytest

USAGE = {"prompt_tokens": 100, "completion_tokens": 10}


def page(first: int, **said: object) -> str:
    rows = [
        {"id": f"r{first + k}", "created": 1_700_000_000 + first + k, "model": "m", "usage": USAGE} for k in range(30)
    ]
    return json.dumps({"object": "list", "data": rows, **said}) + "\n"


def paged(report) -> bool:
    return any("not the last page" in warning for warning in report.warnings)


@pytest.mark.parametrize(
    ("text", "more"),
    [
        (page(0, has_more=True), True),
        (page(0, meta={"page": 1, "limit": 30, "totalPages": 10}), True),
        (page(0, has_more=True) + page(30, has_more=False), False),
        (page(0, meta={"page": 3, "limit": 30, "totalPages": 3}), False),
        (page(0), False),
    ],
)
def test_one_page_of_a_longer_list_is_said(lab, text: str, more: bool) -> None:
    assert paged(lab.read(text)) is more


GATEWAY = "t_s,prompt_tokens,o,cache_read_input_tokens,total_tokens\n"
GATEWAY_MAP = {
    "arrival": "t_s",
    "prompt_tokens": "prompt_tokens",
    "output_tokens": "o",
    "cached_tokens": "cache_read_input_tokens",
}


@pytest.mark.parametrize(("total", "prompt"), [(1010, 1000), (1910, 1900)])
def test_a_total_counts_for_more_than_the_name_of_the_cached_tokens(lab, total: int, prompt: int) -> None:
    lab.read(GATEWAY + "".join(f"{i * 17 % 31},1000,10,900,{total}\n" for i in range(30)), mapping=GATEWAY_MAP)
    assert lab.table["prompt_tokens"].unique().to_list() == [prompt]


def test_a_providers_cached_tokens_beside_a_gateways_prompt_tokens_are_asked_about(lab) -> None:
    text = "t_s,prompt_tokens,o,cache_read_input_tokens\n" + "".join(f"{i * 17 % 31},1000,10,900\n" for i in range(30))
    refusal = lab.refuse(text, mapping=GATEWAY_MAP)
    assert refusal.code == "trace.ambiguous_cached"
    lab.read(text, mapping=GATEWAY_MAP, prompt_includes_cached=True)
    assert lab.table["prompt_tokens"].unique().to_list() == [1000]


@pytest.mark.parametrize("above", ["sep=;\n", "# exported by hand\n"])
def test_a_line_above_the_header_is_named(lab, above: str) -> None:
    refusal = lab.refuse(above + "arrival_s;prompt_tokens;output_tokens\n" + "1.5;100;10\n2.5;101;11\n" * 5)
    assert refusal.code == "trace.no_header"
    assert "remove the lines above the header" in refusal.detail


def test_a_decimal_comma_has_its_own_cure(lab) -> None:
    refusal = lab.refuse("arrival_s;prompt_tokens;output_tokens\n" + "".join(f"{i},5;100;10\n" for i in range(9)))
    assert refusal.code == "trace.time_unreadable"
    assert "point, not a comma" in refusal.errors[0].cure


@pytest.mark.parametrize("grand", [False, True])
def test_subtotals_of_groups_are_no_requests(lab, grand: bool) -> None:
    rows, at = [], 0
    for group in (range(100, 130), range(300, 340)):
        rows += [f"{(at := at + 1)}.5,{tokens},{tokens % 7 + 1}" for tokens in group]
        rows.append(f"{at}.5,{sum(group)},{sum(tokens % 7 + 1 for tokens in group)}")
    if grand:
        everything = [row.split(",") for k, row in enumerate(rows) if k not in (30, 71)]
        rows.append(f"{at}.5,{sum(int(row[1]) for row in everything)},{sum(int(row[2]) for row in everything)}")
    text = "arrival_s,prompt_tokens,output_tokens\n" + "\n".join(rows) + "\n"
    refusal = lab.refuse(text)
    assert (refusal.code, "line 32" in refusal.detail) == ("trace.totals_row", True)
    assert lab.read(text, rows_are_requests=True).requests == len(rows)


def test_a_prompt_that_is_the_sum_of_those_before_it_is_a_request(lab) -> None:
    rows = "".join(f"{k}.5,{2 ** max(k - 1, 0)},{10 + k}\n" for k in range(12))
    assert lab.read("arrival_s,prompt_tokens,output_tokens\n" + rows).requests == 12


@pytest.mark.parametrize(
    "probe", [{"path": "/health"}, {"method": "GET", "url": "/api/x"}, {"endpoint": "/v1/models?limit=3"}]
)
def test_probes_of_an_api_between_its_calls_are_no_requests(lab, probe: dict[str, str]) -> None:
    call = {"path": "/api/ask", "method": "POST", "model": "m"}
    rows = [call | {"timestamp": 1_700_000_000.5 + k, "usage": USAGE} for k in range(30)]
    rows.append(call | {"timestamp": 1_700_000_040, "status_code": 503})
    rows.append(probe | {"timestamp": 1_700_000_050, "status_code": 200})
    report = lab.read("".join(json.dumps(row) + "\n" for row in rows))
    assert report.requests == 31
    assert "1 requests for other paths" in report.assumed["not_requests"]
    assert lab.table["status"].to_list().count("failed") == 1


def test_equal_requests_after_failed_calls_are_no_subtotal(lab) -> None:
    rows = "".join(f"{k}.5,0,0\n" for k in range(9)) + "".join(f"{k}.5,70,7\n" for k in range(9, 30))
    assert lab.read("arrival_s,prompt_tokens,output_tokens\n" + rows).requests == 30
