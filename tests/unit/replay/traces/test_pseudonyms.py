"""Ids become labels at the door, and messages about rejected rows show neither ids nor prompts."""

from __future__ import annotations

import hashlib
import hmac
import json
from pathlib import Path

import polars as pl
import pytest

from replay.errors import SpecError, TraceError
from replay.traces import canonical
from replay.traces.ingest import ingest
from replay.traces.labels import label as label_of
from replay.traces.labels import tenant_label
from replay.traces.options import IngestOptions
from replay.traces.pseudonyms import shown

KEY = b"an installation's key"
PROMPT = "Dear doctor, my name is Ada Lovelace"
MAIL = "ada.lovelace@example.org"
HEADER = "arrival_s,prompt_tokens,output_tokens,tenant,session\n"


def rows(n: int = 100) -> str:
    return "".join(f"{i}.5,{100 + i},10,tenant-{i % 3},session-{i % 10}\n" for i in range(n))


def read(folder: Path, text: str, key: bytes | None = KEY, **options: object) -> tuple[pl.DataFrame, str]:
    """The canonical table and the report as JSON."""
    source, out = folder / "upload", folder / "canonical.parquet"
    source.write_text(text)
    report = ingest(source, out, IngestOptions.model_validate({"ids": "hash", **options}), id_key=key)
    return canonical.scan(out).collect(), report.model_dump_json()


def test_ids_become_labels_and_still_link(tmp_path: Path) -> None:
    table, report = read(tmp_path, HEADER + rows())
    digest = hmac.new(KEY, b"tenant\0tenant-0", hashlib.sha256).hexdigest()
    assert table["tenant"][0] == f"t_{digest[:16]}"
    kept, _ = read(tmp_path, HEADER + rows(), None, ids="keep")
    assert kept["session"].to_list() == [f"session-{i % 10}" for i in range(100)]
    for column in ("tenant", "session"):
        assert table[column].rank("dense").n_unique() == kept[column].n_unique()
        pairs = pl.DataFrame({"label": table[column], "id": kept[column]}).unique()
        assert pairs.height == kept[column].n_unique(), "one label an id, one id a label"
    assert table.drop("tenant", "session").equals(kept.drop("tenant", "session"))
    assert "tenant-" not in report
    assert "session-" not in report
    assert json.loads(report)["assumed"]["ids"] == "session and tenant ids replaced by labels"
    assert json.loads(report)["profile"]["sessions"] == 10


def test_the_label_is_the_installations_own() -> None:
    assert label_of(KEY, "tenant", "acme") == label_of(KEY, "tenant", "acme")
    assert label_of(KEY, "tenant", "acme") != label_of(b"another key", "tenant", "acme")
    assert label_of(KEY, "tenant", "acme")[2:] != label_of(KEY, "session", "acme")[2:]


def test_a_tenant_may_be_named_by_id_or_label() -> None:
    label = label_of(KEY, "tenant", "acme")
    assert tenant_label(KEY, "acme") == tenant_label(KEY, label) == label


def test_without_a_key_nothing_is_read(tmp_path: Path) -> None:
    with pytest.raises(SpecError) as caught:
        read(tmp_path, HEADER + rows(), None)
    assert caught.value.code == "ids.key"
    assert not (tmp_path / "canonical.parquet").exists()


def test_a_file_without_ids_says_nothing_of_them(tmp_path: Path) -> None:
    _, report = read(tmp_path, "arrival_s,prompt_tokens,output_tokens\n1,2,3\n2,3,4\n")
    assert "ids" not in json.loads(report)["assumed"]


@pytest.mark.parametrize(
    "row",
    [
        f'200,"{PROMPT}",10,a,b',  # a prompt where tokens should be
        f"{MAIL},5,10,a,b",
        f"200,{MAIL},10,a,b",
        "200,4915112345678,10,a,b",
        f"200,5,10,{MAIL * 60},b",  # too long for a label
        f"200,5,10,a,{PROMPT * 60},more",
    ],
)
def test_rejected_rows_show_neither_ids_nor_prompts(tmp_path: Path, row: str) -> None:
    _, report = read(tmp_path, HEADER + rows() + row + "\n")
    assert json.loads(report)["cleaning"]["rows_rejected"] == 1
    for secret in ("doctor", "Ada", "ada.", "example", "4915"):
        assert secret not in report
    with pytest.raises(TraceError) as caught:
        read(tmp_path, HEADER + rows(2) + f"{row}\n" * 3, keep_duplicates=True)
    said = f"{caught.value.detail} {caught.value.errors}"
    for secret in ("doctor", "Ada", "ada.", "example", "4915"):
        assert secret not in said


@pytest.mark.parametrize("ids", ["keep", "hash"])
def test_a_column_that_holds_no_times_is_named_without_its_text(tmp_path: Path, ids: str) -> None:
    table = f"t,p,o\n{PROMPT.replace(',', '')},1,2\n" * 3
    mapping = {"arrival": "t", "prompt_tokens": "p", "output_tokens": "o"}
    with pytest.raises(TraceError) as caught:
        read(tmp_path, table, mapping=mapping, ids=ids)
    assert "doctor" not in f"{caught.value.detail} {caught.value.errors}"


def test_broken_json_is_refused_without_its_text(tmp_path: Path) -> None:
    with pytest.raises(TraceError) as caught:
        read(tmp_path, '[{"arrival_s": 1, "prompt_tokens": 1, "output_tokens": 1} "Dear doctor"]')
    assert "Dear" not in f"{caught.value.detail} {caught.value.errors}"


def test_what_is_shown_of_a_cell() -> None:
    assert shown("1.000", hidden=False) == "'1.000'"
    assert shown("2024-02-30 10:00:00.5 +01:00", hidden=False) == "'2024-02-30 10:00:00.5 +01:00'"
    assert shown("1.000", hidden=True) == "'9.999'"
    assert shown("Über 12 Tokens", hidden=False) == "'Aaaa 99 Aaaaaa'"
    assert shown("NaN", hidden=True) == "'NaN'"
    assert shown("x" * 50, hidden=False) == f"'{'a' * 40}...'"
