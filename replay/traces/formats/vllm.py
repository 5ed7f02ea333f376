"""vLLM's request log: lines of a server's text log, without a year, a zone or fractions of a second.

Source: vllm-project/vllm, ``vllm/entrypoints/logger.py`` and the engine's own lines, several versions. A request is
received, added, and generates a response, is finished or aborted, under one id. Lists of token ids may be cut by
``--max-log-len``: a length that many lists share as the longest is taken for the cut, and is then unknown.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from replay.traces.formats.base import Match
from replay.traces.formats.logline import LineReader, strip
from replay.traces.formats.records import RecordFormat, RecordReading, Row, records_of
from replay.traces.formats.serverclock import clock_of
from replay.traces.formats.values import elapsed_ns, iso, naive_ns
from replay.traces.rows import Sample

_HEAD = re.compile(
    r"^(?:DEBUG|INFO|WARNING|ERROR|CRITICAL):?\s+(\d{2})-(\d{2}) (\d{2}):(\d{2}):(\d{2})(?:[.,](\d{1,9}))?\s+"
    r"\[?[^\s\[\]]+:\d+\]\s?(.*)$",
    re.DOTALL,
)
_RECEIVED = re.compile(r"Received request (\S+?): (.*)$", re.DOTALL)
_ADDED = re.compile(r"Added request (\S+?)\.?\s*$")
_GENERATED = re.compile(r"Generated response (\S+?)(?: \((streaming complete|streaming delta)\))?: (.*)$", re.DOTALL)
_ENDED = re.compile(
    r"(?:(Finished) request (\S+?)\.?|(Aborted) request\(?s?\)? (\S+?)\.?|Request (\S+?) (aborted|failed)\b.*)\s*$"
)
_PARAMS = re.compile(r"params: \w+\(")
_LEAD = re.compile(r", ?(?:sampling[_ ])?\Z")
_LEAD_LENGTH = len(", sampling_")
_PROMPT_IDS = re.compile(r"prompt[_ ]token[_ ]ids: \[([\d, ]*)\]")
_SUFFIX = re.compile(r"-[0-9a-f]{8}$")
"""What newer engines put behind an id once the request is added."""
_OUTPUT_IDS = re.compile(r"output_token_ids: (?:\[|\(|array\('[A-Za-z]', \[)([\d, ]*)")
_MAX_PROMPT_LINES = 5_000
_CUT_ROWS = 3
_CUT_SHARE = 0.2


@dataclass
class _Line:
    """A log line without what surrounds it."""

    number: int
    text: str
    at: str | None = None
    """Time as ``arrival`` wants it; ``None``: the line has none, it goes on with the one before."""


@dataclass
class _Open:
    """A received line whose prompt has line breaks: its end is in a later line."""

    line: _Line
    request_id: str
    swallowed: int = 0
    inside: list[_Line] = field(default_factory=list)
    """Lines in it that look like whole received lines."""


@dataclass
class _State:
    """What is known between lines."""

    waiting: dict[str, Row] = field(default_factory=dict)
    open: _Open | None = None
    added: dict[str, str] = field(default_factory=dict)
    """Requests that were added and not received: id as received to the engine's id."""
    lines: LineReader = field(default_factory=LineReader)
    cut_prompt: int | None = None
    cut_output: int | None = None
    unknown_ends: int = 0
    finished: int = 0


def _list_length(found: str) -> int:
    return found.count(",") + 1 if found.strip() else 0


def _prompt_length(rest: str) -> int | None:
    """Ids of the prompt, looked for after the last parameters: the prompt before may hold any text."""
    start = _last_params(rest)
    match = _PROMPT_IDS.search(rest, start) if start is not None else None
    return _list_length(match.group(1)) or None if match else None


def _last_params(rest: str) -> int | None:
    """Where the last ``params: Name(`` ends; found from the end, as a list of ids after it may be very long."""
    at = rest.rfind("params: ")
    while at >= 0:
        before = rest[at - _LEAD_LENGTH : at] if at > _LEAD_LENGTH else f",{rest[:at]}"
        name = _PARAMS.match(rest, at)
        if name is not None and _LEAD.search(before):
            return name.end()
        at = rest.rfind("params: ", 0, at)
    return None


def _output_length(rest: str) -> int | None:
    at = rest.rfind("output_token_ids: ")
    match = _OUTPUT_IDS.match(rest, at) if at >= 0 else None
    return _list_length(match.group(1)) if match else None


def _read(raw: str, number: int, reading: RecordReading, state: _State) -> _Line | None:
    found = state.lines.bare(raw)
    if found is None:
        return None
    text, stamp = found
    match = _HEAD.match(text)
    if match is None:
        return _Line(number, text)
    if stamp is not None:
        whole = naive_ns(stamp)
        return _Line(number, match.group(7), iso(whole[0]) if whole else "?")
    month, day, hour, minute, second = (int(match.group(i)) for i in range(1, 6))
    rest = ((hour * 60 + minute) * 60 + second) * 10**9 + int((match.group(6) or "").ljust(9, "0") or 0)
    clock = clock_of(reading, has_year=False)
    ns = clock.in_year(month, day, rest)
    return _Line(number, match.group(7), clock.arrival(ns, number) if ns is not None else "?")


def _expand(record: dict[str, Any], line: int, reading: RecordReading) -> list[Row]:
    state: _State | None = reading.state.get("vllm")
    if state is None:
        state = reading.state["vllm"] = _State()
        state.cut_prompt, state.cut_output = _cuts(reading)
    read = _read(record.get("line") or "", line, reading, state)
    if read is None:
        return []
    return _inside_prompt(read, reading, state)


def _inside_prompt(line: _Line, reading: RecordReading, state: _State) -> list[Row]:
    """A line, while a prompt is open: its end, a part of it, or a sign that its end never came."""
    opened = state.open
    if opened is None:
        return _line(line, reading, state)
    whole = _RECEIVED.search(line.text) if line.at is not None else None
    added = _ADDED.match(line.text) if line.at is not None else None
    ids = {opened.request_id, *(_id(item) for item in opened.inside)}
    if added is not None and {added.group(1), _SUFFIX.sub("", added.group(1))} & ids:
        return [*_give_up(reading, state), *_line(line, reading, state)]
    if whole is not None and _PARAMS.search(line.text):
        opened.inside.append(line)
        return []
    if _PARAMS.search(line.text):
        state.open = None
        return _register(opened.line, opened.request_id, _prompt_length(line.text), state)
    opened.swallowed += 1
    return _give_up(reading, state) if opened.swallowed > _MAX_PROMPT_LINES else []


def _id(line: _Line) -> str | None:
    match = _RECEIVED.search(line.text)
    return match.group(1) if match else None


def _give_up(reading: RecordReading, state: _State) -> list[Row]:
    """The open prompt's end is missing: its length is unknown, and received lines inside it stand for themselves."""
    opened, state.open = state.open, None
    if opened is None:
        return []
    rows = _register(opened.line, opened.request_id, None, state)
    for line in opened.inside:
        rows += _line(line, reading, state)
    return rows


def _register(line: _Line, request_id: str, prompt: int | None, state: _State) -> list[Row]:
    before = state.waiting.pop(request_id, None)
    state.waiting[request_id] = {
        "line": line.number,
        "arrival": line.at,
        "prompt_tokens": None if prompt is not None and prompt == state.cut_prompt else prompt,
        "status": "unknown",
        "request_id": request_id,
    }
    return [before] if before is not None else []


def _line(line: _Line, reading: RecordReading, state: _State) -> list[Row]:
    """One line outside of prompts."""
    if line.at is None:
        reading.not_request("other log lines")
        return []
    if (match := _RECEIVED.match(line.text)) is not None:
        if match.group(2).startswith("prompt: ") and not _PARAMS.search(match.group(2)):
            state.open = _Open(line, match.group(1))
            return []
        _forget_added(match.group(1), state)
        return _register(line, match.group(1), _prompt_length(match.group(2)), state)
    if (match := _ADDED.match(line.text)) is not None:
        if _own_id(match.group(1), state) is not None:
            reading.not_request("other log lines")
            return []
        state.added[_SUFFIX.sub("", match.group(1))] = match.group(1)
        return _register(line, match.group(1), None, state)
    if (match := _GENERATED.match(line.text)) is not None:
        return _generated(match, line, reading, state)
    if (match := _ENDED.match(line.text)) is not None:
        return _ended(match, line, reading, state)
    reading.not_request("other log lines")
    return []


def _forget_added(request_id: str, state: _State) -> None:
    """In a log with the newest line first a request is added before it is received: that is one request."""
    engine_id = state.added.pop(request_id, None)
    if engine_id is not None:
        state.waiting.pop(engine_id, None)


def _generated(match: re.Match[str], line: _Line, reading: RecordReading, state: _State) -> list[Row]:
    if match.group(2) == "streaming delta":
        reading.not_request("parts of answers")
        return []
    row = _leave(match.group(1), reading, state)
    if row is None:
        return []
    output = _output_length(match.group(3))
    row["output_tokens"] = None if output is not None and output == state.cut_output else output
    row["status"] = "aborted" if match.group(3).rstrip().endswith("finish_reason: abort") else "ok"
    row["source_e2e_ns"] = _between(row["arrival"], line.at)
    state.finished += 1
    return [row]


def _ended(match: re.Match[str], line: _Line, reading: RecordReading, state: _State) -> list[Row]:
    finished, first_id, _, second_id, third_id, verb = match.groups()
    row = _leave(first_id or second_id or third_id, reading, state)
    if row is None:
        return []
    row["status"] = "ok" if finished else "failed" if verb == "failed" else "aborted"
    row["source_e2e_ns"] = _between(row["arrival"], line.at)
    return [row]


def _leave(request_id: str, reading: RecordReading, state: _State) -> Row | None:
    """The request that ends; one that ended before leaves in silence, one that never came is counted."""
    row = state.waiting.pop(_own_id(request_id, state) or request_id, None)
    if row is None:
        reading.not_request("ends of requests that began before the log, or that ended twice")
    return row


def _own_id(engine_id: str, state: _State) -> str | None:
    """The waiting id that the engine's own belongs to: ``0_ID`` for one of n answers, ``ID-1a2b3c4d`` once added."""
    for name in (engine_id, engine_id.partition("_")[2]):
        for form in (name, _SUFFIX.sub("", name)):
            if form in state.waiting:
                return form
    return None


def _between(start: Any, end: str | None) -> int | None:
    """Between two times of one log: both calendar, or both seconds since its beginning."""
    if start is None or end is None:
        return None
    if "T" in str(start):
        return elapsed_ns(start, end)
    try:
        ns = round((float(end) - float(start)) * 10**9)
    except ValueError:
        return None
    return ns if ns >= 0 else None


def _cuts(reading: RecordReading) -> tuple[int | None, int | None]:
    """The lengths at which lists of prompt and of output ids were cut, by a first look at the whole log."""
    prompts: Counter[int] = Counter()
    outputs: Counter[int] = Counter()
    for records in records_of(reading.table) if reading.table is not None else ():
        for record in records.objects:
            text = record.get("line") or ""
            if "prompt_token_ids: [" in text and (length := _prompt_length(text)):
                prompts[length] += 1
            elif "output_token_ids: " in text and "(streaming delta)" not in text and (length := _output_length(text)):
                outputs[length] += 1
    found = (_cut(prompts), _cut(outputs))
    for what, cut, seen in (("prompts", found[0], prompts), ("outputs", found[1], outputs)):
        if cut is not None:
            reading.ledger.warn(
                f"cut_{what}",
                f"{seen[cut]:,} of {sum(seen.values()):,} {what} list exactly {cut:,} ids, and none lists more: the "
                "server most likely cut the lists (--max-log-len). Their lengths are taken as unknown; take counts "
                "from a gateway's log",
            )
    return found


def _cut(lengths: Counter[int]) -> int | None:
    if not lengths:
        return None
    longest = max(lengths)
    many = lengths[longest] >= _CUT_ROWS and lengths[longest] >= _CUT_SHARE * sum(lengths.values())
    return longest if many else None


def _finish(reading: RecordReading) -> list[Row]:
    state: _State | None = reading.state.get("vllm")
    if state is None:
        return []
    rows = _give_up(reading, state)
    if state.waiting:
        reading.ledger.warn(
            "unfinished",
            f"{len(state.waiting):,} requests have no line of their end: their output is unknown (answers are logged "
            "with --enable-log-outputs only)",
        )
    return rows + list(state.waiting.values())


def _detect(sample: Sample) -> Match | None:
    if sample.container != "text":
        return None
    heads = requests = 0
    for row in sample.rows:
        match = _HEAD.match(strip(str(row.get("line")))[0])
        heads += match is not None
        requests += match is not None and any(
            form.match(match.group(7)) for form in (_RECEIVED, _ADDED, _GENERATED, _ENDED)
        )
    if requests == 0 and heads < max(3, len(sample.rows) // 2):
        return None
    return Match(f"log text with {heads} lines like INFO 11-29 10:05:00 [file:line], {requests} of requests", 5)


FORMATS = (
    RecordFormat(
        name="vllm-request-log",
        title="vLLM request log",
        needs=("lines like INFO 11-29 10:05:00 [logger.py:39] Received request ID: ...",),
        detector=_detect,
        expand=_expand,
        finish=_finish,
        columns={
            "arrival": "time of Received request",
            "prompt_tokens": "length of prompt_token_ids",
            "output_tokens": "length of output_token_ids",
            "request_id": "request id",
        },
        time_unit="s",
        computes_times=True,
        settles_cached=True,
        arrivals_only="vLLM's log states no token counts, only lists of ids that may be missing or cut; take counts "
        "from a gateway's log",
    ),
)
