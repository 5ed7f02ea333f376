"""Damages small files of traces and reads them: what comes of it is a refusal with a reason, or rows that add up."""

from __future__ import annotations

import gzip
import random
import zipfile
from io import BytesIO
from pathlib import Path

import zstandard

from replay.errors import TraceError
from replay.traces import canonical
from replay.traces.ingest import ingest
from replay.traces.options import IngestOptions

TOKENS = (
    b"NaN", b"null", b"-1", b"1e308", b"1e999", b"0.5", b"", b'"', b"\\", b"{", b"}", b"[", b"]", b",", b"\n", b"\r\n",
    b"\x00", b"\xff\xfe", b"\xef\xbb\xbf", b"9" * 30, b"-0", b"true", b'"a"', b"2024-02-30 25:61:61", b"{}", b'""',
    b"1970-01-01T00:00:00Z", b"1,234", b"1.000", b"\xd9\xa3", b"\\ud800", b"\t", b";", b"0", b"1700000000", b"[1]",
    b"1700000000000",
)  # fmt: skip


def damage(data: bytes, other: bytes, rng: random.Random) -> bytes:
    """One to four blows: truncation, flipped bits, splices, lines moved, doubled or lost, columns swapped, odd tokens,
    packing."""
    for _ in range(rng.randint(1, 4)):
        kind = rng.randrange(10)
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
        elif kind == 8:
            data = swap_columns(data, rng)
        else:
            data = data.replace(b"\n", b"\r\n") if rng.random() < 0.5 else b"\xef\xbb\xbf" + data
    return pack(data, rng)


def swap_columns(data: bytes, rng: random.Random) -> bytes:
    """Two columns of each line change places: cells of delimited text, or key and value pairs of JSON."""
    lines = data.split(b"\n")
    mark = b"\t" if b"\t" in lines[0] else b";" if b";" in lines[0] else b","
    width = lines[0].count(mark) + 1
    one, two = rng.randrange(width), rng.randrange(width)
    first = rng.randrange(2)  # sometimes the header stays
    for number in range(first, len(lines)):
        cells = lines[number].split(mark)
        if len(cells) == width:
            cells[one], cells[two] = cells[two], cells[one]
            lines[number] = mark.join(cells)
    return b"\n".join(lines)


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
    table = canonical.scan(out).collect()
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
