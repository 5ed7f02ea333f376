"""Identifiers: UUIDv7 text with a type prefix, the same in the database, the API and the logs."""

from __future__ import annotations

import re
from typing import Literal

import uuid_utils

Prefix = Literal["tnt", "trc", "job", "rep", "sch", "run", "key", "cat", "aud"]
_FORM = re.compile(r"^(tnt|trc|job|rep|sch|run|key|cat|aud)_[0-9a-f]{32}\Z")


def new_id(prefix: Prefix) -> str:
    """A fresh id such as ``job_0199f0c2...``; ids made later sort later."""
    return f"{prefix}_{uuid_utils.uuid7().hex}"


def is_id(text: str, prefix: Prefix) -> bool:
    """Whether ``text`` has the form of an id of this type."""
    match = _FORM.match(text)
    return match is not None and match.group(1) == prefix
