"""docs/traces.md names every format, rule, option and limit that the code has."""

import re
import subprocess
import sys
from pathlib import Path

from replay.traces.cleaning import CURES
from replay.traces.formats import all_formats
from replay.traces.options import MAPPED_FIELDS, IngestOptions, Limits, parse_mapping

ROOT = Path(__file__).resolve().parents[4]
TEXT = (ROOT / "docs" / "traces.md").read_text(encoding="utf-8")


def test_formats_rules_and_options_are_documented() -> None:
    names = {form.name for form in all_formats()}
    wanted = {*names, *CURES, *MAPPED_FIELDS, *(f"limits.{name}" for name in Limits.model_fields)}
    wanted |= set(IngestOptions.model_fields) - {"limits"}
    assert {name for name in wanted if f"`{name}`" not in TEXT} == set()


def test_every_rule_that_is_documented_exists() -> None:
    table = TEXT[TEXT.index("| rule | cure |") : TEXT.index("Refusals of whole files")]
    assert set(re.findall(r"^\| `([a-z0-9_]+)` \|", table, re.MULTILINE)) == set(CURES)


def test_options_and_reports_need_no_polars() -> None:
    code = "import sys, replay.traces.options, replay.traces.report; assert not {'polars', 'numba'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_the_mapping_of_the_command_line() -> None:
    assert parse_mapping(["arrival=ts", "prompt_tokens = usage.in "]) == {"arrival": "ts", "prompt_tokens": "usage.in"}
