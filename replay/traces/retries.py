"""Attempts after a failure: the same session sends the same prompt again."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

WINDOW_NS = 600 * 10**9
_FAILED = ("failed", "aborted")
_SAME = ("session", "model", "prompt_tokens")


@dataclass
class Retries:
    """Counts requests whose session sent a prompt of the same length to the same model before, which failed or was cut
    off, at most ten minutes ago. Takes the table in the order of arrival; one that crosses two slices is not seen."""

    requests: int = 0
    prompt_tokens: int = 0

    def add(self, frame: pl.DataFrame) -> None:
        """Takes the next rows of the canonical table."""
        if not frame["status"].is_in(_FAILED).any() or frame["session"].null_count() == frame.height:
            return
        known = frame.filter(pl.all_horizontal(pl.col("session", "prompt_tokens", "arrival_ns").is_not_null()))
        before = pl.col("status", "arrival_ns").shift(1).over(_SAME)
        found = known.with_columns(before.name.prefix("before_")).filter(
            pl.col("before_status").is_in(_FAILED),
            pl.col("arrival_ns") - pl.col("before_arrival_ns") <= WINDOW_NS,
        )
        self.requests += found.height
        self.prompt_tokens += int(found["prompt_tokens"].sum())
