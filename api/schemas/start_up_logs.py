"""Start-up logs as the API takes them, and what it reads in them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints

from api.schemas.common import Body, Out


class StartUpLogRequest(Body):
    """The pasted start-up log of a vLLM or SGLang server."""

    log: Annotated[str, StringConstraints(min_length=1, max_length=900_000)] = Field(
        description="The server's output from its start to its first request"
    )


class FoundOut(Out):
    """One setting and where it stands."""

    value: bool | int | float | str
    line: int = Field(description="Line of the log, from 1")


class StartUpLogOut(Out):
    """What the log says. Settings that it does not tell are named: the engine's defaults count for them."""

    engine: Literal["vllm", "sglang"]
    found: dict[str, FoundOut]
    missing: list[str]
    deployment: dict[str, Any] = Field(description="Fields of a deployment's specification that the log settles")
    notes: list[str]
