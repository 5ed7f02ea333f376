"""Files that are recognised and hold no requests: refused with what they are and what to do instead."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import polars as pl

from replay.traces.cleaning import Ledger
from replay.traces.formats.base import Match
from replay.traces.options import IngestOptions
from replay.traces.rows import JSON_CONTAINERS, Sample, Table
from replay.traces.source import refusal

_CLIENT_RATES = re.compile(
    r"^\d+(?:\.\d+)?,[\d.eE+-]*,[\d.eE+-]*,(?:Gamma|Weibull|Poisson|Exponential)?,[\d.eE+-]*,[\d.eE+-]*$"
)
_CLIENT_FAMILY = re.compile(r",(?:Gamma|Weibull),")
_SYNTHETIC = "draw requests from it first, and upload those with a time, prompt tokens and output tokens each"


@dataclass(frozen=True)
class RefusedFormat:
    """A format that is known not to be a trace."""

    name: str
    title: str
    needs: tuple[str, ...]
    known: Callable[[Sample], bool]
    reason: str
    cure: str

    def detect(self, sample: Sample) -> Match | None:
        """Wins over formats that would take it for a trace."""
        return Match(f"this is {self.title}", 1000) if self.known(sample) else None

    def block_size(self, options: IngestOptions) -> int | None:
        """None: nothing is read."""
        return None

    def read(self, table: Table, options: IngestOptions, ledger: Ledger) -> Iterator[pl.DataFrame]:
        """See Format.

        Raises:
            TraceError: always.
        """
        raise refusal("no_requests", f"this is {self.title}: {self.reason}", self.name, self.cure)


def _client_rates(sample: Sample) -> bool:
    if sample.container != "text":
        return False
    lines = [str(row["line"]) for row in sample.rows]
    return (
        bool(lines)
        and all(_CLIENT_RATES.match(line) for line in lines)
        and any(_CLIENT_FAMILY.search(line) for line in lines)
    )


def _client_lengths(sample: Sample) -> bool:
    windows = [column for column in sample.columns if column.isdigit()]
    return (
        sample.container in JSON_CONTAINERS
        and bool(windows)
        and all(sample.has(f"{window}.input_tokens") or not sample.first(window) for window in windows[:10])
    )


def _offline(sample: Sample) -> bool:
    return (
        sample.container in JSON_CONTAINERS
        and sample.has("request_id", "type", "input_length")
        and (sample.has("img_ids") or sample.has("output_length", "duration"))
        and not any("time" in column.lower() for column in sample.columns)
    )


def _blis_header(sample: Sample) -> bool:
    return sample.container == "text" and str(sample.first("line")).startswith("trace_version:")


def _lengths(sample: Sample) -> bool:
    return sample.has("num_prefill_tokens", "num_decode_tokens") and not sample.has("arrived_at")


FORMATS = (
    RefusedFormat(
        name="servegen-client-rates",
        title="a ServeGen client model (rates by window)",
        needs=(),
        known=_client_rates,
        reason="it says how often a client sends, not which requests it sent",
        cure=_SYNTHETIC,
    ),
    RefusedFormat(
        name="servegen-client-lengths",
        title="a ServeGen client model (tables of lengths)",
        needs=(),
        known=_client_lengths,
        reason="it says how long a client's requests are, not which requests it sent",
        cure=_SYNTHETIC,
    ),
    RefusedFormat(
        name="servegen-offline",
        title="a ServeGen offline batch",
        needs=(),
        known=_offline,
        reason="a batch has no arrival times, all of its requests are there at once",
        cure="give each request a time (0 for all of a batch) and its output tokens, and upload it as our own format",
    ),
    RefusedFormat(
        name="blis-tracev2-header",
        title="the header of a BLIS TraceV2",
        needs=(),
        known=_blis_header,
        reason="the requests are in the CSV file beside it",
        cure="upload the CSV file",
    ),
    RefusedFormat(
        name="vidur-lengths",
        title="a table of lengths without times",
        needs=(),
        known=_lengths,
        reason="nothing says when a request arrives",
        cure="add a column arrived_at (s), e.g. from the arrival process that you plan for",
    ),
)
