"""``capreplay catalogue`` lists what the other verbs take."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from api.cli.group import cli


@pytest.mark.parametrize(
    ("kind", "find", "name", "value"),
    [
        ("gpus", "l40s", "key", "L40S"),
        ("models", "llama-3.1-8b", "key", "meta-llama/Llama-3.1-8B"),
        ("prices", "H100-SXM", "gpu", "H100-SXM"),
        ("engines", "0.33", "name", "vllm-0.33"),
        ("engines", "knob", "name", "max_num_seqs"),
    ],
)
def test_entries_are_found(kind: str, find: str, name: str, value: str) -> None:
    answer = CliRunner().invoke(cli, ["catalogue", kind, "--find", find, "--json"], catch_exceptions=False)
    items = json.loads(answer.stdout)["items"]
    assert value in [item[name] for item in items]
    words = CliRunner().invoke(cli, ["catalogue", kind, "--find", find], catch_exceptions=False).stdout
    assert value in words
    assert words.endswith(f"\n{len(items)} {kind}\n")
    every = CliRunner().invoke(cli, ["catalogue", kind, "--json"], catch_exceptions=False)
    assert len(json.loads(every.stdout)["items"]) > len(items)


def test_no_knob_has_endless_bounds() -> None:
    listed = CliRunner().invoke(cli, ["catalogue", "engines", "--find", "knob", "--json"], catch_exceptions=False)
    values = {item["name"]: item["values"] for item in json.loads(listed.stdout)["items"] if item["what"] == "knob"}
    assert values["acceptance_rate"] == "text"
    assert values["async_scheduling"] == "true or false"
    assert not [name for name, value in values.items() if "inf" in value]
