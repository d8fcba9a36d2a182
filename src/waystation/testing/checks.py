"""Named checks: each is made, whatever the others find, and the result names those that failed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, TypeVar

from msgspec import Struct

CHECK_SECONDS: Final = 60.0
"""Seconds that one check may take, before `time_factor`."""

_Subject = TypeVar("_Subject")


class NotConformingError(AssertionError):
    """A transport or listener fails some checks; says which, and how."""


class Conformance(Struct, frozen=True):
    """The result of a check: the names of what was checked, in order."""

    passed: tuple[str, ...]


async def run_checks(
    checks: Mapping[str, Callable[[_Subject], Awaitable[None]]],
    subject: _Subject,
    time_factor: float,
) -> Conformance:
    """Make all checks of a subject, one after the other; raises NotConformingError."""
    seconds = CHECK_SECONDS * time_factor
    failures: list[str] = []
    for name, check in checks.items():
        try:
            async with asyncio.timeout(seconds):
                await check(subject)
        except Exception as error:  # noqa: BLE001 - what a transport does wrong may raise anything
            failures.append(f"{name}: {str(error) or f'not within {seconds:g} s'}")
    if failures:
        raise NotConformingError("; ".join(failures))
    return Conformance(tuple(checks))


def require(condition: object, problem: str) -> None:
    """Fail a check for a reason, unless a condition holds."""
    if not condition:
        raise AssertionError(problem)
