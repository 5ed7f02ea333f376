"""Lists that the options repeat, so that a help text needs no slow import, are those of the specs."""

from __future__ import annotations

from typing import get_args

import click
import pytest

from api.cli.group import cli
from api.cli.options import ROUTERS, cold_starts_of, failures_of
from api.cli.refusals import option_of
from replay.specs import DeploymentSpec, DisaggregationSpec, PlanSpec, PriceFilter, Router, Transform


def test_routers() -> None:
    assert get_args(Router) == ROUTERS


def test_failures_and_late_starts() -> None:
    assert failures_of(("0:60", "1:5.5:120")) == [
        {"replica": 0, "at_s": 60.0},
        {"replica": 1, "at_s": 5.5, "back_after_s": 120.0},
    ]
    assert cold_starts_of(("2:90",)) == [{"replica": 2, "ready_after_s": 90.0}]


@pytest.mark.parametrize("text", ["0", "0:1:2:3", "x:1", "0:soon", ""])
def test_a_failure_that_cannot_be_read_shows_one_that_can(text: str) -> None:
    with pytest.raises(click.UsageError, match=r"--failure takes a replica and times in seconds, e\.g\. 0:60 "):
        failures_of((text,))


def test_every_field_of_a_request_is_refused_under_an_option_that_there_is() -> None:
    context = click.Context(cli)
    commands = filter(None, (cli.get_command(context, verb) for verb in ("run", "replay", "memory", "calibrate")))
    known = {name for command in commands for param in command.params for name in param.opts}
    paths = [f"transform.{name}" for name in Transform.model_fields]
    paths += [f"deployment.disaggregation.{name}" for name in DisaggregationSpec.model_fields]
    paths += [f"deployment.{name}" for name in DeploymentSpec.model_fields if name != "disaggregation"]
    paths += [f"price.{name}" for name in PriceFilter.model_fields]
    paths += [name for name in PlanSpec.model_fields if name not in ("transform", "disaggregation", "price")]
    assert {path for path in paths if option_of(path).split()[0] not in known} == set()
    assert option_of("prompt_cap_tokens") == "--transform prompt_cap_tokens"
    assert option_of("transform.mix_with.0.share") == "--transform mix_with"
    assert option_of("arrival") == "arrival"
    assert option_of("transform.tenant_growth.seed") == "--tenant-growth"
    assert option_of("engine.overrides.max_model_len") == "--set"
    assert option_of("deployment.disaggregation.decode_overrides.seed") == "--decode-set"
