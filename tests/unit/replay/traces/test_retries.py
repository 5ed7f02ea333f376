"""Attempts after a failure are counted: they are load, and would not come where nothing fails."""

import pytest

HEADER = "arrival_s,prompt_tokens,output_tokens,session,model,status\n"
GOOD = "".join(f"{i},{200 + i},10,s{i},m,ok\n" for i in range(30))


def counted(lab, *rows: str) -> int:
    return lab.read(HEADER + GOOD + "".join(row + "\n" for row in rows)).cleaning.retries_after_failure


def test_the_same_prompt_after_a_failure_is_a_retry(lab) -> None:
    report = lab.read(HEADER + GOOD + "31,500,,a,m,failed\n33,500,,a,m,aborted\n37,500,20,a,m,ok\n")
    assert report.cleaning.retries_after_failure == 2
    assert any("2 requests are likely retries" in warning for warning in report.warnings)


@pytest.mark.parametrize(
    "rows",
    [
        ("31,500,9,a,m,ok", "33,500,9,a,m,ok"),
        ("31,500,,a,m,failed", "33,501,9,a,m,ok"),
        ("31,500,,a,m,failed", "33,500,9,b,m,ok"),
        ("31,500,,a,m,failed", "33,500,9,a,other,ok"),
        ("31,500,,a,m,failed", "700,500,9,a,m,ok"),
        ("31,500,,,m,failed", "33,500,9,,m,ok"),
    ],
    ids=["no failure", "another prompt", "another session", "another model", "much later", "no session"],
)
def test_other_requests_are_none(lab, rows: tuple[str, str]) -> None:
    assert counted(lab, *rows) == 0
