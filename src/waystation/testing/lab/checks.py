"""What must hold in every history: one function for each promise, over nothing but the history.

Each yields its violations as sentences. What a fault may cost is stated where it is excused: a
message that was under way when a link or a machine went is lost, and nothing else is.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from waystation.testing.lab.history import Fault, Got, History, Sent
from waystation.testing.lab.untold import Untold

HOP_LIMIT: Final = 32
SETTLE: Final = 1.0
"""Seconds for what was sent in the last moment before an end to be told."""

PROMPT: Final = 2.0
"""Seconds within which a message is received if nothing is broken."""

CLOCKS_DIFFER: Final = 0.1
"""The share by which a clock may run fast: a fault of 5 %, and what mends a jump."""

SLOW_RECEIVER: Final = "slow receiver"
HARMLESS_TO_WAYS: Final = frozenset({SLOW_RECEIVER, "drift", "set clock", "fill disk", "flip bits"})
CATCH_UP: Final = 60.0
"""Seconds for a receiver that was slow to handle what has waited."""

REQUESTS: Final = frozenset({"request", "sealed", "found"})

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
    yield from _expired_early(history)


def _expired_early(history: History) -> Iterator[str]:
    """What ended as expired although its life was not over, whatever clocks were set to (TM-1)."""
    by_uid, untold = {sent.uid: sent for sent in history.sent}, Untold(history)
    for row in history.rows:
        sent = by_uid.get(row.uid) if row.reason == "EXPIRED" else None
        if sent is None:
            continue
        seems = row.at + untold.added(sent, row)  # by clocks that nobody could compare (TM-2)
        if sent.ttl is None or seems < sent.at + sent.ttl * (1 - CLOCKS_DIFFER) - SETTLE:
            yield f"{row.uid}: expired at {row.node} {row.at - sent.at:.1f} s after it was sent"


def _calm_and_lost(history: History) -> Iterator[str]:
    got = Counter(message.uid for message in history.got)
    for sent in history.sent:
        if sent.at < history.calm_from or sent.kind in {"publish", "forbidden"}:
            continue
        if sent.kind == "sealed" and any(fault.kind == "set clock" for fault in history.faults):
            continue  # a clock that is off by more than a minute proves nothing to anybody
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
        if row.outcome != "FORWARDED" or row.next_node is None or row.is_durable:
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
        if sent.kind in {"publish", "durable", "sealed", "found"}:
            continue  # of durable ones P14 tells; before the others something is asked first
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
    received = ((got.uid, got.receiver) for got in history.got if got.attempt == 1)
    for (uid, receiver), times in Counter(received).items():
        if times > 1:
            yield f"{uid}: received {times} times by {receiver}"


def nothing_goes_in_circles(history: History) -> Iterator[str]:
    """P5: a broadcast enters a node once, and no message goes beyond the hop limit.

    Of a second copy it is told that it is one, also if it goes up from there (FL-6). A copy that
    had expired when it came has not entered, since another may still be alive.
    """
    copies = {(row.uid, row.node, row.entered) for row in history.rows if row.reason == "DUPLICATE"}
    copies |= _expired_at_once(history)
    entries: dict[tuple[str, str, int], set[int]] = defaultdict(set)
    for row in history.rows:
        if row.hops > HOP_LIMIT or row.reason == "HOP_LIMIT":
            yield f"{row.uid}: {row.hops} hops at {row.node}"
        if row.is_broadcast and (row.uid, row.node, row.entered) not in copies:
            entries[row.uid, row.node, row.life].add(row.entered)
    for (uid, node, _), times in entries.items():
        if len(times) > 1:
            yield f"{uid}: entered {node} {len(times)} times"


def _expired_at_once(history: History) -> set[tuple[str, str, int]]:
    """The entries of which nothing is told but that they had expired."""
    reasons: dict[tuple[str, str, int], set[str | None]] = defaultdict(set)
    for row in history.rows:
        told = row.reason if row.recipient is None else row.outcome
        reasons[row.uid, row.node, row.entered].add(told)
    return {entry for entry, told in reasons.items() if told == {"EXPIRED"}}


def replies_find_back(history: History) -> Iterator[str]:
    """P6: a request that was received in calm is answered."""
    got = {message.uid for message in history.got}
    for sent in history.sent:
        if sent.kind not in REQUESTS or sent.uid not in got or sent.outcome == "REPLIED":
            continue
        if sent.at >= history.calm_from or not _disturbed(history, sent):
            yield f"{sent.uid}: received, and its reply never came back: {sent.outcome}"


def _disturbed(history: History, sent: Sent) -> bool:
    """Whether something was broken around the time of a request."""
    ended = history.ended if sent.ended is None else sent.ended
    return any(fault.at <= ended and sent.at <= fault.until + 60 for fault in history.faults)


def nobody_hears_for_the_dead(history: History) -> Iterator[str]:
    """P7: only the latest life of a node receives, and one that came back receives again."""
    latest: dict[str, int] = {}
    events = sorted(
        [(start.at, 0, start.node, start.life, "") for start in history.starts]
        + [(got.at, 1, got.node, got.life, got.uid) for got in history.got]
    )
    for _, is_receipt, node, life, uid in events:
        if not is_receipt:
            latest[node] = life
        elif life != latest.get(node):
            yield f"{uid}: received by life {life} of {node}, which has begun {latest.get(node)}"
    heard = {(got.node, got.life) for got in history.got if got.at >= history.calm_from}
    for node, life in latest.items():
        asked = [
            sent
            for sent in history.sent
            if sent.to == f"work-{node}" and sent.at >= history.calm_from and sent.kind == "send"
        ]
        if life > 1 and asked and (node, life) not in heard:
            yield f"{node} came back, and got none of {len(asked)} messages"


def subscriptions_survive(history: History) -> Iterator[str]:
    """P9: what is published in calm reaches all who subscribed; who is listed is found by all."""
    got = {(message.uid, message.receiver) for message in history.got}
    for sent in history.sent:
        if sent.kind != "publish" or sent.at < history.calm_from:
            continue
        for node, patterns in history.subscribed.items():
            for pattern in patterns:
                wanted = is_match(pattern, sent.to)
                if wanted and (sent.uid, f"{node} on {pattern}") not in got:
                    yield f"{sent.uid}: published in calm as {sent.to}, {node} did not get it"
    if history.topology.lists and not history.problem:
        listed = sorted(f"work-{leaf}" for leaf in history.topology.leaves)
        for node in history.topology.parents:
            if history.found.get(node) != listed:
                yield f"{node} finds {history.found.get(node)} in the directory"


def only_what_matches_is_heard(history: History) -> Iterator[str]:
    """P10: a subscription gets what matches its pattern, and nothing else."""
    by_uid = {sent.uid: sent for sent in history.sent}
    for got in history.got:
        _, is_subscription, pattern = got.receiver.partition(" on ")
        if is_subscription and not is_match(pattern, by_uid[got.uid].to):
            yield f"{got.uid}: {got.receiver} got what was published as {by_uid[got.uid].to}"


def is_match(pattern: str, id: str) -> bool:
    """Whether a pattern matches a multicast id: the slow and obvious way.

    >>> is_match("+/news/*", "a/news"), is_match("a/news/eu/+", "a/news/eu")
    (True, False)
    """
    want, have = pattern.split("/"), id.split("/")
    if want[-1] == "*":
        want = want[:-1]
        have = have[: len(want)] if len(have) >= len(want) else []
    return len(want) == len(have) and all(
        one in ("+", other) for one, other in zip(want, have, strict=True)
    )


def journals_keep_what_they_have(history: History) -> Iterator[str]:
    """P12: what the journal wrote is read as it was, or its damage is told."""
    yield from history.noted


def nothing_acknowledged_is_lost(history: History) -> Iterator[str]:
    """P14: what was acknowledged is handled; what is recorded as handled is not handled again.

    One sender's messages come to one receiver in order, unless one is said to be late (DU-4).
    """
    durable = {sent.uid: sent for sent in history.sent if sent.kind == "durable"}
    got = [(durable[one.uid], one) for one in history.got if one.uid in durable]
    yield from _handled_again(history, got)
    yield from _out_of_order(got)
    handled = {sent.uid for sent, _ in got}
    for uid, sent in durable.items():
        if sent.outcome == "QUEUED" and uid not in handled:
            yield f"{uid}: acknowledged at {sent.ended or 0:.3f}, and never handled"
    for node, left in history.undone.items():
        if left and not history.problem:
            why = "; ".join(history.waiting.get(node, ()))
            yield f"{node}: {left} durable messages are left in its store{why and ': '}{why}"


def _handled_again(history: History, got: list[tuple[Sent, Got]]) -> Iterator[str]:
    recorded: dict[str, float] = {}
    for row in history.rows:
        if row.is_durable and row.outcome == "DELIVERED":
            recorded.setdefault(row.uid, row.at)
    seen: set[str] = set()
    for _, one in got:
        if one.at > recorded.get(one.uid, one.at):
            yield f"{one.uid}: handled at {one.at:.3f}, after it was recorded as handled"
        if one.uid in seen and one.attempt == 1:
            yield f"{one.uid}: came again as if for the first time"
        seen.add(one.uid)


def _out_of_order(got: list[tuple[Sent, Got]]) -> Iterator[str]:
    seen: set[str] = set()
    last: dict[tuple[str, str], tuple[int, int]] = {}
    for sent, one in got:
        order, pair = (sent.life, sent.seq), (sent.node, one.receiver)
        if one.uid not in seen and not one.is_late and order < last.get(pair, order):
            yield f"{one.uid}: came after a later one, and is not called late"
        seen.add(one.uid)
        last[pair] = max(order, last.get(pair, order))


def nobody_gets_what_is_not_granted(history: History) -> Iterator[str]:
    """P15: what is not granted reaches nobody, and what is sealed can be read by nobody between."""
    forbidden = {sent.uid for sent in history.sent if sent.kind == "forbidden"}
    for got in history.got:
        if got.uid in forbidden:
            yield f"{got.uid}: {got.receiver} got it, and it was not granted"
        elif got.node in history.topology.intruders:
            yield f"{got.uid}: {got.node} got it"
    yield from dict.fromkeys(history.leaks)


def memory_is_bounded(history: History) -> Iterator[str]:
    """P17: a node holds no more than one and a half times its budget (FL-1)."""
    for load in history.loads:
        if load.most > 1.5 * load.budget:
            yield f"{load.node} held {load.most:,} bytes, and its budget is {load.budget:,}"


def a_slow_receiver_delays_nobody_else(history: History) -> Iterator[str]:
    """P11: while one receiver is slow or stuck, what is for others comes as soon as ever.

    Only what was sent while nothing was wrong but a receiver or a clock, nor had been before; and
    not where the budget of a whole node is used up, since then sessions are not read (FL-1).
    """
    if history.topology.budget:
        return
    slow = [fault for fault in history.faults if fault.kind == SLOW_RECEIVER]
    received: dict[str, list[Got]] = defaultdict(list)
    for got in history.got:
        received[got.uid].append(got)
    for sent in history.sent:
        during = any(fault.at <= sent.at <= fault.until for fault in slow)
        if not during or _is_slow(slow, sent.to, sent.at) or _was_cut(history, sent):
            continue
        for got in received[sent.uid]:
            if got.at - sent.at > PROMPT and not _is_slow(slow, got.receiver, sent.at):
                yield f"{got.uid}: {got.receiver} got it {got.at - sent.at:.1f} s after it was sent"
        if sent.outcome == "REPLIED" and sent.ended and sent.ended - sent.at > PROMPT:
            yield f"{sent.uid}: answered {sent.ended - sent.at:.1f} s after it was asked"


def _is_slow(slow: list[Fault], receiver: str, at: float) -> bool:
    """Whether a worker, or a member of a group, is slow at an instant, or has yet to catch up."""
    return any(
        receiver in (name, f"work-{name}") and fault.at <= at <= fault.until + CATCH_UP
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
    if history.topology.lists:
        restless.clear()  # whoever is listed says so again and again
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
    "P7": nobody_hears_for_the_dead,
    "P9": subscriptions_survive,
    "P10": only_what_matches_is_heard,
    "P11": a_slow_receiver_delays_nobody_else,
    "P12": journals_keep_what_they_have,
    "P14": nothing_acknowledged_is_lost,
    "P15": nobody_gets_what_is_not_granted,
    "P16": tables_are_right,
    "P17": memory_is_bounded,
    "MC-15": no_subscriber_is_the_end,
}
"""P8 and P13 are judged by the pipeline's kernels, over the journals."""
