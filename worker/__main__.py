"""``python -m worker [embedded|worker|beat] ...``: what the command line and the embedded supervisor start."""

from __future__ import annotations

import sys


def main(argv: list[str]) -> int:
    """Runs one of the entry points; the exit code."""
    name, rest = (argv[0], argv[1:]) if argv else ("worker", [])
    if name == "embedded":
        from worker.embedded import main as embedded

        return embedded(rest)
    if name == "beat":
        from worker.beat import main as beat

        return beat(rest)
    if name == "worker":
        from worker.main import main as worker

        return worker(rest)
    sys.stderr.write(f"unknown: {name}; choose worker, beat or embedded\n")
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
