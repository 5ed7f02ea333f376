"""Servers and programs that the tests talk to for real: PostgreSQL, Redis, Chromium."""
