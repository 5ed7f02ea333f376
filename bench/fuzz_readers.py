"""Damages small files of every format and reads them: a refusal with a reason, or rows that add up; nothing else.

Run: ``python bench/fuzz_readers.py --cases 100000 [--seed 1] [--samples FOLDER] [--only-samples]``. Seeds are made-up
files of every format, and the files of FOLDER where given (default: ../shared/reference/trace-samples, if it is there).
Prints a count of outcomes; exits 1 at any crash, hang (over 20 s) or silent loss, and keeps the file that did it.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path
from types import FrameType

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from log_makers import MAKERS as LOG_MAKERS
from trace_fuzz import check, damage
from trace_makers import MAKERS, calls

HANG_S = 20
SAMPLES = Path(__file__).resolve().parent.parent.parent / "shared" / "reference" / "trace-samples"


class HangError(Exception):
    """A case ran for too long."""


def _alarm(number: int, frame: FrameType | None) -> None:
    raise HangError


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after so long, whatever --cases says")
    parser.add_argument("--samples", type=Path, default=SAMPLES)
    parser.add_argument("--only-samples", action="store_true", help="leave the made-up files out")
    chosen = parser.parse_args()
    seeds = {} if chosen.only_samples else {name: make(calls()) for name, make in {**MAKERS, **LOG_MAKERS}.items()}
    if chosen.samples.is_dir():
        files = sorted(path for path in chosen.samples.iterdir() if path.suffix != ".md")
        seeds.update({path.name: path.read_bytes() for path in files})
    names = list(seeds)
    outcomes: Counter[str] = Counter()
    signal.signal(signal.SIGALRM, _alarm)
    began = time.monotonic()
    failed = done = 0
    with tempfile.TemporaryDirectory() as name:
        for case in range(chosen.cases):
            if time.monotonic() - began > chosen.seconds:
                break
            done += 1
            rng = random.Random(chosen.seed * 10**9 + case)
            seed = names[case % len(names)]
            data = damage(seeds[seed], seeds[rng.choice(names)], rng)
            signal.alarm(HANG_S)
            try:
                outcomes[check(data, Path(name), rng)] += 1
            except Exception:  # noqa: BLE001 - every kind of crash is what is looked for
                failed += 1
                kept = Path(tempfile.gettempdir()) / f"fuzz-{chosen.seed}-{case}"
                kept.write_bytes(data)
                print(f"case {case} of {seed}: kept as {kept}\n{traceback.format_exc()[-1500:]}", flush=True)
            finally:
                signal.alarm(0)
    spent = time.monotonic() - began
    print(f"{done:,} cases of {len(names)} files in {spent:,.0f} s: {failed:,} failed")
    for code, count in outcomes.most_common():
        print(f"{count:8,}  {code}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
