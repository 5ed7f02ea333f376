"""The verbs that compute in this process: run, replay, ingest, verify. A small trace, the real engine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from click.testing import CliRunner, Result

from api.cli.group import cli
from replay.planning.document import parse_report

METRICS = {"ttft_s", "ttft_from_admission_s", "itl_s", "tpot_s", "e2e_s", "queue_s"}
MODEL = ("--model", "meta-llama/Llama-3.1-8B")


def invoke(*words: object, exit_code: int = 0) -> Result:
    answer = CliRunner().invoke(cli, [str(word) for word in words], catch_exceptions=False)
    assert answer.exit_code == exit_code, answer.output
    return answer


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("trace") / "small.csv"
    rows = [f"{i * 0.25},{200 + 37 * (i % 20)},{20 + i % 50}" for i in range(200)]
    path.write_text("\n".join(["arrival_s,prompt_tokens,output_tokens", *rows]) + "\n")
    return path


@pytest.fixture(scope="module")
def plan(trace: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], str, Path]:
    """The JSON answer, stderr and the report's folder of one plan."""
    folder = tmp_path_factory.mktemp("reports")
    words = ["run", trace, *MODEL, "--gpu", "H100-SXM,T4", "--tp", "1", "--slo", "ttft_p99=2s", "--slo", "itl_p95=60ms"]
    answer = invoke(*words, "--price-usd-per-gpu-hour", "H100-SXM=2.5", "--report", folder / "r.html", "--json")
    return json.loads(answer.stdout), answer.stderr, folder


def test_run_prints_the_documented_object(plan: tuple[dict[str, Any], str, Path]) -> None:
    document, stderr, _ = plan
    assert set(document) >= {"trace", "recommendations", "infeasible", "provenance"}
    best = document["recommendations"][0]
    names = ("gpu", "tp", "replicas", "gpus", "usd_per_hour", "usd_per_month", "usd_per_1m_output_tokens", "status")
    assert all(best[name] is not None for name in names)
    assert (best["gpu"], best["usd_per_hour"], best["usd_per_month"]) == ("H100-SXM", 2.5, 2.5 * 730)
    for metric in ("ttft_s", "itl_s", "tpot_s", "e2e_s", "queue_s"):
        assert set(best["metrics"][metric]) >= {"mean", "p50", "p90", "p95", "p99"}
    assert [(one["gpu"], one["tp"]) for one in document["infeasible"]] == [("T4", 1)]
    assert document["infeasible"][0]["reason"]
    assert document["trace"]["requests"] == 200
    assert "reading small.csv" in stderr
    assert "no --slo" not in stderr


def test_run_writes_the_report_file(plan: tuple[dict[str, Any], str, Path]) -> None:
    document, stderr, folder = plan
    html = (folder / "r.html").read_text()
    assert document["verdict"]["sentence"].split(" meets ")[0] in html
    assert "report written to" in stderr


def test_run_without_objectives_says_which_it_takes(trace: Path, tmp_path: Path) -> None:
    report = tmp_path / "r.json"
    words = ("run", trace, *MODEL, "--gpu", "H100-SXM", "--tp", "1", "--report", report)
    answer = invoke(*words)
    assert "no --slo given: planning for ttft_p99=2s and itl_p99=100ms" in answer.stderr
    assert "No --slo given: planning for ttft_p99=2s and itl_p99=100ms" in answer.stdout
    stored = parse_report(json.loads(report.read_text()))
    assert answer.stdout.startswith(stored.verdict.sentence)
    assert "Price: H100-SXM at TP 1:" in answer.stdout
    assert "on_demand" in answer.stdout
    assert "transported" in answer.stdout


def test_run_with_nothing_feasible_is_an_answer_with_reasons(trace: Path) -> None:
    answer = invoke("run", trace, *MODEL, "--gpu", "T4", "--tp", "1", "--slo", "ttft_p99=2s")
    assert "No answer:" in answer.stdout
    assert "T4" in answer.stdout


def test_replay_prints_the_documented_object(trace: Path, tmp_path: Path) -> None:
    table = tmp_path / "requests.parquet"
    words = ("replay", trace, *MODEL, "--gpu", "H100-SXM", "--replicas", "2", "--set", "max_num_seqs=32")
    document = json.loads(invoke(*words, "--requests-out", table, "--json").stdout)
    assert set(document["metrics"]) == METRICS
    for name in ("finished", "rejected", "preemptions", "steps", "saturated", "kernel_s", "wall_s"):
        assert name in document
    assert (document["finished"], document["saturated"], document["replicas"]) == (200, False, 2)
    assert 0 < document["kernel_s"] < document["wall_s"]
    assert document["engine"]["settings"]["max_num_seqs"] == 32
    rows = pl.read_parquet(table)
    assert rows.height == 200
    assert set(rows["replica"]) == {0, 1}
    assert rows["tenant"].null_count() == rows["priority"].null_count() == 200
    assert document["splits"] == []
    assert document["goodput"] is None
    assert {"arrival_ps", "admitted_ps", "first_token_ps", "last_token_ps", "prompt_tokens", "output_tokens"} | {
        "replica", "preemptions", "hit_tokens", "status", "tenant", "priority"
    } == set(rows.columns)  # fmt: skip
    ttft = (rows["first_token_ps"] - rows["arrival_ps"]) / 1e12
    assert ttft.mean() == pytest.approx(document["metrics"]["ttft_s"]["mean"], rel=1e-6)


@pytest.fixture(scope="module")
def tenants(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trace with 25 tenants and two priorities."""
    path = tmp_path_factory.mktemp("tenants") / "tenants.csv"
    rows = [
        f"{i * 0.1},{50 + i % 90},{1 + i % 30},t{(i * i) % 25:02d},{('high', 'low')[i % 3 == 0]}" for i in range(400)
    ]
    path.write_text("\n".join(["arrival_s,prompt_tokens,output_tokens,tenant,priority", *rows]) + "\n")
    return path


def test_replay_judges_trims_splits_and_follows_time(tenants: Path, tmp_path: Path) -> None:
    course, table = tmp_path / "course.csv", tmp_path / "requests.parquet"
    words = ("replay", tenants, *MODEL, "--gpu", "H100-SXM", "--slo", "ttft<=2s@99%,itl_p99=100ms", "--warmup", "5")
    words += ("--cooldown", "4.9", "--timeline-out", course, "--timeline-bin", "0.5", "--requests-out", table)
    answer = invoke(*words, "--json")
    document = json.loads(answer.stdout)
    assert f"timeline written to {course}" in answer.stderr
    assert document["trace"]["transform"]["warmup_s"] == 5
    assert document["scored"] == document["metrics"]["ttft_s"]["n"] == 300
    assert "Scored are the 300 of 400 requests" in document["trace"]["notes"][0]
    ttft, itl = document["objectives"]
    assert (ttft["name"], ttft["met"], ttft["attained"], itl["attained"]) == ("ttft_attain99", True, 1.0, None)
    goodput = document["goodput"]
    assert (goodput["objectives"], goodput["good"], goodput["scored"]) == (["ttft_attain99"], 300, 300)
    assert goodput["requests_per_s"] == pytest.approx(300 / 30, rel=0.05)
    lines = course.read_text().splitlines()
    assert len(lines) - 1 == len(document["timeline"]["start_s"]) <= 600
    arrived = lines[0].split(",").index("arrived")
    assert sum(int(line.split(",")[arrived]) for line in lines[1:]) == 400
    rows = pl.read_parquet(table)
    assert rows["tenant"].to_list() == [f"t{(i * i) % 25:02d}" for i in range(400)]
    assert rows["priority"].to_list() == [("high", "low")[i % 3 == 0] for i in range(400)]
    by_tenant, by_priority = document["splits"]
    assert (by_tenant["by"], by_priority["by"]) == ("tenant", "priority")
    scored = rows[50:350]
    counts = dict(scored["tenant"].value_counts().iter_rows())
    assert {one["name"]: one["requests"] for one in by_tenant["rows"]} == counts
    assert {one["name"]: one["requests"] for one in by_priority["rows"]} == dict(
        scored["priority"].value_counts().iter_rows()
    )
    told = invoke(*words).stdout
    assert "Goodput (ttft_attain99): 300 of 300 requests" in told
    assert "tenant" in told
    assert "2 of 2 objectives met" in told


def test_a_timeline_into_a_missing_folder_is_refused_at_once(trace: Path, tmp_path: Path) -> None:
    words = ("replay", trace, *MODEL, "--gpu", "H100-SXM", "--timeline-out", tmp_path / "no" / "x.csv")
    assert "does not exist" in invoke(*words, exit_code=2).output


def test_a_trim_that_scores_nothing_is_refused_with_the_cure(trace: Path) -> None:
    words = ("replay", trace, *MODEL, "--gpu", "H100-SXM", "--warmup", "40", "--cooldown", "20")
    assert "shorten warmup_s and cooldown_s" in invoke(*words, exit_code=2).output


def test_sharing_from_sessions_is_asked_for_named_and_refused_without_sessions(trace: Path, tmp_path: Path) -> None:
    chat = tmp_path / "chat.csv"
    rows = [f"{30 * turn + s},{100 * turn + 60},40,session-{s}" for turn in range(4) for s in range(5)]
    chat.write_text("\n".join(["arrival_s,prompt_tokens,output_tokens,session", *rows]) + "\n")
    words = ("replay", chat, *MODEL, "--gpu", "H100-SXM", "--json")
    plain = json.loads(invoke(*words).stdout)
    asked = json.loads(invoke(*words, "--prefix-from-sessions").stdout)
    assert "from sessions" not in json.dumps(plain)
    assert "Prompt prefixes from sessions, an assumption: each of the 15 requests" in json.dumps(asked)
    assert asked["prefix_hit_rate"] > 0.5
    in_words = invoke(*words[:-1], "--prefix-from-sessions").stdout
    assert "each turn of a session is taken to begin with the turn before it" in in_words
    refused = invoke("replay", trace, *MODEL, "--gpu", "H100-SXM", "--prefix-from-sessions", exit_code=2)
    assert "--prefix-from-sessions" in refused.stderr
    assert "map a column to session" in refused.stderr


def test_replay_in_words(trace: Path) -> None:
    answer = invoke("replay", trace, *MODEL, "--gpu", "H100-SXM", "--growth", "2")
    assert "at 2 times the load" in answer.stdout
    assert "ttft from admission" in answer.stdout
    assert "Simulated in" in answer.stdout


def test_replay_of_an_overload_says_saturated(trace: Path) -> None:
    words = ("replay", trace, *MODEL, "--gpu", "L4", "--growth", "60", "--max-model-len", "4096")
    answer = invoke(*words)
    assert "SATURATED" in answer.stdout
    assert "cannot keep up" in answer.stdout


def test_replay_is_the_same_each_time(trace: Path) -> None:
    words = ("replay", trace, *MODEL, "--gpu", "H100-SXM", "--replicas", "2", "--json")
    runs = [json.loads(invoke(*words, *more).stdout) for more in ((), ("--threads", "2"))]
    for run in runs:
        del run["kernel_s"], run["wall_s"]
    assert runs[0] == runs[1]


def test_ingest_prints_the_documented_object(trace: Path, tmp_path: Path) -> None:
    out = tmp_path / "kept.parquet"
    document = json.loads(invoke("ingest", trace, "--out", out, "--json").stdout)
    assert set(document) == {
        "format", "assumed", "rows_read", "rows_kept", "rows_rejected", "rejections", "requests", "prompt_tokens",
        "output_tokens", "span_s", "warnings",
    }  # fmt: skip
    assert (document["rows_read"], document["rows_kept"], document["rows_rejected"]) == (200, 200, 0)
    assert document["span_s"] == pytest.approx(199 * 0.25)
    assert pl.read_parquet(out).height == 200


def test_ingest_in_words_shows_rejections(tmp_path: Path) -> None:
    path = tmp_path / "bad.csv"
    rows = [f"{i},10,{'x' if i == 7 else 10}" for i in range(40)]
    path.write_text("\n".join(["when,in,out", *rows]) + "\n")
    words = ("--map", "arrival=when", "--map", "prompt_tokens=in", "--map", "output_tokens=out", "--time-unit", "s")
    answer = invoke("ingest", path, *words)
    assert "40 rows read = 39 kept + 1 rejected" in answer.stdout
    assert " 9  out" in answer.stdout, "the rejected row is line 9 of the file, its column is out"


def test_ingest_refuses_unknown_columns_with_what_it_found(tmp_path: Path) -> None:
    path = tmp_path / "other.csv"
    path.write_text("alpha,beta\n1,2\n")
    problem = json.loads(invoke("ingest", path, "--json", exit_code=2).stdout)
    assert problem["status"] == 422
    assert "alpha" in json.dumps(problem)
    plain = invoke("ingest", path, exit_code=2)
    assert "alpha" in plain.stderr
    assert plain.stdout == ""


@pytest.mark.reference
def test_verify_exits_1_on_a_mismatch(tmp_path: Path, reference_dir: Path) -> None:
    cases = json.loads((reference_dir / "reference" / "engine-golden-vllm-0.33.0.json").read_text())
    cases = [next(case for case in cases if case["mode"] == mode) for mode in ("fcfs", "async")]
    path = tmp_path / "cases.json"
    path.write_text(json.dumps(cases))
    document = json.loads(invoke("verify", path, "--json").stdout)
    assert {name: (m["passed"], m["total"]) for name, m in document["modes"].items()} == {
        "fcfs": (1, 1),
        "async": (1, 1),
    }
    cases[0]["end"] += 1
    path.write_text(json.dumps(cases))
    document = json.loads(invoke("verify", path, "--json", exit_code=1).stdout)
    assert document["modes"]["fcfs"]["passed"] == 0
    assert "end" in document["modes"]["fcfs"]["first_difference"]
    assert "1 of 2 recorded cases" in invoke("verify", path, exit_code=1).stdout


def test_a_refusal_says_its_cure_once(tmp_path: Path) -> None:
    path = tmp_path / "other.csv"
    path.write_text("ts,in,out\n1,2,3\n")
    assert invoke("ingest", path, exit_code=2).stderr.count("say which column is which") == 1


def test_ingest_makes_the_labels_of_the_installation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "tenants.csv"
    lines = [f"{i},10,5,acme" for i in range(20)]
    source.write_text("\n".join(["arrival_s,prompt_tokens,output_tokens,tenant", *lines]) + "\n")

    def tenants(*words: str) -> set[str]:
        invoke("ingest", source, "--out", tmp_path / "out.parquet", *words)
        return set(pl.read_parquet(tmp_path / "out.parquet")["tenant"])

    monkeypatch.setenv("CAPREPLAY_SECRET_KEY", "x" * 16)
    assert tenants() == tenants("--ids", "keep") == {"acme"}
    (one,) = tenants("--ids", "hash")
    assert one.startswith("t_")
    assert tenants("--ids", "hash") == {one}
    monkeypatch.setenv("CAPREPLAY_SECRET_KEY", "y" * 16)
    assert tenants("--ids", "hash") != {one}
