"""Options that change a trace's load become fields of a transform."""

from __future__ import annotations

from typing import Any, get_args

import click
import pytest
from click.testing import CliRunner

from api.cli.options import transform_of, transform_options
from api.cli.what_if import CANCELS, GROWTH_METHODS, SPREADS, ZERO_OUTPUTS
from replay.specs_transform import Cancels, GrowthMethod, Spread, Transform, ZeroOutput


def test_lists_that_the_options_repeat() -> None:
    assert get_args(GrowthMethod) == GROWTH_METHODS
    assert get_args(Spread) == SPREADS
    assert get_args(ZeroOutput) == ZERO_OUTPUTS
    assert get_args(Cancels) == CANCELS


def parse(*words: str) -> Transform:
    found: list[Transform] = []

    @click.command()
    @transform_options
    def command(growth: float, window: str | None, warmup: float, cooldown: float, seed: int, **rest: Any) -> None:
        found.append(transform_of(growth, window, warmup, cooldown, **rest))

    result = CliRunner().invoke(command, words, catch_exceptions=True)
    if result.exit_code == 2:
        raise click.UsageError(result.output)
    if result.exception is not None:
        raise result.exception
    return found[0]


def test_no_option_changes_nothing() -> None:
    assert parse() == Transform()
    assert parse("--burstiness", "0", "--prefix-from-sessions") == Transform(burstiness=0, prefix_from_sessions=True)


def test_each_option_is_a_field() -> None:
    words = (
        "--growth 2 --growth-method shift --busiest 600 --tenant a --tenant b --tenant-growth a=1.5 "
        "--zero-output infer --cancels at_their_time --spread uniform --burstiness 2 --prompt-scale 1.5 "
        "--output-scale 0.5 --transform prompt_cap_tokens=8000"
    )
    assert parse(*words.split()) == Transform(
        growth=2, growth_method="shift", busiest_window_s=600, tenants=("a", "b"), tenant_growth={"a": 1.5},
        zero_output="infer", cancels="at_their_time",
        spread="uniform", burstiness=2, prompt_scale=1.5, output_scale=0.5, prompt_cap_tokens=8000,
    )  # fmt: skip
    assert parse("--transform", "window_from=2026-03-02T09:00", "--without-tenant", "x") == Transform(
        window_from="2026-03-02T09:00", without_tenants=("x",)
    )


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--tenant-growth", "a"], "takes NAME=FACTOR"),
        (["--tenant-growth", "a=b"], "takes NAME=FACTOR"),
        (["--transform", "spread"], "takes FIELD=VALUE"),
        (["--transform", "spread=even", "--spread", "even"], "keep one"),
        (["--transform", "growth=2"], "by --growth"),
    ],
)
def test_words_that_cannot_be_read(words: list[str], says: str) -> None:
    with pytest.raises(click.UsageError, match=says):
        parse(*words)
