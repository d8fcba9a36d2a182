"""Times as people write them. No Spark."""

from __future__ import annotations

from datetime import UTC, datetime

from waystation.errors import LocalError, quote


def instant(value: str | datetime) -> int:
    """A time in microseconds since the epoch; without a time zone it is UTC.

    >>> instant("1970-01-01T00:00:01Z"), instant("1970-01-01 01:00:00.000001+01:00")
    (1000000, 1)
    """
    found = value
    if isinstance(found, str):
        try:
            found = datetime.fromisoformat(found.strip())
        except ValueError:
            raise LocalError(
                f"invalid time {quote(value)}",
                rule="SP-1",
                hint="write it as 2026-11-15T12:00:00Z",
            ) from None
    if found.tzinfo is None:
        found = found.replace(tzinfo=UTC)
    past = found - datetime(1970, 1, 1, tzinfo=UTC)
    return (past.days * 86_400 + past.seconds) * 1_000_000 + past.microseconds
