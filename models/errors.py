"""Errors that a use case raises. Each carries a stable code, an HTTP status and a title; ``detail`` is a sentence."""

from __future__ import annotations

from replay.errors import FieldError


class AppError(Exception):
    """Base of all application errors; the API turns it into ``application/problem+json``.

    ``code`` is machine-readable and stable, ``status`` the HTTP status, ``title`` the same for every error of a class,
    ``detail`` a sentence about this one, ``errors`` the faults by field, ``retry_after_s`` when to try again.
    """

    code = "internal"
    status = 500
    title = "Internal error"

    def __init__(
        self,
        detail: str,
        *,
        code: str | None = None,
        errors: list[FieldError] | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(detail)
        self.detail = detail
        self.code = code or type(self).code
        self.errors = errors or []
        self.retry_after_s = retry_after_s


class NotFoundError(AppError):
    """The id does not exist for this tenant (another tenant's id looks the same)."""

    code = "not_found"
    status = 404
    title = "Not found"


class ConflictError(AppError):
    """The resource is in a state that forbids the request."""

    code = "conflict"
    status = 409
    title = "Conflict"


class VersionError(AppError):
    """``If-Match`` names a version that is no longer current."""

    code = "version_mismatch"
    status = 412
    title = "The resource has changed"


class InvalidError(AppError):
    """The request cannot be carried out as written."""

    code = "invalid"
    status = 422
    title = "Invalid request"


class IdempotencyError(AppError):
    """An ``Idempotency-Key`` was used before with another body."""

    code = "idempotency_key_reused"
    status = 422
    title = "Idempotency key used with another request"


class TooLargeError(AppError):
    """A body exceeds the limit on its size."""

    code = "too_large"
    status = 413
    title = "Content too large"


class DigestError(AppError):
    """The body's hash differs from the one that the client declared."""

    code = "digest_mismatch"
    status = 422
    title = "Content digest mismatch"


class LimitError(AppError):
    """A limit of the tenant is reached: requests per minute, live jobs or stored bytes."""

    code = "limit_reached"
    status = 429
    title = "Limit reached"


class UnauthorizedError(AppError):
    """No key, or none that is valid. The detail never says which part was wrong."""

    code = "unauthorized"
    status = 401
    title = "Unauthorized"


class ForbiddenError(AppError):
    """The key lacks the scope."""

    code = "forbidden"
    status = 403
    title = "Forbidden"


class UnavailableError(AppError):
    """Something that the request needs is down; trying again later may work."""

    code = "unavailable"
    status = 503
    title = "Unavailable"
