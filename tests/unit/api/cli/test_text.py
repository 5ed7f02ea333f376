"""Reports as text: what is not known is not printed as a number."""

from __future__ import annotations

from report_documents import burst_document, burst_plan_document, replay_document

from api.cli.text import plan_text, replay_text


def test_a_burst_has_no_load_factor_and_no_cost_per_token() -> None:
    text = replay_text(burst_document(), 0.1, 0.2)
    assert "No offered rate, sustainable" in text
    assert "No cost per token: the requests come as one burst." in text
    assert "None" not in text


def test_a_plan_of_a_burst_shows_a_dash_for_its_load() -> None:
    text = plan_text(burst_plan_document())
    row = next(line for line in text.splitlines() if "H100-SXM" in line and "7,300.00" in line)
    assert row.rstrip().endswith("-")


def test_a_saturated_replay_says_why_it_has_no_cost_per_token() -> None:
    text = replay_text(replay_document(load=1.7), 0.1, 0.2)
    assert "No cost per token: the deployment cannot keep up." in text
    assert "Load factor 1.7" in text
