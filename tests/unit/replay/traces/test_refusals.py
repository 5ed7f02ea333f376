"""Cures of refusals: said once, and followed they cure."""

MAP = {"arrival": "t", "prompt_tokens": "p", "output_tokens": "o"}


def test_a_cure_is_said_once_for_a_rule_and_a_column(lab) -> None:
    rows = "".join(f"{i},{'x' if i % 2 else i + 1},{'y' if i % 5 == 0 else 5}\n" for i in range(300))
    refusal = lab.refuse("t,p,o\n" + rows, mapping=MAP, time_unit="s")
    assert refusal.code == "trace.too_many_rejected"
    said = [(error.column, error.line, error.detail) for error in refusal.errors]
    assert said == [
        ("p", 3, "not_a_number in 150 rows, first 'x'"),
        ("o", 2, "not_a_number in 30 rows, first 'y'"),
    ]
    assert all(error.cure for error in refusal.errors)


def test_times_that_may_be_of_another_unit_are_read_by_every_cure(lab) -> None:
    """Whole relative times of one request a minute are asked about; each unit that is offered is then taken."""
    text = "arrival_s,prompt_tokens,output_tokens\n" + "".join(f"{60 * i + 7 * i % 50},{i + 10},5\n" for i in range(60))
    refusal = lab.refuse(text)
    assert (refusal.code, len(refusal.errors)) == ("trace.ambiguous_unit", 4)
    for error in refusal.errors:
        field, unit = str(error.cure).split("=")
        assert field == error.field == "time_unit"
        report = lab.read(text, time_unit=unit)
        assert f"spans {report.span_s:,.6g} s" in error.detail
