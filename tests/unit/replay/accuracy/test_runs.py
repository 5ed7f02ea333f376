"""Experiment folders to runs: what every trap of the measured data does to what is replayed and compared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import measured_runs as made
import numpy as np
import pytest

from replay.accuracy.runs import MeasuredRun, Unreplayed, read_runs, repeated_prompts
from replay.accuracy.server import Server
from replay.errors import SpecError


def one(root: Path) -> MeasuredRun:
    (run,) = read_runs(root)
    assert isinstance(run, MeasuredRun), run
    return run


def refused(root: Path) -> Unreplayed:
    (run,) = read_runs(root)
    assert isinstance(run, Unreplayed), run
    return run


INFPERF = {"group": "infperf-per-request", "engine_version": "0.15.1", "max_num_batched_tokens": 2048}


def infperf_summary(distinct: int = 4) -> dict[str, Any]:
    workload = {"ignore_eos": True, "distinct_prompts": distinct, "prefix_groups": 2, "system_prompt_len": 32}
    return {"workload": workload, "measured": {}}


def infperf_rows(n: int = 12, **columns: Any) -> list[dict[str, Any]]:
    # The client counted 8 tokens of 11: ITL follows from the true length.
    found = made.rows(n, **{"max_tokens": 11, "itl_mean_s_derived": 0.02, "output_tokens": 8, **columns})
    return [{k: v for k, v in row.items() if k != "itl_mean_s"} for row in found]


def test_true_lengths_are_max_tokens_where_the_end_of_text_is_ignored(tmp_path: Path) -> None:
    made.write(tmp_path, requests=infperf_rows(), summary=infperf_summary(), **INFPERF)
    run = one(tmp_path)
    assert run.rows is not None
    assert set(run.workload.output_tokens) == {11}
    assert run.rows.itl_s == pytest.approx([0.02] * 12)


def test_prompts_come_round_and_share_their_groups_first_blocks(tmp_path: Path) -> None:
    made.write(tmp_path, requests=infperf_rows(), summary=infperf_summary(), **INFPERF)
    prefix = one(tmp_path).workload.prefix
    assert prefix is not None
    ids = [prefix.ids[a:b].tolist() for a, b in zip(prefix.start, prefix.start[1:], strict=False)]
    assert [len(x) for x in ids] == [7] * 12  # 100 tokens in blocks of 16
    assert ids[0] == ids[4] == ids[8]
    assert ids[0][:2] == ids[2][:2]  # 32 tokens of a system prompt
    assert ids[0][2] != ids[2][2]
    assert not set(ids[0]) & set(ids[1])
    # Nothing is new after one round, but the last, partly filled block of a prompt counts whole here.
    assert (prefix.reusable_tokens[4:] >= 100).all()


def test_prompts_of_different_lengths_share_what_they_have() -> None:
    prefix = repeated_prompts(np.array([40, 16, 70]), distinct=1, groups=1, shared_tokens=0)
    ids = [prefix.ids[a:b].tolist() for a, b in zip(prefix.start, prefix.start[1:], strict=False)]
    assert ids[0] == ids[2][:3]
    assert ids[1] == ids[0][:1]


def test_failed_requests_are_load_with_the_length_of_their_place_in_the_round(tmp_path: Path) -> None:
    def prompt(i: int) -> int:
        return 0 if i == 6 else 100 + i % 4

    failed = {"status": lambda i: "error" if i == 6 else "ok", "prompt_tokens": prompt}
    empty: dict[str, Any] = {name: lambda i: "" if i == 6 else 0.1 for name in ("ttft_s", "e2e_s")}
    found = infperf_rows(**failed, **empty, itl_mean_s_derived="")
    made.write(tmp_path, requests=found, summary=infperf_summary(), **INFPERF)
    run = one(tmp_path)
    assert run.workload.n == 12
    assert run.workload.prompt_tokens[6] == 102
    assert run.rows is not None
    assert run.rows.ok.sum() == 11


def test_a_campaigns_own_values_stand_for_what_a_run_did_not_record() -> None:
    server = Server.model_validate({**made.SERVER, **INFPERF, "max_num_seqs": None})
    assert server.deployment().engine.overrides["max_num_seqs"] == 128
    lmbench = {**made.SERVER, "group": "lmbench-per-request", "engine_version": None, "kv_blocks_gpu": None}
    spec = Server.model_validate(lmbench).deployment()
    assert spec.engine.preset == "vllm-0.8.5"
    assert spec.engine.overrides["gpu_memory_utilization"] == 0.95
    assert "max_num_seqs" not in spec.engine.overrides


def test_recorded_settings_reach_the_deployment() -> None:
    spec = Server.model_validate({**made.SERVER, "max_num_seqs": 77, "prefix_caching": False}).deployment()
    assert (spec.model, spec.gpu, spec.tp, spec.max_model_len) == ("Qwen/Qwen3-14B", "H100-SXM-80GB", 1, 40960)
    assert spec.engine.preset == "vllm-0.23.0"
    assert spec.engine.overrides == {
        "max_num_seqs": 77,
        "max_num_batched_tokens": 8192,
        "block_size": 16,
        "num_gpu_blocks_override": 18038,
        "enable_prefix_caching": False,
        "enable_chunked_prefill": True,
    }


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"engine_version": None}, "engine_version"),
        ({"engine": "sglang"}, "engine"),
        ({"dp": 2}, "dp"),
        ({"replicas": 2}, "router"),
        ({"replicas": 2, "router": "something new"}, "router"),
    ],
)
def test_what_cannot_be_replayed_names_its_field(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(SpecError, match=field) as caught:
        Server.model_validate({**made.SERVER, **fields}).deployment()
    assert caught.value.errors[0].field == field


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"group": "something new"}, "group"),
        ({"gpu": ...}, "gpu"),
        ({"tp": "two"}, "tp"),
        ({"quality": "fair"}, "quality"),
    ],
)
def test_unknown_layouts_are_listed_with_the_field(tmp_path: Path, fields: dict[str, Any], field: str) -> None:
    made.write(tmp_path, requests=made.rows(), **fields)
    found = refused(tmp_path)
    assert (found.experiment, found.field) == ("one", field)
    assert field in found.reason


def test_single_steps_are_listed_too(tmp_path: Path) -> None:
    made.write(tmp_path, group="step-level")
    assert "score-steps" in refused(tmp_path).reason


@pytest.mark.parametrize(
    ("columns", "field"),
    [
        ({"ttft_s": -0.1}, "ttft_s"),
        ({"ttft_s": "nan"}, "ttft_s"),
        ({"ttft_s": "fast"}, "ttft_s"),
        ({"e2e_s": 0.05}, "e2e_s"),
        ({"output_tokens": 0}, "output_tokens"),
        ({"prompt_tokens": 2.5}, "prompt_tokens"),
        ({"output_tokens": 6}, "itl_mean_s"),  # chunks of two tokens
        ({"itl_mean_s": 20.0}, "itl_mean_s"),  # milliseconds beside seconds
        ({"status": "error"}, "status"),
    ],
)
def test_poisoned_tables_are_refused_with_the_column(tmp_path: Path, columns: dict[str, Any], field: str) -> None:
    made.write(tmp_path, requests=made.rows(**columns))
    found = refused(tmp_path)
    assert found.field == field, found.reason


def test_a_table_in_other_units_than_its_summary_is_refused(tmp_path: Path) -> None:
    milliseconds = made.rows(ttft_s=100.0, e2e_s=300.0, itl_mean_s=20.0)
    measured = {"all": {"ttft_s": {"mean": 0.1}, "e2e_s": {"mean": 0.3}}}
    made.write(tmp_path, requests=milliseconds, summary={"workload": {}, "measured": measured})
    found = refused(tmp_path)
    assert found.field == "ttft_s"
    assert "units" in found.reason


def test_a_missing_column_and_a_missing_file_are_named(tmp_path: Path) -> None:
    made.write(tmp_path, "a", requests=[{"arrival_s": 0.0, "status": "ok"}])
    made.write(tmp_path, "b")
    first, second = read_runs(tmp_path)
    assert isinstance(first, Unreplayed)
    assert first.field == "ttft_s"
    assert isinstance(second, Unreplayed)
    assert "requests.csv.gz is missing" in second.reason


def test_rows_are_taken_in_order_of_sending(tmp_path: Path) -> None:
    made.write(tmp_path, requests=made.rows(10, arrival_s=lambda i: float(9 - i), prompt_tokens=lambda i: 100 + i))
    run = one(tmp_path)
    assert run.workload.prompt_tokens.tolist() == list(range(109, 99, -1))
    assert run.workload.arrival_ps[0] == 0
    assert run.workload.span_s == pytest.approx(10.0)  # ten requests at one a second


def test_a_limited_client_is_replayed_by_its_plan_with_its_limit(tmp_path: Path) -> None:
    planned = {"planned_arrival_s": lambda i: 0.5 * i + 3.0}
    made.write(tmp_path, requests=made.rows(**planned), quality="client-limited")
    run = one(tmp_path)
    assert run.in_flight == 256
    assert run.throughput_only
    assert run.unscored is not None
    assert run.workload.arrival_ps.tolist() == [round(0.5e12 * i) for i in range(20)]


def test_sharegpt_of_unknown_servers_is_not_scored(tmp_path: Path) -> None:
    chat = {"workload": {"benchmark": "LMBench sharegpt"}, "measured": {}}
    made.write(tmp_path, requests=made.rows(), summary=chat, group="lmbench-per-request")
    assert "ShareGPT" in str(one(tmp_path).unscored)


def test_aggregates_get_arrivals_at_their_rates_and_itl_by_the_true_length(tmp_path: Path) -> None:
    made.write(tmp_path, summary=made.aggregate_summary(), **made.AGGREGATE)
    run = one(tmp_path)
    arrival_s = run.workload.arrival_ps / 1e12
    assert run.workload.n == 600
    assert (np.diff(arrival_s) >= 0).all()
    assert 180 <= (arrival_s < 100).sum() <= 220
    assert run.aggregates is not None
    assert run.aggregates.figures_s["itl_s"]["mean"] == pytest.approx((2.0 - 0.05) / 199)
    assert any("inferred" in note for note in run.notes)
    assert run.workload.prefix is not None


def test_a_sweep_is_a_run_for_each_rate(tmp_path: Path) -> None:
    point = {"ttft_mean": "80", "ttft_med": "79", "itl_mean": "20", "itl_med": "20", "outtps": "500", "n": "120"}
    points = [{"strat": "constant", "rate": "2", **point}, {"strat": "throughput", "rate": "", **point},
              {"strat": "synchronous", "rate": "", **point}]  # fmt: skip
    summary = {
        "workload": {"prompt_tokens": 1024, "output_tokens": 256},
        "sweep_unit": "ms for ttft and itl",
        "sweep": points,
    }
    made.write(tmp_path, summary=summary, group="e2e-sweep")
    steady, full, single = (run for run in read_runs(tmp_path) if isinstance(run, MeasuredRun))
    assert [run.experiment for run in (steady, full, single)] == ["one@2rps", "one@throughput", "one@synchronous"]
    assert (steady.in_flight, full.in_flight, single.in_flight) == (None, 512, 1)
    assert steady.aggregates is not None
    assert steady.aggregates.figures_s["e2e_s"]["mean"] == pytest.approx(0.08 + 255 * 0.02)
    assert np.diff(steady.workload.arrival_ps).tolist() == [5 * 10**11] * 239
    assert full.throughput_only
    assert full.throughput == 500


def test_a_folder_without_experiments_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"holds a server\.json"):
        list(read_runs(tmp_path))
    with pytest.raises(NotADirectoryError):
        list(read_runs(tmp_path / "absent"))
    made.write(tmp_path, requests=made.rows())
    with pytest.raises(SpecError, match="in its name"):
        list(read_runs(tmp_path, "nothing of that name"))
