"""Alerts for a batch: incidents, drops, flapping routes, missing messages.

Batches in, alerts out; a callback gets the alerts. No Spark here.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Literal

import msgspec
from msgspec import Struct

from waystation.core.incidents import CLOCK, CRASHED, GAP, LINK, NOTICED, Incident
from waystation.errors import LocalError
from waystation.pipeline.watching.engine import Batch
from waystation.pipeline.watching.node_step import Report
from waystation.pipeline.watching.store import write_whole

_ALWAYS: Final = (CRASHED, LINK, GAP, CLOCK)  # whatever they cost
_MINUTE: Final = 60_000_000


class Alert(Struct, frozen=True):
    """A condition that needs attention.

    `value` is what was found and `limit` what it was compared with: a share of messages, changes
    in a minute, or a number of messages. An alert about an incident has its `incident_id`, what it
    cost so far as `value`, and the `command` that explains it. It is raised once, and never taken
    back; when the incident is over, or turned out to be part of another one that its `text` then
    names, it is `closed`.
    """

    kind: Literal["incident", "closed", "drops", "flapping", "missing"]
    node: str
    participant: str | None
    value: float
    limit: float
    text: str
    at: datetime
    incident_id: str | None = None
    command: str | None = None


class Alerts(Struct, frozen=True):
    """Which alerts to raise, and the function that gets them; None or 0 disables a kind.

    `drops`: a node dropped more than this share of the messages of a batch, of `at_least` or more.
    `flaps`: a participant changed its address, or came and went, more often within a minute.
    `missing`: this many messages of a node, or more, should have an outcome and have none. The same
    alert is repeated after `again` seconds. `incidents`: one that cost this many messages, or is
    a crash, a broken link, a gap or a wrong clock, is told once.

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
    incidents: int | None = 1

    def __post_init__(self) -> None:
        """Refuse invalid limits."""
        for name in ("drops", "flaps", "missing", "incidents"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise LocalError(
                    f"invalid limit for {name}: {value}", rule="SP-3", hint="give 0 or more"
                )


class Watchman:
    """Checks batches, and remembers which alerts it has raised."""

    def __init__(
        self,
        alerts: Alerts,
        clock: Callable[[], float] = time.monotonic,
        *,
        tables: str = "TABLES",
        remembered: Path | None = None,
    ) -> None:
        self._alerts = alerts
        self._clock = clock
        self._tables = tables
        self._remembered = remembered  # the file that knows which incidents were told
        self._incidents = _read_told(remembered)
        self._told: dict[tuple[str, str, str | None], float] = {}
        self._changes: dict[tuple[str, str], list[int]] = {}

    def look_at(self, batch: Batch) -> None:
        """Raise the alerts for a batch."""
        self._tell_of_incidents(batch.incidents)
        now = self._clock()
        for node, report in batch.reports.items():
            for alert in self._found(node, report):
                key = alert.kind, alert.node, alert.participant
                if now - self._told.get(key, -self._alerts.again) >= self._alerts.again:
                    self._told[key] = now
                    self._alerts.tell(alert)

    def _tell_of_incidents(self, incidents: list[Incident]) -> None:
        """Tell of each incident once when it is found, and once when it is over."""
        if not self._alerts.incidents:
            return
        known = {incident.incident_id: incident for incident in incidents}
        changed = False
        for id, incident in known.items():
            if id not in self._incidents and self._matters(incident):
                # What is over when it is told has nothing to close.
                self._incidents[id] = True if incident.ended is not None else incident
                changed = True
                self._alerts.tell(self._of_incident(incident))
        for id, told in list(self._incidents.items()):
            if told is True:
                continue
            now = known.get(id)
            if now is not None and now.ended is None:
                self._incidents[id] = now
                continue
            self._incidents[id] = changed = True
            if now is not None:
                text = f"over: {now.cause}, {now.lost:,} lost"
                self._alerts.tell(self._of_incident(now, "closed", text))
            elif told is not False:
                text = _what_became_of(told, incidents)
                self._alerts.tell(self._of_incident(told, "closed", text))
        if changed and self._remembered is not None:
            write_whole(self._remembered, msgspec.json.encode(self._incidents))

    def _matters(self, incident: Incident) -> bool:
        return incident.kind in _ALWAYS or incident.lost >= (self._alerts.incidents or 1)

    def _of_incident(
        self,
        incident: Incident,
        kind: Literal["incident", "closed"] = "incident",
        text: str | None = None,
    ) -> Alert:
        command = f"waystation lost --tables {shlex.quote(self._tables)}"
        if incident.evidence:
            command = f"waystation why {incident.evidence[0]} --tables {shlex.quote(self._tables)}"
        told = f"{incident.kind}: {incident.cause}, {incident.lost:,} lost so far; {command}"
        names = incident.participants
        return Alert(
            kind,
            incident.node or "",
            names[0] if len(names) == 1 else None,
            incident.lost,
            self._alerts.incidents or 0,
            text or told,
            datetime.now(UTC),
            incident.incident_id,
            command,
        )

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


def _what_became_of(gone: Incident, incidents: list[Incident]) -> str:
    """In words, what an incident became part of that is none of its own any more."""
    other = max(incidents, key=lambda one: _kinship(gone, one), default=None)
    if other is None or not any(_kinship(gone, other)[:2]):
        return f"no longer found: {gone.cause}"
    return f"part of incident {other.incident_id}: {gone.cause}; now: {other.cause}"


def _kinship(gone: Incident, other: Incident) -> tuple[int, bool, int]:
    """How likely an incident has become part of another: by its messages, else by who and when."""
    apart = abs(gone.started - other.started)
    same = gone.node == other.node or not set(gone.participants).isdisjoint(other.participants)
    shared = len(set(gone.evidence) & set(other.evidence))
    return shared, same and apart <= NOTICED, -apart


def _read_told(path: Path | None) -> dict[str, Incident | bool]:
    """The incidents that were told in earlier runs: True if closed, else as they were last known.

    False is an open one of which an earlier release kept no more.
    """
    if path is None or not path.exists():
        return {}
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Incident | bool])
    except msgspec.MsgspecError:
        return {}  # then they are told again


def _alert(
    kind: Literal["drops", "flapping", "missing"],
    node: str,
    participant: str | None,
    value: float,
    limit: float,
    text: str,
) -> Alert:
    return Alert(kind, node, participant, value, limit, text, datetime.now(UTC))
