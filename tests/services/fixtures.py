"""The fixtures through which tests reach real servers. `tests/conftest.py` makes them known to every test."""

import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
import redis
from sqlalchemy.engine import make_url

from services import chromium, postgres_server, redis_server, session
from services.redis_server import RedisServer

OWN = "own"
# Databases of a Redis that is not ours are taken one by one, under a claim that outlives no test session.
REDIS_DATABASES = range(1, 16)
REDIS_CLAIM_S = 3600


@pytest.fixture(scope="session")
def postgres_url() -> str:
    """SQLAlchemy URL of a PostgreSQL whose role may create databases. Use `postgres_database` for a database to fill.

    The server named by CAPREPLAY_TEST_DATABASE_URL, else the one on localhost:5432, else one of our own ("own" in that
    variable asks for it).
    """
    named = os.environ.get("CAPREPLAY_TEST_DATABASE_URL")
    if named == OWN:
        return session.shared_server("postgres")
    if named:
        url = postgres_server.sqlalchemy_url(named)
        if not postgres_server.may_create_databases(url):
            pytest.fail(
                f"CAPREPLAY_TEST_DATABASE_URL: no server answers at {url!r}, or the role may not create databases"
            )
        return url.render_as_string(hide_password=False)
    local = postgres_server.find_local()
    return local.render_as_string(hide_password=False) if local else session.shared_server("postgres")


@pytest.fixture
def postgres_database(postgres_url: str) -> Iterator[Callable[[], str]]:
    """A function that makes an empty database and returns its SQLAlchemy URL. All are dropped after the test."""
    server = make_url(postgres_url)
    made: list[str] = []

    def make() -> str:
        name = f"capreplay_test_{uuid.uuid4().hex[:16]}"
        with postgres_server.connect(server) as connection:
            connection.execute(
                psycopg.sql.SQL("CREATE DATABASE {} TEMPLATE template0").format(psycopg.sql.Identifier(name))
            )
        made.append(name)
        return server.set(database=name).render_as_string(hide_password=False)

    yield make
    with postgres_server.connect(server) as connection:
        for name in made:
            connection.execute(psycopg.sql.SQL("DROP DATABASE {} WITH (FORCE)").format(psycopg.sql.Identifier(name)))


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    """URL of a Redis database that only this test process uses. Use `clean_redis_url` for one that is empty.

    Of the server named by CAPREPLAY_TEST_REDIS_URL, else of the one on localhost:6379, else of one of our own ("own" in
    that variable asks for it).
    """
    named = os.environ.get("CAPREPLAY_TEST_REDIS_URL")
    if named and named != OWN:
        if not redis_server.answers(named):
            pytest.fail("CAPREPLAY_TEST_REDIS_URL: no Redis answers there")
        server = named
    elif named != OWN and redis_server.answers(redis_server.LOCAL_URL):
        server = redis_server.LOCAL_URL
    else:
        server = session.shared_server("redis")
    with redis.Redis.from_url(server) as claims:
        number = _claim_redis_database(server, claims)
        url = make_url(server).set(database=str(number)).render_as_string(hide_password=False)
        yield url
        with redis.Redis.from_url(url) as ours:
            ours.flushdb()
        claims.delete(_claim_key(number))


@pytest.fixture
def clean_redis_url(redis_url: str) -> str:
    """`redis_url`, emptied before the test."""
    with redis.Redis.from_url(redis_url) as client:
        client.flushdb()
    return redis_url


@pytest.fixture
def private_redis(tmp_path: Path) -> Iterator[RedisServer]:
    """A Redis of this test alone, running; the test may stop it, start it again and make it lose its data."""
    server = RedisServer(tmp_path / "redis")
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def chromium_path() -> str:
    """Path of the system's Chromium."""
    return chromium.find_chromium()


def _claim_key(number: int) -> str:
    return f"capreplay:test-database:{number}"


def _claim_redis_database(server: str, claims: "redis.Redis") -> int:
    """The number of an empty database that no other test process holds; the claim is kept in database 0."""
    for number in REDIS_DATABASES:
        if not claims.set(_claim_key(number), os.getpid(), nx=True, ex=REDIS_CLAIM_S):
            continue
        with redis.Redis.from_url(make_url(server).set(database=str(number)).render_as_string(False)) as client:
            if client.dbsize() == 0:
                return number
        claims.delete(_claim_key(number))
    raise pytest.fail.Exception(
        f"every database of the Redis at {make_url(server)!r} holds data; empty one for the tests"
    )
