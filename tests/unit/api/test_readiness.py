"""How often, and by whom, the dependencies are asked."""

from __future__ import annotations

import threading

import pytest

from api import readiness
from api.readiness import ReadinessProbe
from models.services import Services
from models.settings import Settings
from models.use_cases.health import Check


@pytest.mark.timeout(30)
def test_while_one_waits_the_others_get_the_last_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [[Check("database", True, "first")], [Check("database", False, "second")]]
    asked, may_answer = threading.Event(), threading.Event()
    may_answer.set()

    def ask(_: Services) -> list[Check]:
        asked.set()
        assert may_answer.wait(20)
        return answers.pop(0)

    monkeypatch.setattr(readiness, "readiness", ask)
    monkeypatch.setattr(readiness, "_FRESH_S", 0.0)
    probe = ReadinessProbe(Services(Settings(), None, None))  # type: ignore[arg-type] # nothing of it is used
    assert probe.checks()[0].detail == "first"
    asked.clear()
    may_answer.clear()
    waiting = threading.Thread(target=probe.checks)
    waiting.start()
    assert asked.wait(20)
    assert probe.checks()[0].detail == "first"
    may_answer.set()
    waiting.join()
    answers.append([Check("database", True, "third")])
    assert probe.checks()[0].detail == "third"
