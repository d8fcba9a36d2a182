"""What a router counts, and how Prometheus reads it. No sockets here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Final


class Counts:
    """The counters of a router; each only ever grows."""

    __slots__ = (
        "bytes_received",
        "bytes_sent",
        "delivered",
        "disconnected",
        "dropped",
        "members",
        "opened",
        "received",
        "refused",
        "requests",
        "waits",
    )

    def __init__(self) -> None:
        self.opened = 0
        self.received = 0  # messages
        self.delivered = 0  # copies of messages handed to the connections of receivers
        self.bytes_received = 0
        self.bytes_sent = 0
        self.dropped: Counter[str] = Counter()  # copies, or messages that had no receiver at all
        self.requests: Counter[str] = Counter()
        self.members: Counter[str] = Counter()  # what happened to them
        self.refused: Counter[str] = Counter()
        self.disconnected: Counter[str] = Counter()
        self.waits: Counter[str] = Counter()  # of senders for receivers, by how that ended


Sample = tuple[dict[str, str], float]
CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


def exposition(counts: Counts, gauges: Mapping[str, tuple[str, Iterable[Sample]]]) -> str:
    """The text that Prometheus scrapes.

    >>> print(exposition(Counts(), {"groups": ("Groups.", [({}, 2)])}).splitlines()[-1])
    waystation_router_groups 2
    """
    lines: list[str] = []
    for name, help_text, samples in _counters(counts):
        lines += _family(f"waystation_router_{name}_total", "counter", help_text, samples)
    for name, (help_text, found) in gauges.items():
        lines += _family(f"waystation_router_{name}", "gauge", help_text, found)
    return "\n".join(lines) + "\n"


def _counters(counts: Counts) -> Iterator[tuple[str, str, Iterable[Sample]]]:
    yield "connections_opened", "Connections accepted so far.", [({}, counts.opened)]
    yield "messages_received", "Messages that clients sent.", [({}, counts.received)]
    yield "messages_delivered", "Copies handed to receivers.", [({}, counts.delivered)]
    yield "messages_dropped", "Copies dropped, by reason.", _labelled("reason", counts.dropped)
    yield "received_bytes", "Bytes read from clients.", [({}, counts.bytes_received)]
    yield "sent_bytes", "Bytes written to clients.", [({}, counts.bytes_sent)]
    yield "requests", "Requests other than messages, by kind.", _labelled("kind", counts.requests)
    yield "member_changes", "Changes of membership.", _labelled("kind", counts.members)
    yield "refusals", "What was refused, by cause.", _labelled("cause", counts.refused)
    yield (
        "waits",
        "Receivers that senders waited for, by result.",
        _labelled("result", counts.waits),
    )
    yield (
        "disconnections",
        "Connections that the router ended, by cause.",
        _labelled("cause", counts.disconnected),
    )


def _labelled(label: str, counter: Counter[str]) -> list[Sample]:
    return [({label: name}, number) for name, number in sorted(counter.items())]


def _family(name: str, kind: str, help_text: str, samples: Iterable[Sample]) -> Iterator[str]:
    yield f"# HELP {name} {help_text}"
    yield f"# TYPE {name} {kind}"
    for labels, value in samples:
        inside = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels.items())
        yield f"{name}{{{inside}}} {value}" if inside else f"{name} {value}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
