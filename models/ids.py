"""Identifiers: UUIDv7 text with a type prefix, the same in the database, the API and the logs."""

from __future__ import annotations

from typing import Literal

import uuid_utils

Prefix = Literal["tnt", "trc", "job", "rep", "sch", "run", "key", "cat", "aud", "upl", "cal"]


def new_id(prefix: Prefix) -> str:
    """A fresh id such as ``job_0199f0c2...``; ids made later sort later."""
    return f"{prefix}_{uuid_utils.uuid7().hex}"
