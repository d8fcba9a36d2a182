"""Replay the rows of a journal through the core: what a live node would have held, and decided.

Everything comes from the core, event by event; nothing is computed here that it can compute. The
fold of each participant has its own clock (setting a clock back does not undo what is known), so
each has its own table.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import accumulate
from typing import Any, NamedTuple, TypeAlias

from waystation.core.address import Address, Route
from waystation.core.copies import Copies, Copy
from waystation.core.expiry import NEVER
from waystation.core.message import Arrival, Message
from waystation.core.multicast import Subscriptions
from waystation.core.outcome import Reason, Verdict
from waystation.core.router import Router
from waystation.core.routing import RoutingEntry, RoutingTable
from waystation.testing.oracle import (
    End,
    Row,
    Tables,
    ends_of_incarnations,
    entries_of,
    grouped,
    session_history,
)

Visit: TypeAlias = tuple[str, str, int, int]
"""The id of a message, the node, its incarnation, and when it came."""

ROUTABLE = {"tcp": 1, "ws": 3, "odd": 9}


class Fold(NamedTuple):
    """The events of one subject, with the times at which they take effect."""

    events: list[Row]
    instants: list[int]

    @classmethod
    def of(cls, events: list[Row]) -> Fold:
        return cls(events, list(accumulate((event["at"] for event in events), max)))


class Replay:
    """All nodes of a journal, at any time of any incarnation."""

    def __init__(self, journal: Tables) -> None:
        self._ends = ends_of_incarnations(journal)
        self._routes = _folds(journal, "routes", "participant")
        self._subscriptions = _folds(journal, "subscriptions", "pattern", "receiver")
        self._messages = journal.get("messages", [])
        self._sessions = session_history(journal)

    def table(self, node: str, incarnation: int, at: int) -> dict[str, RoutingEntry]:
        """The routing table that this incarnation held at this time."""
        if _over(self._ends[node, incarnation], at):
            return {}
        held: dict[str, RoutingEntry] = {}
        for fold in self._routes[node, incarnation]:
            table = RoutingTable()
            for event, instant in zip(*fold, strict=True):
                if instant <= at:
                    act(table, event, instant)
            held |= table.snapshot(at // 1_000)
        return held

    def acceptances(self) -> dict[tuple[str, int, int], bool]:
        """For each put, whether the table accepted it."""
        found = {}
        for (node, incarnation), folds in self._routes.items():
            for fold in folds:
                table = RoutingTable()
                for event, instant in zip(*fold, strict=True):
                    accepted = act(table, event, instant)
                    if accepted is not None:
                        found[node, incarnation, event["seq"]] = accepted
        return found

    def subscriptions(self, node: str, incarnation: int, at: int) -> Subscriptions:
        """The subscriptions that this incarnation held at this time."""
        held = Subscriptions()
        if _over(self._ends[node, incarnation], at):
            return held
        for fold in self._subscriptions[node, incarnation]:
            for event, instant in zip(*fold, strict=True):
                if instant <= at:
                    getattr(held, event["kind"])(event["pattern"], event["receiver"])
        return held

    def verdicts(self) -> list[tuple[str, str, int, Verdict]]:
        """The router's decision on each message at the time of its arrival."""
        found = []
        for (id, node, incarnation, at), rows in entries_of(self._messages).items():
            router = self._router(node, incarnation, at, version=1)
            found += [(id, node, at, verdict) for verdict in _decided(router, rows[0], at)]
        return found

    def _router(self, node: str, incarnation: int, at: int, version: int) -> Router:
        held = self.subscriptions(node, incarnation, at)
        router = Router(subscriptions=held, version=version)
        for name, number in ROUTABLE.items():
            router.types.register(name, number)
        for entry in self.table(node, incarnation, at).values():
            router.table.put(entry, 0)
        return router

    def second_verdicts(self) -> list[tuple[Visit, tuple[Verdict, ...], bool]]:
        """The decisions on the visits of version 2 that the core alone can judge.

        With each, whether copies go up. What is durable, long ago, or perhaps sent on by a worker,
        needs more than the core.
        """
        found = []
        met: dict[tuple[str, int], Copies] = defaultdict(Copies)
        visits = sorted(entries_of(self._messages).items(), key=lambda each: each[0][3])
        doubtful = _beyond_the_core(visits)
        for (id, node, incarnation, at), rows in visits:
            row = rows[0]
            router = self._router(node, incarnation, at, version=2)
            own = [
                s for s in self._sessions if (s["node"], s["incarnation"]) == (node, incarnation)
            ]
            begun = {s["role"] for s in own if s["opened_at"] <= at}
            router.has_parent, router.has_global_transport = "parent" in begun, "global" in begun
            for session in own:
                ended = session["closed_at"] is not None and session["closed_at"] <= at
                if session["opened_at"] <= at and not ended:
                    place = Address.parse(session["place"])
                    router.table.put(RoutingEntry(session["session"], place, local=False), 0)
            arrival = Arrival(
                _message(row), at, row["from_global"], row["multicast_id"], row["via"]
            )
            verdicts, up = _decided_2(router, arrival, row, met[node, incarnation])
            if (node, incarnation, id, row["multicast_id"]) not in doubtful and not row["durable"]:
                found.append(((id, node, incarnation, at), verdicts, up))
        return found


def _beyond_the_core(visits: list[tuple[Visit, list[Row]]]) -> set[tuple[Any, ...]]:
    latest: dict[tuple[Any, ...], int] = {}
    found = set()
    for (id, node, incarnation, at), rows in visits:
        name = node, incarnation, id, rows[0]["multicast_id"]
        if name in latest and (at - latest[name] > 60_000_000 or rows[0]["via"] is None):
            found.add(name)
        latest[name] = at
    return found


def _decided_2(
    router: Router, arrival: Arrival, row: Row, copies: Copies
) -> tuple[tuple[Verdict, ...], bool]:
    now, id = arrival.received_at // 1_000, arrival.multicast_id
    if id is None:
        if row["reason"] == "DUPLICATE":
            return (Verdict.dropped(Reason.DUPLICATE),), False
        return (router.decide(arrival.message, now),), False
    fan_out = router.fan_out(id, arrival, now)
    if len(row["return"]) >= router.hop_limit:
        return fan_out.verdicts, fan_out.upward
    message, upward = arrival.message, not arrival.from_global
    copy = copies.meet(message.id, id, upward=upward, expired=message.expired(now))
    if copy is Copy.FIRST:
        return fan_out.verdicts, fan_out.upward
    up = copy is Copy.FIRST_UPWARD and fan_out.upward
    return (Verdict.dropped(Reason.DUPLICATE),), up


def act(table: RoutingTable, event: Row, instant: int) -> bool | None:
    """Apply a row to a table; for a put, returns whether it was accepted."""
    if event["kind"] == "remove":
        table.remove(event["participant"], instant // 1_000)
        return None
    entry = RoutingEntry(
        event["participant"],
        Address.parse(event["address"]),
        event["local"],
        event["visible"],
        NEVER if event["expiry"] is None else event["expiry"] // 1_000,
        event["sticky"],
    )
    return table.put(entry, instant // 1_000).accepted


def _decided(router: Router, row: Row, at: int) -> tuple[Verdict, ...]:
    if row["reason"] == "DUPLICATE":  # what came before is not in the tables
        return (Verdict.dropped(Reason.DUPLICATE),)
    message = _message(row)
    if row["kind"] == "multicast":
        return router.fan_out(row["multicast_id"], Arrival(message, at), at // 1_000).verdicts
    return (router.decide(message, at // 1_000),)


def _message(row: Row) -> Message:
    return Message(
        Route(tuple(map(Address.parse, row["onward"]))),
        Route(tuple(map(Address.parse, row["return"]))),
        b"",
        row["message_id"],
        NEVER if row["expiry"] is None else row["expiry"] // 1_000,
    )


def _folds(journal: Tables, table: str, *key: str) -> dict[tuple[str, int], list[Fold]]:
    folds: dict[tuple[str, int], list[Fold]] = defaultdict(list)
    rows = journal.get(table, ())
    for (node, incarnation, *_), events in grouped(rows, "node", "incarnation", *key).items():
        folds[node, incarnation].append(Fold.of(events))
    return folds


def _over(end: End, at: int) -> bool:
    return end.at is not None and end.at <= at
