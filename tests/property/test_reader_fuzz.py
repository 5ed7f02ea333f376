"""Damaged files of every format: never a crash, never rows that do not add up (``bench/fuzz_readers.py`` does more)."""

import random
from collections import Counter
from pathlib import Path

import pytest
from log_makers import MAKERS as LOG_MAKERS
from trace_fuzz import check, damage
from trace_makers import MAKERS, calls

CASES = 25
FILES = {name: make(calls(12)) for name, make in {**MAKERS, **LOG_MAKERS}.items()}


@pytest.mark.parametrize("name", sorted(FILES))
def test_a_damaged_file_is_refused_with_a_reason_or_adds_up(name: str, tmp_path: Path) -> None:
    outcomes: Counter[str] = Counter()
    for case in range(CASES):
        rng = random.Random(f"{name} {case}")
        data = damage(FILES[name], FILES[rng.choice(sorted(FILES))], rng)
        try:
            outcomes[check(data, tmp_path, rng)] += 1
        except Exception as error:
            (tmp_path / "damaged").write_bytes(data)
            raise AssertionError(f"case {case} of {name}, kept in {tmp_path / 'damaged'}: {error!r}") from error
    assert len(outcomes) > 1, f"the damage is too small or too large to test anything: {outcomes}"
