"""What must hold in every history: one function for each promise, over nothing but the history.

Each yields its violations as sentences. What a fault may cost is stated where it is excused: a
message that was under way when a link or a machine went is lost, and nothing else is.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from waystation.testing.lab.history import Fault, Got, History, Sent

HOP_LIMIT: Final = 32
SETTLE: Final = 1.0
"""Seconds for what was sent in the last moment before an end to be told."""

PROMPT: Final = 2.0
"""Seconds within which a message is received if nothing is broken."""

SLOW_RECEIVER: Final = "slow receiver"
HARMLESS_TO_WAYS: Final = frozenset({SLOW_RECEIVER, "drift", "set clock"})
CATCH_UP: Final = 60.0
"""Seconds for a receiver that was slow to handle what has waited."""

Check = Callable[[History], Iterator[str]]


def each_has_one_outcome(history: History) -> Iterator[str]:
    """P1: what was sent ends once at each node that it enters, and the sender is told.

    In calm it is delivered.
    """
    alive = history.lives
    for sent in history.sent:
        if not sent.outcome and alive[sent.node] == sent.life:
            yield f"{sent.uid}: {sent.node} was never told what became of it"
    final = Counter(
        (row.uid, row.node, row.life, row.entered, row.recipient)
        for row in history.rows
        if row.outcome != "QUEUED" and row.recipient is not None
    )
    for (uid, node, _, _, recipient), times in final.items():
        if times > 1:
            yield f"{uid}: {times} outcomes at {node} for {recipient}"
    yield from _calm_and_lost(history)


def _calm_and_lost(history: History) -> Iterator[str]:
    got = Counter(message.uid for message in history.got)
    for sent in history.sent:
        if sent.at < history.calm_from or sent.kind == "publish":
            continue
        wanted = len(history.topology.members) - 1 if sent.kind == "to-all" else 1
        if got[sent.uid] < wanted:
            yield (
                f"{sent.uid}: sent in calm at {sent.at:.1f}, received {got[sent.uid]} times of "
                f"{wanted}: {sent.outcome}"
            )


def no_subscriber_is_the_end(history: History) -> Iterator[str]:
    """MC-15: a broadcast that goes on from a node is not said to have no subscriber there."""
    went = {(row.uid, row.node, row.entered) for row in history.rows if row.outcome == "FORWARDED"}
    for row in history.rows:
        if row.reason == "NO_SUBSCRIBER" and (row.uid, row.node, row.entered) in went:
            yield f"{row.uid}: went on from {row.node}, which also says NO_SUBSCRIBER"


def nothing_vanishes(history: History) -> Iterator[str]:
    """P2: what left one node entered the next, unless the link between them was lost."""
    entered = {(row.uid, row.node) for row in history.rows}
    ends = _link_ends(history)
    datagrams = set(history.topology.over_udp)
    for row in history.rows:
        if row.outcome != "FORWARDED" or row.next_node is None:
            continue
        if (row.uid, row.next_node) in entered:
            continue
        if any(at >= row.at - SETTLE for at in ends.get((row.node, row.next_node), ())):
            continue
        if not datagrams.isdisjoint((row.node, row.next_node)) and _is_broken(history, row.at):
            continue
        yield f"{row.uid}: left {row.node} for {row.next_node} at {row.at:.3f}, never got there"


def _is_broken(history: History, at: float) -> bool:
    """Whether something is broken at an instant; a datagram may be lost then."""
    return any(fault.at <= at <= fault.until + SETTLE for fault in history.faults)


def _link_ends(history: History) -> Mapping[tuple[str, str], list[float]]:
    """When links between two nodes were lost, by the nodes in either order."""
    ends: dict[tuple[str, str], list[float]] = defaultdict(list)
    for event in history.sessions:
        if event.kind != "opened" and event.peer is not None:
            ends[event.node, event.peer].append(event.at)
            ends[event.peer, event.node].append(event.at)
    for fault in history.faults:
        if fault.kind in {"kill", "switch off"}:
            for name in fault.nodes:
                for other in history.topology.parents:
                    ends[name, other].append(fault.until)
                    ends[other, name].append(fault.until)
    return ends


def order_holds(history: History) -> Iterator[str]:
    """P3: from one sender to one receiver, what takes the same way arrives in the order sent."""
    by_uid = {sent.uid: sent for sent in history.sent}
    ways = _ways(history)
    last: dict[tuple[object, ...], Sent] = {}
    for got in history.got:
        sent = by_uid[got.uid]
        if sent.kind == "publish":
            continue
        key = sent.node, sent.life, sent.to, got.receiver, got.life, ways.get(got.uid)
        before = last.get(key)
        if before is not None and before.seq > sent.seq:
            yield f"{got.uid}: received at {got.at:.3f}, after {before.uid}"
        last[key] = sent


def _ways(history: History) -> dict[str, tuple[tuple[str, int], ...]]:
    """The nodes that each message entered, in order of time, with their lives."""
    ways: dict[str, dict[tuple[str, int], None]] = defaultdict(dict)
    for row in history.rows:
        ways[row.uid][row.node, row.life] = None
    return {uid: tuple(sorted(way)) for uid, way in ways.items()}


def nobody_gets_it_twice(history: History) -> Iterator[str]:
    """P4: a receiver gets a message once at most."""
    for (uid, receiver), times in Counter((got.uid, got.receiver) for got in history.got).items():
        if times > 1:
            yield f"{uid}: received {times} times by {receiver}"


def nothing_goes_in_circles(history: History) -> Iterator[str]:
    """P5: a broadcast enters a node once, and no message goes beyond the hop limit.

    Of a second copy it is told that it is one, also if it goes up from there (FL-6).
    """
    copies = {(row.uid, row.node, row.entered) for row in history.rows if row.reason == "DUPLICATE"}
    entries: dict[tuple[str, str, int], set[int]] = defaultdict(set)
    for row in history.rows:
        if row.hops > HOP_LIMIT or row.reason == "HOP_LIMIT":
            yield f"{row.uid}: {row.hops} hops at {row.node}"
        if row.is_broadcast and (row.uid, row.node, row.entered) not in copies:
            entries[row.uid, row.node, row.life].add(row.entered)
    for (uid, node, _), times in entries.items():
        if len(times) > 1:
            yield f"{uid}: entered {node} {len(times)} times"


def replies_find_back(history: History) -> Iterator[str]:
    """P6: a request that was received in calm is answered."""
    got = {message.uid for message in history.got}
    for sent in history.sent:
        if sent.kind != "request" or sent.uid not in got or sent.outcome == "REPLIED":
            continue
        if sent.at >= history.calm_from or not _disturbed(history, sent):
            yield f"{sent.uid}: received, and its reply never came back: {sent.outcome}"


def _disturbed(history: History, sent: Sent) -> bool:
    """Whether something was broken around the time of a request."""
    ended = history.ended if sent.ended is None else sent.ended
    return any(fault.at <= ended and sent.at <= fault.until + 60 for fault in history.faults)


def a_slow_receiver_delays_nobody_else(history: History) -> Iterator[str]:
    """P11: while one receiver is slow or stuck, what is for others comes as soon as ever.

    Only what was sent while nothing was wrong but a receiver or a clock, nor had been before.
    """
    slow = [fault for fault in history.faults if fault.kind == SLOW_RECEIVER]
    received: dict[str, list[Got]] = defaultdict(list)
    for got in history.got:
        received[got.uid].append(got)
    for sent in history.sent:
        during = any(fault.at <= sent.at <= fault.until for fault in slow)
        if not during or _is_for_slow(slow, sent) or _was_cut(history, sent):
            continue
        for got in received[sent.uid]:
            if got.at - sent.at > PROMPT:
                yield f"{got.uid}: {got.receiver} got it {got.at - sent.at:.1f} s after it was sent"
        if sent.outcome == "REPLIED" and sent.ended and sent.ended - sent.at > PROMPT:
            yield f"{sent.uid}: answered {sent.ended - sent.at:.1f} s after it was asked"


def _is_for_slow(slow: list[Fault], sent: Sent) -> bool:
    """Whether a message is for a receiver that is slow, or has yet to catch up."""
    return any(
        sent.to == f"work-{name}" and fault.at <= sent.at <= fault.until + CATCH_UP
        for fault in slow
        for name in fault.nodes
    )


def _was_cut(history: History, sent: Sent) -> bool:
    """Whether the ways through the fleet were broken when a message was sent, or shortly before."""
    return any(
        fault.kind not in HARMLESS_TO_WAYS and fault.at - PROMPT <= sent.at <= fault.until + 60
        for fault in history.faults
    )


def tables_are_right(history: History) -> Iterator[str]:
    """P16: in the end every table leads to where its participant is, and nobody speaks."""
    if history.problem:
        yield history.problem
        return
    tables = {table.node: table.entries for table in history.tables}
    parents = history.topology.parents
    for owner in parents:
        participant = f"work-{owner}"
        for node in tables:
            problem = _follow(tables, parents, node, participant, owner)
            if problem:
                yield f"{participant} from {node}: {problem}"
    everybody = sorted(history.topology.members)
    for member, view in history.views.items():
        if view != everybody:
            yield f"{member} sees {', '.join(view)}"
    restless = Counter(
        change.node for change in history.changes if history.ended - 15 <= change.at < history.ended
    )
    for node, changes in restless.items():
        yield f"{node}: {changes} changes of its table when all should be silent"


def _follow(
    tables: Mapping[str, Mapping[str, str]],
    parents: Mapping[str, list[str]],
    node: str,
    participant: str,
    owner: str,
) -> str:
    """Where a message would go wrong on its way; empty if it would not."""
    way = [node]
    while node != owner:
        following = tables[node].get(participant)
        if following is None:
            if not parents[node]:
                return f"{' > '.join(way)} does not know it, and has nobody to ask"
            following = parents[node][0]
        if following not in tables:
            return f"{' > '.join(way)} leads to {following}"
        if following in way:
            return f"goes in circles: {' > '.join([*way, following])}"
        way.append(following)
        node = following
    return ""


CHECKS: Final[Mapping[str, Check]] = {
    "P1": each_has_one_outcome,
    "P2": nothing_vanishes,
    "P3": order_holds,
    "P4": nobody_gets_it_twice,
    "P5": nothing_goes_in_circles,
    "P6": replies_find_back,
    "P11": a_slow_receiver_delays_nobody_else,
    "P16": tables_are_right,
    "MC-15": no_subscriber_is_the_end,
}
