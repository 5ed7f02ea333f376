"""Azure public LLM traces: 2023 (times without a zone), 2024 (with one), LMM 2025 (with image counts).

Source: Azure/AzurePublicDataset, AzureLLMInferenceDataset2023.md and its successors.
"""

from __future__ import annotations

import re

import polars as pl

from replay.traces.formats.base import Reading, TableFormat
from replay.traces.options import MappedField
from replay.traces.rows import Batch, Sample

_COLUMNS: dict[MappedField, str] = {
    "arrival": "TIMESTAMP",
    "prompt_tokens": "ContextTokens",
    "output_tokens": "GeneratedTokens",
}
_REQUIRED = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_ZONE = re.compile(r"(?:z|[+-]\d{2}:?\d{2})\s*$", re.I)


def _zoned(sample: Sample) -> bool:
    return bool(_ZONE.search(str(sample.first("TIMESTAMP") or "")))


def _images(frame: pl.DataFrame, batch: Batch, reading: Reading) -> pl.DataFrame:
    reading.ledger.assumed["image_tokens"] = (
        "ContextTokens taken as it stands: its publisher does not say if images are in"
    )
    reading.ledger.warn("images", "whether ContextTokens counts image tokens is not published; none were added")
    return frame


FORMATS = (
    TableFormat(
        name="azure-llm-2023",
        title="Azure LLM inference trace 2023",
        columns=_COLUMNS,
        required=_REQUIRED,
        absent=("NumImages",),
        accept=lambda sample: not _zoned(sample),
        naive_zone=("UTC", "UTC assumed by the format: the 2024 release of the same service writes +00:00"),
    ),
    TableFormat(
        name="azure-llm-2024",
        title="Azure LLM inference trace 2024",
        columns=_COLUMNS,
        required=_REQUIRED,
        absent=("NumImages",),
        accept=_zoned,
    ),
    TableFormat(
        name="azure-lmm-2025",
        title="Azure LMM inference trace 2025",
        columns=_COLUMNS,
        required=(*_REQUIRED, "NumImages"),
        hook=_images,
    ),
)
