"""Follow copies into a node that they did not reach: when they come, and what becomes of them.

A copy comes after the median delay of its link in that minute, else hour, else journal. The rules
decide there, with the node's tables as they would have been. No Spark.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Sequence
from statistics import median
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
from msgspec import Struct
from msgspec.structs import replace

from waystation.core.message import HOP_LIMIT
from waystation.core.outcome import Outcome, Reason
from waystation.core.visits import VANISHED
from waystation.journal.schema import INSTANT, MESSAGES
from waystation.pipeline.kernels.deciding import OUTCOMES, REASONS, decisions
from waystation.pipeline.kernels.node_data import FileData
from waystation.pipeline.schema import VERSION, plain_schema
from waystation.whatif.changes import Changes
from waystation.whatif.copies import UNKNOWN, Copy, End, Told, Verdict
from waystation.whatif.deciding import Ways
from waystation.whatif.granting import Judge
from waystation.whatif.past import ChangedNode, Elsewhere

MINUTE: Final = 60_000_000
_HOUR: Final = 60
_FORWARDED: Final = str(Outcome.FORWARDED)

Followed: TypeAlias = tuple[list[End], list[Copy]]
"""What becomes of copies at a node: ends, and copies that go on."""


class Delays(Struct, frozen=True):
    """How long messages took from node to node, in microseconds, by link and minute.

    A delay is the difference of what the two clocks said, so it leads from one clock to the other.
    """

    links: dict[str, dict[int, int]]

    def of(self, from_node: str, to_node: str, at: int) -> int | None:
        """The delay of a link at a time; None for a link that never carried anything."""
        minutes = self.links.get(link(from_node, to_node))
        if not minutes:
            return None
        minute = at // MINUTE
        if minute in minutes:
            return minutes[minute]
        hour = minute // _HOUR
        near = [delay for then, delay in minutes.items() if then // _HOUR == hour]
        return int(median(near or minutes.values()))


def link(from_node: str, to_node: str) -> str:
    """The key of a link."""
    return f"{from_node} {to_node}"


def followed(
    data: FileData,
    copies: Sequence[Copy],
    changes: Changes,
    elsewhere: Elsewhere,
    delays: Delays,
) -> Followed:
    """What becomes of copies that come to a node: ends, and copies that go on."""
    node = ChangedNode(data, changes, elsewhere)
    grants = changes.grants_at(node.node)
    judge = None if grants is None else Judge(grants)
    sessions = _sessions_with(node)
    ends: list[End] = []
    here: list[tuple[Copy, int, int]] = []
    seen: set[str] = set()
    lives = _Lives(node)
    for copy in copies:
        if copy.multicast_id is not None and (node.node in copy.visited or copy.message_id in seen):
            continue  # a second copy, which goes no further
        seen.add(copy.message_id)
        delay = delays.of(copy.from_node, node.node, copy.left_at)
        if delay is None:
            ends.append(_end(copy, UNKNOWN, None, node.node, "the link carried nothing else"))
            continue
        at = copy.left_at + delay
        incarnation = lives.at(at)
        if incarnation is None:
            ends.append(_end(copy, str(Outcome.DROPPED), VANISHED, node.node))
            continue
        identity = sessions.get(copy.from_node, _NO_SESSION).identity
        if judge is not None and judge.refuses(identity, copy.onward):
            ends.append(_end(copy, str(Outcome.DROPPED), str(Reason.REFUSED), node.node))
            continue
        here.append((copy, at, incarnation))
    if not here:
        return ends, []
    more, onward = _decided(node, here, changes.limits.hop_limit or HOP_LIMIT)
    return ends + more, onward


def followed_to_the_end(
    stories: Iterable[Told],
    nodes: Collection[str],
    changes: Changes,
    visit: Callable[[dict[str, list[Copy]]], Iterable[Followed]],
) -> dict[str, list[End]]:
    """The ends of all copies of these messages that go elsewhere, by message.

    `visit` lets copies come to the nodes that they go to, and is called once for each hop.
    """
    ends: dict[str, list[End]] = {}
    pending = [copy for one in stories for copy in one.copies]
    for _ in range(changes.limits.hop_limit or HOP_LIMIT):
        arriving: dict[str, list[Copy]] = {}
        for copy in pending:
            if copy.to_node in nodes:
                arriving.setdefault(copy.to_node, []).append(copy)
            else:
                ends.setdefault(copy.message_id, []).append(_left(copy))
        if not arriving:
            break
        pending = []
        for found, onward in visit(arriving):
            pending += onward
            for end in found:
                ends.setdefault(end.message_id, []).append(end)
    return ends


class _Lives:
    """Which incarnation of a node runs at a time."""

    def __init__(self, node: ChangedNode) -> None:
        begins = sorted((at, number) for number, at in node.lifetimes.begins().items())
        self._begins = [at for at, _ in begins]
        self._numbers = [number for _, number in begins]
        self._ends = node.lifetimes.ends()

    def at(self, instant: int) -> int | None:
        """The incarnation; None if none runs."""
        place = bisect_right(self._begins, instant) - 1
        if place < 0:
            return None
        number = self._numbers[place]
        end, stopped = self._ends.get(number, (None, False))
        return None if stopped and end is not None and instant >= end else number


def _decided(node: ChangedNode, here: list[tuple[Copy, int, int]], limit: int) -> Followed:
    past = node.past()
    messages = _messages(node, here)
    ways = Ways(messages, past)
    ends: list[End] = []
    onward: list[Copy] = []
    for part in decisions(messages, past, limit):
        texts = [
            [None] * len(part.row) if values is None else values.to_pylist()
            for values in (part.recipient, part.address, part.next_node)
        ]
        numbers = (part.row.tolist(), part.outcome.tolist(), part.reason.tolist())
        for row, outcome, reason, recipient, address, peer in zip(*numbers, *texts, strict=True):
            copy, at, _ = here[row]
            why = None if reason < 0 else REASONS[reason].as_py()
            whom = recipient or (copy.recipient if copy.multicast_id is None else None)
            verdict = ways.led(row, Verdict(whom, OUTCOMES[outcome].as_py(), why, address, peer))
            if verdict.outcome == _FORWARDED:
                onward.append(_sent_on(node.node, copy, at, verdict))
            elif why != Reason.DUPLICATE:
                named = copy if whom is None else replace(copy, recipient=whom)
                ends.append(_end(named, verdict.outcome, verdict.reason, node.node))
    return ends, onward


def _messages(node: ChangedNode, here: list[tuple[Copy, int, int]]) -> pa.Table:
    """Copies as rows of `messages`, as far as the rules look at them."""
    via = _sessions_with(node)
    count = len(here)
    columns = {
        "incarnation": [incarnation for _, _, incarnation in here],
        "seq": list(range(count)),
        "at": [at for _, at, _ in here],
        "message_id": [f"{number:032x}" for number in range(count)],
        "kind": [copy.kind for copy, _, _ in here],
        "onward": [list(copy.onward) for copy, _, _ in here],
        "return": [["0#x"] * copy.hops_back for copy, _, _ in here],
        "multicast_id": [copy.multicast_id for copy, _, _ in here],
        "expiry": [copy.expiry for copy, _, _ in here],
        "from_global": [
            via.get(copy.from_node, _NO_SESSION).role == "parent" for copy, _, _ in here
        ],
        "received_at": [at for _, at, _ in here],
        "via": [via.get(copy.from_node, _NO_SESSION).name for copy, _, _ in here],
        "from_node": [copy.from_node for copy, _, _ in here],
        "durable": [copy.durable for copy, _, _ in here],
        VERSION: [2] * count,
    }
    schema = plain_schema(MESSAGES)
    arrays = []
    for field in schema:
        values = columns.get(field.name, [None] * count)
        if field.type == INSTANT:
            arrays.append(pa.array(values, pa.int64()).view(INSTANT))
        else:
            arrays.append(pa.array(values, field.type))
    return pa.table(arrays, schema=schema)


class _Session(NamedTuple):
    """A session of a node: its name, what the peer is to the node, and what it has proven."""

    name: str | None
    role: str
    identity: str | None


_NO_SESSION: Final = _Session(None, "", None)


def _sessions_with(node: ChangedNode) -> dict[str, _Session]:
    """The latest session with each peer."""
    sessions = node.sessions
    order = np.argsort(np.asarray(sessions.column("opened_at").cast(pa.int64())), kind="stable")
    rows = sessions.take(pa.array(order))
    names = ("peer", "session", "role", "identity")
    told = zip(*(rows.column(name).to_pylist() for name in names), strict=True)
    return {peer: _Session(*session) for peer, *session in told if peer is not None}


def _sent_on(node: str, copy: Copy, at: int, verdict: Verdict) -> Copy:
    return replace(
        copy,
        recipient=verdict.recipient if verdict.recipient is not None else copy.recipient,
        from_node=node,
        to_node=verdict.next_node or "",
        left_at=at,
        onward=copy.onward if verdict.keeps_first else copy.onward[1:],
        hops_back=copy.hops_back + 1,
        hops=copy.hops + 1,
        visited=(*copy.visited, node),
    )


def _end(copy: Copy, outcome: str, reason: str | None, node: str, why: str = "") -> End:
    said = f"{copy.why}; {why}" if why else copy.why
    return End(
        copy.message_id, copy.origin, copy.recipient, outcome, reason, node, copy.hops + 1, said
    )


def _left(copy: Copy) -> End:
    """The end of a copy whose next node keeps no journal, or is not known."""
    ended = (copy.message_id, copy.origin, copy.recipient)
    if copy.to_node:
        return End(*ended, _FORWARDED, None, copy.from_node, copy.hops, copy.why)
    why = f"{copy.why}; the next node is not known"
    return End(*ended, UNKNOWN, None, copy.from_node, copy.hops, why)
