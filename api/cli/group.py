"""The ``capreplay`` command group: lists its verbs without importing them and turns every refusal into one shape."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any, NoReturn

import click

from api.cli.refusals import print_refusal, refusal_from

VERBS: dict[str, str] = {
    "run": "Size a trace: how many GPUs of which type meet the objectives, and at what cost.",
    "replay": "Replay a trace on one deployment and print every metric.",
    "ingest": "Read and clean a trace file; print what was kept, rejected and assumed.",
    "mix": "Put the load of several traces together, as one trace.",
    "synth": "Draw a trace from a description of clients, where there is no log yet.",
    "memory": "Size the KV cache of one replica on one GPU type.",
    "calibrate": "Fit the step times of a deployment of yours to measurements of it.",
    "catalogue": "List the known GPU types, models, prices, or engines with their knobs.",
    "verify": "Replay recorded scheduler cases and compare step by step.",
    "accuracy": "Replay a folder of measured runs and print how far the latencies are off.",
    "score-benchmarks": "Replay a table of throughput benchmarks and print how far it is off.",
    "score-steps": "Compare the shipped step times with a table of timed steps.",
    "serve": "Start the service: API and pages, and in embedded mode its worker too.",
    "worker": "Start a worker that takes jobs from the queue.",
    "beat": "Start the clock that triggers schedules, dispatch and repair.",
    "migrate": "Bring the database to this version's schema.",
    "warmup": "Compile the replay kernels into the cache.",
    "keys": "Create, list and revoke API keys.",
    "openapi": "Print the API's OpenAPI description.",
}
"""Verb -> the first line of its help. A test compares it with the commands themselves."""


class VerbGroup(click.Group):
    """Imports ``api.cli.<verb>`` and takes its ``command`` only when the verb is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        command = import_module(f"api.cli.{cmd_name.replace('-', '_')}").command
        if not isinstance(command, click.Command):
            raise TypeError(f"the verb {cmd_name}: its command is no click command")
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0] if args else ""
        if name and not name.startswith("-") and name not in VERBS:
            near = difflib.get_close_matches(name, VERBS, n=2)
            hint = f"; did you mean {' or '.join(near)}?" if near else f"; the verbs are {', '.join(VERBS)}"
            raise click.UsageError(f"there is no verb {name!r}{hint}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Verbs"):
            formatter.write_dl(list(VERBS.items()))

    def main(  # type: ignore[override] # click's overloads promise a return value; this one always exits
        self, args: Sequence[str] | None = None, prog_name: str | None = None, **extra: Any
    ) -> NoReturn:
        """Runs a verb. Exit codes: 0 done, 1 a check failed or an unexpected fault, 2 refused, 130 interrupted."""
        words = list(sys.argv[1:] if args is None else args)
        extra["standalone_mode"] = False
        try:
            code = super().main(words, prog_name or "capreplay", **extra)
        except click.exceptions.NoArgsIsHelpError as error:
            click.echo(error.format_message())
            sys.exit(2)
        except click.Abort:
            click.echo("capreplay: interrupted", err=True)
            sys.exit(130)
        except BrokenPipeError:
            sys.stdout = None
            sys.exit(0)
        except Exception as error:
            if "--debug" in words:
                raise
            refusal = refusal_from(error)
            if refusal is None:
                fault = f"{type(error).__name__}: {error}"
                click.echo(f"capreplay: unexpected fault: {fault}; run again with --debug for where", err=True)
                sys.exit(1)
            print_refusal(refusal, as_json="--json" in words)
            sys.exit(refusal.exit_code)
        sys.exit(code if isinstance(code, int) else 0)


def _version(ctx: click.Context, _param: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        from importlib.metadata import version

        click.echo(f"capreplay {version('capreplay')}")
        ctx.exit()


@click.group(cls=VerbGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_version, help="Print the version."
)
@click.option("--debug", is_flag=True, help="Show where an unexpected fault or a refusal came from.")
def cli(debug: bool) -> None:
    """Replays a log of LLM requests to say how many GPUs, of which type, meet the latency targets, and at what cost."""
