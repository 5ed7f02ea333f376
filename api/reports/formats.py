"""Numbers as people read them. Every surface (pages, reports, command line) formats with these. ``None`` is ``-``."""

from __future__ import annotations

NONE = "-"


def seconds(value: float | None) -> str:
    """``0.0123`` -> ``12.3 ms``: three significant digits and a unit that fits."""
    if value is None:
        return NONE
    size = abs(value)
    if size >= 1000:
        return f"{value:,.0f} s"
    if size >= 1 or size == 0:
        return f"{value:.3g} s"
    return f"{value * 1e3:.3g} ms" if size >= 1e-3 else f"{value * 1e6:.3g} us"


def duration(value: float | None) -> str:
    """A span of a trace: ``90`` -> ``1.5 min``, ``7200`` -> ``2 h``, ``172800`` -> ``2 days``."""
    if value is None:
        return NONE
    for size, unit in ((86400.0, "days"), (3600.0, "h"), (60.0, "min")):
        if value >= size * (2 if unit == "days" else 1):
            return f"{value / size:.3g} {unit}"
    return seconds(value)


def usd(value: float | None) -> str:
    """Money: to the cent from a dollar up, three significant digits below."""
    if value is None:
        return NONE
    return f"{value:,.2f}" if abs(value) >= 1 or value == 0 else f"{value:.3g}"


def number(value: float | None) -> str:
    """``1234567`` -> ``1,234,567``; fractions to four significant digits."""
    if value is None:
        return NONE
    if isinstance(value, int) or (abs(value) >= 10_000 and value == int(value)):
        return f"{int(value):,}"
    return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.4g}"


def percent(value: float | None) -> str:
    """``0.123`` -> ``12.3 %``."""
    return NONE if value is None else f"{value * 100:.3g} %"


def share(value: float | None) -> str:
    """A share that may be close to all: ``0.99934`` -> ``99.934 %``."""
    return NONE if value is None else f"{value * 100:.5g} %"


def gib(value: float | None) -> str:
    """``12.345`` -> ``12.35``."""
    return NONE if value is None else f"{value:,.2f}"


def yes_no(value: bool | None) -> str:
    """``True`` -> ``yes``."""
    return NONE if value is None else ("yes" if value else "no")
