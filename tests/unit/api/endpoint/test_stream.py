"""Server-sent events of several servers, split anywhere -> token times, and what cannot be known is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from api.endpoint.faults import PassingFaultError
from api.endpoint.stream import EventStream, answer_of
from replay.experiment.answers import Answer, UnusableAnswersError

USAGE = {"prompt_tokens": 100, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 16}}


def text(*, finish: str | None = None, words: str = " a", **more: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "text": words, "finish_reason": finish}], **more}


def chat(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


def read(events: list[dict[str, Any]], *, done: bool = True, max_tokens: int = 3, ids: int | None = 100) -> Answer:
    """The answer of events that come one a second from 1 s on."""
    stream = EventStream()
    for second, event in enumerate(events, start=1):
        stream.feed(b"data: " + json.dumps(event).encode() + b"\r\n\r\n", float(second))
    if done:
        stream.feed(b"data: [DONE]\n\n", len(events) + 1.0)
    return answer_of(stream, 0.5, max_tokens, ids, "sk-1")


def test_events_split_anywhere_have_the_time_of_their_last_byte() -> None:
    whole = b": ping\n\ndata: " + json.dumps(text()).encode() + b"\n\ndata: [DONE]\n\n"
    for at in range(1, len(whole)):
        stream = EventStream()
        stream.feed(whole[:at], 1.0)
        stream.feed(whole[at:], 2.0)
        assert len(stream.events) == 1
        assert stream.done
        assert stream.events[0][0] == (1.0 if whole[:at].count(b"}\n") else 2.0)


def test_a_completion() -> None:
    answer = read([text(), text(), text(finish="length"), {"choices": [], "usage": USAGE}])
    assert answer.times_s.tolist() == [1, 2, 3]
    assert answer.token_times_s.tolist() == [1, 2, 3]
    assert (answer.sent_s, answer.prompt_tokens, answer.cached_tokens) == (0.5, 100, 16)


def test_a_chat_begins_with_the_role_and_may_end_with_an_empty_chunk() -> None:
    words = [chat({"content": "a"}) for _ in range(2)]
    events = [chat({"role": "assistant", "content": ""}), *words, chat({"content": "c"}, "length")]
    assert read([*events, {"choices": [], "usage": USAGE}]).times_s.tolist() == [2, 3, 4]
    events = [chat({"role": "assistant", "content": "a"}), *words, chat({}, "length")]
    assert read([*events, {"choices": [], "usage": USAGE}]).times_s.tolist() == [1, 2, 3]
    thoughts = [chat({"role": "assistant", "content": ""}), *(chat({"reasoning_content": "a"}) for _ in range(3))]
    assert read([*thoughts, {"choices": [], "usage": USAGE}]).times_s.tolist() == [2, 3, 4]


def test_usage_by_chunk_says_how_many_tokens_each_has() -> None:
    counts = [{"prompt_tokens": 100, "completion_tokens": n} for n in (1, 1, 3)]
    answer = read([text(usage=counts[0]), text(usage=counts[1], words=""), text(usage=counts[2], finish="length")])
    assert answer.tokens.tolist() == [1, 3]
    assert answer.times_s.tolist() == [1, 3]
    assert answer.token_times_s.tolist() == [1, 3, 3]


def test_without_usage_an_answer_that_ran_to_its_limit_is_known_all_the_same() -> None:
    assert read([text(), text(), text(finish="length")]).output_tokens == 3
    for events, ids, what in (
        ([text(), text(finish="stop")], 100, "the answer has"),
        ([text(), text(), text(finish="length")], None, "the prompt has"),
    ):
        with pytest.raises(UnusableAnswersError, match=what):
            read(events, ids=ids)


@pytest.mark.parametrize(
    ("events", "said"),
    [
        ([text(), text()], "cut before its end"),
        ([text(), {"error": {"message": "engine died of sk-1"}}], "engine died of \\*\\*\\*"),
        ([text(), [1]], "no JSON object"),  # type: ignore[list-item] # a poisoned event
    ],
)
def test_broken_streams_may_be_tried_again(events: list[dict[str, Any]], said: str) -> None:
    with pytest.raises(PassingFaultError, match=said):
        read(events, done=False)


@pytest.mark.parametrize(
    ("events", "usage", "said"),
    [
        ([text(), text(finish="length")], {"completion_tokens": 3}, "3 tokens came in 2 chunks"),
        ([text(), text(finish="length")], {"completion_tokens": 9}, "ignores the limit"),
        ([text(finish="stop", words="")], {"completion_tokens": 0}, "holds no token"),
    ],
)
def test_answers_without_known_counts_are_refused(
    events: list[dict[str, Any]], usage: dict[str, int], said: str
) -> None:
    with pytest.raises(UnusableAnswersError, match=said):
        read([*events, {"choices": [], "usage": {"prompt_tokens": 100, **usage}}])
