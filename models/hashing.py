"""Canonical JSON and the hashes made of it: what makes two requests the same request."""

from __future__ import annotations

import hashlib
import json
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any


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
    """Hash of the domain's sources and of the libraries it computes with. Reads files; imports none of them."""
    found = find_spec("replay")
    if found is None or found.origin is None:
        raise RuntimeError("the package replay is not installed")
    root = Path(found.origin).parent
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py"), key=lambda p: p.relative_to(root).as_posix()):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    for library in ("numba", "numpy", "polars"):
        digest.update(f"{library}={version(library)}\0".encode())
    return digest.hexdigest()
