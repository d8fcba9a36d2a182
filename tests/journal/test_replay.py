"""The journal of a node is enough to rebuild its tables, entry for entry (OB-4)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.journal.traffic import entries
from waystation.core.address import Address
from waystation.core.expiry import NEVER
from waystation.core.multicast import Subscriptions
from waystation.core.record import ChangeRecord
from waystation.core.routing import RoutingEntry, RoutingTable
from waystation.journal import Journal
from waystation.journal.read import Entry

OWN = Address(1, b"me:4000")
NAMES = ("a", "b", "Ä-7", "worker/9")
ADDRESSES = (Address(0, b"a"), Address(1, b"10.0.0.2:4000"), Address(9, b"\x00\xff"), OWN)
PATTERNS = ("p/b", "p/b/+", "p/b/*", "+/b", "q/c/x")

puts = st.builds(
    RoutingEntry,
    participant=st.sampled_from(NAMES),
    address=st.sampled_from(ADDRESSES),
    local=st.booleans(),
    visible=st.booleans(),
    expiry=st.one_of(st.just(NEVER), st.integers(0, 60)),
    sticky=st.booleans(),
)
events = st.lists(
    st.tuples(
        st.integers(0, 3_000),  # how many microseconds later
        st.one_of(
            st.tuples(st.just("put"), puts),
            st.tuples(st.just("remove"), st.sampled_from(NAMES)),
            st.tuples(st.just("gone"), st.sampled_from(ADDRESSES)),
            st.tuples(
                st.sampled_from(["subscribe", "unsubscribe"]),
                st.tuples(st.sampled_from(PATTERNS), st.sampled_from(NAMES)),
            ),
        ),
    ),
    max_size=60,
)


class Tables:
    """The tables of a node, and what its observers get."""

    def __init__(self, own: tuple[Address, ...] = ()) -> None:
        self.table = RoutingTable(own)
        self.subscriptions = Subscriptions()

    def act(self, kind: str, value: Any, now: int) -> list[Any]:
        if kind == "put":
            return [self.table.put(value, now)]
        if kind == "remove":
            return [self.table.remove(value, now)]
        if kind == "gone":
            return list(self.table.remove_address(value, now))
        return [getattr(self.subscriptions, kind)(*value)]

    def replay(self, entry: Entry) -> None:
        row, now = entry.fields, entry.at // 1_000
        if entry.table == "subscriptions":
            self.act(row["kind"], (row["pattern"], row["receiver"]), now)
        elif entry.table == "routes" and row["kind"] == "remove":
            self.act("remove", row["participant"], now)
        elif entry.table == "routes":
            [change] = self.act("put", _entry_of(row), now)
            assert change.accepted == row["accepted"]

    def state(self, now: int) -> tuple[Any, ...]:
        return self.table.snapshot(now), self.subscriptions.snapshot()


def _entry_of(row: dict[str, Any]) -> RoutingEntry:
    return RoutingEntry.of(
        row["participant"],
        Address.parse(row["address"]),
        local=row["local"],
        visible=row["visible"],
        expiry=NEVER if row["expiry"] is None else row["expiry"] // 1_000,
        sticky=row["sticky"],
    )


@pytest.mark.rule("OB-4")
@given(events=events)
def test_replaying_a_journal_through_the_core_gives_the_same_tables(
    tmp_path_factory: pytest.TempPathFactory, events: list[tuple[int, tuple[str, Any]]]
) -> None:
    directory: Path = tmp_path_factory.mktemp("replay")
    live, at = Tables((OWN,)), 0
    with Journal(directory, "garage", fsync="never") as journal:
        for later, (kind, value) in events:
            at += later
            for change in live.act(kind, value, at // 1_000):
                if change is not None:
                    journal.note(ChangeRecord(change, at))
    replayed = Tables()
    for entry in entries(directory):
        replayed.replay(entry)
    for now in (at // 1_000, at // 1_000 + 1, 60, 10_000):
        assert replayed.state(now) == live.state(now)
