"""Whatever is written in a format is read back the same; the order of rows and the size of blocks do not matter."""

import gzip
import io
import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import polars as pl
import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from trace_makers import MAKERS, Call

from replay.errors import TraceError
from replay.traces import canonical
from replay.traces.ingest import ingest
from replay.traces.options import IngestOptions
from replay.traces.report import IngestReport

SLOW = settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])

tokens = st.integers(1, 200_000)
text = st.none() | st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs", "Z"]), min_size=1, max_size=20)
UNKNOWN_WORDS = ("null", "none", "-", "n/a", "na", "\\n")
labels = text.filter(lambda value: value is None or value.lower() not in UNKNOWN_WORDS)
row = st.fixed_dictionaries(
    {
        "micros": st.integers(0, 10**13),
        "prompt": st.none() | tokens,
        "output": st.none() | tokens,
        "tenant": labels,
    }
)
rows = st.lists(row, min_size=2, max_size=60, unique_by=lambda r: r["micros"]).filter(
    lambda found: any(r["prompt"] for r in found) and any(r["output"] for r in found)
)


OWN_UNITS = {
    **dict.fromkeys(("capreplay-csv", "capreplay-json", "capreplay-parquet", "mooncake"), "ms"),
    **dict.fromkeys(("burstgpt-v3", "servegen-requests", "vidur", "splitwise-sim", "qwen-bailian"), "s"),
    "blis-tracev2": "us",
}
"""Said, as times drawn at random are mostly rarer than any real traffic's, and so asked about."""


def read(data: bytes, **options: Any) -> tuple[IngestReport, pl.DataFrame]:
    """Times are drawn at random, from anywhere and in any order: that is said, so that nothing is asked."""
    options = {"keep_far_off": True, "clock_restarts": "overlap"} | options
    with TemporaryDirectory() as folder:
        source, out = Path(folder, "upload"), Path(folder, "out.parquet")
        source.write_bytes(data)
        report = ingest(source, out, IngestOptions(**options))
        return report, canonical.scan(out).collect()


def expected(found: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    first = min(r["micros"] for r in found)
    ordered = sorted(found, key=lambda r: r["micros"])
    return [((r["micros"] - first) * 1000, r["prompt"], r["output"], r["tenant"]) for r in ordered]


def quote(value: Any) -> str:
    return "" if value is None else '"' + str(value).replace('"', '""') + '"'


def as_csv(found: list[dict[str, Any]]) -> bytes:
    lines = ["arrival_us,prompt_tokens,output_tokens,tenant"]
    for r in found:
        prompt, output = ("" if value is None else str(value) for value in (r["prompt"], r["output"]))
        lines.append(f"{r['micros']},{prompt},{output},{quote(r['tenant'])}")
    return ("\n".join(lines) + "\n").encode()


def objects(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {"arrival_us": r["micros"], "prompt_tokens": r["prompt"], "output_tokens": r["output"], "tenant": r["tenant"]}
        for r in found
    ]


def as_jsonl(found: list[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(o) + "\n" for o in objects(found)).encode()


def as_array(found: list[dict[str, Any]]) -> bytes:
    return json.dumps(objects(found), indent=1, ensure_ascii=False).encode()


def as_parquet(found: list[dict[str, Any]]) -> bytes:
    buffer = io.BytesIO()
    kinds = {"arrival_us": pl.Int64, "prompt_tokens": pl.Int64, "output_tokens": pl.Int64, "tenant": pl.String}
    pl.DataFrame(objects(found), schema=kinds).write_parquet(buffer)
    return buffer.getvalue()


@SLOW
@given(found=rows)
@pytest.mark.parametrize("write", [as_csv, as_jsonl, as_array, as_parquet])
def test_own_formats_round_trip(write, found) -> None:
    report, table = read(write(found), time_unit="us")
    assert table.select("arrival_ns", "prompt_tokens", "output_tokens", "tenant").rows() == expected(found)
    assert report.cleaning.rows_read == report.cleaning.rows_kept == report.requests == len(found)
    assert report.prompt_tokens == sum(r["prompt"] or 0 for r in found)


@SLOW
@given(found=rows, seed=st.randoms(use_true_random=False))
def test_the_order_of_rows_does_not_matter(found, seed) -> None:
    _, table = read(as_csv(found), time_unit="us")
    seed.shuffle(found)
    _, again = read(as_csv(found), time_unit="us")
    columns = [name for name in canonical.COLUMNS if name != "source_line"]
    assert again.select(columns).equals(table.select(columns))


@SLOW
@given(found=rows, block=st.integers(1, 200), compress=st.sampled_from([bytes, gzip.compress, zstandard.compress]))
@pytest.mark.parametrize("write", [as_csv, as_jsonl, as_array])
def test_the_size_of_blocks_does_not_matter(write, found, block, compress) -> None:
    data = compress(write(found))
    _, table = read(data, time_unit="us")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("replay.traces.source.BLOCK_BYTES", block)
        patch.setattr("replay.traces.lines.BATCH_BYTES", block)
        report, again = read(data, time_unit="us")
    assert again.equals(table)
    assert report.requests == len(found)


triples = st.tuples(st.integers(0, 10**7), st.integers(1, 5000), st.integers(1, 5000))


@SLOW
@given(found=st.lists(triples, min_size=2, max_size=50, unique_by=lambda r: r[0]))
def test_research_formats_round_trip(found) -> None:
    """Azure, BurstGPT and Mooncake as their publishers write them, each in the resolution that it has."""
    found.sort()
    first = found[0][0]
    azure = ["TIMESTAMP,ContextTokens,GeneratedTokens"] + [
        f"2023-11-16 {t // 3_600_000 + 18:02d}:{t // 60_000 % 60:02d}:{t // 1000 % 60:02d}.{t % 1000:03d}0000,{p},{o}"
        for t, p, o in found
    ]
    burst = ["Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type"] + [
        f"{t},ChatGPT,{p},{o},{p + o},API log" for t, p, o in found
    ]
    moon = [
        json.dumps({"timestamp": t, "input_length": p, "output_length": o, "hash_ids": list(range(-(-p // 512)))})
        for t, p, o in found
    ]
    for lines, form, step in (
        (azure, "azure-llm-2023", 10**6),
        (burst, "burstgpt-v1", 10**9),
        (moon, "mooncake", 10**6),
    ):
        unit = {"mooncake": "ms", "burstgpt-v1": "s"}.get(form)
        report, table = read(("\n".join(lines) + "\n").encode(), time_unit=unit)
        assert report.format == form
        assert table.select("arrival_ns", "prompt_tokens", "output_tokens").rows() == [
            ((t - first) * step, p, o) for t, p, o in found
        ]


made = st.lists(
    st.tuples(st.integers(0, 10**9), st.integers(1, 9000), st.integers(1, 5000), st.sampled_from(["s0", "s1", "s2"])),
    min_size=3,
    max_size=30,
    unique_by=lambda call: call[0],
)


@settings(deadline=None, max_examples=40)
@given(found=made, name=st.sampled_from(sorted(MAKERS)))
def test_every_format_round_trips(found, name: str) -> None:
    """Lengths come back whole, and times to the nanosecond where the format states them for every request."""
    found.sort()
    requests = [Call(at, prompt, output, session) for at, prompt, output, session in found]
    report, table = read(MAKERS[name](requests), time_unit=OWN_UNITS.get(name), turn_lengths="whole")
    assert (report.format, report.requests) == (name, len(requests))
    lengths = sorted(table.select("prompt_tokens", "output_tokens").rows())
    assert lengths == sorted((call.prompt, call.output) for call in requests)
    if table["arrival_ns"].null_count() == 0 and name != "weka-agentic":
        first = requests[0].at_ms
        assert table["arrival_ns"].to_list() == [(call.at_ms - first) * 10**6 for call in requests]
    after = table.filter(pl.col("after_line").is_not_null())
    assert set(after["after_line"].to_list()) <= set(table["source_line"].to_list())


kept_row = st.fixed_dictionaries(
    {
        "micros": st.none() | st.integers(0, 10**13),
        "prompt": st.none() | tokens,
        "output": st.none() | tokens,
        "cached": st.none() | st.just(0),
        "reasoning": st.none() | st.just(1),
        "tenant": labels,
        "session": st.none() | st.sampled_from(["s0", "s1"]),
        "priority": labels,
        "status": st.none() | st.sampled_from(canonical.STATUSES),
        "follows": st.none() | st.integers(1, 60),
        "measured": st.none() | st.integers(0, 10**12),
    }
)


@SLOW
@given(
    found=st.lists(kept_row, min_size=2, max_size=60).filter(
        lambda found: (
            any(r["prompt"] for r in found) and any(r["output"] for r in found) and any(r["micros"] for r in found)
        )
    ),
    start=st.none() | st.integers(1_100_000_000 * 10**6, 4_000_000_000 * 10**6),
    size=st.none() | st.integers(1, 4096),
)
def test_a_kept_trace_comes_back(found, start, size) -> None:
    """Whatever is in the canonical table and its metadata: write, read, and it is the same trace."""
    rows = [
        {
            "arrival_us": r["micros"] if r["micros"] is not None or r["follows"] else 0,
            "prompt_tokens": r["prompt"],
            "output_tokens": r["output"],
            "cached_tokens": r["cached"],
            "reasoning_tokens": r["reasoning"],
            **{name: r[name] for name in ("tenant", "session", "priority", "status")},
            "prefix_blocks": [7, i] if size and r["prompt"] and r["prompt"] // size == 2 else None,
            "after_line": r["follows"],
            "delay_us": r["measured"] if r["follows"] else None,
            "source_ttft_us": r["measured"],
            "source_queue_us": r["measured"],
        }
        for i, r in enumerate(found)
    ]
    first = min(r["arrival_us"] for r in rows if r["arrival_us"] is not None)
    for r in rows:
        if start is not None and r["arrival_us"] is not None:
            r["arrival_us"] += start - first
    data = "".join(json.dumps(r) + "\n" for r in rows).encode()
    how = {"time_unit": "us", "keep_duplicates": True, "rows_are_requests": True, "block_size": size}
    with TemporaryDirectory() as folder:
        source, kept, again = (Path(folder, name) for name in ("upload", "kept.parquet", "again.parquet"))
        source.write_bytes(data)
        options = {"keep_far_off": True, "clock_restarts": "overlap", "max_rejected_share": 1.0}
        try:
            before = ingest(source, kept, IngestOptions(**how, **options))
        except TraceError:  # such as rows without lengths: nothing is kept that could come back
            return
        after = ingest(kept, again)
        assert pl.read_parquet(again).equals(pl.read_parquet(kept))
        assert canonical.read_meta(again) == canonical.read_meta(kept)
        assert after.profile == before.profile


blows = st.tuples(st.sampled_from(["flip", "cut", "splice"]), st.floats(0, 1), st.integers(0, 255))


@settings(deadline=None, max_examples=150)
@given(
    found=rows,
    damage=st.lists(blows, min_size=1, max_size=6),
    write=st.sampled_from([as_csv, as_jsonl, as_array, as_parquet]),
    compress=st.sampled_from([bytes, gzip.compress, zstandard.compress]),
)
def test_damaged_files_are_refused_or_accounted_for(found, damage, write, compress) -> None:
    """No traceback, no silent loss: a TraceError, or a report whose rows add up."""
    data = bytearray(compress(write(found)))
    for kind, place, byte in damage:
        at = int(place * (len(data) - 1))
        if kind == "flip":
            data[at] ^= byte
        elif kind == "cut" and len(data) > 8:
            del data[at:]
        else:
            data[at:at] = data[: byte % 40]
        data = data or bytearray(b"x")
    try:
        report, table = read(bytes(data), max_rejected_share=1.0)
    except TraceError as error:
        refusal = error
    else:
        cleaning = report.cleaning
        assert cleaning.rows_read == cleaning.rows_kept + sum(cleaning.rejected_by_rule.values())
        assert table.height == report.requests == cleaning.rows_kept
        assert table["arrival_ns"].is_sorted()
        assert (table["prompt_tokens"].drop_nulls() > 0).all()
        return
    assert refusal.code.startswith("trace.")
    assert refusal.detail
