"""Damages small files of every format and reads them: a refusal with a reason, or rows that add up; nothing else.

Run: ``python bench/fuzz_readers.py --cases 100000 [--seed 1] [--samples FOLDER] [--only-samples]``. Seeds are made-up
files of every format, and the files of FOLDER where given (default: ../shared/reference/trace-samples, if it is there).
Prints a count of outcomes; exits 1 at any crash, hang (over 20 s) or silent loss, and keeps the file that did it.
"""

from __future__ import annotations

import argparse
import gzip
import random
import signal
import sys
import tempfile
import time
import traceback
import zipfile
from collections import Counter
from io import BytesIO
from pathlib import Path
from types import FrameType

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

import polars as pl
import zstandard
from log_makers import MAKERS as LOG_MAKERS
from trace_makers import MAKERS, calls

from replay.errors import TraceError
from replay.traces.ingest import ingest
from replay.traces.options import IngestOptions

HANG_S = 20
SAMPLES = Path(__file__).resolve().parent.parent.parent / "shared" / "reference" / "trace-samples"
TOKENS = (
    b"NaN", b"null", b"-1", b"1e308", b"1e999", b"0.5", b"", b'"', b"\\", b"{", b"}", b"[", b"]", b",", b"\n", b"\r\n",
    b"\x00", b"\xff\xfe", b"\xef\xbb\xbf", b"9" * 30, b"-0", b"true", b'"a"', b"2024-02-30 25:61:61", b"{}", b'""',
    b"1970-01-01T00:00:00Z", b"1,234", b"1.000", b"\xd9\xa3", b"\\ud800", b"\t", b";", b"0", b"1700000000", b"[1]",
    b"1700000000000",
)  # fmt: skip


class HangError(Exception):
    """A case ran for too long."""


def _alarm(number: int, frame: FrameType | None) -> None:
    raise HangError


def damage(data: bytes, other: bytes, rng: random.Random) -> bytes:
    """One to four blows: truncation, flipped bits, splices, lines moved, doubled or lost, odd tokens, packing."""
    for _ in range(rng.randint(1, 4)):
        kind = rng.randrange(9)
        at = rng.randrange(len(data) + 1)
        if kind == 0:
            data = data[:at]
        elif kind == 1 and data:
            changed = bytearray(data)
            for _ in range(rng.randint(1, 8)):
                changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
            data = bytes(changed)
        elif kind == 2:
            start = rng.randrange(len(other) + 1)
            data = data[:at] + other[start : start + rng.randint(0, 2000)] + data[at:]
        elif kind == 3:
            data = data[:at] + rng.choice(TOKENS) + data[at + rng.randint(0, 6) :]
        elif kind == 4:
            data = data[:at] + data[at + rng.randint(0, 200) :]
        elif kind in (5, 6):
            lines = data.split(b"\n")
            one, two = rng.randrange(len(lines)), rng.randrange(len(lines))
            if kind == 5:
                lines[one], lines[two] = lines[two], lines[one]
            else:
                lines[one:one] = [lines[two]] * rng.randint(1, 30)
            data = b"\n".join(lines)
        elif kind == 7:
            number = bytearray(data)
            digits = [i for i in range(len(number)) if 48 <= number[i] < 58]
            if digits:
                place = rng.choice(digits)
                number[place : place + rng.randint(1, 4)] = rng.choice(TOKENS)
            data = bytes(number)
        else:
            data = data.replace(b"\n", b"\r\n") if rng.random() < 0.5 else b"\xef\xbb\xbf" + data
    return pack(data, rng)


def pack(data: bytes, rng: random.Random) -> bytes:
    """Sometimes compressed, and then sometimes damaged again."""
    kind = rng.randrange(12)
    if kind == 0:
        data = gzip.compress(data, 1)
    elif kind == 1:
        data = zstandard.compress(data)
    elif kind == 2:
        buffer = BytesIO()
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("a.txt", data)
        data = buffer.getvalue()
    if kind < 3 and data and rng.random() < 0.5:
        changed = bytearray(data)
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
        data = bytes(changed[: rng.randrange(len(changed)) + 1] if rng.random() < 0.5 else changed)
    return data


def check(data: bytes, folder: Path, rng: random.Random) -> str:
    """Reads one file; what came of it. Raises AssertionError where rows do not add up."""
    source, out = folder / "upload", folder / "out.parquet"
    source.write_bytes(data)
    options = IngestOptions(
        max_rejected_share=rng.choice((0.05, 1.0)),
        time_zone=rng.choice((None, "UTC", "Europe/Berlin")),
        rows_are_requests=True,
        repeated_hour=rng.choice(("refuse", "order")),
        ids=rng.choice(("keep", "hash")),
    )
    refused: TraceError | None = None
    try:
        report = ingest(source, out, options, id_key=b"fuzz")
    except TraceError as error:
        refused = error
    if refused is not None:
        assert refused.detail, "a refusal without words"
        assert refused.errors, "a refusal without a cure"
        assert not out.exists(), "a refused file left a table"
        return refused.code
    cleaning = report.cleaning
    table = pl.read_parquet(out)
    out.unlink()
    assert cleaning.rows_read == cleaning.rows_kept + cleaning.rows_rejected, "rows do not add up"
    assert table.height == report.requests == cleaning.rows_kept > 0, "kept rows are not in the table"
    assert table["arrival_ns"].drop_nulls().is_sorted(), "not sorted"
    said = any(warning.startswith("arrivals only") for warning in report.warnings)
    assert report.prompt_tokens > 0 or said, "no prompt tokens"
    assert report.output_tokens > 0 or said, "no output tokens"
    known = set(table["source_line"].to_list())
    after = set(table["after_line"].drop_nulls().to_list())
    assert after <= known, "a request follows one that is not there"
    return "read"


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
