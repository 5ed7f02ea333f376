"""The verbs around the service: migrate, keys, openapi, warmup, serve and worker as far as they refuse."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from api.cli.group import cli
from api.cli.serve import _serve
from models.folder_lock import hold

EXPOSED = {"CAPREPLAY_HOST": "0.0.0.0"}
BROKER = {"CAPREPLAY_BROKER_URL": "redis://127.0.0.1:1/0"}


def invoke(*words: object, exit_code: int = 0, env: dict[str, str] | None = None) -> Result:
    answer = CliRunner().invoke(cli, [str(word) for word in words], env=env, catch_exceptions=False)
    assert answer.exit_code == exit_code, answer.output
    return answer


def answer(*words: object, exit_code: int = 0, env: dict[str, str] | None = None) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(invoke(*words, "--json", exit_code=exit_code, env=env).stdout)
    return document


def test_migrate_up_again_and_down(tmp_path: Path) -> None:
    folder = ("--data-dir", tmp_path / "new")
    first = answer("migrate", *folder)
    assert first["before"] is None
    assert first["after"]
    assert answer("migrate", *folder) == {"before": first["after"], "after": first["after"]}
    assert "was there already" in invoke("migrate", *folder).stdout
    assert answer("migrate", *folder, "--downgrade", "base")["after"] is None


def test_the_life_of_a_key(tmp_path: Path) -> None:
    folder = ("--data-dir", tmp_path)
    made = answer("keys", "create", "--name", "ci", "--scope", "jobs:write", "--expires-days", "2", *folder)
    assert made["key"].startswith("crp_")
    assert made["scopes"] == ["jobs:write"]
    assert made["expires_at"] > made["created_at"]
    (listed,) = answer("keys", "list", *folder)["keys"]
    assert listed["id"] == made["id"]
    assert "key" not in listed
    assert made["key"] not in json.dumps(listed)
    turned = answer("keys", "rotate", made["id"], *folder)
    assert turned["key"] != made["key"]
    assert answer("keys", "revoke", turned["id"], *folder) == {"id": turned["id"], "state": "revoked"}
    states = {one["id"]: one["state"] for one in answer("keys", "list", *folder)["keys"]}
    assert states == {made["id"]: "active", turned["id"]: "revoked"}


def test_keys_in_words(tmp_path: Path) -> None:
    folder = ("--data-dir", tmp_path)
    assert "no keys yet" in invoke("keys", "list", *folder).stdout
    made = invoke("keys", "create", "--name", "laptop", *folder)
    assert made.stdout.startswith("crp_")
    assert len(made.stdout.split()) == 1, "stdout holds the key alone, for $(...)"
    assert "not shown again" in made.stderr
    assert "laptop" in invoke("keys", "list", *folder).stdout
    assert "jobs:write" in invoke("keys", "list", *folder).stdout


def test_tenants_have_their_own_keys(tmp_path: Path) -> None:
    folder = ("--data-dir", tmp_path)
    tenants = answer("keys", "tenants", "--add", "Second", *folder)["tenants"]
    second = next(one["id"] for one in tenants if one["name"] == "Second")
    made = answer("keys", "create", "--name", "theirs", "--tenant", second, *folder)
    assert made["tenant"] == second
    assert answer("keys", "list", *folder)["keys"] == []
    problem = answer("keys", "revoke", made["id"], *folder, exit_code=2)
    assert problem["status"] == 404
    assert answer("keys", "revoke", made["id"], "--tenant", second, *folder)["state"] == "revoked"


@pytest.mark.parametrize("words", [("serve",), ("migrate",), ("keys", "list"), ("worker",), ("beat",), ("warmup",)])
def test_a_wrong_setting_is_named(words: tuple[str, ...]) -> None:
    refused = CliRunner().invoke(cli, [*words], env={"CAPREPLAY_PORT": "many"}, catch_exceptions=False)
    assert refused.exit_code == 2
    assert "CAPREPLAY_PORT" in refused.stderr
    assert "Traceback" not in refused.output


def test_a_broker_needs_a_secret(tmp_path: Path) -> None:
    problem = answer("serve", "--data-dir", tmp_path, exit_code=2, env=BROKER)
    assert "CAPREPLAY_SECRET_KEY" in problem["detail"]


def test_serve_is_not_exposed_without_keys(tmp_path: Path) -> None:
    problem = answer("serve", "--port", "0", "--data-dir", tmp_path, exit_code=2, env=EXPOSED)
    assert "CAPREPLAY_AUTH=keys" in json.dumps(problem)


def test_serve_says_that_a_port_is_taken(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        problem = answer("serve", "--port", port, "--data-dir", tmp_path, exit_code=2)
    assert problem["code"] == "settings.address"
    assert "--port" in json.dumps(problem["errors"])


def test_a_second_serve_on_one_folder_names_the_first(tmp_path: Path) -> None:
    with hold(tmp_path / "serve.lock"):
        problem = answer("serve", "--port", 0, "--data-dir", tmp_path, exit_code=2)
    assert problem["code"] == "settings.data_dir"
    assert f"process {os.getpid()}" in problem["detail"]
    assert not (tmp_path / "capreplay.db").exists(), "a refused start touches nothing"


@pytest.mark.parametrize("verb", ["worker", "beat"])
def test_a_check_on_a_fresh_folder_is_one_sentence_and_makes_nothing(verb: str, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    words = [sys.executable, "-m", "worker", verb, "--check"]
    done = subprocess.run(
        words, env=os.environ | {"CAPREPLAY_DATA_DIR": str(folder)}, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("no worker has run here")
    assert done.stderr.count("\n") == 1
    assert not folder.exists()


def test_openapi_is_the_committed_one(project_root: Path) -> None:
    printed = invoke("openapi").stdout
    assert json.loads(printed)["openapi"].startswith("3.")
    assert "/v1/plans" in json.loads(printed)["paths"]


def test_warmup_compiles() -> None:
    assert answer("warmup")["wall_s"] > 0


def test_an_expired_key_is_listed_as_expired(tmp_path: Path) -> None:
    folder = ("--data-dir", tmp_path)
    made = answer("keys", "create", "--name", "x", *folder)
    answer("keys", "rotate", made["id"], "--grace-hours", "0", *folder)
    states = {one["id"]: one["state"] for one in answer("keys", "list", *folder)["keys"]}
    assert states[made["id"]] == "expired"


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (("keys", "create", "--name", "x", "--expires-days", "1e12"), "--expires-days"),
        (("keys", "rotate", "key_x", "--grace-hours", "1e12"), "--grace-hours"),
        (("keys", "create", "--name", "x", "--tenant", "tnt_nope"), "there is no tenant 'tnt_nope'"),
        (("migrate", "--downgrade", "nope"), "there is no revision 'nope'"),
    ],
)
def test_values_out_of_range_are_refused_in_plain_words(tmp_path: Path, words: tuple[str, ...], part: str) -> None:
    invoke("migrate", "--data-dir", tmp_path)
    refused = invoke(*words, "--data-dir", tmp_path, exit_code=2)
    assert part in refused.output
    assert "unexpected" not in refused.output
    assert "INSERT" not in refused.output


def test_a_damaged_secret_is_named_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "secret_key").touch()
    problem = answer("serve", "--data-dir", tmp_path, exit_code=2)
    assert "secret_key" in problem["detail"]


def test_only_trusted_proxies_speak_for_visitors(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []
    monkeypatch.setattr("uvicorn.Server.run", lambda server, sockets: told.append(server.config.forwarded_allow_ips))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        _serve(object(), listening, "10.1.0.0/16")
    assert told == ["10.1.0.0/16"]
