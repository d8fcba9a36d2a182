"""Replay the rows of a journal through the core: what a live node would have held, and decided.

Everything comes from the core, event by event; nothing is computed here that it can compute. The
fold of each participant has its own clock (setting a clock back does not undo what is known), so
each has its own table.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import accumulate
from typing import NamedTuple

from waystation.core.address import Address, Route
from waystation.core.expiry import NEVER
from waystation.core.message import Arrival, Message
from waystation.core.multicast import Subscriptions
from waystation.core.outcome import Reason, Verdict
from waystation.core.router import Router
from waystation.core.routing import RoutingEntry, RoutingTable
from waystation.testing.oracle import End, Row, Tables, ends_of_incarnations, entries_of, grouped

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
            router = Router(subscriptions=self.subscriptions(node, incarnation, at))
            for name, number in ROUTABLE.items():
                router.types.register(name, number)
            for entry in self.table(node, incarnation, at).values():
                router.table.put(entry, 0)
            found += [(id, node, at, verdict) for verdict in _decided(router, rows[0], at)]
        return found


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
    message = Message(
        Route(tuple(map(Address.parse, row["onward"]))),
        Route(tuple(map(Address.parse, row["return"]))),
        b"",
        row["message_id"],
        NEVER if row["expiry"] is None else row["expiry"] // 1_000,
    )
    if row["kind"] == "multicast":
        return router.fan_out(row["multicast_id"], Arrival(message, at), at // 1_000).verdicts
    return (router.decide(message, at // 1_000),)


def _folds(journal: Tables, table: str, *key: str) -> dict[tuple[str, int], list[Fold]]:
    folds: dict[tuple[str, int], list[Fold]] = defaultdict(list)
    rows = journal.get(table, ())
    for (node, incarnation, *_), events in grouped(rows, "node", "incarnation", *key).items():
        folds[node, incarnation].append(Fold.of(events))
    return folds


def _over(end: End, at: int) -> bool:
    return end.at is not None and end.at <= at
