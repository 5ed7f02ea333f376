"""The server of a measured run: ``server.json``, and the deployment that replays it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from replay.errors import FieldError, SpecError
from replay.faults import plain_faults
from replay.specs import DeploymentSpec, EngineSpec, Router, Scalar

Quality = Literal["ok", "overload", "client-limited", "suspect"]

ASSUMED_ENGINE_VERSION = {"lmbench-per-request": "0.8.5"}
"""Where a campaign recorded no version: its image was the latest of May 2025."""
ASSUMED_MAX_NUM_SEQS = {"infperf-aggregate": 128, "infperf-per-request": 128}
"""Where a run recorded none: the value in all runs of the campaign that did. Elsewhere: the engine's default."""
ASSUMED_GPU_MEMORY_UTILIZATION = {"lmbench-per-request": 0.95}
"""The same; of the inference-perf campaign and of the others the engine's default stands."""
ROUTERS: dict[str, Router] = {
    "none (one replica)": "round_robin",
    "kubernetes service (connection level)": "random",
    "llm-d, no routing": "random",
    "llm-d prefix and load aware": "least_outstanding",
}
"""Recorded routers and what replays them. A service that balances connections deals without looking; the prefix and
load aware router is taken by its load, since prompts' contents are not recorded."""


class Server(BaseModel):
    """What ``server.json`` records and a replay needs; ``None``: unknown. Other fields say where the run came from."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)

    id: str = Field(min_length=1)
    group: str = Field(min_length=1)
    gpu: str = Field(min_length=1)
    model: str = Field(min_length=1)
    tp: int = Field(ge=1)
    dp: int | None = Field(default=1, ge=1)
    replicas: int = Field(default=1, ge=1)
    router: str | None = None
    engine: str = Field(min_length=1)
    engine_version: str | None = None
    max_num_seqs: int | None = Field(default=None, ge=1)
    max_num_batched_tokens: int | None = Field(default=None, ge=1)
    max_model_len: int | None = Field(default=None, ge=1)
    gpu_memory_utilization: float | None = Field(default=None, gt=0, le=1)
    kv_block_size: int | None = Field(default=None, ge=1)
    kv_blocks_gpu: int | None = Field(default=None, ge=2)
    prefix_caching: bool | None = None
    chunked_prefill: bool | None = None
    quality: Quality
    notes: tuple[str, ...] = ()

    @property
    def version(self) -> str:
        """The engine release, recorded or assumed for the campaign.

        Raises:
            SpecError: ``accuracy.field`` where neither is known.
        """
        known = self.engine_version or ASSUMED_ENGINE_VERSION.get(self.group)
        if known is None:
            raise unusable("engine_version", "the engine's version is not recorded: state it in server.json")
        return known

    @property
    def seats(self) -> int | None:
        """``max_num_seqs``, recorded or assumed for the campaign; ``None``: the engine's default."""
        return self.max_num_seqs or ASSUMED_MAX_NUM_SEQS.get(self.group)

    def deployment(self) -> DeploymentSpec:
        """The deployment that replays this server.

        Raises:
            SpecError: ``accuracy.field`` naming what is recorded and cannot be replayed.
        """
        if self.engine != "vllm":
            raise unusable("engine", f"engine {self.engine!r} of this layout is not known: vllm is")
        if self.dp not in (None, 1):
            raise unusable("dp", f"data parallelism {self.dp} inside one server is not replayed: record replicas")
        overrides: dict[str, Scalar] = {}
        optional: dict[str, Scalar | None] = {
            "max_num_seqs": self.seats,
            "max_num_batched_tokens": self.max_num_batched_tokens,
            "gpu_memory_utilization": self.gpu_memory_utilization or ASSUMED_GPU_MEMORY_UTILIZATION.get(self.group),
            "block_size": self.kv_block_size,
            "num_gpu_blocks_override": self.kv_blocks_gpu,
            "enable_prefix_caching": self.prefix_caching,
            "enable_chunked_prefill": self.chunked_prefill,
        }
        overrides.update({name: value for name, value in optional.items() if value is not None})
        return DeploymentSpec(
            model=self.model,
            gpu=self.gpu,
            tp=self.tp,
            replicas=self.replicas,
            engine=EngineSpec(preset=f"vllm-{self.version}", overrides=overrides),
            router=self._router(),
            max_model_len=self.max_model_len,
        )

    def _router(self) -> Router:
        if self.router is None and self.replicas == 1:
            return "round_robin"
        found = ROUTERS.get(self.router or "")
        if found is None:
            known = ", ".join(repr(name) for name in ROUTERS)
            raise unusable("router", f"router {self.router!r} is not known; known are {known}")
        return found


def unusable(field: str, detail: str, file: str = "server.json") -> SpecError:
    """A run that cannot be replayed, with the field that says so."""
    return SpecError("accuracy.field", f"{file}, {field}: {detail}", [FieldError(detail, field=field)])


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object.

    Raises:
        SpecError: ``accuracy.file`` where the file is absent or holds something else.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        cure = f"add {path.name}, or leave the folder out"
        raise SpecError("accuracy.file", f"{path.name} is missing", [FieldError(cure, cure=cure)]) from None
    except (ValueError, UnicodeDecodeError) as error:
        detail = f"{path.name} is not JSON: {error}"
        raise SpecError("accuracy.file", detail, [FieldError(detail)]) from error
    if not isinstance(document, dict):
        detail = f"{path.name} holds a {type(document).__name__}, not an object"
        raise SpecError("accuracy.file", detail, [FieldError(detail)])
    return document


def read_server(folder: Path) -> Server:
    """The server of an experiment.

    Raises:
        SpecError: naming the file, the field and the cure.
    """
    document = read_json(folder / "server.json")
    try:
        return Server.model_validate({name: value for name, value in document.items() if value is not None})
    except ValidationError as error:
        faults = plain_faults(error.errors(include_url=False, include_input=False))
        first = faults[0]
        raise SpecError("accuracy.field", f"server.json, {first.field}: {first.detail}", faults) from error
