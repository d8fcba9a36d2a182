"""Alerts for a batch: drops, flapping routes, missing messages.

Batches in, alerts out; a callback gets the alerts. No Spark here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Final, Literal

from msgspec import Struct

from waystation.errors import LocalError
from waystation.pipeline.watching.engine import Batch
from waystation.pipeline.watching.node_step import Report

_MINUTE: Final = 60_000_000


class Alert(Struct, frozen=True):
    """A condition that needs attention.

    `value` is what was found and `limit` what it was compared with: a share of messages, changes
    in a minute, or a number of messages.
    """

    kind: Literal["drops", "flapping", "missing"]
    node: str
    participant: str | None
    value: float
    limit: float
    text: str
    at: datetime


class Alerts(Struct, frozen=True):
    """Which alerts to raise, and the function that gets them; None or 0 disables a kind.

    `drops`: a node dropped more than this share of the messages of a batch, of `at_least` or more.
    `flaps`: a participant changed its address, or came and went, more often within a minute.
    `missing`: this many messages of a node, or more, should have an outcome and have none. The same
    alert is repeated after `again` seconds.

    ```text
    pipeline.watch("journal/", "tables/", "checkpoint/", alerts=Alerts(print, drops=0.05))
    ```
    """

    tell: Callable[[Alert], None]
    drops: float | None = 0.1
    flaps: int | None = 30
    missing: int | None = 1
    at_least: int = 20
    again: float = 60.0

    def __post_init__(self) -> None:
        """Refuse invalid limits."""
        for name in ("drops", "flaps", "missing"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise LocalError(
                    f"invalid limit for {name}: {value}", rule="SP-3", hint="give 0 or more"
                )


class Watchman:
    """Checks batches, and remembers which alerts it has raised."""

    def __init__(self, alerts: Alerts, clock: Callable[[], float] = time.monotonic) -> None:
        self._alerts = alerts
        self._clock = clock
        self._told: dict[tuple[str, str, str | None], float] = {}
        self._changes: dict[tuple[str, str], list[int]] = {}

    def look_at(self, batch: Batch) -> None:
        """Raise the alerts for a batch."""
        now = self._clock()
        for node, report in batch.reports.items():
            for alert in self._found(node, report):
                key = alert.kind, alert.node, alert.participant
                if now - self._told.get(key, -self._alerts.again) >= self._alerts.again:
                    self._told[key] = now
                    self._alerts.tell(alert)

    def _found(self, node: str, report: Report) -> Iterator[Alert]:
        limits = self._alerts
        dropped = sum(report.dropped.values())
        share = dropped / max(report.messages, 1)
        if limits.drops and report.messages >= limits.at_least and share > limits.drops:
            most = max(report.dropped, key=lambda reason: report.dropped[reason])
            text = f"{node} dropped {dropped:,} of {report.messages:,} messages, most {most}"
            yield _alert("drops", node, None, share, limits.drops, text)
        if limits.missing and report.missing >= limits.missing:
            text = f"{node} recorded no outcome for {report.missing:,} messages"
            yield _alert("missing", node, None, report.missing, limits.missing, text)
        if limits.flaps:
            for participant, count in self._flapping(node, report, limits.flaps):
                text = f"the route to {participant} at {node} changed {count:,} times in a minute"
                yield _alert("flapping", node, participant, count, limits.flaps, text)

    def _flapping(self, node: str, report: Report, limit: int) -> Iterator[tuple[str, int]]:
        for participant, instants in report.changes.items():
            key = node, participant
            seen = sorted({*self._changes.get(key, ()), *instants})
            recent = [at for at in seen if at > seen[-1] - _MINUTE]
            self._changes[key] = recent[-limit - 1 :]
            if len(recent) > limit:
                yield participant, len(recent)


def _alert(
    kind: Literal["drops", "flapping", "missing"],
    node: str,
    participant: str | None,
    value: float,
    limit: float,
    text: str,
) -> Alert:
    return Alert(kind, node, participant, value, limit, text, datetime.now(UTC))
