"""The command group: quick to start, lists what there is, turns every refusal into one shape."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from api.cli.group import VERBS, cli

HEAVY = ("numba", "polars", "numpy", "fastapi", "sqlalchemy", "pydantic", "plotly", "celery", "jinja2")


def commands() -> Iterator[tuple[str, click.Command]]:
    """Every command of the tree with its full name."""
    context = click.Context(cli)

    def walk(group: click.Group, prefix: str) -> Iterator[tuple[str, click.Command]]:
        for name in group.list_commands(context):
            command = group.get_command(context, name)
            assert command is not None
            yield f"{prefix}{name}", command
            if isinstance(command, click.Group):
                yield from walk(command, f"{prefix}{name} ")

    return walk(cli, "")


COMMANDS = dict(commands())


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; sys.argv = ['capreplay', '--help']\n"
        "from api.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.splitlines()[-1] == "[]"
    assert "run" in run.stdout


def test_help_lists_each_verb_with_its_own_words() -> None:
    answer = CliRunner().invoke(cli, ["--help"])
    assert answer.exit_code == 0
    for name, words in VERBS.items():
        assert name in answer.stdout
        assert COMMANDS[name].get_short_help_str(200) == words


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_and_option_explains_itself(name: str) -> None:
    answer = CliRunner().invoke(cli, [*name.split(), "--help"])
    assert answer.exit_code == 0
    assert COMMANDS[name].help
    for parameter in COMMANDS[name].params:
        if isinstance(parameter, click.Option):
            assert parameter.help, f"{name} {parameter.opts}"


def test_version() -> None:
    answer = CliRunner().invoke(cli, ["--version"])
    assert answer.exit_code == 0
    assert answer.stdout.startswith("capreplay ")


RUN = ["run", "x.csv", "--model", "llama-3.1-8b", "--gpu", "H100-SXM"]
MEMORY = ["memory", "--model", "llama-3.1-8b", "--gpu", "H100-SXM"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["rum"], "did you mean run?"),
        (["xyzzy"], "the verbs are run, replay"),
        (["memory", "--gpu", "H100-SXM"], "--model"),
        (["memory", "--model", "m", "--gpu", "g", "--tp", "0"], "--tp"),
        (["replay"], "TRACE"),
        (["ingest", "/no/such/file"], "cannot open /no/such/file: no such file"),
        (["memory", "--model", "meta-llama/Llama-9", "--gpu", "H100-SXM"], "meta-llama/"),
        (["memory", "--model", "llama-3.1-8b", "--gpu", "H1000"], "H100-SXM"),
        (["memory", "--model", "llama-3.1-8b", "--gpu", "H100-SXM", "--engine", "vlm-0.33"], "vllm-0.33"),
        (["memory", "--model", "llama-3.1-8b", "--gpu", "H100-SXM", "--set", "max_num_seq=4"], "max_num_seqs"),
        (["memory", "--model", "llama-3.1-8b", "--gpu", "H100-SXM", "--set", "max_num_seqs"], "max_num_seqs=256"),
        (["memory", "--model", "/no/such/config.json", "--gpu", "H100-SXM"], "/no/such/config.json"),
        (["run", "x.csv", "--model", "llama-3.1-8b", "--gpu", "H100-SXM", "--slo", "ttft=2"], "ttft_p99=2s"),
        (["run", "x.csv", "--model", "llama-3.1-8b", "--gpu", "H100-SXM", "--tp", "one"], "--tp 1,2,4"),
        (["run", "x.csv", "--model", "llama-3.1-8b", "--gpu", "H100-SXM", "--growth", "-1"], "--growth"),
        (["run", "x.csv", "--model", "llama-3.1-8b", "--gpu", "H100-SXM", "--window", "5"], "--window 0:3600"),
        (["run", "x.csv", "--model", "llama-3.1-8b", "--gpu", "H100-SXM", "--report", "a.pdf"], ".html, .json or .csv"),
        (["run", "x.csv", "--model", "llama-3.1-8b", "--gpu", ","], "--gpu"),
        (["ingest", "x.csv", "--map", "when=ts"], "arrival"),
        (["run", "x.csv", "--model", "llama-3.1-8b", "--gpu", "H100-SXM", "--max-gpus", "0"], "give at least 1"),
        ([*MEMORY, "--gpu-memory-utilization", "1.5"], "--gpu-memory-utilization"),
        ([*RUN, "--slo", "tftt_p99=2s"], "did you mean ttft?"),
        ([*RUN, "--slo", "ttft_p100=1s"], "below p100"),
        ([*RUN, "--slo", "ttft_p99=-1s"], "above 0"),
        ([*RUN, "--price-usd-per-gpu-hour", "H1000=2"], "H100-SXM"),
        ([*RUN, "--price-term", "on-demand"], "did you mean on_demand"),
        (["verify", "/no/such/file"], "cannot open /no/such/file: no such file"),
        (["ingest", "x.csv", "--block-size", "-1"], "give at least 1"),
    ],
)
def test_refusals_say_where_and_how_to_cure(words: list[str], says: str, tmp_path: Path) -> None:
    trace = tmp_path / "x.csv"
    trace.write_text("arrival_s,prompt_tokens,output_tokens\n0,1,1\n")
    words = [str(trace) if word == "x.csv" else word for word in words]
    plain = CliRunner().invoke(cli, words)
    assert plain.exit_code == 2
    assert says in plain.stderr
    assert plain.stdout == ""
    assert "Traceback" not in plain.output
    answer = CliRunner().invoke(cli, [*words, "--json"])
    assert answer.exit_code == 2
    problem = json.loads(answer.stdout)
    assert set(problem) == {"type", "title", "status", "detail", "code", "errors"}
    assert says in json.dumps(problem) or says in json.dumps(problem["errors"])


def test_an_unexpected_fault_is_one_line_and_exit_code_1(monkeypatch: pytest.MonkeyPatch) -> None:
    def break_down(*_args: object) -> None:
        raise RuntimeError("the floor is wet")

    monkeypatch.setattr("api.cli.memory.size", break_down)
    words = ["memory", "--model", "m", "--gpu", "g"]
    answer = CliRunner().invoke(cli, words)
    assert answer.exit_code == 1
    assert answer.stderr.count("\n") == 1
    assert "RuntimeError: the floor is wet" in answer.stderr
    with pytest.raises(RuntimeError, match="wet"):
        CliRunner().invoke(cli, ["--debug", *words], catch_exceptions=False)
