"""The OpenAPI document: the framework's, with errors in the one form that they come in."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI

from api.problems import MEDIA_TYPE


def describe_errors_as_problems(app: FastAPI) -> None:
    """The framework lists each error model as ``application/json`` too; no route answers so."""
    generate = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            document = generate()
            for methods in document["paths"].values():
                for operation in methods.values():
                    for status, answer in operation["responses"].items():
                        if int(status) >= 400:
                            answer["content"] = {MEDIA_TYPE: answer["content"][MEDIA_TYPE]}
            app.openapi_schema = document
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]  # the framework's documented way to extend its document
