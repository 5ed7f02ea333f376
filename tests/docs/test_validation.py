"""The table of invariants names a test for each number, and those tests exist."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ROW = re.compile(r"^\| (\d+) \| [^|]+ \| ([^|]+) \|$", re.MULTILINE)


def test_every_invariant_has_a_test() -> None:
    rows = ROW.findall((ROOT / "docs/validation.md").read_text(encoding="utf-8"))
    assert [int(number) for number, _ in rows] == list(range(1, 35))
    for number, where in rows:
        tests = re.findall(r"`([\w/.]+)::(\w+)`", where)
        assert tests, number
        for file, test in tests:
            path = ROOT / (file if "/" in file else f"tests/property/{file}")
            assert re.search(rf"^def {test}", path.read_text(encoding="utf-8"), re.MULTILINE), (
                f"{number}: {file}::{test}"
            )
