"""How many event streams may be open at once."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from models.errors import LimitError

MAX_STREAMS_PER_TENANT = 20
MAX_STREAMS = 200


class StreamSlots:
    """Counts open streams of this process, in all and by tenant."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: Counter[str] = Counter()

    @contextmanager
    def hold(self, tenant_id: str) -> Iterator[None]:
        """Holds one slot. Raises LimitError where there is none: polling the job always works."""
        with self._lock:
            if self._open[tenant_id] >= MAX_STREAMS_PER_TENANT or self._open.total() >= MAX_STREAMS:
                raise LimitError(
                    "too many event streams are open: close some, or poll the job",
                    code="limit.streams",
                    retry_after_s=5,
                )
            self._open[tenant_id] += 1
        try:
            yield
        finally:
            with self._lock:
                self._open[tenant_id] -= 1
