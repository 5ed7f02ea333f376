"""Strict JSON: bounded in size, depth and numbers; text that every database stores."""

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.strict import MAX_JSON_BYTES, MAX_JSON_DEPTH, parse_json
from models.errors import InvalidError

_LEAVES = (
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
)
_TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=20)
_VALUES = st.recursive(_LEAVES | _TEXT, lambda v: st.lists(v, max_size=4) | st.dictionaries(_TEXT, v, max_size=4))


@given(_VALUES)
def test_what_json_writes_is_read_back(value):
    assert parse_json(json.dumps(value).encode()) == value


@pytest.mark.parametrize(
    ("body", "rule"),
    [
        (b"{", "syntax"),
        (b"{'a': 1}", "syntax"),
        (b"", "syntax"),
        (b"\xff", "utf8"),
        (b'\xef\xbb\xbf{"a": 1}', "syntax"),
        (b"NaN", "finite"),
        (b"[-Infinity]", "finite"),
        (b"1e400", "finite"),
        (b"-1e400", "finite"),
        (b"9223372036854775808", "int64"),
        (b"-9223372036854775809", "int64"),
        (b"1" * 5000, "int64"),
        (b'"\\u0000"', "text"),
        (b'{"\\udfff": 1}', "text"),
        (b'{"a": 1, "a": 1}', "duplicate"),
        (b"[" * (MAX_JSON_DEPTH + 1) + b"]" * (MAX_JSON_DEPTH + 1), "depth"),
        (b'{"a":' * (MAX_JSON_DEPTH + 1) + b"1" + b"}" * (MAX_JSON_DEPTH + 1), "depth"),
    ],
)
def test_what_is_refused_names_the_rule(body, rule):
    with pytest.raises(InvalidError) as refused:
        parse_json(body)
    assert refused.value.errors[0].rule == rule


def test_the_depth_limit_itself_is_read():
    assert parse_json(b"[" * MAX_JSON_DEPTH + b"]" * MAX_JSON_DEPTH)


def test_brackets_inside_texts_are_no_depth():
    text = '["\\"' + "[{" * 100 + '\\\\"]'
    assert parse_json(text.encode()) == json.loads(text)


def test_the_ends_of_int64_are_read():
    assert parse_json(b"[9223372036854775807, -9223372036854775808]") == [2**63 - 1, -(2**63)]


@pytest.mark.parametrize("unit", [b'"', b'\\"', b'"\\', b"[", b'{"', b"\\", b'"[' * 2])
def test_a_body_made_to_be_slow_is_refused_in_linear_work(unit):
    """Doubling the body must not quadruple the work; measured in processor time with a wide margin."""

    def seconds(size: int) -> float:
        body = (unit * size)[:size]
        started = time.process_time()
        with pytest.raises(InvalidError):
            parse_json(body)
        return time.process_time() - started

    assert seconds(MAX_JSON_BYTES) < 50 * max(seconds(MAX_JSON_BYTES // 8), 0.01)
