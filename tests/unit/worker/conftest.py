"""A migrated SQLite database for each test, and a clock that stands still."""

from servicetools import clock, migrated, principal, services

__all__ = ["clock", "migrated", "principal", "services"]
