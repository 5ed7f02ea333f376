"""Lines read by a pattern give what the parser gives, or the pattern leaves them to it."""

from __future__ import annotations

import json
import random
from typing import Any

import polars as pl
import pytest

from replay.traces import lines
from replay.traces.jsontemplate import make_template
from replay.traces.jsontext import parse_lines, to_batch
from replay.traces.rows import LINE

COLUMNS = ("at", "n", "who", "ids", "usage.input", "absent")


def by_pattern(text: str, columns: tuple[str, ...] = COLUMNS) -> pl.DataFrame | None:
    template = make_template(text[: text.index("\n")], columns)
    return None if template is None else template.frame(text.encode(), columns)


def by_parser(text: str, columns: tuple[str, ...] = COLUMNS) -> pl.DataFrame:
    batch = to_batch(parse_lines(lines.Lines(text.encode(), 1), columns), columns)
    assert not batch.faults
    return batch.frame.drop(LINE)


def same(text: str, columns: tuple[str, ...] = COLUMNS) -> None:
    found = by_pattern(text, columns)
    assert found is not None, "the pattern should take these lines"
    wanted = by_parser(text, columns)
    assert found.schema == wanted.schema
    assert found.equals(wanted)


def line(**values: Any) -> str:
    row = {"at": 1, "n": 2, "who": "x", "ids": [1, 2], "usage": {"input": 3}, **values}
    return json.dumps(row, ensure_ascii=False) + "\n"


ALIKE: dict[str, list[dict[str, Any]]] = {
    "integers": [{"n": 0}, {"n": -5}, {"n": 10**17}],
    "fractions keep their digits": [{"at": 1}, {"at": 0.1}, {"at": 1e300}, {"at": 123456789.123456}],
    "unknown values": [{"n": 1}, {"n": None}, {"who": None}, {"ids": None}],
    "nothing but unknown": [{"n": None, "ids": None}],
    "texts": [{"who": ""}, {"who": "null"}, {"who": "7"}, {"who": "Ångström 大 {}[],:"}],
    "a text among numbers": [{"n": 1}, {"n": "12"}, {"n": True}],
    "ids": [{"ids": []}, {"ids": [0, 2**64 - 1]}, {"ids": [7]}],
    "no ids at all": [{"ids": []}],
    "nested": [{"usage": {"input": None}}, {"usage": {"input": "x"}}],
    "columns that nobody asked for": [{"more": 'a "quoted" \\ text\n'}, {"more": 5}, {"more": None}],
}


@pytest.mark.parametrize("name", ALIKE)
def test_a_pattern_gives_what_the_parser_gives(name: str) -> None:
    first = {"more": "text"} if name.startswith("columns") else {}
    same(line(**first) + "".join(line(**values) for values in ALIKE[name]))
    if name in ("nothing but unknown", "no ids at all"):
        same(line(**ALIKE[name][0]))


def test_an_all_unknown_list_column_under_the_pattern_of_an_earlier_batch() -> None:
    template = make_template(line().rstrip("\n"), COLUMNS)
    assert template is not None
    text = line(ids=None)
    found = template.frame(text.encode(), COLUMNS)
    assert found is not None
    assert found.schema == by_parser(text).schema


UNLIKE = {
    "another key": line(extra=1),
    "a key less": '{"at": 1}\n',
    "another order": '{"n": 2, "at": 1, "who": "x", "ids": [1, 2], "usage": {"input": 3}}\n',
    "a key twice": '{"at": 1, "n": 2, "who": "x", "ids": [1, 2], "usage": {"input": 3}, "n": 2}\n',
    "white space": line().replace(": 2,", ":  2,"),
    "a blank line": "\n",
    "an escape": line(who='a "b"'),
    "half of a surrogate pair": line(who="?").replace("?", "\\ud800"),
    "a number with a leading zero": line().replace('"n": 2', '"n": 02'),
    "minus zero": line().replace('"n": 2', '"n": -0'),
    "a number beyond 64 bits": line(n=10**30),
    "an id beyond 64 bits": line(ids=[2**64]),
    "a negative id": line(ids=[-1]),
    "a list with a hole": line().replace("[1, 2]", "[1,, 2]"),
    "an object for a number": line(n={"a": 1}),
    "not a number": line(n=float("nan")),
    "two objects": line().rstrip("\n") + line(),
    "cut off": '{"at": 1, "n": 2\n',
}


@pytest.mark.parametrize("name", UNLIKE)
def test_a_line_that_differs_leaves_the_batch_to_the_parser(name: str) -> None:
    assert by_pattern(line() + line()) is not None
    assert by_pattern(line() + UNLIKE[name]) is None
    assert by_pattern(line() * 200 + UNLIKE[name]) is None, "also after the lines that are tried first"


@pytest.mark.parametrize(
    ("first", "columns"),
    [
        ('{"a.b": 1}', ("a.b",)),  # a key with a point, or a path
        ('{"a": {"b": 1}}', ("a", "a.b")),  # an object where a value is wanted
        ('{"a": {}, "b": 1}', ("a", "b")),
        ('{"a": [1.5], "b": 1}', ("b",)),
        ('{"a": 1, "a": 2}', ("a",)),
        ('{"a": {"x": 1}, "a": {"y": 2}}', ("a.x",)),
        ('{"a": 1} {"b": 2}', ("a",)),
        ('{"a": 1', ("a",)),
        ("[1, 2]", ("a",)),
        ('{"b": 1}', ("a",)),
        ('{"a":' * 50_000, ("a",)),
    ],
)
def test_no_pattern_is_made_of_a_line_that_is_not_plain(first: str, columns: tuple[str, ...]) -> None:
    assert make_template(first, columns) is None


def test_whatever_the_pattern_takes_the_parser_reads_alike() -> None:
    """Random lines, a few characters of which are changed."""
    draw = random.Random(5)
    taken = 0
    for _ in range(3_000):
        rows = [
            line(
                at=draw.choice([1, 2.5, -3, None, "2024-01-01"]),
                n=draw.choice([draw.randrange(10**6), None, 0.5, "5", True]),
                who=draw.choice(["a", "", None, 5, "ä"]),
                ids=draw.choice([[], [1], [draw.randrange(2**64)] * 3, None]),
            )
            for _ in range(draw.randint(1, 4))
        ]
        text = list("".join(rows))
        if draw.random() < 0.7:
            place = draw.randrange(len(text) - 1)
            text[place] = draw.choice('0123456789.eE-+"\\{}[],: tn\n')
        changed = "".join(text)
        found = by_pattern(changed)
        if found is not None:
            taken += 1
            wanted = by_parser(changed)
            assert (found.schema, found.rows()) == (wanted.schema, wanted.rows()), changed
    assert taken > 500
