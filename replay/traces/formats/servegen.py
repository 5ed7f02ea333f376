"""Requests drawn from ServeGen's client models: seconds, a client as tenant, reasoning inside the output.

Source: alibaba/ServeGen. Its client models themselves (rates and length tables) are not request traces and are refused.
"""

from __future__ import annotations

from replay.traces.formats.base import TableFormat

FORMATS = (
    TableFormat(
        name="servegen-requests",
        title="ServeGen requests",
        columns={
            "arrival": "timestamp_s",
            "prompt_tokens": "input_tokens",
            "output_tokens": "output_tokens",
            "reasoning_tokens": "reason_tokens",
            "tenant": "client_id",
        },
        required=("timestamp_s", "client_id", "input_tokens", "output_tokens"),
        optional=("reason_tokens",),
        time_unit="s",
    ),
)
