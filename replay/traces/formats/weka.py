"""Weka's agentic coding sessions (kv-cache-tester): one session an object, requests with a session clock in seconds.

Source: callanjfox/kv-cache-tester, ``traces/``. Block ids count whole blocks only and mean nothing in another session;
sub-agents are nested, with times from their own start or on the session's clock. ``think_time`` is the client's wait.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from replay.traces.formats.links import scaled_ns
from replay.traces.formats.records import RecordFormat, RecordReading, Row, wants
from replay.traces.rows import JSON_CONTAINERS

NS = 10**9
_SLACK_NS = 10**9
"""Session clocks are rounded to seconds: an end so much after the next start is one that led to it."""
_ID_BITS = 36


@dataclass
class _Call:
    """A request on the session's clock."""

    entry: dict[str, Any]
    start_ns: int | None
    end_ns: int | None
    chain: str
    place: str


def _flatten(entries: list[dict[str, Any]], offset_ns: int, chain: str, place: str) -> list[_Call]:
    calls: list[_Call] = []
    for index, entry in enumerate(entries):
        start = scaled_ns(entry.get("t"), NS)
        start = None if start is None else start + offset_ns
        where = f"{place}[{index}]"
        if entry.get("type") != "subagent":
            spent = scaled_ns(entry.get("api_time"), NS)
            calls.append(_Call(entry, start, None if start is None or spent is None else start + spent, chain, where))
            continue
        nested = entry.get("requests") or []
        first = min((t for one in nested if (t := scaled_ns(one.get("t"), NS)) is not None), default=0)
        own_clock = start is not None and first + offset_ns < start
        inner = _flatten(nested, start if own_clock and start is not None else offset_ns, where, f"{where}.requests")
        calls.extend(inner)
    return calls


def _infer_ends(calls: list[_Call]) -> None:
    """Where the service time is missing, the next request of the chain tells: its start less its think time."""
    last: dict[str, _Call] = {}
    for call in calls:
        before = last.get(call.chain)
        think = scaled_ns(call.entry.get("think_time"), NS)
        if before is not None and before.end_ns is None and think is not None and call.start_ns is not None:
            before.end_ns = max(call.start_ns - think, before.start_ns or 0)
        last[call.chain] = call


def _expand(record: dict[str, Any], line: int, reading: RecordReading) -> list[Row]:
    size = record["block_size"]
    if reading.ledger.block_size is None:
        reading.ledger.block_size = size
        reading.ledger.assumed["block_size"] = f"{size} tokens, as the file says; whole blocks only"
    local = record.get("hash_id_scope") != "global"
    space = reading.state["sessions"] = reading.state.get("sessions", 0) + 1
    reading.ledger.assumed["prefix_scope"] = "a session: equal ids of two sessions are different blocks"
    reading.ledger.warn(
        "sessions_at_once",
        "the sessions have no start times in the file: all start at 0 s, and their rate is not the traffic's",
    )
    calls = _flatten(record["requests"], 0, "", "requests")
    _infer_ends(calls)
    calls.sort(key=lambda call: call.start_ns if call.start_ns is not None else 0)
    rows: list[Row] = []
    last: dict[str, int] = {}
    for number, call in enumerate(calls):
        entry = call.entry
        ids = entry.get("hash_ids")
        if local and isinstance(ids, list):
            ids = [_spaced(one, space) for one in ids]
        row: Row = {
            "arrival": entry.get("t") if call.start_ns is None else call.start_ns,
            "prompt_tokens": entry.get("in"),
            "output_tokens": entry.get("out"),
            "model": entry.get("model"),
            "session": record["id"],
            "prefix_blocks": ids,
            "source_e2e_ns": scaled_ns(entry.get("api_time"), NS),
            "source_ttft_ns": scaled_ns(entry.get("ttft"), NS),
        }
        if record["block_size"] != reading.ledger.block_size:
            row["rule"], row["column"] = "other_block_size", "block_size"
        before = _predecessor(calls[:number], call, last)
        if before is not None and call.start_ns is not None:
            think = scaled_ns(entry.get("think_time"), NS)
            same = before == last.get(call.chain)
            end = calls[before].end_ns
            row["after_back"] = number - before
            row["delay_ns"] = think if same and think is not None else max(0, call.start_ns - (end or call.start_ns))
        last[call.chain] = number
        rows.append(row)
    return rows


def _predecessor(earlier: list[_Call], call: _Call, last: dict[str, int]) -> int | None:
    """The request before in the chain, or a sub-agent's that ended later but before this one starts; a chain's first
    request follows the last to end before it."""
    if call.start_ns is None:
        return None
    own = last.get(call.chain)
    floor = earlier[own].end_ns if own is not None else None
    best, best_end = own, floor if floor is not None else -1
    for number, other in enumerate(earlier):
        if own is None:
            related = call.chain != other.chain
        else:
            related = other.chain.startswith(call.chain) and other.chain != call.chain
        if not related or other.end_ns is None or other.end_ns > call.start_ns + (_SLACK_NS if own is None else 0):
            continue
        if other.end_ns > best_end:
            best, best_end = number, other.end_ns
    return best


def _spaced(one: Any, space: int) -> Any:
    if type(one) is not int or not 0 <= one < 2**_ID_BITS or space >= 2 ** (64 - _ID_BITS):
        return None  # no id: the row is rejected
    return (space << _ID_BITS) | one


FORMATS = (
    RecordFormat(
        name="weka-agentic",
        title="Weka agentic coding sessions (kv-cache-tester)",
        needs=("id", "block_size", "hash_id_scope", "requests[] of t, in, out, hash_ids"),
        detector=wants(JSON_CONTAINERS, "id", "block_size", "hash_id_scope", "requests", title="sessions:"),
        expand=_expand,
        columns={
            "arrival": "requests.t",
            "prompt_tokens": "requests.in",
            "output_tokens": "requests.out",
            "model": "requests.model",
            "session": "id",
            "prefix_blocks": "requests.hash_ids",
        },
        time_unit="ns",
        said_unit="s",
        block_rule="floor",
        numbered=True,
    ),
)
