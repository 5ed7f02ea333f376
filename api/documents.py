"""A report's document in the form that the client wants."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

from fastapi import Request
from starlette.responses import Response, StreamingResponse

from api.conditional import etag, matches
from api.errors import NotAcceptableError
from api.reports import render_csv, render_html
from models.services import Services
from models.tables import Report
from models.use_cases.reports import open_document, open_requests

_CHUNK_BYTES = 256 * 1024


@dataclass(frozen=True)
class Form:
    """One form of a report."""

    name: str
    media_type: str
    is_download: bool


FORMS = {
    "json": Form("json", "application/json", is_download=False),
    "html": Form("html", "text/html", is_download=True),
    "csv": Form("csv", "text/csv", is_download=True),
}


def negotiate(accept: str) -> Form:
    """The form that an Accept header likes best; ties go to JSON, then HTML.

    Raises:
        NotAcceptableError: where none is accepted.
    """
    ranked = [(_quality(accept[:2000], form.media_type), form) for form in FORMS.values()]
    best = max(ranked, key=lambda pair: pair[0])
    if best[0] <= 0:
        names = ", ".join(form.media_type for form in FORMS.values())
        raise NotAcceptableError(f"a report comes as {names}")
    return best[1]


def _quality(accept: str, media_type: str) -> float:
    best = (-1, 0.0)
    for part in accept.split(","):
        name, *parameters = (piece.strip().lower() for piece in part.split(";"))
        specificity = {media_type: 2, f"{media_type.split('/')[0]}/*": 1, "*/*": 0}.get(name, -1)
        quality = next((_number(p[2:]) for p in parameters if p.startswith("q=")), 1.0)
        if specificity > best[0]:
            best = (specificity, quality)
    return best[1]


def _number(text: str) -> float:
    try:
        return min(max(float(text), 0.0), 1.0)
    except ValueError:
        return 0.0


def render(request: Request, services: Services, report: Report, form: Form) -> Response:
    """The document as JSON (the stored bytes), as one HTML file or as CSV; 304 where the client has it."""
    with open_document(services, report) as file:
        content = file.read()
    if form.name != "json":
        document = json.loads(content)
        content = (render_html(document, standalone=True) if form.name == "html" else render_csv(document)).encode()
    tag = etag(hashlib.sha256(content).hexdigest()[:32])
    headers = {"ETag": tag, "Cache-Control": "no-cache", "Vary": "Accept"}
    if matches(request.headers.get("if-none-match"), tag):
        return Response(status_code=304, headers=headers)
    if form.is_download:
        headers["Content-Disposition"] = f'attachment; filename="{report.id}.{form.name}"'
    return Response(content, media_type=form.media_type, headers=headers)


def requests_table(services: Services, report: Report) -> StreamingResponse:
    """The per-request table as it is stored. Raises NotFoundError for a plan's report."""
    file = open_requests(services, report)
    headers = {"Content-Disposition": f'attachment; filename="{report.id}.parquet"'}
    if report.requests_bytes is not None:
        headers["Content-Length"] = str(report.requests_bytes)
    return StreamingResponse(_chunks(file), media_type="application/vnd.apache.parquet", headers=headers)


def _chunks(file: BinaryIO) -> Iterator[bytes]:
    with file:
        while chunk := file.read(_CHUNK_BYTES):
            yield chunk
