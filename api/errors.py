"""Errors of the HTTP surface alone: those that only a request can have."""

from __future__ import annotations

from models.errors import AppError

TUS_VERSION = "1.0.0"


class BadRequestError(AppError):
    """The request is not well-formed HTTP or JSON."""

    code = "bad_request"
    status = 400
    title = "Bad request"


class MethodError(AppError):
    """The path exists, the method does not."""

    code = "method_not_allowed"
    status = 405
    title = "Method not allowed"


class NotAcceptableError(AppError):
    """No form that the client accepts."""

    code = "not_acceptable"
    status = 406
    title = "Not acceptable"


class TusVersionError(AppError):
    """A request of a route of tus that does not say a version known here."""

    code = "tus_version"
    status = 412
    title = "Other version of tus"


class MediaTypeError(AppError):
    """A body of another type than the route reads."""

    code = "unsupported_media_type"
    status = 415
    title = "Unsupported media type"


class HostError(AppError):
    """Local mode was asked under a name that is not this machine's own."""

    code = "host_not_local"
    status = 421
    title = "Misdirected request"


class PreconditionRequiredError(AppError):
    """An update without ``If-Match``."""

    code = "precondition_required"
    status = 428
    title = "Precondition required"
