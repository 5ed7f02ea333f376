"""Requests written as logs of gateways, tools and engines, in completion order where those are, read back the same."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from log_makers import MAKERS, WHOLE_SECONDS
from trace_makers import Call

from replay.traces import canonical
from replay.traces.ingest import ingest
from replay.traces.options import IngestOptions

NS = 10**9


@st.composite
def requests(draw: st.DrawFn) -> list[Call]:
    """Three to thirty calls in the order of time, all lengths different, so that no file looks cut or doubled."""
    gaps = draw(st.lists(st.integers(1, 20_000), min_size=3, max_size=30))
    made = []
    at = 0
    for i, gap in enumerate(gaps):
        at += gap
        made.append(Call(at, 20 + 3 * i, 5 + 2 * i, f"s{i % 3}", draw(st.integers(1, 59_000))))
    return made


@pytest.mark.parametrize("name", list(MAKERS))
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(found=requests())
def test_written_and_read_is_the_same(name: str, found: list[Call]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        source, out = Path(folder) / "upload", Path(folder) / "out.parquet"
        source.write_bytes(MAKERS[name](found))
        report = ingest(source, out, IngestOptions(rows_are_requests=True))
        table = canonical.scan(out).collect()
    assert (report.format, report.cleaning.rows_rejected) == (name, 0)
    rows = table.select("arrival_ns", "prompt_tokens", "output_tokens").sort("prompt_tokens").rows()
    unit = 1000 if name in WHOLE_SECONDS else 1
    first = min(call.epoch_ms // unit for call in found)
    assert rows == [((c.epoch_ms // unit - first) * unit * 10**6, c.prompt, c.output) for c in found]
