"""A server of another shape: its law comes back where measurements tell it, and the shipped shape stays elsewhere."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from endpoint_server import Law
from endpoint_tools import DEPLOYMENT, LAWS, TODAY, TRUTH, true_law, worst_error

from replay.calibration.applied import apply_calibration
from replay.calibration.fit import calibrate
from replay.calibration.shape import bent
from replay.calibration.user import UserCalibration, parse_calibration
from replay.errors import SpecError, TraceError

RECORD = DEPLOYMENT.step_time
PROMPTS = (32, 64, 128, 192, 256, 384, 512, 768, 1024, 2048, 4096, 8000)
DECODES = (
    (1, 200),
    (1, 8000),
    (4, 4000),
    (8, 300),
    (16, 200),
    (16, 2100),
    (32, 200),
    (64, 600),
    (128, 200),
    (64, 4000),
)


def table(folder: Path, law: Law, *, noise: float, repeats: int, prompts: tuple[int, ...] = PROMPTS) -> Path:
    """Steps and first tokens under a law, 9 ms from a request to the engine."""
    rows: list[tuple[str, int, int, int]] = [("ttft", tokens, 0, 0) for tokens in prompts]
    rows += [("step", tokens, 0, 0) for tokens in prompts]
    rows += [("step", 0, n, n * context) for n, context in DECODES]
    rows += [("step", tokens, 8, 8 * 500) for tokens in prompts if 256 <= tokens <= 4096]
    rows *= repeats
    random = np.random.default_rng(5)
    steps = [
        {
            "kind": kind,
            "prefill_tokens": tokens,
            "decode_requests": decodes,
            "decode_context_tokens": context,
            "time_s": (law([(tokens, 0)] if tokens else [], decodes, context) + (9e-3 if kind == "ttft" else 0.0))
            * (1 + noise * float(random.standard_normal())),
        }
        for kind, tokens, decodes, context in rows
    ]
    path = folder / "steps.json"
    path.write_text(json.dumps({"steps": steps}))
    return path


def fitted(
    folder: Path, law: Law, *, noise: float = 0.01, repeats: int = 6, **more: tuple[int, ...]
) -> UserCalibration:
    return calibrate([table(folder, law, noise=noise, repeats=repeats, **more)], DEPLOYMENT, today=TODAY)


@pytest.mark.parametrize(("noise", "repeats"), [(0.01, 6), (0.05, 40)])
@pytest.mark.parametrize("name", sorted(LAWS))
def test_a_law_of_another_shape_comes_back_within_3_percent(
    tmp_path: Path, name: str, noise: float, repeats: int
) -> None:
    found = fitted(tmp_path, LAWS[name], noise=noise, repeats=repeats)
    assert found.shape is not None
    assert found.schema_version == 2
    assert worst_error(found, DEPLOYMENT, TRUTH, law=LAWS[name]) < 0.03
    assert found.shape.error < 0.02 < found.shape.unbent_error
    assert f"{100 * found.shape.unbent_error:.1f} % with the shipped one" in found.notes[0]
    knees = [knot.tokens for knot in found.shape.knots][1:-1]
    assert knees == [] if name == "affine" else any(150 < knee < 210 for knee in knees)


@pytest.mark.parametrize("noise", [0.01, 0.03, 0.05])
def test_the_shipped_shape_stays_where_it_is_the_true_one(tmp_path: Path, noise: float) -> None:
    found = fitted(tmp_path, true_law(DEPLOYMENT, TRUTH), noise=noise)
    assert found.shape is None
    assert found.schema_version == 1
    assert "keep the shipped shape" in found.notes[0]
    assert "shape" not in found.model_dump(mode="json")


def test_no_bend_beyond_what_was_measured_and_more_tokens_never_take_less(tmp_path: Path) -> None:
    found = fitted(tmp_path, LAWS["roofline"], prompts=(64, 128, 256, 512, 1024, 2048))
    assert found.shape is not None
    last = found.shape.knots[-1]
    assert (found.shape.knots[0].tokens, last.tokens) == (1, 2048 + 8)
    applied = apply_calibration(RECORD, found, async_scheduling=False)
    assert (np.diff(applied.rest_ps) >= 0).all()
    assert applied.rest_ps[4096] == pytest.approx(RECORD.rest_ps[4096] * last.factor, rel=1e-3)
    short = replace(RECORD, rest_ps=RECORD.rest_ps[:1025])
    assert (apply_calibration(short, found, async_scheduling=False).rest_ps == applied.rest_ps[:1025]).all()


def test_prompts_timed_by_first_tokens_alone_keep_the_shipped_shape(tmp_path: Path) -> None:
    path = table(tmp_path, LAWS["roofline"], noise=0.01, repeats=6)
    rows = json.loads(path.read_text())["steps"]
    apart = [row for row in rows if row["kind"] == "ttft" or not row["prefill_tokens"]]
    path.write_text(json.dumps({"steps": apart}))
    found = calibrate([path], DEPLOYMENT, today=TODAY)
    assert found.shape is None
    assert any("by first tokens alone" in note for note in found.notes)
    assert not any("by first tokens alone" in note for note in fitted(tmp_path, LAWS["roofline"]).notes)


def test_equal_factors_are_the_shipped_times_at_the_knots() -> None:
    knots = np.array([8, 100, 4000])
    times = bent(RECORD.rest_ps, knots, RECORD.rest_ps[knots], np.full(3, 1.5))
    assert times[knots] == pytest.approx(1.5 * RECORD.rest_ps[knots])
    assert times[8000] == pytest.approx(1.5 * RECORD.rest_ps[8000])
    assert times[2050] == pytest.approx((times[100] + times[4000]) / 2)


def test_absurd_steps_count_nothing_and_other_units_are_refused(tmp_path: Path) -> None:
    path = table(tmp_path, LAWS["affine"], noise=0.01, repeats=6)
    rows = json.loads(path.read_text())["steps"]
    absurd = {**rows[0], "kind": "step", "prefill_tokens": 2048, "time_s": 2e-4}
    path.write_text(json.dumps({"steps": [*rows, *[absurd] * 4]}))
    found = calibrate([path], DEPLOYMENT, today=TODAY)
    assert found.shape is not None
    assert worst_error(found, DEPLOYMENT, TRUTH, law=LAWS["affine"]) < 0.03
    assert any("4 of" in note for note in found.notes)
    path.write_text(json.dumps({"steps": [{**row, "time_s": row["time_s"] * 1e3} for row in rows]}))
    with pytest.raises(TraceError) as refused:
        calibrate([path], DEPLOYMENT, today=TODAY)
    assert refused.value.code == "calibration.implausible"


def test_a_shape_is_kept_as_json_and_an_impossible_one_is_refused(tmp_path: Path) -> None:
    found = fitted(tmp_path, LAWS["affine"])
    document = found.model_dump(mode="json")
    assert parse_calibration(document) == found
    assert parse_calibration(document).id == found.id
    knots = document["shape"]["knots"]
    for changed in (
        {"schema_version": 1},
        {"shape": None},
        {"shape": {**document["shape"], "knots": knots[::-1]}},
        {"shape": {**document["shape"], "knots": [{**knots[0], "factor": 19.0}, {**knots[-1], "factor": 0.06}]}},
    ):
        with pytest.raises(SpecError):
            parse_calibration({**document, **changed})
