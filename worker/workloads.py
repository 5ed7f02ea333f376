"""The newest workload of this process: the candidates of a plan follow each other on the same one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from models.blobs import BlobStore
from worker import runner

if TYPE_CHECKING:
    from replay.specs import PlanSpec, ReplaySpec
    from replay.workload import Workload


class WorkloadCache:
    """Holds one workload; a job process runs one job at a time."""

    def __init__(self) -> None:
        self._key: tuple[str, str, int] | None = None
        self._workload: Workload | None = None

    def get(self, blobs: BlobStore, canonical_sha256: str, spec: PlanSpec | ReplaySpec) -> Workload:
        """The workload of this canonical trace and transform. Raises TraceError, NotFoundError."""
        key = (canonical_sha256, spec.transform.model_dump_json(), spec.seed)
        if self._workload is None or self._key != key:
            self._workload = None  # before the next is loaded: two may not fit
            self._workload = runner.load(blobs.local_path(canonical_sha256), spec)
            self._key = key
        return self._workload
