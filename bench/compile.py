"""CPU seconds that the first run of each loop takes with no machine code cached, in one process: loops share helpers,
so each line counts what the loops above it had not compiled."""

from __future__ import annotations

import os
import tempfile
import time


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.environ["NUMBA_CACHE_DIR"] = folder
        from replay.first_runs import LOOPS, run_loops

        first = started = time.process_time()
        for name in run_loops(LOOPS):
            ended = time.process_time()
            print(f"{name:24} {ended - started:6.1f} s", flush=True)
            started = ended
        print(f"{'all':24} {started - first:6.1f} s")


if __name__ == "__main__":
    main()
