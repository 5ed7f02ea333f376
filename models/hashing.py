"""Canonical JSON and the hashes made of it: what makes two requests the same request."""

from __future__ import annotations

import hashlib
import json
from functools import cache
from importlib.metadata import version
from typing import Any

from replay.kernel_version import kernel_version


def canonical_json(value: object) -> str:
    """JSON with sorted keys and no spaces: equal values give equal text. Raises ValueError for NaN and infinity."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def sha256_text(text: str) -> str:
    """SHA-256 of a text, as hex."""
    return hashlib.sha256(text.encode()).hexdigest()


def input_hash(kind: str, spec: dict[str, Any], code_version: str) -> str:
    """The identity of a job's answer: what is asked, and which code is asked."""
    return sha256_text(canonical_json({"kind": kind, "spec": spec, "code_version": code_version}))


@cache
def code_version() -> str:
    """The domain's sources and the libraries it computes with, as ``3f0c...-9ab2...``. Imports none of them."""
    libraries = ",".join(f"{name}={version(name)}" for name in ("numba", "numpy", "polars"))
    return f"{kernel_version()}-{sha256_text(libraries)[:8]}"
