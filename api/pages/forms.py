"""Forms: read without multipart, with bounds; faults tied to the field that caused them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl

from pydantic import ValidationError
from starlette.requests import Request

from api.scalars import scalar
from models.errors import AppError, InvalidError, TooLargeError
from replay.errors import ReplayError
from replay.faults import plain_faults

MAX_FORM_BYTES = 512 * 1024
MAX_FIELDS = 500
_KEYED = frozenset(("overrides", "prefill_overrides", "decode_overrides", "usd_per_gpu_hour", "tenant_growth"))
_NEXT_PAIR = re.compile(r",(?=[^,=]*=|\s*$)")


class Form:
    """The fields of a submitted form: text, stripped; a missing field is an empty text."""

    def __init__(self, pairs: Iterable[tuple[str, str]] = ()) -> None:
        self._values: dict[str, list[str]] = {}
        for name, value in pairs:
            self._values.setdefault(name, []).append(value.strip())

    def text(self, name: str, default: str = "") -> str:
        """The last value of a field."""
        return (self._values.get(name) or [default])[-1]

    def many(self, name: str) -> list[str]:
        """All values of a field that are not empty (checkboxes)."""
        return [value for value in self._values.get(name, []) if value]

    def optional(self, name: str) -> str | None:
        """The value, or ``None`` where it is empty."""
        return self.text(name) or None


async def read_form(request: Request) -> Form:
    """Dependency: the body of a form, up to 512 KiB and 500 fields.

    Raises:
        TooLargeError: beyond either bound. InvalidError: text that no database stores.
    """
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_FORM_BYTES:
            raise TooLargeError(f"a form may hold {MAX_FORM_BYTES:,} bytes; shorten the longest field")
    try:
        pairs = parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True, max_num_fields=MAX_FIELDS)
    except ValueError:
        raise TooLargeError(f"a form may hold {MAX_FIELDS} fields") from None
    if any("\0" in text for pair in pairs for text in pair):
        raise InvalidError("a field holds a NUL character: remove it", code="form.text")
    return Form(pairs)


@dataclass
class Faults:
    """What is wrong with a form: sentences by field; ``""`` is the form as a whole."""

    by_field: dict[str, list[str]] = field(default_factory=dict)

    def add(self, name: str, sentence: str) -> None:
        """Notes a fault, each sentence once."""
        sentences = self.by_field.setdefault(name, [])
        if sentence not in sentences:
            sentences.append(sentence)

    def of(self, name: str) -> list[str]:
        """The faults of one field."""
        return self.by_field.get(name, [])

    def __bool__(self) -> bool:
        return bool(self.by_field)

    def take(self, error: AppError | ReplayError | ValidationError, fields: dict[str, str]) -> None:
        """Adds an error's faults. ``fields`` maps parts of a spec's path to the form's field names."""
        if isinstance(error, ValidationError):
            for one in plain_faults(error.errors(include_url=False, include_input=False)):
                path = (one.field or "").split(".")
                self.add(_form_field(path, fields), _named(path, fields) + one.detail)
            return
        for fault in error.errors:
            name = _form_field((fault.field or "").split("."), fields)
            cure = f": {fault.cure}" if fault.cure and fault.cure not in fault.detail else ""
            self.add(name, f"{fault.detail}{cure}")
        if not error.errors:
            self.add("", error.detail)


def _form_field(path: list[str], fields: dict[str, str]) -> str:
    """Of the last part that is known; what follows a field of knobs or prices is the user's own name, and no part."""
    keyed = next((part for part in path if part in _KEYED), None)
    path = path if keyed is None else path[: path.index(keyed) + 1]
    return next((fields[part] for part in reversed(path) if part in fields), "")


def _named(path: list[str], fields: dict[str, str]) -> str:
    """``kv_transfer_gb_per_s: `` where the fault is of one line of a field that takes several."""
    depth = next((i for i, part in reversed(list(enumerate(path))) if part in fields), len(path))
    rest = path[depth + 1 :]
    return f"{rest[-1]}: " if rest and not any(part.isdecimal() for part in rest) else ""


def number(form: Form, name: str, faults: Faults, *, whole: bool = False) -> float | int | None:
    """A number, or ``None`` where the field is empty; a fault where it is no number."""
    text = form.text(name)
    if not text:
        return None
    try:
        return int(text) if whole else float(text)
    except ValueError:
        faults.add(name, f"{text!r} is not a {'whole ' if whole else ''}number")
        return None


def named_values(form: Form, name: str, faults: Faults) -> dict[str, Any]:
    """``key=value`` by lines or commas; a comma with no ``=`` behind it belongs to its value, as that of
    ``acceptance_rate=0.7,0.5``."""
    out: dict[str, Any] = {}
    for part in (part for line in form.text(name).splitlines() for part in _NEXT_PAIR.split(line)):
        if not part.strip():
            continue
        key, equals, value = part.partition("=")
        if not equals or not key.strip() or not value.strip():
            faults.add(name, f"{part.strip()!r} is not of the form name=value")
        else:
            out[key.strip()] = scalar(value.strip())
    return out


def named_lines(values: Mapping[str, object]) -> str:
    """The lines that ``named_values`` reads."""
    return "\n".join(
        f"{key}={str(value).lower() if isinstance(value, bool) else value}" for key, value in values.items()
    )
