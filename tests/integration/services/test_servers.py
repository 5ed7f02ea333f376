"""The servers that other tests rely on are real, private to each test, and stop and start as told."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import redis
from services import postgres_server, redis_server, session
from services.postgres_server import PostgresServer
from services.process import wait_until
from services.redis_server import RedisServer
from sqlalchemy.engine import make_url


@pytest.mark.postgres
def test_each_database_is_new_and_apart(postgres_database: Callable[[], str]) -> None:
    first, second = make_url(postgres_database()), make_url(postgres_database())
    with postgres_server.connect(first) as one, postgres_server.connect(second) as two:
        one.execute("CREATE TABLE seen (x int)")
        count = two.execute("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'").fetchone()
    assert first.database != second.database
    assert count == (0,)


@pytest.mark.redis
def test_the_shared_redis_database_is_empty_and_ours(clean_redis_url: str) -> None:
    with redis.Redis.from_url(clean_redis_url) as client:
        assert client.dbsize() == 0
        client.set("key", "value")
        assert client.get("key") == b"value"


@pytest.mark.redis
def test_a_private_redis_keeps_its_data_over_a_restart_unless_told_to_lose_it(private_redis: RedisServer) -> None:
    def value() -> object:
        with redis.Redis.from_url(private_redis.url) as client:
            return client.get("key")

    with redis.Redis.from_url(private_redis.url) as client:
        client.set("key", "value")
        assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}
    private_redis.stop()
    assert not redis_server.answers(private_redis.url)
    private_redis.start()
    assert value() == b"value"
    private_redis.stop(lose_data=True)
    private_redis.start()
    assert value() is None


@pytest.mark.postgres
def test_our_own_postgresql_starts_and_stops(tmp_path_factory: pytest.TempPathFactory) -> None:
    server = PostgresServer(session.folder() / f"own-postgres-{os.getpid()}")
    server.start()
    try:
        with postgres_server.connect(postgres_server.sqlalchemy_url(server.url)) as connection:
            assert connection.execute("SHOW server_encoding").fetchone() == ("UTF8",)
    finally:
        server.stop()
    assert not postgres_server.may_create_databases(postgres_server.sqlalchemy_url(server.url))


def test_a_server_ends_with_its_session_even_if_that_was_killed(tmp_path: Path, project_root: Path) -> None:
    state_file = tmp_path / "session" / "redis.state"
    state_file.parent.mkdir()
    sleeper = subprocess.Popen(["sleep", "600"])
    arguments = ["redis", str(tmp_path / "redis"), str(sleeper.pid), str(state_file)]
    guard = subprocess.Popen([sys.executable, "-m", "services.guard", *arguments], cwd=project_root / "tests")
    try:
        wait_until(state_file.exists, "the guarded Redis")
        sleeper.kill()
        sleeper.wait()
        assert guard.wait(30) == 0
        assert not state_file.parent.exists()
    finally:
        sleeper.kill()
        sleeper.wait()
        guard.terminate()
        guard.wait(30)
