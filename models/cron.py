"""When a cron text in a time zone comes due.

Cron texts speak of local wall time. A local time that a clock change skips runs at the next valid instant, one that is
repeated runs once (the first time). ``zoneinfo`` decides; everything outside this module is UTC.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

from models.errors import InvalidError
from replay.errors import FieldError

MAX_CRON_LENGTH = 200
_HOSTS_OWN = ("localtime", "posixrules")
"""Files beside the zones that mean another zone on each host."""


def parse_zone(name: str) -> ZoneInfo:
    """The IANA zone. Raises InvalidError."""
    own = name in _HOSTS_OWN or name.startswith(("posix/", "right/"))
    try:
        return ZoneInfo("" if own else name)  # an empty name is refused
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        cure = "give an IANA name such as Europe/Berlin, America/New_York or UTC"
        raise InvalidError(
            f"unknown time zone {name[:60]!r}", code="schedule.zone", errors=[FieldError(cure, field="zone", cure=cure)]
        ) from error


def check_cron(text: str) -> None:
    """Raises InvalidError unless ``text`` is five cron fields (minute hour day month weekday) that come due."""
    cure = "write five fields: minute hour day-of-month month day-of-week, e.g. 0 6 * * 1 for Mondays at 06:00"
    problem = None
    if len(text) > MAX_CRON_LENGTH or len(text.split()) != 5:
        problem = "it does not have five fields"
    else:
        try:
            next(CronSim(text, datetime(2024, 1, 1)))  # local wall time, on purpose without a zone
        except CronSimError as error:
            problem = str(error)
        except StopIteration:
            problem = "it never comes due"
    if problem is not None:
        raise InvalidError(
            f"cannot read the cron text {text[:80]!r}: {problem}",
            code="schedule.cron",
            errors=[FieldError(problem, field="cron", cure=cure)],
        )


def occurrences(cron: str, zone_name: str, after: datetime) -> Iterator[datetime]:
    """Instants (UTC, ascending, distinct) strictly after ``after`` at which the cron text comes due."""
    zone = parse_zone(zone_name)
    check_cron(cron)
    # Wall times start early enough that a skipped or repeated hour before ``after`` is not lost.
    wall = after.astimezone(zone).replace(tzinfo=None) - timedelta(hours=26)
    last = after
    for local in CronSim(cron, wall):
        instant = _instant(local, zone)
        if instant > last:
            last = instant
            yield instant


def next_occurrence(cron: str, zone_name: str, after: datetime) -> datetime | None:
    """The first instant after ``after``, or ``None`` where the text has no further date."""
    return next(occurrences(cron, zone_name, after), None)


def _instant(local: datetime, zone: ZoneInfo) -> datetime:
    """The instant of a local wall time: the first of two, or where there is none the end of the gap."""
    instant = local.replace(tzinfo=zone, fold=0).astimezone(UTC)
    if instant.astimezone(zone).replace(tzinfo=None) == local:
        return instant
    # In a gap fold=0 reads the time with the offset before the change, fold=1 with the one after; it lies between.
    before, after = sorted((instant, local.replace(tzinfo=zone, fold=1).astimezone(UTC)))
    offset = before.astimezone(zone).utcoffset()
    while after - before > timedelta(seconds=1):
        middle = before + (after - before) / 2
        if middle.astimezone(zone).utcoffset() == offset:
            before = middle
        else:
            after = middle
    return after.replace(microsecond=0)
