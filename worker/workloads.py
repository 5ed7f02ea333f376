"""The newest workload of this process: the candidates of a plan follow each other on the same one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from models.services import Services
from worker import runner

if TYPE_CHECKING:
    from replay.planning.resolve import ResolvedPlan, ResolvedReplay
    from replay.workload import Workload


class WorkloadCache:
    """Holds one workload; a job process runs one job at a time."""

    def __init__(self) -> None:
        self._key: tuple[tuple[str, ...], str, int] | None = None
        self._workload: Workload | None = None

    def get(self, services: Services, asked: ResolvedPlan | ResolvedReplay) -> Workload:
        """The workload of a request's traces and transform. Raises TraceError, NotFoundError."""
        traces = tuple(one.sha256 for one in (asked.trace, *asked.mixed))
        key = (traces, asked.spec.transform.model_dump_json(), asked.spec.seed)
        if self._workload is None or self._key != key:
            self._workload = None  # before the next is loaded: two may not fit
            first, *others = map(services.blobs.local_path, traces)
            self._workload = runner.load(first, asked.spec, others, max_requests=services.settings.job_max_requests)
            self._key = key
        return self._workload
