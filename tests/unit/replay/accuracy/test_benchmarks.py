"""Benchmarks replayed: figures that follow from each other, stated errors, groups, and the page."""

from __future__ import annotations

import pytest
from measured_runs import benchmark_row

from replay.accuracy.benchmark_page import benchmark_page
from replay.accuracy.benchmark_rows import parse_row
from replay.accuracy.benchmarks import Deployments, benchmarks_document, score_row, score_rows
from replay.hardware.catalogue import shipped_catalogue

CATALOGUE = shipped_catalogue()


def test_figures_follow_from_each_other() -> None:
    """Little's law, and what a planted throughput does to the error."""
    parsed = parse_row(benchmark_row(ttft_mean_ms=50, tpot_mean_ms=8), CATALOGUE)
    scored = score_row(parsed, Deployments(CATALOGUE).of(parsed.spec), "vLLM")
    throughput, ttft, tpot = (scored.figures[name][1] for name in ("throughput", "ttft", "tpot"))
    assert throughput / 128 * (ttft + 127 * tpot) == pytest.approx(16, rel=0.1)
    assert scored.errors["throughput"] == pytest.approx(throughput / 1500 - 1)
    exact = parse_row(benchmark_row(output_tok_s_total=throughput), CATALOGUE)
    assert score_row(exact, Deployments(CATALOGUE).of(exact.spec), "vLLM").errors["throughput"] == pytest.approx(
        0, abs=1e-9
    )


def test_benchmarks_decode_greedily() -> None:
    """5 us a decode, nothing for the vocabulary."""
    parsed = parse_row(benchmark_row(gpu="A100-SXM-80GB"), CATALOGUE)
    assert Deployments(CATALOGUE).of(parsed.spec).step_time.decode_request_ps == 5_000_000


def test_the_document_counts_every_row() -> None:
    table = [benchmark_row(), benchmark_row(row_id="r2", engine="atom"), benchmark_row(row_id="r3", gpu="T4")]
    document = benchmarks_document(*score_rows(table, CATALOGUE))
    assert [one["row_id"] for one in document["rows"]] == ["r1"]
    assert sum(one["rows"] for one in document["not_replayed"]) == 2
    assert document["overall"]["rows"] == 1
    assert document["by"][0]["throughput"]["n"] == 1
    assert "output_tokens_per_s" in document["rows"][0]


def test_medians_are_compared_where_a_row_has_them() -> None:
    parsed = parse_row(benchmark_row(ttft_p50_ms=50, tpot_p50_ms=8), CATALOGUE)
    scored = score_row(parsed, Deployments(CATALOGUE).of(parsed.spec), "vLLM")
    assert set(scored.errors) == {"throughput", "ttft_p50", "tpot_p50"}
    assert scored.figures["tpot_p50"][1] == pytest.approx(0.008, rel=0.5)


def test_the_error_that_plans_quote_stands_beside_each_row() -> None:
    table = [benchmark_row(), benchmark_row(row_id="r2", gpu="MI300X"), benchmark_row(row_id="r3", gpu="Gaudi3")]
    document = benchmarks_document(*score_rows(table, CATALOGUE))
    stated = {one["gpu"]: one["stated_error"] for one in document["rows"]}
    assert 0 < stated["H100-SXM"] < stated["MI300X"]
    assert stated["Gaudi3"] is None
    assert document["overall"]["stated_error"]["n"] == 2
    assert {(one["gpu"], one["step_times"]) for one in document["by_gpu"]} == {
        ("H100-SXM", "transported"),
        ("MI300X", "analytic"),
        ("Gaudi3", "analytic"),
    }
    page = benchmark_page(document)
    assert page.startswith("# Published benchmarks\n")
    assert "| MI300X | vllm | dense | analytic | 1 |" in page
    assert "$" not in page
