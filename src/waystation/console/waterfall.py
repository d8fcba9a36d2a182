"""An explanation as a waterfall: one row per node, with a bar on a common axis of time.

Values in, positions out, as in layout.py. Times are corrected by what is known of each node's
clock, so that a node further on is not drawn as if it had been earlier.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct

from waystation.console.formatting import place, plain, receiver
from waystation.core.address_types import is_session_name
from waystation.why.explanation import Explanation, Hop, Way

NARROWEST = 0.8
"""The least width of a bar, in percent of the axis."""


class Row(Struct, frozen=True, kw_only=True):
    """A message at one node: a bar from when it was received to when it left, in percent."""

    hop: Hop
    number: int  # of the hop in its explanation, from 1
    left: float
    width: float
    offset_us: int  # since the message began
    stay_us: int  # how long it was there
    is_reply: bool = False
    came_from: str = ""  # the node before it
    is_branch: bool = False  # whether that is not the row above

    @property
    def is_dropped(self) -> bool:
        """Whether a copy of it ended here without being delivered."""
        return any(step.outcome == "DROPPED" for step in self.hop.steps)

    @property
    def onward(self) -> str:
        """Where it was to go, in names: a session is the node at its other end."""
        after = [step.next_node for step in self.hop.steps if step.next_node]
        return _in_names(self.hop.onward, after[0] if after else "")

    @property
    def back(self) -> str:
        """The way of a reply, in names; empty if none was expected."""
        return _in_names(self.hop.back, self.came_from)


class Waterfall(Struct, frozen=True, kw_only=True):
    """The rows of a message from one origin, and below them those of its reply."""

    way: Way
    rows: list[Row]
    replies: list[Row]
    span_us: int  # from one end of the axis to the other
    several: bool  # whether other messages have the same id
    ended: int  # when nothing more became of it, replies aside; by the clock of all nodes


def waterfalls(explanation: Explanation, replies: Sequence[Explanation] = ()) -> list[Waterfall]:
    """The waterfall of each way of a message; its reply is looked for among `replies`."""
    return [
        _waterfall(explanation, number, _reply_to(way, explanation.message_id, replies))
        for number, way in enumerate(explanation.ways)
    ]


def stops(falls: Sequence[Waterfall]) -> list[str]:
    """The nodes that a message passed, there and back; an empty name where the path begins anew."""
    found: list[str] = []
    for fall in falls:
        for rows in (fall.rows, fall.replies):
            for before, node in _pairs(rows):
                if not before or not found or found[-1] != before:
                    found += ["", before] if before else [""]
                if found[-1] != node:
                    found.append(node)
    return found[1:]


def _pairs(rows: Sequence[Row]) -> Iterator[tuple[str, str]]:
    """Each node with the one before it, and with those that it was sent to in vain."""
    nodes = {row.number - 1: plain(row.hop.node) for row in rows}
    came = {(row.hop.follows, plain(row.hop.node)) for row in rows}
    for row in rows:
        follows = row.hop.follows
        yield nodes.get(follows, "") if follows is not None else "", plain(row.hop.node)
        for step in row.hop.steps:
            there = plain(step.next_node or "")
            if there and (row.number - 1, there) not in came:
                yield plain(row.hop.node), there


def _reply_to(
    way: Way, id: str, replies: Sequence[Explanation]
) -> tuple[tuple[Hop, ...], int] | None:
    """The hops of the reply to a way, and the number of the way that they are part of."""
    for reply in replies:
        if reply.message_id == way.answered_by:
            for number, answer in enumerate(reply.ways):
                if answer.answers in (id, None):
                    return reply.hops, number
    return None


def _waterfall(
    explanation: Explanation, number: int, reply: tuple[tuple[Hop, ...], int] | None
) -> Waterfall:
    there = [(at, hop) for at, hop in enumerate(explanation.hops) if hop.way == number]
    back = [(at, hop) for at, hop in enumerate(reply[0]) if hop.way == reply[1]] if reply else []
    spans = [_span(hop) for _, hop in there + back]
    first = min((begins for begins, _ in spans), default=0)
    length = max((ends for _, ends in spans), default=0) - first
    return Waterfall(
        way=explanation.ways[number],
        rows=list(_rows(there, first, length, is_reply=False)),
        replies=list(_rows(back, first, length, is_reply=True)),
        span_us=length,
        several=len(explanation.ways) > 1,
        ended=max((_span(hop)[1] for _, hop in there), default=first),
    )


def _span(hop: Hop) -> tuple[int, int]:
    """When a message was received and left, by a clock that all nodes agree on."""
    ends = max((step.at for step in hop.steps), default=hop.received_at)
    return hop.received_at - hop.clock_ahead_us, max(ends, hop.received_at) - hop.clock_ahead_us


def _rows(hops: list[tuple[int, Hop]], first: int, length: int, *, is_reply: bool) -> Iterator[Row]:
    nodes = {at: plain(hop.node) for at, hop in hops}
    for at, hop in hops:
        begins, ends = _span(hop)
        scale = 100 / length if length else 0
        width = max(NARROWEST, (ends - begins) * scale)
        elsewhere = hop.follows is not None and hop.follows != at - 1
        yield Row(
            hop=hop,
            number=at + 1,
            left=round(min((begins - first) * scale, 100 - width), 2),
            width=round(width, 2),
            offset_us=begins - first,
            stay_us=ends - begins,
            is_reply=is_reply,
            came_from="" if hop.follows is None else nodes.get(hop.follows, ""),
            is_branch=elsewhere,
        )


def _in_names(route: Sequence[str], session: str) -> str:
    """A route for people; the session that it begins with leads to a node that is known."""
    names = [receiver(place(address)) for address in route]
    if names and is_session_name(names[0]):
        names[0] = session or "a session"
    return " → ".join("a session" if is_session_name(name) else name for name in names)
