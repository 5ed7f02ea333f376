"""What the lengths of a session's later turns count: whole prompts, or only what each turn adds (Dynamo's
mooncake-delta). Nothing in a file says it outright, so lengths that look added are asked about."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from hashlib import blake2b

from replay.errors import FieldError, TraceError, curable
from replay.traces.formats.records import RecordReading, Row
from replay.traces.formats.values import number
from replay.traces.jsontext import is_ids

_TELLING_TURNS, _ADDED_SHARE, _REJECTED_SHARE = 10, 0.8, 0.05


@dataclass
class _Text:
    """What a session has said so far."""

    tokens: int
    shared: tuple[int, ...] | None
    """Ids of the first turn's full blocks; ``None``: it has no ids."""


def settle_lengths(row: Row, session: str, reading: RecordReading, block_tokens: int) -> None:
    """Makes the row's prompt whole where ``turn_lengths`` says that it is what the turn adds; where nothing is said,
    notes what tells.

    As Dynamo's replay accumulates them: the prompt and the output of the turn before come first. After a turn without
    lengths, prompts are unknown. Ids of added text are counted from its own start, where no block of the whole prompt
    begins: the first turn's full blocks keep theirs, what follows has ids of the session. So it is shared within the
    session and not between sessions.

    Raises:
        TraceError: ``trace.turn_order``: lengths are to be added up, and a turn has an earlier time than one before it.
    """
    if reading.options.turn_lengths == "added":
        _check_order(row, session, reading)
        _make_whole(row, session, reading, block_tokens)
    elif reading.options.turn_lengths is None:
        _note(row, session, reading)


def _check_order(row: Row, session: str, reading: RecordReading) -> None:
    times: dict[str, Decimal] = reading.state.setdefault("turn_times", {})
    at = number(row["arrival"])
    if at is None:
        return
    if at < times.get(session, at):
        cure = "write the turns of a session in the order in which they were sent: sort the file by timestamp"
        what = "a turn comes after a later turn of its session, so what turns have added cannot be added up"
        raise curable("trace.turn_order", what, cure, "file", column="timestamp")
    times[session] = at


def _make_whole(row: Row, session: str, reading: RecordReading, block_tokens: int) -> None:
    texts: dict[str, _Text | None] = reading.state.setdefault("texts", {})
    if not texts:
        reading.ledger.assumed["turn_lengths"] = "added, as asked (turn_lengths): the turns before come first"
    first, text = session not in texts, texts.get(session)
    prompt, output, ids = row["prompt_tokens"], row["output_tokens"], row["prefix_blocks"]
    if not _is_count(prompt) or not _is_count(output) or (text is None and not first):
        texts[session] = None
        if not first and _is_count(prompt):
            row["prompt_tokens"] = row["prefix_blocks"] = None
        return
    if text is None:
        shared = tuple(ids[: prompt // block_tokens]) if ids and is_ids(ids) else None
        texts[session] = _Text(prompt + output, shared)
        return
    whole = text.tokens + prompt
    row["prompt_tokens"] = whole
    if text.shared is not None:
        own = [_id(session, place) for place in range(len(text.shared), -(-whole // block_tokens))]
        if whole % block_tokens and len(own):
            own[-1] = _id(session, f"end of {whole}")
        row["prefix_blocks"] = [*text.shared, *own]
    else:
        row["prefix_blocks"] = None
    text.tokens = whole + output


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**40


def _id(session: str, place: int | str) -> int:
    return int.from_bytes(blake2b(f"{session}\0{place}".encode(), digest_size=8).digest())


def _note(row: Row, session: str, reading: RecordReading) -> None:
    """Counts turns that are shorter than what they would repeat of the turn before, and do not begin with its blocks:
    all of them, where the file gives what a turn adds."""
    prompt, output, ids = row["prompt_tokens"], row["output_tokens"], row["prefix_blocks"]
    if not isinstance(prompt, int) or not isinstance(output, int):
        return
    before: dict[str, tuple[int, object]] = reading.state.setdefault("lengths", {})
    turns: dict[str, int] = reading.state.setdefault("turns", {"all": 0, "shorter": 0, "rejected": 0})
    first_block = ids[0] if isinstance(ids, list) and ids else None
    if session in before:
        tokens, block = before[session]
        turns["all"] += 1
        turns["shorter"] += prompt < tokens and (block is None or block != first_block)
    elif not before:
        reading.at_end.append(lambda: _check(turns))
    turns["rejected"] += "rule" in row
    before[session] = (prompt + output, first_block)


def _check(turns: dict[str, int]) -> None:
    """Refuses a file whose later turns are nearly all shorter than what they follow.

    Raises:
        TraceError: ``trace.ambiguous_turns``.
    """
    few = turns["all"] < _TELLING_TURNS or turns["shorter"] <= _ADDED_SHARE * turns["all"]
    if few or turns["rejected"] > _REJECTED_SHARE * turns["all"]:  # turns out of order say nothing
        return
    choices = (
        ("added", "a turn's length counts only what it adds to the turn before (mooncake-delta)"),
        ("whole", "a turn's length is its whole prompt, and the history is cut or left out"),
    )
    raise TraceError(
        "trace.ambiguous_turns",
        f"{turns['shorter']:,} of {turns['all']:,} later turns are shorter than the turn before and its output "
        "together: the lengths may leave out what the turns before have said, and the prompts would be far too short. "
        "Say which by the parameter turn_lengths (added or whole)",
        [
            FieldError(
                f"{what}: then give turn_lengths={name}",
                field="turn_lengths",
                column="input_length",
                rule="ambiguous_turns",
                cure=f"turn_lengths={name}",
            )
            for name, what in choices
        ],
    )
