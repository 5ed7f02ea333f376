"""Writes small trace files and reads them; each test has its own folder."""

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from replay.errors import TraceError
from replay.traces import canonical
from replay.traces.ingest import ingest
from replay.traces.options import IngestOptions
from replay.traces.report import IngestReport


class Lab:
    """One folder: ``read`` ingests bytes, ``table`` is the canonical table of the last ingest."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.out = folder / "canonical.parquet"
        self.source = folder / "upload"

    def read(self, data: bytes | str, **options: Any) -> IngestReport:
        self.source.write_bytes(data.encode() if isinstance(data, str) else data)
        return ingest(self.source, self.out, IngestOptions(**options))

    def refuse(self, data: bytes | str, **options: Any) -> TraceError:
        """The refusal of ``data``; nothing may be left behind."""
        with pytest.raises(TraceError) as caught:
            self.read(data, **options)
        assert sorted(path.name for path in self.folder.iterdir()) == ["upload"], "a refused ingest leaves no file"
        assert caught.value.detail
        assert caught.value.errors, "a refusal says what to do"
        assert all(error.detail for error in caught.value.errors)
        return caught.value

    def refuse_again(self, data: bytes | str, **options: Any) -> TraceError:
        """The same, where an earlier file was read: its table is taken away first."""
        self.out.unlink(missing_ok=True)
        return self.refuse(data, **options)

    @property
    def table(self) -> pl.DataFrame:
        return canonical.scan(self.out).collect()


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path)


@pytest.fixture
def own_csv() -> Callable[..., str]:
    """A CSV in our own format with ``n`` good rows, then the given rows."""

    def make(*rows: str, n: int = 100, header: str = "arrival_s,prompt_tokens,output_tokens") -> str:
        extra = "," * (header.count(",") - 2)
        good = [f"{i * 0.5:.3f},{100 + i},{10 + i}{extra}" for i in range(n)]
        return "\n".join([header, *good, *rows]) + "\n"

    return make


@pytest.fixture
def gz() -> Callable[[bytes | str], bytes]:
    return lambda data: gzip.compress(data.encode() if isinstance(data, str) else data, mtime=0)
