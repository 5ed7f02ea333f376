"""When schedules come due, through clock changes."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import islice

import pytest

from models import cron
from models.errors import InvalidError


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "zone", "after", "expected"),
    [
        # Berlin, 29 March 2026: 02:00 becomes 03:00 CEST at 01:00 UTC. A skipped time runs at the next valid instant.
        ("30 2 * * *", "Europe/Berlin", "2026-03-28T12:00", ["2026-03-29T01:00", "2026-03-30T00:30"]),
        ("0 3 * * *", "Europe/Berlin", "2026-03-28T12:00", ["2026-03-29T01:00", "2026-03-30T01:00"]),
        # Every half hour: 02:00 and 02:30 are skipped and fall on 03:00, which runs once.
        (
            "*/30 * * * *",
            "Europe/Berlin",
            "2026-03-29T00:29",
            ["2026-03-29T00:30", "2026-03-29T01:00", "2026-03-29T01:30"],
        ),
        # Berlin, 25 October 2026: 02:00 to 03:00 happens twice. A repeated time runs once, the first time.
        ("30 2 * * *", "Europe/Berlin", "2026-10-24T12:00", ["2026-10-25T00:30", "2026-10-26T01:30"]),
        ("0 3 * * *", "Europe/Berlin", "2026-10-24T12:00", ["2026-10-25T02:00", "2026-10-26T02:00"]),
        ("30 2 * * *", "Europe/Berlin", "2026-10-25T00:30", ["2026-10-26T01:30"]),
        # New York, 8 March 2026: 02:30 is skipped; EDT begins at 07:00 UTC.
        ("30 2 * * *", "America/New_York", "2026-03-08T00:00", ["2026-03-08T07:00", "2026-03-09T06:30"]),
        # Lord Howe moves by half an hour: 02:15 on 4 October 2026 is skipped; it changes at 15:30 UTC the day before.
        ("15 2 * * *", "Australia/Lord_Howe", "2026-10-03T12:00", ["2026-10-03T15:30", "2026-10-04T15:15"]),
        # Apia skipped all of 30 December 2011: that day's run is at the first instant of the 31st.
        ("0 12 * * *", "Pacific/Apia", "2011-12-29T23:00", ["2011-12-30T10:00", "2011-12-30T22:00"]),
        ("0 6 * * 1", "UTC", "2026-01-01T00:00", ["2026-01-05T06:00", "2026-01-12T06:00"]),
        ("0 0 29 2 *", "UTC", "2026-01-01T00:00", ["2028-02-29T00:00"]),
    ],
)
def test_occurrences(text: str, zone: str, after: str, expected: list[str]) -> None:
    found = list(islice(cron.occurrences(text, zone, utc(after)), len(expected)))
    assert found == [utc(one) for one in expected]


def test_occurrences_are_strictly_after_and_distinct() -> None:
    found = list(islice(cron.occurrences("* * * * *", "Europe/Berlin", utc("2026-10-24T23:58")), 300))
    assert found == sorted(set(found))
    assert found[0] == utc("2026-10-24T23:59")


@pytest.mark.parametrize("text", ["", "* * * *", "* * * * * *", "61 * * * *", "0 0 31 2 *", "x" * 300, "@daily"])
def test_an_impossible_cron_text_is_refused_with_the_cure(text: str) -> None:
    with pytest.raises(InvalidError) as refused:
        cron.check_cron(text)
    assert refused.value.code == "schedule.cron"
    assert "minute hour" in (refused.value.errors[0].cure or "")


@pytest.mark.parametrize("zone", ["", "Mars/Olympus", "../etc/passwd", "/etc/passwd", "Europe"])
def test_an_unknown_zone_is_refused(zone: str) -> None:
    with pytest.raises(InvalidError):
        cron.parse_zone(zone)
