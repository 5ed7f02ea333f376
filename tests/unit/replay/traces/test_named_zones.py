"""Times whose zone is named by letters: asked for, then proved name by name."""

import pytest

MAP = {"arrival": "t", "prompt_tokens": "p", "output_tokens": "o"}


def rows(*times: str) -> str:
    return "t,p,o\n" + "".join(f"{time},{10 + i},5\n" for i, time in enumerate(times))


def at(name: str, day: str = "2026-03-02") -> str:
    return rows(*(f"{day} 09:00:{i:02d} {name}" for i in range(40)))


@pytest.mark.parametrize(
    ("name", "example"),
    [
        ("EST", "zone=America/New_York if EST is that clock's"),
        ("(CET)", "zone=Europe/Berlin if CET is that clock's"),
        ("Asia/Tokyo", "zone=Asia/Tokyo"),
        ("XYZ", "zone=Europe/Berlin, whichever XYZ is"),
        ("PM PDT", "zone=America/Los_Angeles if PDT is that clock's"),
    ],
)
def test_the_zone_is_asked_for_with_an_example(lab, name: str, example: str) -> None:
    refusal = lab.refuse(at(name), mapping=MAP)
    assert (refusal.code, refusal.errors[0].field) == ("trace.named_zone", "zone")
    assert str(refusal.errors[0].cure).endswith(example)


def test_an_offset_behind_letters_is_to_be_written_alone(lab) -> None:
    refusal = lab.refuse(at("UTC+2"), mapping=MAP)
    assert (refusal.code, refusal.errors[0].field) == ("trace.named_zone", "file")
    assert lab.read(at("+02:00"), mapping=MAP).profile.start_utc == "2026-03-02T07:00:00.000+00:00"


@pytest.mark.parametrize(
    ("name", "day", "zone", "start"),
    [
        ("EST", "2026-03-02", "America/New_York", "2026-03-02T14"),
        ("EDT", "2026-07-02", "America/New_York", "2026-07-02T13"),
        ("est", "2026-03-02", "America/New_York", "2026-03-02T14"),
        ("Asia/Tokyo", "2026-03-02", "Asia/Tokyo", "2026-03-02T00"),
        ("PM CET", "2026-03-02", "Europe/Berlin", "2026-03-02T20"),
    ],
)
def test_the_cure_cures(lab, name: str, day: str, zone: str, start: str) -> None:
    report = lab.read(at(name, day), mapping=MAP, time_zone=zone)
    assert str(report.profile.start_utc).startswith(start)
    assert report.cleaning.rows_rejected == 0
    assert report.profile.heat_map_zone == zone


@pytest.mark.parametrize(
    ("day", "zone", "real"), [("2026-07-02", "America/New_York", "EDT"), ("2026-03-02", "Europe/Berlin", "CET")]
)
def test_a_name_that_the_zone_does_not_have_then_is_refused(lab, day: str, zone: str, real: str) -> None:
    """A clock that says EST all year read as New York's would be an hour off all summer."""
    refusal = lab.refuse(at("EST", day), mapping=MAP, time_zone=zone)
    assert (refusal.code, refusal.errors[0].field) == ("trace.named_zone", "zone")
    assert f"said to be EST, but is {real} in {zone}" in refusal.detail
    fixed = lab.read(at("EST", day).replace(" EST", ""), mapping=MAP, time_zone="Etc/GMT+5")
    assert str(fixed.profile.start_utc).startswith(f"{day}T14")


def test_names_tell_the_repeated_hour_apart_and_skipped_times_are_rejected(lab) -> None:
    autumn = [f"2026-10-25 02:{10 + i}:{i % 7:02d} {'CEST' if i < 20 else 'CET'}" for i in range(40)]
    assert lab.read(rows(*autumn), mapping=MAP, time_zone="Europe/Berlin").span_s == 3600 + 39 * 60 + 4
    spring = [f"2026-03-29 0{2 if i == 3 else 3}:{10 + i}:{i % 7:02d} CEST" for i in range(40)]
    report = lab.read(rows(*spring), mapping=MAP, time_zone="Europe/Berlin")
    assert report.cleaning.rejected_by_rule == {"time_does_not_exist": 1}


def test_names_and_none_are_not_mixed(lab) -> None:
    mixed = rows(*(f"2026-03-02 09:00:{i:02d}{' CET' if i % 2 else ''}" for i in range(40)))
    assert lab.refuse(mixed, mapping=MAP, time_zone="Europe/Berlin").code == "trace.mixed_zones"
    assert lab.refuse(at("CET") + "noon,3,5\n", mapping=MAP).code == "trace.named_zone"
