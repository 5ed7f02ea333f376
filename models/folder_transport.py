"""kombu's folder queue with every file written whole: a reader never meets half a message.

kombu 5.7 writes messages and its routing table in place. A worker that looks in between meets an empty file and ends
with an unrecoverable error (seen under load). Here files are written aside and renamed, which is atomic. A message is
taken by renaming it too, so it needs no second folder.
"""

from __future__ import annotations

import fcntl
import json
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Empty
from typing import Any

from kombu.transport import TRANSPORT_ALIASES, filesystem, virtual
from kombu.transport.filesystem import exchange_queue_t

Table = list[Any]
_BrokerState: Any = virtual.BrokerState


class Channel(filesystem.Channel):
    """Messages are files ``<time>_<random>.<queue>.msg``, taken in the order of their names."""

    def _put(self, queue: Any, payload: Any, **kwargs: Any) -> None:  # type: ignore[override] # kombu itself disagrees
        folder = Path(self.data_folder_out)
        _write_whole(folder / f"{time.time_ns():020d}_{secrets.token_hex(8)}.{queue}.msg", payload)

    def _get(self, queue: Any, timeout: Any = None) -> Any:
        folder = Path(self.data_folder_in)
        for name in sorted(path.name for path in folder.iterdir()):
            if name.partition(".")[2] != f"{queue}.msg":
                continue
            taken = folder / f"{name}.taken"
            try:
                (folder / name).rename(taken)
            except FileNotFoundError:
                continue  # another reader was faster
            text = taken.read_text(encoding="utf-8")
            taken.unlink()
            return json.loads(text)
        raise Empty

    def _table_file(self, exchange: str) -> Path:
        typed: Any = self
        path: Path = typed._exchange_file(exchange)
        return path

    def get_table(self, exchange: str) -> Table:
        try:
            rows = json.loads(self._table_file(exchange).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return []
        return [exchange_queue_t(*row) for row in rows]

    def _queue_bind(self, exchange: str, routing_key: str, pattern: str, queue: str) -> None:
        binding = exchange_queue_t(routing_key or "", pattern or "", queue or "")
        self._change_table(exchange, lambda table: table if binding in table else [binding, *table])

    def _delete(self, queue: str, exchange: str, routing_key: str, pattern: str, *args: Any, **kwargs: Any) -> None:
        base: Any = virtual.Channel  # past the one that writes in place
        base._delete(self, queue, exchange, routing_key, pattern, *args, **kwargs)
        binding = exchange_queue_t(routing_key or "", pattern or "", queue or "")
        self._change_table(exchange, lambda table: [row for row in table if row != binding])

    def _change_table(self, exchange: str, change: Callable[[Table], Table]) -> None:
        self.control_folder.mkdir(parents=True, exist_ok=True)
        with _locked(self.control_folder / "lock"):
            before = self.get_table(exchange)
            after = change(before)
            if after != before:
                _write_whole(self._table_file(exchange), after)


class Transport(filesystem.Transport):
    """The transport of ``filesystem://``."""

    Channel = Channel
    global_state = _BrokerState()


def install() -> None:
    """Makes ``filesystem://`` mean this transport in this process."""
    TRANSPORT_ALIASES["filesystem"] = f"{__name__}:Transport"


def _write_whole(path: Path, content: object) -> None:
    aside = path.with_name(f"{secrets.token_hex(8)}.aside")
    aside.write_text(json.dumps(content), encoding="utf-8")
    aside.replace(path)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
