"""``capreplay replay`` with prefill and decode apart: options, text, JSON, reports, per-request table."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest
from click.testing import CliRunner, Result

from api.cli.group import cli
from api.cli.pools import POOL_OPTIONS, disaggregation_of, pool_options
from api.reports import render_csv, render_html
from replay.planning.document import PlanReport, ReplayReport, parse_report

MODEL = ("--model", "meta-llama/Llama-3.1-8B", "--gpu", "H100-SXM")
APART = ("--prefill-replicas", "2", "--decode-replicas", "1", "--kv-transfer-gb-per-s", "50")


def invoke(*words: object, exit_code: int = 0) -> Result:
    answer = CliRunner().invoke(cli, [str(word) for word in words], catch_exceptions=False)
    assert answer.exit_code == exit_code, answer.output
    return answer


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("trace") / "small.csv"
    rows = [f"{i * 0.25},{200 + 37 * (i % 20)},{20 + i % 50}" for i in range(60)]
    path.write_text("\n".join(["arrival_s,prompt_tokens,output_tokens", *rows]) + "\n")
    return path


@pytest.fixture(scope="module")
def answer(trace: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Result, Path]:
    """The JSON answer of one replay, and the folder of its report and table."""
    folder = tmp_path_factory.mktemp("out")
    files = ("--report", folder / "r.json", "--requests-out", folder / "r.parquet")
    return invoke(
        "replay", trace, *MODEL, *APART, "--decode-tp", "2", "--decode-set", "max_num_seqs=64", *files, "--json"
    ), folder


def test_json_has_both_pools_and_counts_all_gpus(answer: tuple[Result, Path]) -> None:
    document = json.loads(answer[0].stdout)
    pools = document["pools"]
    assert (document["gpus"], document["replicas"], document["loop"]) == (4, 3, "disaggregated")
    assert (pools["prefill"]["gpus"], pools["decode"]["gpus"]) == (2, 2)
    assert pools["decode"]["engine"]["settings"]["max_num_seqs"] == 64
    assert pools["prefill"]["engine"]["settings"]["max_num_seqs"] == 1024
    assert pools["binding"] in ("prefill", "decode", "transfer")
    assert pools["kv_transfer_s"]["n"] == 60
    assert document["cost"]["price"]["paid_gpus"] >= 4
    assert document["timeline"]["kv_usage"] is None


def test_the_table_says_who_decoded_and_when_the_kv_was_there(answer: tuple[Result, Path]) -> None:
    table = pl.read_parquet(answer[1] / "r.parquet")
    assert (table["decode_replica"] == 0).all()
    assert (table["kv_arrived_ps"] > table["first_token_ps"]).all()
    assert set(table["replica"].to_list()) == {0, 1}


def test_reports_show_both_pools(answer: tuple[Result, Path]) -> None:
    document = json.loads((answer[1] / "r.json").read_text())
    report = parse_report(document)
    assert isinstance(report, ReplayReport)
    html, csv = render_html(document, standalone=False), render_csv(document)
    assert "Prefill and decode pools" in html
    assert "2 prefill replicas of tp 1, 1 decode replica of tp 2" in html
    assert "prefill_sustainable_rps" in csv.splitlines()[0]
    assert "kv_transfer_p99_s" in csv.splitlines()[0]


def test_text_says_what_fills_up_first(trace: Path) -> None:
    text = invoke("replay", trace, *MODEL, *APART).stdout
    assert text.startswith("3 x H100-SXM (2 prefill replicas of tp 1, 1 decode replica of tp 1)")
    assert "What fills up first: the " in text
    assert "KV transfer, waiting included: p50" in text


def test_missing_options_are_named(trace: Path) -> None:
    output = invoke("replay", trace, *MODEL, "--prefill-replicas", "2", exit_code=2).output
    assert "also need --decode-replicas and --kv-transfer-gb-per-s" in " ".join(output.split())


def test_a_refusal_names_the_pool(trace: Path) -> None:
    output = invoke("replay", trace, *MODEL, *APART, "--decode-tp", "3", exit_code=2).output
    assert "decode replicas: tensor parallelism 3 is impossible" in output


def test_a_plan_searches_for_the_replicas_of_both_pools(trace: Path, tmp_path: Path) -> None:
    words = ("run", trace, *MODEL, "--tp", "1", "--slo", "ttft_p99=1s", "--kv-transfer-gb-per-s", "50")
    report = tmp_path / "plan.json"
    text = invoke(*words, "--report", report).output
    assert "(1 prefill replica of tp 1, 1 decode replica of tp 1) meet ttft_p99 <= 1 s" in text
    assert "One replica of each pool meets every objective." in text
    assert "prefill + decode" in text
    assert "What fills up first" in text
    document = json.loads(report.read_text())
    plan = parse_report(document)
    assert isinstance(plan, PlanReport)
    (found,) = plan.recommendations
    assert found.pools is not None
    assert (found.replicas, found.gpus, found.curve[0].prefill_replicas) == (2, 2, 1)
    page = render_html(document, standalone=False)
    assert "prefill 1 x H100-SXM + decode 1 x H100-SXM" in page
    assert 'id="table-pools"' in page
    assert "1 prefill + 1 decode x TP1 H100-SXM" in page
    assert "prefill_replicas" in render_csv(document)


def test_a_plan_of_pools_needs_the_bandwidth(trace: Path) -> None:
    output = invoke("run", trace, *MODEL, "--first-token-from", "decode", exit_code=2).output
    assert "prefill and decode apart also need --kv-transfer-gb-per-s, e.g. --kv-transfer-gb-per-s 50" in output


def test_a_fault_of_the_pools_names_its_option(trace: Path) -> None:
    output = invoke("run", trace, *MODEL, "--kv-transfer-gb-per-s", "0", exit_code=2).output
    assert "--kv-transfer-gb-per-s: too small; give a number above 0" in output


@pytest.mark.parametrize("option", ["--set", "--prefill-set", "--decode-set"])
@pytest.mark.parametrize(("knob", "value"), [("max_num_seq", 4), ("max_model_len", 0), ("seed", 1)])
def test_a_bad_knob_is_refused_at_the_option_that_gave_it(trace: Path, option: str, knob: str, value: int) -> None:
    output = invoke("replay", trace, *MODEL, *APART, option, f"{knob}={value}", exit_code=2).output
    assert any(line.startswith((f"  {option}: ", f"  at {option}")) for line in output.splitlines()), output
    assert ("replicas:" in output) == (option != "--set")


def test_no_option_means_no_pools() -> None:
    nothing = dict.fromkeys(POOL_OPTIONS) | {"prefill_sets": (), "decode_sets": ()}
    assert disaggregation_of(**nothing) is None

    @pool_options
    def command() -> None:
        return None

    assert {option.name for option in command.__click_params__} == set(POOL_OPTIONS)  # type: ignore[attr-defined]
