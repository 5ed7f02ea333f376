"""The API's description: committed, whole, and honest about what the routes do."""

import ast
import inspect
import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from fastapi.routing import APIRoute

from api.app import create_app
from api.openapi import openapi_text
from models.settings import Settings

HEAVY = ("numba", "polars", "plotly", "llvmlite", "matplotlib", "pandas")


@pytest.fixture(scope="module")
def document():
    return json.loads(openapi_text())


def _operations(document):
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield f"{method.upper()} {path}", operation


def test_the_committed_file_is_the_codes(project_root: Path):
    committed = (project_root / "docs" / "openapi.json").read_text(encoding="utf-8")
    assert committed == openapi_text(), "run: python -m api.openapi docs/openapi.json"


def test_the_description_does_not_depend_on_the_environment(project_root: Path, monkeypatch):
    monkeypatch.setenv("CAPREPLAY_HOST", "192.0.2.1")
    monkeypatch.setenv("CAPREPLAY_AUTH", "keys")
    assert (project_root / "docs" / "openapi.json").read_text(encoding="utf-8") == openapi_text()


def test_every_operation_has_a_verb_noun_id_a_summary_and_a_tag(document):
    ids = []
    for name, operation in _operations(document):
        ids.append(operation["operationId"])
        assert operation["operationId"].split("_")[0] in VERBS, name
        assert "_" in operation["operationId"], name
        assert operation["summary"], name
        assert operation["tags"], name
    assert len(ids) == len(set(ids))


VERBS = {
    "append",
    "read",
    "get",
    "list",
    "put",
    "create",
    "update",
    "delete",
    "cancel",
    "watch",
    "run",
    "rotate",
    "revoke",
}


def test_every_operation_describes_its_errors_as_problems(document):
    for name, operation in _operations(document):
        for status, answer in operation["responses"].items():
            if int(status) >= 400:
                assert set(answer["content"]) == {"application/problem+json"}, (name, status)
        if "/v1/" in name:
            assert {"401", "403", "422", "429", "500"} <= set(operation["responses"]), name
            assert operation["security"], name


def test_every_path_parameter_and_string_query_is_bounded(document):
    for name, operation in _operations(document):
        for parameter in operation.get("parameters", []):
            schema = parameter["schema"]
            for option in schema.get("anyOf", [schema]):
                if option.get("type") == "string" and "enum" not in option and "const" not in option:
                    assert "maxLength" in option or "pattern" in option, (name, parameter["name"])


def test_every_list_in_a_body_is_bounded(document):
    schemas = document["components"]["schemas"]
    bodies = ["PlanRequest", "ReplayRequest", "ScheduleRequest", "SchedulePatch", "KeyRequest", "GpuTypeRequest"]
    for name in [*bodies, "PlanSpec", "Transform", "EngineSpec", "DeploymentSpec", "Objective"]:
        for field, schema in schemas[name].get("properties", {}).items():
            for option in schema.get("anyOf", [schema]):
                if option.get("type") == "array":
                    assert "maxItems" in option, (name, field)


def test_posts_take_an_idempotency_key(document):
    for name, operation in _operations(document):
        if name.startswith("POST ") and name != "POST /v1/uploads":  # tus has its own way to go on
            assert "Idempotency-Key" in {parameter["name"] for parameter in operation["parameters"]}, name


def test_the_api_imports_nothing_heavy():
    code = f"import sys, api.app; print([name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"


def test_the_app_factory_keeps_no_state_outside_the_app(tmp_path):
    first, second = (create_app(Settings(data_dir=tmp_path / name)) for name in ("one", "two"))
    assert first.state.context is not second.state.context
    assert first.state.context.metrics.registry is not second.state.context.metrics.registry


def test_every_route_under_v1_is_thin(tmp_path):
    """A route parses, authorises, calls one use case and shapes the answer: 15 lines of statements at most."""
    app = create_app(Settings(data_dir=tmp_path))
    for route in app.routes:
        if isinstance(route, APIRoute) and route.path.startswith("/v1"):
            (function,) = ast.parse(textwrap.dedent(inspect.getsource(route.endpoint))).body
            body = function.body[1:]  # without its docstring
            assert body[-1].end_lineno - body[0].lineno < 15, route.path
