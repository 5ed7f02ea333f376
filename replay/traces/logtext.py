"""Log text without columns: every line is one row with the column ``line``. Formats ask for it by ``detect_text``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import polars as pl

from replay.traces import lines
from replay.traces.rows import LINE, Batch, Fault, Sample
from replay.traces.source import Source

TEXT = "line"
_SAMPLE_LINES = 200


@dataclass(frozen=True)
class LogText:
    """An opened log."""

    source: Source
    sample: Sample

    def batches(self, columns: Sequence[str]) -> Iterator[Batch]:
        """All lines that are not blank, as text."""
        for batch in lines.batches(self.source):
            damaged = set(batch.damaged)
            numbers, texts, blank = [], [], 0
            for number, text in enumerate(batch.data.decode("utf-8").split("\n")[:-1], batch.first):
                if text.strip():
                    numbers.append(number)
                    texts.append(text)
                elif number not in damaged:
                    blank += 1
            frame = pl.DataFrame(
                {LINE: pl.Series(LINE, numbers, dtype=pl.Int64), TEXT: pl.Series(TEXT, texts, dtype=pl.String)}
            )
            yield Batch(frame, [Fault(number, "not_utf8") for number in sorted(damaged)], blank)


def open_log(source: Source) -> LogText:
    """The lines of the beginning as a sample."""
    first = next(lines.batches(source))
    head = first.data.split(b"\n", _SAMPLE_LINES)[:_SAMPLE_LINES]
    texts = [line.decode("utf-8") for line in head if line.strip()]
    return LogText(source, Sample("text", (TEXT,), tuple({TEXT: text} for text in texts)))
