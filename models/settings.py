"""Settings: one class, read once from ``CAPREPLAY_`` variables and passed in. docs/configuration.md lists each."""

from __future__ import annotations

import contextlib
import hmac
import json
import os
import secrets
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from replay.errors import SpecError

GIB = 1024**3
MIN_SECRET = 16


class Settings(BaseSettings):
    """Everything that may differ between two installations. The defaults are those of embedded mode."""

    model_config = SettingsConfigDict(env_prefix="CAPREPLAY_", frozen=True, extra="ignore")

    # where things are
    data_dir: Path = Field(default=Path("data"), description="Folder of the database, blobs, queue and caches")
    database_url: str = Field(default="", description="SQLAlchemy URL; empty: SQLite in the data folder")
    broker_url: str = Field(default="", description="Celery broker URL; empty: a folder queue in the data folder")
    broker_key_prefix: str = Field(default="capreplay:", description="Prefix of every key in Redis")
    blob_dir: Path | None = Field(
        default=None, description="Folder of the blobs, shared by all hosts; empty: DATA/blobs"
    )
    blob_url: str = Field(
        default="", description="s3://BUCKET/PREFIX for blobs in an S3-compatible store; empty: in the blob folder"
    )
    s3_endpoint: str = Field(default="", description="Address of a store that is not Amazon's; empty: Amazon S3")
    s3_region: str = Field(default="us-east-1", description="Region of the bucket")
    s3_access_key_id: str = Field(
        default="", description="Key of the store; empty: from AWS_ variables, or the host's own role"
    )
    s3_secret_access_key: SecretStr | None = Field(default=None, description="Secret of that key")
    blob_cache_bytes: int = Field(
        default=20 * GIB, ge=0, description="Local copies of blobs of an S3-compatible store, at most"
    )

    # the web server
    host: str = Field(default="127.0.0.1", description="Address that the API binds to")
    port: int = Field(default=8000, ge=0, le=65535, description="Port of the API")
    metrics_port: int | None = Field(default=None, ge=0, le=65535, description="Internal port of /metrics; empty: none")
    worker_metrics_port: int | None = Field(
        default=None, ge=0, le=65535, description="Port of the worker's metrics; empty: none"
    )
    public_url: str = Field(default="", description="Address users see, for links; empty: from the request")
    trusted_proxies: str = Field(
        default="127.0.0.1",
        description="Addresses or networks, by commas, whose X-Forwarded-For and X-Forwarded-Proto are believed",
    )
    cors_origins: tuple[str, ...] = Field(default=(), description="Origins allowed by CORS, as a JSON list")
    auth: Literal["auto", "keys", "local"] = Field(
        default="auto", description="keys: API keys needed; local: none; auto: local in embedded mode only"
    )
    secret_key: SecretStr | None = Field(
        default=None,
        description="Signs cursors and forms, keys the labels of ids; needed outside embedded mode, where one is made "
        "on first start",
    )

    # logs
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field(default="INFO", description="Least level logged")
    log_format: Literal["json", "console"] = Field(default="json", description="Form of log lines")

    # database
    db_pool_size: int = Field(default=10, ge=1, description="PostgreSQL connections kept by a process")
    db_max_overflow: int = Field(default=40, ge=0, description="Further connections under load")

    # uploads
    upload_max_bytes: int = Field(default=16 * GIB, ge=1, description="Largest upload")
    ingest_max_decompressed_bytes: int = Field(default=64 * GIB, ge=1, description="Largest trace after decompression")
    ingest_max_ratio: float = Field(default=200.0, gt=1, description="Largest compression ratio")
    ingest_max_rows: int = Field(default=200_000_000, ge=1, description="Most rows of a trace")
    ingest_max_line_bytes: int = Field(default=16 * 1024**2, ge=1024, description="Longest line")
    ingest_max_columns: int = Field(default=500, ge=1, description="Most columns")
    keep_uploads: bool = Field(
        default=False, description="Keep uploaded files once they are read; else only the canonical trace stays"
    )
    blob_grace_s: float = Field(default=86400.0, ge=0, description="Age after which an unused blob is deleted")
    tmp_grace_s: float = Field(default=86400.0, ge=0, description="Age after which an abandoned upload is deleted")
    partial_upload_ttl_s: float = Field(
        default=86400.0, gt=0, description="Time without a new piece after which an upload in pieces is deleted"
    )

    # limits of a tenant without its own
    requests_per_minute: int = Field(default=600, ge=1, description="Requests a minute of one tenant")
    max_live_jobs: int = Field(
        default=100, ge=1, description="Queued and running jobs of one tenant (a plan counts once)"
    )
    max_stored_bytes: int = Field(default=200 * GIB, ge=1, description="Bytes of traces and reports one tenant keeps")
    max_schedules: int = Field(default=100, ge=1, description="Schedules of one tenant")
    idempotency_ttl_s: float = Field(default=86400.0, gt=0, description="How long an Idempotency-Key is remembered")

    # jobs
    job_max_attempts: int = Field(default=3, ge=1, description="Times a job is tried before it fails with worker_lost")
    job_heartbeat_s: float = Field(default=1.0, gt=0, description="Time between two heartbeats of a running job")
    job_stale_s: float = Field(default=60.0, gt=0, description="Silence after which a running job is taken as lost")
    job_time_limit_s: int = Field(default=3600, ge=1, description="Hard limit on one attempt")
    job_max_requests: int = Field(
        default=100_000_000,
        ge=1,
        description="Most requests of one replay, after growth, mixing and agentic depth",
    )
    job_cancel_grace_s: float = Field(
        default=20.0, gt=0, description="Wait before a cancelled job that does not stop has its process ended"
    )
    job_redispatch_s: float = Field(
        default=60.0, gt=0, description="Wait before an unclaimed job is sent again; doubles"
    )
    dispatch_interval_s: float = Field(default=10.0, gt=0, description="Time between two dispatcher ticks")
    reap_interval_s: float = Field(default=30.0, gt=0, description="Time between two reaper ticks")
    schedule_interval_s: float = Field(default=30.0, gt=0, description="Time between two schedule ticks")
    sweep_interval_s: float = Field(default=3600.0, gt=0, description="Time between two sweeps of old files and rows")

    # workers
    worker_concurrency: int | None = Field(
        default=None, ge=1, description="Job processes of a worker; empty: cores / threads, and 1 in embedded mode"
    )
    worker_threads: int = Field(default=1, ge=1, description="Threads of one job process (numba and polars)")
    worker_memory_limit_mib: int | None = Field(
        default=None,
        ge=64,
        description="Memory of a worker's job processes together; one above its share is replaced; empty: no limit",
    )
    worker_soft_shutdown_s: float = Field(default=10.0, ge=0, description="Time a stopping worker gives its jobs")
    worker_queues: tuple[Literal["replay", "control"], ...] = Field(
        default=("replay", "control"), description="Queues a worker consumes, as a JSON list"
    )
    worker_warmup: bool = Field(default=True, description="Compile the common kernels when a job process starts")

    @field_validator(
        "worker_concurrency", "worker_memory_limit_mib", "metrics_port", "worker_metrics_port", mode="before"
    )
    @classmethod
    def _empty_is_none(cls, value: object) -> object:
        return None if value == "" else value

    @field_validator("database_url")
    @classmethod
    def _psycopg3(cls, url: str) -> str:
        for scheme in ("postgresql://", "postgres://"):
            if url.startswith(scheme):
                return "postgresql+psycopg://" + url.removeprefix(scheme)
        return url

    @field_validator("public_url")
    @classmethod
    def _check_public_url(cls, url: str) -> str:
        if url and _origin(url) is None:
            raise ValueError("CAPREPLAY_PUBLIC_URL must begin with http:// or https:// and name a host")
        return url.rstrip("/")

    @field_validator("blob_url")
    @classmethod
    def _check_blob_url(cls, url: str) -> str:
        parts = urlsplit(url)
        if url and (parts.scheme != "s3" or not parts.netloc or "@" in parts.netloc or parts.query):
            raise ValueError("CAPREPLAY_BLOB_URL must be s3://BUCKET or s3://BUCKET/PREFIX")
        return url.rstrip("/")

    @field_validator("s3_endpoint")
    @classmethod
    def _check_s3_endpoint(cls, url: str) -> str:
        if url and _origin(url) is None:
            raise ValueError("CAPREPLAY_S3_ENDPOINT must begin with http:// or https:// and name a host")
        return url.rstrip("/")

    @field_validator("cors_origins")
    @classmethod
    def _check_origins(cls, origins: tuple[str, ...]) -> tuple[str, ...]:
        for origin in origins:
            if _origin(origin) != origin.lower():
                raise ValueError(f"CAPREPLAY_CORS_ORIGINS: {origin!r} is no origin such as https://app.example.org")
        return origins

    @model_validator(mode="after")
    def _secret_outside_embedded(self) -> Settings:
        if not self.embedded and self.secret_key is None:
            raise ValueError("CAPREPLAY_SECRET_KEY is needed with a broker of its own: set it to a long random text")
        if self.secret_key is not None and len(self.secret_key.get_secret_value()) < MIN_SECRET:
            raise ValueError(f"CAPREPLAY_SECRET_KEY is too short: use at least {MIN_SECRET} characters")
        return self

    @model_validator(mode="after")
    def _both_s3_keys(self) -> Settings:
        if bool(self.s3_access_key_id) != (self.s3_secret_access_key is not None):
            raise ValueError(
                "CAPREPLAY_S3_ACCESS_KEY_ID and CAPREPLAY_S3_SECRET_ACCESS_KEY go together: set both or none"
            )
        return self

    @property
    def embedded(self) -> bool:
        """One worker over a folder queue: no broker is configured."""
        return self.broker_url == "" or self.broker_url.startswith("filesystem://")

    @property
    def auth_required(self) -> bool:
        """Whether requests need an API key."""
        return self.auth == "keys" or (self.auth == "auto" and not self.embedded)

    @property
    def job_processes(self) -> int:
        """Of a worker: as asked, else the cores over a job's threads; one in embedded mode and for ticks alone."""
        if self.worker_concurrency is not None:
            return self.worker_concurrency
        if self.embedded or "replay" not in self.worker_queues:
            return 1
        return max(1, len(os.sched_getaffinity(0)) // self.worker_threads)

    @property
    def resolved_database_url(self) -> str:
        return self.database_url or f"sqlite:///{(self.data_dir / 'capreplay.db').absolute()}"

    @property
    def resolved_broker_url(self) -> str:
        return self.broker_url or "filesystem://localhost//"

    @property
    def blobs_path(self) -> Path:
        return self.blob_dir or self.data_dir / "blobs"

    @property
    def tmp_path(self) -> Path:
        """Half-written files; on the blobs' file system, so that a finished one is moved, not copied."""
        return self.blobs_path.parent / "tmp" if self.blob_dir is None else self.blob_dir / "tmp"

    @property
    def partial_path(self) -> Path:
        """Uploads in pieces; beside the half-written files, for the same reason."""
        return self.tmp_path.with_name("partial")

    def signing_key(self) -> bytes:
        """The secret that signs cursors and forms; in embedded mode made once, kept in the data folder (mode 600).

        Raises SpecError where that file holds no key.
        """
        if self.secret_key is not None:
            return self.secret_key.get_secret_value().encode()
        path = self.data_dir / "secret_key"
        if not path.exists():
            self.data_dir.mkdir(parents=True, exist_ok=True)
            _make_secret(path)
        key = path.read_bytes()
        if len(key) < MIN_SECRET:
            raise SpecError(
                "settings.secret_key", f"{path} holds no key of {MIN_SECRET} bytes: delete it, and a new one is made"
            )
        return key

    def id_key(self) -> bytes:
        """The key of the labels that stand for tenant and session ids, derived from the signing key."""
        return hmac.digest(self.signing_key(), b"labels of trace ids", "sha256")

    def environment(self) -> dict[str, str]:
        """These settings as variables, for a subprocess that must see exactly the same."""
        values = {}
        for name in type(self).model_fields:
            value = getattr(self, name)
            if value is None or value == type(self).model_fields[name].default:
                continue
            if isinstance(value, SecretStr):
                value = value.get_secret_value()
            values[f"CAPREPLAY_{name.upper()}"] = json.dumps(value) if isinstance(value, tuple) else str(value)
        values["CAPREPLAY_DATA_DIR"] = str(self.data_dir.absolute())
        return values


def _origin(url: str) -> str | None:
    """Scheme, host and port of an http(s) address; ``None`` where it is none."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or "*" in parts.netloc or "@" in parts.netloc:
        return None
    return f"{parts.scheme}://{parts.netloc}".lower()


def _make_secret(path: Path) -> None:
    """Writes a new secret whole, or leaves the one that another process was faster to write."""
    aside = path.with_name(f".{path.name}-{secrets.token_hex(8)}")
    try:
        with os.fdopen(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(secrets.token_hex(32))
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(FileExistsError):
            os.link(aside, path)
    finally:
        aside.unlink(missing_ok=True)


def load_settings() -> Settings:
    """Settings from the environment. Raises pydantic's ValidationError naming each bad variable."""
    return Settings()


def child_environment(settings: Settings) -> dict[str, str]:
    """This process's variables with the settings as they are here, for a subprocess."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("CAPREPLAY_")}
    return {**inherited, **settings.environment()}


def export_environment(values: dict[str, str]) -> None:
    """Sets variables for libraries that read them once at import (numba, polars, celery); keeps what the user set."""
    for name, value in values.items():
        os.environ.setdefault(name, value)
