"""Engine names as users, logs and presets spell them, read into a family and a version that sizing can compare."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from replay.errors import FieldError, SpecError

Family = Literal["vllm", "sglang", "trtllm", "tgi", "generic"]

LATEST_VLLM = (0, 33)
_V0_LAST = (0, 7)
_VLLM = re.compile(r"^(?:vllm[-\s_]*)?v?(\d+)\.(\d+)")
_CURE = (
    "write vllm-0.33 (or another release, e.g. vllm-0.19.0), vllm-v0, sglang, trtllm, tgi-v3, sarathi, orca or static"
)


@dataclass(frozen=True)
class EngineVersion:
    """An engine family and, for vLLM, its release. ``legacy`` marks the V0 engine."""

    family: Family
    release: tuple[int, int]
    legacy: bool = False

    def at_least(self, major: int, minor: int) -> bool:
        """Whether the release is ``major.minor`` or newer."""
        return self.release >= (major, minor)


def parse_engine_version(text: str) -> EngineVersion:
    """Reads ``vllm-0.33``, ``vllm 0.19.0``, ``0.15.1``, ``vllm-0.24.0+build.13``, ``vllm-v0``, ``sglang`` and the like.

    Releases up to 0.7 ran the V0 engine by default; later ones V1. Engines without a memory model of their own (orca,
    sarathi, static) are sized as the newest vLLM.

    Raises:
        SpecError: ``engine.unknown_version``.
    """
    name = text.strip().lower()
    if name in {"vllm-v0", "vllm v0", "v0"}:
        return EngineVersion("vllm", _V0_LAST, legacy=True)
    if name in {"vllm", "vllm-v1", "vllm-latest"}:
        return EngineVersion("vllm", LATEST_VLLM)
    match = _VLLM.match(name)
    if match is not None:
        release = (int(match.group(1)), int(match.group(2)))
        return EngineVersion("vllm", release, legacy=release <= _V0_LAST)
    families: dict[str, Family] = {
        "sglang": "sglang",
        "trtllm": "trtllm",
        "tensorrt-llm": "trtllm",
        "tgi": "tgi",
        "orca": "generic",
        "static": "generic",
        "sarathi": "generic",
    }
    for prefix, family in families.items():
        if name.startswith(prefix):
            return EngineVersion(family, LATEST_VLLM)
    raise SpecError(
        "engine.unknown_version", f"unknown engine {text!r}", [FieldError(_CURE, field="engine", cure=_CURE)]
    )
