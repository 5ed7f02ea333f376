"""The verbs accuracy and score-benchmarks: documents, tables, refusals; and the page in step with the program."""

from __future__ import annotations

import json
from pathlib import Path

import measured_runs as made
import polars as pl
import pytest
from click.testing import CliRunner, Result

from api.cli.group import cli


def invoke(*words: object, exit_code: int = 0) -> Result:
    answer = CliRunner().invoke(cli, [str(word) for word in words], catch_exceptions=False)
    assert answer.exit_code == exit_code, answer.output
    return answer


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("measured")
    made.write(root, "sound", requests=made.rows(120))
    made.write(root, "strange", requests=made.rows(), group="unheard-of")
    return root


def test_accuracy_prints_the_documented_object(folder: Path) -> None:
    document = json.loads(invoke("accuracy", folder, "--json", "--quiet").stdout)
    (run,) = document["experiments"]
    assert {name: run[name] for name in ("experiment", "gpu", "model", "tp", "n", "region")} == {
        "experiment": "sound",
        "gpu": "H100-SXM",
        "model": "Qwen/Qwen3-14B",
        "tp": 1,
        "n": 120,
        "region": "below",
    }
    for metric in ("ttft_s", "itl_s", "e2e_s"):
        mean = run[metric]["mean"]
        assert mean["error"] == pytest.approx(mean["simulated"] / mean["measured"] - 1)
        assert set(run[metric]) == {"mean", "p50", "p90", "p99"}
    assert run["ttft_s"]["p99"]["error"] is None  # fewer than 500 requests
    assert (run["saturated_expected"], run["saturated"]) == (False, False)
    assert [(one["experiment"], one["field"]) for one in document["not_replayed"]] == [("strange", "group")]
    assert document["medians"][0]["figures"]["e2e_s.mean"]["deployments"] == 1


def test_accuracy_prints_tables(folder: Path) -> None:
    text = invoke("accuracy", folder, "--quiet").stdout
    for words in ("Saturation verdicts: 1 of 1 right", "Not replayed", "unheard-of", "furthest off", "E2E mean"):
        assert words in text
    page = invoke("accuracy", folder, "--markdown", "--quiet", "--only", "sound").stdout
    assert page.startswith("# Accuracy\n")
    assert "$" not in page
    assert "unheard-of" not in page
    assert invoke("accuracy", folder, "--json", "--markdown", exit_code=2)


def test_accuracy_refuses_what_is_no_folder_of_runs(tmp_path: Path) -> None:
    assert "server.json" in invoke("accuracy", tmp_path, exit_code=2).output
    assert "cannot open" in invoke("accuracy", tmp_path / "none", exit_code=2).output


def test_score_benchmarks(tmp_path: Path) -> None:
    path = tmp_path / "b.csv"
    rows = [
        made.benchmark_row(),
        made.benchmark_row(row_id="r2", engine="atom"),
        made.benchmark_row(row_id="r3", quality="C"),
    ]
    pl.DataFrame(rows).write_csv(path)
    document = json.loads(invoke("score-benchmarks", path, "--json", "--quiet").stdout)
    assert [one["row_id"] for one in document["rows"]] == ["r1"]
    assert document["not_replayed"] == [{"reason": "engine atom: no preset replays it", "rows": 1, "row_ids": ["r2"]}]
    text = invoke("score-benchmarks", path, "--quiet").stdout
    assert "Llama-3.1-8B" in text
    assert "no preset replays it" in text
    page = invoke("score-benchmarks", path, "--markdown", "--quiet").stdout
    assert "1 rows of closed loops and bursts" in page
    assert invoke("score-benchmarks", path, "--json", "--markdown", exit_code=2)
    assert "osl" in invoke("score-benchmarks", _without(path, "osl"), exit_code=2).output


def _without(path: Path, column: str) -> Path:
    pl.read_csv(path).drop(column).write_csv(path)
    return path


@pytest.mark.reference
def test_the_page_is_in_step_with_the_program(reference_dir: Path, project_root: Path) -> None:
    """Two deployments stand for all, since a replay of every run takes a minute."""
    page = (project_root / "docs" / "accuracy.md").read_text()
    for only in ("infperf-codellama-34b-tp2", "residency-qwen3-14b-h100-sweep-rate"):
        text = invoke("accuracy", reference_dir / "reference" / "blis", "--markdown", "--quiet", "--only", only).stdout
        rows = [line for line in text.split("## Every run")[1].splitlines() if line.startswith(f"| {only}")]
        assert len(rows) >= 3
        assert [row for row in rows if row not in page] == []


@pytest.mark.reference
def test_left_out_goals_hold_on_a_few_measured_runs(reference_dir: Path) -> None:
    """Dense models below saturation: ITL and E2E within 5 %, and overload is called so."""
    words = ("accuracy", reference_dir / "reference" / "blis", "--json", "--quiet", "--only", "infperf-codellama")
    runs = json.loads(invoke(*words).stdout)["experiments"]
    sound = [run for run in runs if run["quality"] == "ok"]
    assert len(sound) == 2
    assert all(abs(run[metric]["mean"]["error"]) < 0.05 for run in sound for metric in ("itl_s", "e2e_s"))
    (overload,) = [run for run in runs if run["saturated_expected"]]
    assert overload["saturated"]
