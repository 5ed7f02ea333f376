"""The command line: one module a verb, imported only when that verb runs, so that ``capreplay --help`` is quick."""

from __future__ import annotations


def main() -> None:
    """Console entry point ``capreplay``."""
    from api.cli.group import cli

    cli(prog_name="capreplay")
