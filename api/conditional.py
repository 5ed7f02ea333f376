"""ETags from row versions: ``If-None-Match`` answers 304, ``If-Match`` guards an update."""

from __future__ import annotations

import re

from api.errors import PreconditionRequiredError
from models.errors import VersionError

_ETAG = re.compile(r'^(?:W/)?"([^"]{0,200})"$')


def etag(value: int | str) -> str:
    """A strong ETag of a row's version or of a content's hash."""
    return f'"{value}"'


def matches(header: str | None, current: str) -> bool:
    """Whether ``If-None-Match`` names ``current`` (weak comparison, lists and ``*`` included)."""
    if header is None:
        return False
    if header.strip() == "*":
        return True
    return any(candidate.strip().removeprefix("W/") == current for candidate in header.split(","))


def required_version(header: str | None) -> int:
    """The row version that ``If-Match`` names.

    Raises:
        PreconditionRequiredError: without the header. VersionError: when it can be no version of ours.
    """
    if header is None:
        raise PreconditionRequiredError("send If-Match with the ETag that you read, so that no other change is lost")
    match = _ETAG.match(header.strip())
    if match is None or not match.group(1).isdecimal() or len(match.group(1)) > 18 or header.startswith("W/"):
        raise VersionError("If-Match names no current version: read the resource again and send its ETag")
    return int(match.group(1))
