"""Log lines without what terminals, containers and process managers put around them."""

from __future__ import annotations

import re
from dataclasses import dataclass

_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_STAMP = re.compile(
    r"^(\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(?:\.\d+)?(?:Z|[+-]\d{2}:?\d{2}))\s+(?:(?:stdout|stderr)\s+([FP])\s)?"
)
"""A container runtime's or kubectl's whole time, and whether the line is whole (F) or goes on in the next (P)."""
_PREFIX = re.compile(
    r"^(?:"
    r"[\w./-]+\s*\|\s?"  # docker compose: service | line
    r"|\([A-Za-z]\w*[^()]*\bpid=\d+[^()]*\)\s*"  # vLLM: (APIServer pid=12)
    r"|(?:[A-Z][a-z]{2} [ \d]\d \d{2}:\d{2}:\d{2}|\d{4}-\d{2}-\d{2}T\S+) \S+ \S+\[\d+\]:\s"  # syslog, journald
    r")+"
)


@dataclass
class LineReader:
    """Reads raw lines one after the other; lines that a container runtime cut are put together."""

    partial: str = ""

    def bare(self, raw: str) -> tuple[str, str | None] | None:
        """The line itself and the whole time that stood before it, if any; ``None`` while it goes on."""
        text, stamp, unfinished = strip(raw)
        if unfinished:
            self.partial += text
            return None
        text, self.partial = self.partial + text, ""
        return _PREFIX.sub("", text), stamp


def strip(raw: str) -> tuple[str, str | None, bool]:
    """One line by itself: without colours and prefixes, the time before it, whether it goes on in the next line."""
    text = _ANSI.sub("", raw)
    match = _STAMP.match(text)
    if match is None:
        return _PREFIX.sub("", text), None, False
    rest = text[match.end() :]
    return _PREFIX.sub("", rest), match.group(1), match.group(2) == "P"
