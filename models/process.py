"""What a process must have in its environment before it imports numba, polars or celery."""

from __future__ import annotations

from models.settings import Settings, export_environment


def prepare_process(settings: Settings) -> None:
    """Threads of one job process, and where compiled kernels are kept; variables that the user set stay.

    Below the cache folder the kernels make one of their own for each version of the sources.
    """
    threads = str(settings.worker_threads)
    export_environment(
        {
            "NUMBA_CACHE_DIR": str((settings.data_dir / "numba").absolute()),
            "NUMBA_NUM_THREADS": threads,
            "NUMBA_THREADING_LAYER": "workqueue",
            "POLARS_MAX_THREADS": threads,
        }
    )
