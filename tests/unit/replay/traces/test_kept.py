"""A trace that ``capreplay ingest --out`` kept, read again: the same trace, the same profile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest
from trace_makers import MAKERS, calls

from replay.traces import canonical
from replay.traces.ingest import ingest
from replay.traces.kept import kept_in
from replay.traces.options import IngestOptions
from replay.traces.report import IngestReport

KEY = b"k" * 32
TURNS = (
    '{"session_id": "a", "timestamp": 0, "input_length": 20, "output_length": 5, "hash_ids": [1]}',
    '{"session_id": "a", "delay": 500, "input_length": 30, "output_length": 5, "hash_ids": [1]}',
    '{"session_id": "b", "timestamp": 900, "input_length": 40, "output_length": 5, "hash_ids": [2]}',
)


class Keeper:
    """Reads a file, and reads again what was kept of it."""

    def __init__(self, folder: Path) -> None:
        self.source, self.kept, self.again = (folder / name for name in ("log", "kept.parquet", "again.parquet"))

    def twice(self, data: bytes, **options: Any) -> tuple[IngestReport, IngestReport]:
        self.source.write_bytes(data)
        ids = {"ids": options["ids"]} if "ids" in options else {}
        first = ingest(self.source, self.kept, IngestOptions(**options), id_key=KEY)
        return first, ingest(self.kept, self.again, IngestOptions(**ids), id_key=KEY)

    def same(self, data: bytes, **options: Any) -> IngestReport:
        """The report of the second reading, which is proved to be of the same trace."""
        first, second = self.twice(data, **options)
        assert canonical.read_meta(self.again) == canonical.read_meta(self.kept)
        assert pl.read_parquet(self.again).equals(pl.read_parquet(self.kept))
        assert second.profile == first.profile
        assert second.cleaning.status_counts == first.cleaning.status_counts
        assert second.cleaning.retries_after_failure == first.cleaning.retries_after_failure
        return second


@pytest.fixture
def keeper(tmp_path: Path) -> Keeper:
    return Keeper(tmp_path)


@pytest.mark.parametrize("name", sorted(MAKERS))
def test_every_format_comes_back(keeper: Keeper, name: str) -> None:
    keeper.same(MAKERS[name](calls()))


def test_the_start_the_zone_and_what_was_measured_come_back(keeper: Keeper) -> None:
    rows = "".join(f"2026-03-02 09:00:{i % 60:02d},{i + 10},{i % 5 + 5},{i % 7}\n" for i in range(40))
    mapping = {"arrival": "t", "prompt_tokens": "p", "output_tokens": "o", "session": "s"}
    again = keeper.same(b"t,p,o,s\n" + rows.encode(), mapping=mapping, time_zone="Europe/Berlin")
    assert again.profile.start_utc == "2026-03-02T08:00:00.000+00:00"
    assert again.profile.heat_map_zone == "Europe/Berlin"
    assert "Europe/Berlin" in again.assumed["time_zone"]
    measured = "arrival_s,prompt_tokens,output_tokens,source_ttft_ms,source_e2e_s,source_queue_us\n"
    measured += "".join(f"{i},{i + 10},{i + 5},{i}.5,{i},{i}\n" for i in range(40))
    again = keeper.same(measured.encode())
    assert again.profile.source_ttft is not None
    assert again.profile.source_ttft.max_s == pytest.approx(0.0395, rel=1e-3)
    assert pl.read_parquet(keeper.again)["source_queue_ns"].max() == 39_000


def test_a_closed_loop_comes_back(keeper: Keeper) -> None:
    again = keeper.same(("\n".join(TURNS) + "\n").encode())
    assert again.cleaning.closed_loop_requests == 1
    assert pl.read_parquet(keeper.again)["prefix_blocks"].to_list() == [[0], [1], [0]]


def test_labels_are_not_labelled_again(keeper: Keeper) -> None:
    rows = "".join(f"{i},{i + 10},5,t{i % 3}\n" for i in range(30)).encode()
    again = keeper.same(b"arrival_s,prompt_tokens,output_tokens,tenant\n" + rows, ids="hash")
    assert {one.tenant[:2] for one in again.profile.top_tenants} == {"t_"}


def test_what_was_settled_is_not_asked_again(keeper: Keeper) -> None:
    head = b"arrival_s,prompt_tokens,output_tokens\n"
    keeper.same(head + b"".join(b"%d,10,5\n" % (60 * i) for i in range(50)), time_unit="s", rows_are_requests=True)
    twice = b"".join(b"%d,%d,5\n" % (i // 2, i // 2 + 10) for i in range(80))
    keeper.same(head + twice, keep_duplicates=True)


def test_a_log_without_lengths_is_still_one_of_arrivals(keeper: Keeper) -> None:
    says = "prompt: 'x', params: SamplingParams(max_tokens=9), prompt_token_ids: None, lora_request: None."
    lines = [f"INFO 07-01 10:00:{i:02d} [logger.py:1] Received request r{i}: {says}" for i in range(30)]
    text = "\n".join(lines) + "\n"
    again = keeper.same(text.encode())
    assert any("arrivals only" in one for one in again.warnings)


def test_a_closed_loop_may_be_written_by_hand(keeper: Keeper) -> None:
    """``after_line`` names lines of the file itself."""
    rows = b"arrival_s,prompt_tokens,output_tokens,after_line,delay_s\n0,10,5,,\n,20,5,2,0.5\n7,30,5,,\n9,30,5,3,1\n"
    again = keeper.same(rows)
    assert again.cleaning.closed_loop_requests == 2
    table = pl.read_parquet(keeper.again)
    assert table["after_line"].to_list() == [None, None, 3, 2]
    assert table["delay_ns"].to_list() == [None, None, 10**9, 5 * 10**8]


@pytest.mark.parametrize(
    ("row", "rule"),
    [
        (",20,5,2,-1", "negative_delay"),
        (",20,5,2,x", "negative_delay"),
        (",20,5,x,1", "not_an_integer"),
        (",20,5,,", "missing_arrival"),
    ],
)
def test_odd_links_are_rejected(keeper: Keeper, row: str, rule: str) -> None:
    good = "".join(f"{i},{i + 10},5,,\n" for i in range(40))
    keeper.source.write_text(f"arrival_s,prompt_tokens,output_tokens,after_line,delay_s\n{good}{row}\n")
    report = ingest(keeper.source, keeper.kept)
    assert report.cleaning.rejected_by_rule == {rule: 1}
    assert report.cleaning.rejections[0].line == 42


def test_what_metadata_say_is_not_believed_blindly(tmp_path: Path) -> None:
    frame = pl.DataFrame({"arrival_ns": [0, 10**9], "prompt_tokens": [5, 6], "output_tokens": [1, 1]})
    said = {"format_version": "1", "start_epoch_ns": "99", "zone": "Mars/X", "block_size_tokens": "0", "notes": "a\nb"}
    path = tmp_path / "forged.parquet"
    frame.write_parquet(path, metadata={f"capreplay.{name}": text for name, text in said.items()})
    assert kept_in(path) == canonical.Meta(notes="a b")
    frame.write_parquet(path, metadata={"capreplay.format_version": "99"})
    assert kept_in(path) is None
    (tmp_path / "no").write_bytes(b"PAR1")
    assert kept_in(tmp_path / "no") is None
