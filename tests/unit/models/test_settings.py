"""Settings: defaults, refusals, what a subprocess gets, and that the documentation lists each."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

import pytest
from pydantic import ValidationError

from models.broker import celery_settings
from models.settings import Settings, _make_secret
from replay.errors import SpecError

ROOT = Path(__file__).resolve().parents[3]


def test_embedded_is_the_default_and_needs_no_keys() -> None:
    settings = Settings()
    assert settings.embedded
    assert not settings.auth_required
    assert settings.host == "127.0.0.1"


def test_a_broker_of_its_own_needs_a_secret_and_keys() -> None:
    with pytest.raises(ValidationError, match="CAPREPLAY_SECRET_KEY"):
        Settings(broker_url="redis://127.0.0.1/0")
    with pytest.raises(ValidationError, match="too short"):
        Settings(secret_key="short")
    assert Settings(broker_url="redis://127.0.0.1/0", secret_key="x" * 16).auth_required


def test_the_secret_is_not_printed(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path, secret_key="a very secret text")
    assert "very secret" not in repr(settings) + str(settings.model_dump())


def test_the_embedded_secret_is_made_once_and_for_the_owner_alone(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path / "new")
    key = settings.signing_key()
    assert len(key) == 64
    assert settings.signing_key() == key
    assert stat.S_IMODE((tmp_path / "new" / "secret_key").stat().st_mode) == 0o600


def test_a_subprocess_gets_the_same_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings(
        data_dir=tmp_path,
        broker_url="redis://:p%40ss@127.0.0.1/3",
        secret_key="y" * 20,
        worker_queues=("control",),
        worker_warmup=False,
        job_stale_s=2.5,
        blob_dir=tmp_path / "b",
    )
    for name, value in settings.environment().items():
        monkeypatch.setenv(name, value)
    assert Settings() == settings


def test_psycopg_is_the_driver() -> None:
    for url in ("postgres://h/d", "postgresql://h/d", "postgresql+psycopg://h/d"):
        assert Settings(database_url=url).resolved_database_url == "postgresql+psycopg://h/d"


def test_every_setting_is_documented_with_its_default() -> None:
    rows = re.findall(
        r"^\| `(CAPREPLAY_\w+)` \| (.*?) \| (.*?) \|$", (ROOT / "docs/configuration.md").read_text(), re.M
    )
    documented = {name: (default, description) for name, default, description in rows}
    expected = {
        f"CAPREPLAY_{name.upper()}": (shown(field.default), field.description)
        for name, field in Settings.model_fields.items()
    }
    assert documented == expected


def shown(default: object) -> str:
    if default is None or default in ("", ()):
        return "empty"
    if isinstance(default, tuple):
        return "`[" + ", ".join(f'"{one}"' for one in default) + "]`"
    return f"`{str(default).lower() if isinstance(default, bool) else default}`"


def test_celery_is_told_what_the_guide_found_out(tmp_path: Path) -> None:
    told = celery_settings(Settings(data_dir=tmp_path, broker_url="redis://127.0.0.1/0", secret_key="x" * 16))
    expected = {
        "worker_pool": "prefork",
        "worker_pool_start_method": "spawn",
        "task_acks_late": False,
        "worker_disable_prefetch": True,
        "worker_prefetch_multiplier": 1,
        "task_reject_on_worker_lost": False,
        "task_time_limit": 3600,
        "task_ignore_result": True,
        "task_serializer": "json",
        "accept_content": ["json"],
        "worker_soft_shutdown_timeout": 10.0,
        "worker_max_tasks_per_child": 100,
        "enable_utc": True,
        "timezone": "UTC",
        "redbeat_lock_timeout": 15,
        "beat_max_loop_interval": 3,
    }
    assert {name: told[name] for name in expected} == expected
    assert not {"result_backend", "task_soft_time_limit"} & set(told)
    transport = told["broker_transport_options"]
    assert transport["visibility_timeout"] >= 3600
    assert (transport["socket_timeout"], transport["socket_connect_timeout"], transport["health_check_interval"]) == (
        20,
        3,
        10,
    )
    assert (transport["unacked_restore_interval"], transport["unacked_restore_throttle"]) == (10, 1)
    embedded = celery_settings(Settings(data_dir=tmp_path))
    options = embedded["broker_transport_options"]
    assert options["data_folder_in"] == options["data_folder_out"] == str(tmp_path / "queue")
    assert not embedded["worker_disable_prefetch"]


def test_an_embedded_secret_that_was_cut_short_is_refused(tmp_path: Path) -> None:
    (tmp_path / "secret_key").touch()
    with pytest.raises(SpecError, match="delete it"):
        Settings(data_dir=tmp_path).signing_key()


def test_a_secret_is_never_seen_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process may look at any time; and it may be faster to make one."""
    made: list[bool] = []
    monkeypatch.setattr(os, "fsync", lambda _: made.append((tmp_path / "secret_key").exists()))
    key = Settings(data_dir=tmp_path).signing_key()
    assert made == [False]
    assert [path.name for path in tmp_path.iterdir()] == ["secret_key"]
    _make_secret(tmp_path / "secret_key")
    assert Settings(data_dir=tmp_path).signing_key() == key


@pytest.mark.parametrize("url", ["capreplay.example.org", "//example.org", "ftp://example.org", "https://", "*"])
def test_a_public_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ValidationError, match="CAPREPLAY_PUBLIC_URL"):
        Settings(public_url=url)


@pytest.mark.parametrize("origin", ["*", "null", "", "app.example.org", "https://*.example.org", "https://a.org/path"])
def test_an_origin_that_is_none_is_refused(origin: str) -> None:
    with pytest.raises(ValidationError, match="CAPREPLAY_CORS_ORIGINS"):
        Settings(cors_origins=(origin,))


def test_job_processes_share_the_memory_of_their_worker(tmp_path: Path) -> None:
    told = celery_settings(Settings(data_dir=tmp_path, worker_memory_limit_mib=3000, worker_concurrency=3))
    assert told["worker_max_memory_per_child"] == 1000 * 1024
    assert celery_settings(Settings(data_dir=tmp_path))["worker_max_memory_per_child"] is None


def test_a_composed_worker_fits_its_container() -> None:
    worker = (ROOT / "docker-compose.yml").read_text().split("  worker-replay:")[1].split("  worker-control:")[0]
    assert "CAPREPLAY_WORKER_CONCURRENCY: ${CAPREPLAY_WORKER_CONCURRENCY:-2}" in worker
    processes = re.search(r'WORKER_MEMORY_LIMIT_MIB: "(\d+)"', worker)
    container = re.search(r"mem_limit: (\d+)g", worker)
    assert processes is not None
    assert container is not None
    assert int(processes.group(1)) <= int(container.group(1)) * 1024 - 512
