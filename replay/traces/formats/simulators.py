"""Inputs of other simulators: Vidur (seconds) and splitwise-sim (seconds).

Sources: microsoft/vidur trace request generator; Mutinifni/splitwise-sim trace files.
"""

from __future__ import annotations

from replay.traces.formats.base import TableFormat

FORMATS = (
    TableFormat(
        name="vidur",
        title="Vidur request trace",
        columns={
            "arrival": "arrived_at",
            "prompt_tokens": "num_prefill_tokens",
            "output_tokens": "num_decode_tokens",
        },
        required=("arrived_at", "num_prefill_tokens", "num_decode_tokens"),
        time_unit="s",
    ),
    TableFormat(
        name="splitwise-sim",
        title="splitwise-sim request trace",
        columns={
            "arrival": "arrival_timestamp",
            "prompt_tokens": "prompt_size",
            "output_tokens": "token_size",
            "tenant": "application_id",
        },
        required=("request_id", "arrival_timestamp", "prompt_size", "token_size"),
        optional=("request_type", "application_id", "batch_size"),
        time_unit="s",
    ),
)
