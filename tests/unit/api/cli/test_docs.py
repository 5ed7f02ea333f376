"""docs/cli.md and the program say the same: every verb, argument and option, and none besides."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from api.cli.group import cli


def tree() -> dict[str, click.Command]:
    """Every command by its full name."""
    context, found = click.Context(cli), {}

    def walk(group: click.Group, prefix: str) -> None:
        for name in group.list_commands(context):
            command = group.get_command(context, name)
            assert command is not None
            found[prefix + name] = command
            if isinstance(command, click.Group):
                walk(command, f"{prefix}{name} ")

    walk(cli, "")
    return found


TREE = tree()


@pytest.fixture(scope="module")
def sections(project_root: Path) -> dict[str, str]:
    """The page by heading."""
    text = (project_root / "docs" / "cli.md").read_text()
    parts = re.split(r"^#{2,4} (.+)$", text, flags=re.MULTILINE)
    return {"": parts[0]} | dict(zip(parts[1::2], parts[2::2], strict=True))


def documented_options(section: str) -> set[str]:
    """The options in the first column of a section's table."""
    return {
        option
        for row in re.findall(r"^\| (`-.*?) \|", section, re.MULTILINE)
        for option in re.findall(r"`(-{1,2}[a-z-]+)`", row)
    }


def options_of(command: click.Command) -> set[str]:
    return {name for one in command.params if isinstance(one, click.Option) for name in one.opts}


def test_every_verb_has_a_section_and_none_is_left_over(sections: dict[str, str]) -> None:
    assert set(sections) - {""} == set(TREE)


@pytest.mark.parametrize("name", TREE)
def test_every_option_is_documented(sections: dict[str, str], name: str) -> None:
    assert documented_options(sections[name]) == options_of(TREE[name])
    for argument in (one for one in TREE[name].params if isinstance(one, click.Argument)):
        assert argument.make_metavar(click.Context(TREE[name])) in sections[name]


def test_options_before_the_verb_are_documented(sections: dict[str, str]) -> None:
    assert documented_options(sections[""]) == options_of(cli)
