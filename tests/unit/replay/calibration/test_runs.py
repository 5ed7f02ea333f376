"""Calibration from runs of requests: a planted factor comes back, poison is refused, the verb prints what it found."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from measurement_files import BENCHED, bench, deployment_of
from trace_makers import MAKERS, calls

from api.cli.group import cli
from replay.calibration.fit import calibrate
from replay.calibration.runs import read_run
from replay.errors import ReplayError, TraceError
from replay.steptime.accuracy import quoted_error

TODAY = date(2026, 11, 29)


def written(folder: Path, *documents: dict[str, Any]) -> list[Path]:
    paths = [folder / f"run{index}.json" for index in range(len(documents))]
    for path, document in zip(paths, documents, strict=True):
        path.write_text(json.dumps(document))
    return paths


def test_one_run_tells_the_factor_and_leaves_a0_alone(tmp_path: Path) -> None:
    found = calibrate(written(tmp_path, bench(4.0)), BENCHED, today=TODAY)
    assert found.value("kernels_factor") == pytest.approx(1.12, rel=0.03)
    by_name = {one.name: one for one in found.parameters}
    assert not by_name["request_s"].identified
    assert "3 runs" in by_name["request_s"].reason
    assert not by_name["decode_attention_factor"].identified
    itl = next(one for one in found.errors if "ITL" in one.what)
    assert itl.median < 0.02 < itl.shipped_median
    assert found.residuals
    assert found.stated_error.startswith("mean E2E")


def test_three_rates_tell_a0_too(tmp_path: Path) -> None:
    documents = [bench(rate, request_s=12e-3, seed=int(rate)) for rate in (1.0, 3.0, 6.0)]
    found = calibrate(written(tmp_path, *documents), BENCHED, today=TODAY)
    assert found.value("kernels_factor") == pytest.approx(1.12, rel=0.03)
    assert found.value("request_s") == pytest.approx(12e-3, abs=1.5e-3)


def test_a_server_that_is_as_shipped_stays_as_shipped(tmp_path: Path) -> None:
    found = calibrate(written(tmp_path, bench(4.0, factor=1.0)), BENCHED, today=TODAY)
    assert found.value("kernels_factor") == pytest.approx(1.0, rel=0.01)


def poisoned(**changes: Any) -> dict[str, Any]:
    document = bench(4.0, n=40)
    for name, change in changes.items():
        document[name] = change(document[name])
    return document


def times(factor: float) -> Any:
    return lambda rows: [[gap * factor for gap in row] if isinstance(row, list) else row * factor for row in rows]


@pytest.mark.parametrize(
    ("document", "code"),
    [
        (poisoned(ttfts=lambda rows: [-0.1, *rows[1:]]), "calibration.latency"),
        (poisoned(ttfts=lambda rows: [float("nan"), *rows[1:]]), "calibration.latency"),
        (poisoned(itls=lambda rows: [[-1.0] * len(rows[0]), *rows[1:]]), "calibration.latency"),
        (poisoned(ttfts=times(1000), itls=times(1000)), "calibration.unit"),
        (poisoned(ttfts=times(1000), itls=times(1000), duration=lambda _: 1e6), "calibration.implausible"),
        (poisoned(itls=lambda rows: [[2 * gap for gap in row[: len(row) // 2]] for row in rows]),
         "calibration.tokens_per_chunk"),
        (poisoned(itls=lambda rows: None), "calibration.no_detail"),
        (poisoned(errors=lambda rows: ["timeout"] * 4 + rows[4:]), "calibration.failed"),
        (poisoned(model_id=lambda _: "meta-llama/Llama-3.1-70B-Instruct"), "calibration.model"),
        (bench(4.0, n=10), "calibration.too_few"),
        (bench(4.0, n=40, factor=2.5), "calibration.range"),
    ],
)  # fmt: skip
def test_poison_is_refused_with_the_reason(tmp_path: Path, document: dict[str, Any], code: str) -> None:
    with pytest.raises(ReplayError) as refused:
        calibrate(written(tmp_path, document), BENCHED, today=TODAY)
    assert refused.value.code == code
    assert refused.value.errors[0].cure


@pytest.mark.parametrize("name", ["my-own-name", "Qwen/Qwen3-14B-FP8", "Qwen3-14B"])
def test_a_server_may_serve_its_model_under_any_name(tmp_path: Path, name: str) -> None:
    calibrate(written(tmp_path, poisoned(model_id=lambda _: name)), BENCHED, today=TODAY)


def test_two_runs_of_one_seed_are_refused_where_a_prefix_cache_may_hold_the_first(tmp_path: Path) -> None:
    runs = written(tmp_path, bench(1.0, n=60), bench(3.0, n=60))
    with pytest.raises(TraceError) as refused:
        calibrate(runs, BENCHED, today=TODAY)
    assert refused.value.code == "calibration.same_prompts"
    assert "--seed" in str(refused.value.errors[0].cure)
    off = deployment_of(engine={"overrides": {"enable_prefix_caching": False}})
    assert calibrate(runs, off, today=TODAY).value("kernels_factor") == pytest.approx(1.12, rel=0.03)


def test_one_run_in_two_spellings_counts_once(tmp_path: Path) -> None:
    (one,) = written(tmp_path, bench(4.0, n=40))
    other = tmp_path / "again.json"
    other.write_text(json.dumps(json.loads(one.read_text()), indent=1))
    with pytest.raises(TraceError) as refused:
        calibrate([one, other], BENCHED, today=TODAY)
    assert refused.value.code == "calibration.twice"


def test_a_trace_without_status_and_latencies_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.csv"
    path.write_text("arrival_s,prompt_tokens,output_tokens\n" + "1,500,11\n" * 30)
    with pytest.raises(TraceError) as refused:
        read_run(path)
    assert refused.value.code == "calibration.too_few"


def test_tokens_from_a_prefix_cache_that_the_file_does_not_place_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    records = json.loads(MAKERS["inference-perf"](calls(60)))
    for record in records:
        prompt, output = record["info"]["input_tokens"], record["info"]["output_tokens"]
        usage = {"prompt_tokens": prompt, "completion_tokens": output}
        usage["prompt_tokens_details"] = {"cached_tokens": prompt // 5}
        record["info"]["response_metrics"] = {
            "server_usage": usage,
            "output_token_times": [record["start_time"] + 0.1, record["end_time"]],
        }
    path.write_text(json.dumps(records))
    with pytest.raises(TraceError) as refused:
        read_run(path)
    assert refused.value.code == "calibration.cached"
    assert "20 %" in refused.value.detail


def test_a_refusal_names_the_file(tmp_path: Path) -> None:
    good, bad = written(tmp_path, bench(4.0, n=40), {})
    bad.write_bytes(b"a,b\n\0\0\n")
    with pytest.raises(TraceError) as refused:
        calibrate([good, bad], BENCHED, today=TODAY)
    assert refused.value.detail.startswith("run1.json: ")
    assert refused.value.errors[0].detail.startswith("run1.json: ")
    table = tmp_path / "steps.csv"
    table.write_text("prefill_tokens,time_s\n100,-1\n")
    with pytest.raises(TraceError, match=r"^steps\.csv: row 1"):
        calibrate([table], BENCHED, today=TODAY)


def test_plans_take_the_errors_of_ttft_and_itl_not_of_e2e_alone(tmp_path: Path) -> None:
    document = poisoned(input_lens=lambda rows: [count // 4 for count in rows])  # what a prefix cache does, reversed
    found = calibrate(written(tmp_path, document), BENCHED, today=TODAY)
    p95 = {one.what[5:8]: one.p95 for one in found.errors}
    quoted = quoted_error(found.stated_error)
    assert quoted is not None
    assert quoted.prefill == pytest.approx(p95["TTF"], abs=1e-3)
    assert quoted.decode == pytest.approx(p95["ITL"], abs=1e-3)
    assert quoted.prefill > 2 * p95["E2E"]


def test_the_verb_and_a_replay_with_its_file(tmp_path: Path) -> None:
    (run,) = written(tmp_path, bench(4.0))
    mine, trace = tmp_path / "mine.json", tmp_path / "trace.csv"
    trace.write_text("arrival_s,prompt_tokens,output_tokens\n" + "\n".join(f"{i},500,50" for i in range(30)) + "\n")
    where = ["--model", BENCHED.model.key, "--gpu", BENCHED.gpu.key]
    said = CliRunner().invoke(cli, ["calibrate", *where, "--from", str(run), "--output", str(mine)])
    assert said.exit_code == 0, said.output
    assert "kernels_factor" in said.stdout
    assert "cross-validated" in said.stdout
    words = ["replay", str(trace), *where, "--json"]
    plain, own = (
        CliRunner().invoke(cli, [*words, *more], catch_exceptions=False) for more in ((), ("--calibration", str(mine)))
    )
    shipped, measured = json.loads(plain.stdout), json.loads(own.stdout)
    assert measured["step_time"]["provenance"] == "measured"
    assert measured["step_time"]["calibration_id"].startswith("user/")
    ratio = measured["metrics"]["itl_s"]["mean"] / shipped["metrics"]["itl_s"]["mean"]
    assert 1.05 < ratio < 1.13


@pytest.mark.parametrize("form", ["guidellm-report", "aiperf-profile-export"])
def test_other_load_generators_are_read_too(tmp_path: Path, form: str) -> None:
    path = tmp_path / "run"
    path.write_bytes(MAKERS[form](calls(60)))
    run = read_run(path)
    assert (run.workload.n, run.ttft_s[0], run.e2e_s[0]) == (60, 0.0505, 0.4)


def test_each_result_of_a_file_of_several_is_looked_at(tmp_path: Path) -> None:
    good, bad = bench(4.0, n=40), poisoned(ttfts=lambda rows: [-0.1, *rows[1:]])
    path = tmp_path / "appended.json"
    path.write_text("\n".join(json.dumps(one) for one in (good, bad)))
    with pytest.raises(ReplayError) as refused:
        read_run(path)
    assert refused.value.code == "calibration.latency"
