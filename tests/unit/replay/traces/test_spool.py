"""The spool: the same table whether rows stay in memory or go through parts on disk, in order or not."""

import random
from collections.abc import Callable

import pytest

from replay.traces import spool


def shuffled_csv(n: int, *, in_order: bool) -> str:
    rng = random.Random(7)
    rows = [f"{i // 3},{100 + i},{1 + i % 50},t{i % 4}" for i in range(n)]
    if not in_order:
        rng.shuffle(rows)
    return "arrival_s,prompt_tokens,output_tokens,tenant\n" + "\n".join(rows) + "\n"


@pytest.mark.parametrize("in_order", [True, False])
def test_parts_on_disk_give_the_same_table(lab, monkeypatch: pytest.MonkeyPatch, *, in_order: bool) -> None:
    monkeypatch.setattr("replay.traces.lines.BATCH_BYTES", 400)
    monkeypatch.setattr("replay.traces.source.BLOCK_BYTES", 400)
    data = shuffled_csv(900, in_order=in_order)
    report = lab.read(data)
    expected = lab.table
    monkeypatch.setattr(spool, "_SPILL_BYTES", 1_000)
    monkeypatch.setattr(spool, "_BUCKET_ROWS", 97 * 2)
    monkeypatch.setattr(spool, "_SAMPLE_EVERY", 5)
    again = lab.read(data)
    assert lab.table.equals(expected)
    assert again == report
    assert expected["arrival_ns"].is_sorted()
    moved = again.cleaning.rows_moved_by_sorting
    assert moved == 0 if in_order else moved > 400


def test_block_ids_and_closed_loops_go_through_parts(lab, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = []
    for i in range(300):
        turn = f'"timestamp": {(1000 - i) * 40}' if i % 3 == 0 else '"delay": 5'
        rows.append(
            f'{{"session_id": "s{i // 3}", "input_length": 1025, "output_length": 2, '
            f'"hash_ids": [{i % 7}, {2**63 + i % 11}, {i}], {turn}}}'
        )
    data = "\n".join(rows) + "\n"
    monkeypatch.setattr("replay.traces.lines.BATCH_BYTES", 3_000)
    monkeypatch.setattr("replay.traces.source.BLOCK_BYTES", 3_000)
    report = lab.read(data, turn_lengths="whole")
    expected = lab.table
    monkeypatch.setattr(spool, "_SPILL_BYTES", 1)
    monkeypatch.setattr(spool, "_BUCKET_ROWS", 20)
    monkeypatch.setattr(spool, "_SAMPLE_EVERY", 2)
    monkeypatch.setattr(spool, "_MERGE_IDS", 5)
    assert lab.read(data, turn_lengths="whole") == report
    assert lab.table.equals(expected)
    assert expected["arrival_ns"].null_count() == 200
    assert expected["arrival_ns"].head(100).is_sorted()
    ids = {block for blocks in expected["prefix_blocks"].to_list() for block in blocks}
    assert ids == set(range(len(ids))), "ids are dense"


def test_a_canonical_file_has_bounded_row_groups(lab, own_csv: Callable[..., str], monkeypatch) -> None:
    import polars as pl

    monkeypatch.setattr("replay.traces.canonical.ROW_GROUP_ROWS", 30)
    lab.read(own_csv(n=100))
    assert pl.read_parquet(lab.out).height == 100
