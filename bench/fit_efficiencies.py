"""Chooses a generation's row of ``EFFICIENCY`` on published throughput, and says how it holds on what was left out.

Usage: python bench/fit_efficiencies.py GENERATION [FILE] [--search]   (default ../shared/reference/benchmarks.csv)

For generations of which no kernel table is public. The series of each source and weight format are dealt into two
halves by their names; so many rows of each half are replayed, spread evenly over it. Without ``--search`` the error of
the shipped row is printed for both halves; with it, each efficiency in turn is moved by steps, within what hardware can
do, while the first half's mean absolute log error falls. What counts is the error on the second half.
"""

import csv
import sys
from collections import defaultdict
from dataclasses import asdict, replace
from math import expm1, log1p
from pathlib import Path
from statistics import fmean, median
from zlib import crc32

from replay.accuracy.benchmark_rows import LeftOutError, in_scope, parse_row, read_benchmarks
from replay.accuracy.benchmarks import Deployments, score_row
from replay.errors import SpecError
from replay.hardware.catalogue import shipped_catalogue
from replay.steptime.roofline import EFFICIENCY, generation

ROWS_EACH = 10
"""Of each source and weight format in each half."""
LARGEST_BATCH = {"cdna3": 16, "cdna2": 64}
"""Static batches beyond are left out of the choice: on MI300X under releases of 2024, time grew with the batch as no
share of a peak describes."""
MOVES = {
    "gemm": (0.25, 0.70),
    "gemm_fp8": (0.10, 0.60),
    "moe": (0.05, 0.50),
    "bandwidth": (0.30, 0.85),
    "decode": (0.20, 0.92),
    "prefill": (0.05, 0.60),
    "layer_us": (15.0, 200.0),
    "moe_us": (10.0, 300.0),
    "quant_us": (2.0, 80.0),
    "allreduce_us": (5.0, 60.0),
}
"""The range of each efficiency."""
STEPS = (0.75, 1.3)
ROUNDS = 2
LEAST_GAIN = 0.002

Rows = dict[tuple[str, str], list[dict[str, str]]]


def is_usable(row: dict[str, str], kind: str) -> bool:
    """Whether a row is of the generation and can be replayed."""
    catalogue = shipped_catalogue()
    try:
        parse_row(row, catalogue)
        if generation(catalogue.gpu(row["gpu"])) != kind:
            return False
    except (LeftOutError, SpecError):
        return False
    static = row["load_kind"] == "offline" and row["concurrency"] != ""
    return not static or float(row["concurrency"]) <= LARGEST_BATCH.get(kind, 64)


def halves(path: Path, kind: str) -> tuple[Rows, Rows]:
    """Rows of the generation by source and weight format, dealt by series."""
    with path.open(encoding="utf-8") as file:
        series = {row["row_id"]: (row["split_group"], row["family"]) for row in csv.DictReader(file)}
    found: tuple[Rows, Rows] = defaultdict(list), defaultdict(list)
    for row in read_benchmarks(path):
        if in_scope(row) and is_usable(row, kind):
            group, source = series[row["row_id"]]
            found[crc32(group.encode()) % 2][source, row["weight_dtype"]].append(row)
    first, second = ({key: evenly(rows) for key, rows in half.items()} for half in found)
    return first, second


def evenly(rows: list[dict[str, str]]) -> list[dict[str, str]]:
    return [rows[i * len(rows) // ROWS_EACH] for i in range(ROWS_EACH)] if len(rows) > ROWS_EACH else rows


def errors(half: Rows) -> dict[tuple[str, str], list[float]]:
    """Log of simulated / measured throughput of each row."""
    catalogue = shipped_catalogue()
    deployments, found = Deployments(catalogue), defaultdict(list)
    for key, rows in half.items():
        for row in rows:
            try:
                parsed = parse_row(row, catalogue)
                scored = score_row(parsed, deployments.of(parsed.spec), row["engine"])
            except LeftOutError:
                continue
            found[key].append(log1p(scored.errors["throughput"]))
    return found


def loss(half: Rows) -> float:
    return fmean(fmean(map(abs, values)) for values in errors(half).values())


def show(name: str, half: Rows) -> None:
    for (source, weights), values in errors(half).items():
        off, signed = median(abs(expm1(v)) for v in values), expm1(median(values))
        print(f"{name:9} {source:11} {weights:30} {len(values):3} rows: median {off:.0%}, signed {signed:+.0%}")


def search(kind: str, half: Rows) -> None:
    best, least = EFFICIENCY[kind], loss(half)
    for _ in range(ROUNDS):
        for name, (low, high) in MOVES.items():
            for step in STEPS:
                while True:
                    value = min(max(getattr(best, name) * step, low), high)
                    EFFICIENCY[kind] = replace(best, **{name: value})
                    found = loss(half)
                    if found > least - LEAST_GAIN:
                        EFFICIENCY[kind] = best
                        break
                    best, least = EFFICIENCY[kind], found
                    print(f"{name} {value:.3g}: {least:.4f}", flush=True)
    print({name: round(value, 3) for name, value in asdict(best).items()})


def main() -> None:
    words = [word for word in sys.argv[1:] if word != "--search"]
    kind, path = words[0], Path(words[1] if len(words) > 1 else "../shared/reference/benchmarks.csv")
    chosen_on, left_out = halves(path, kind)
    if "--search" in sys.argv:
        search(kind, chosen_on)
    show("chosen on", chosen_on)
    show("left out", left_out)


if __name__ == "__main__":
    main()
