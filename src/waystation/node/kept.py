"""Durable subscriptions: kept on disk where they are made, and at the hubs above (DU-8).

A durable subscription has a name of its own, so it is the same after a restart. What is published
durably becomes one letter for each of them that matches, as soon as a node has custody of it, and
waits as every letter does if the subscriber is away. All copies have the number of what was
published, whichever hub makes them, so the subscriber's node knows a second one as a repetition.

A node tells its parents of its durable subscriptions, and of those told to it, whenever a link
opens and once a minute. One that was not told for as long as it is to be kept is forgotten.
"""

from __future__ import annotations

import asyncio
import contextlib
from hashlib import sha256
from typing import TYPE_CHECKING, Final, TypeAlias

from msgspec import Struct

from waystation.core.address import Route
from waystation.core.grants import Action
from waystation.core.message import Arrival, Message
from waystation.core.multicast import Subscriptions
from waystation.errors import LocalError
from waystation.node.custody_taking import ADDRESS
from waystation.node.store import Done, Store
from waystation.wire import custody as wire
from waystation.wire.custody import Keep, Unkeep

if TYPE_CHECKING:
    from waystation.node.custody import Custody
    from waystation.node.session import Session

Key: TypeAlias = tuple[str, str]  # pattern, receiver

RENEWAL: Final = 60
"""Seconds after which parents are told again."""

LIMIT: Final = 100_000
"""Maximum number of durable subscriptions that a node keeps."""

BATCH: Final = 256
"""Subscriptions in one message."""


class _Kept(Struct):
    keep: int  # seconds
    seen: int  # seconds since the epoch, when it was told last


class KeptSubscriptions:
    """The durable subscriptions that one node knows."""

    def __init__(self, custody: Custody, store: Store) -> None:
        self._custody = custody
        self._kernel = custody.kernel
        self._store = store
        self._kept: dict[Key, _Kept] = {}
        self._own: dict[Key, None] = {}  # those that this process has made
        self._matching = Subscriptions()
        self._told_at = 0
        for pattern, receiver, keep, seen in store.kept:
            self._kept[pattern, receiver] = _Kept(keep, seen)
            with contextlib.suppress(LocalError):
                self._matching.subscribe(pattern, receiver)

    def __len__(self) -> int:
        return len(self._kept)

    def name_of(self, name: str) -> str:
        """The participant that a durable subscription of this node is, by its own name."""
        digits = sha256(f"{self._store.id} {name}".encode()).hexdigest()[:16]
        return f"subscriber-{digits}"

    def match(self, multicast_id: str) -> list[str]:
        """The durable subscribers of a broadcast."""
        return list(self._matching.match(multicast_id))

    # Here

    def made(self, pattern: str, receiver: str, keep: int) -> asyncio.Future[None]:
        """Keep a subscription that is made here, and tell the parents when it is on disk."""
        key, hierarchy = (pattern, receiver), self._kernel.hierarchy
        is_kept: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def written(_: object) -> None:
            if key in self._own:
                hierarchy.announce_changes()  # so that they know whose it is
                for parent in hierarchy.parents:
                    self._tell(parent, [(pattern, receiver, keep)])
            if not is_kept.done():
                is_kept.set_result(None)

        self._own[key] = None
        self._keep(key, keep, written)
        return is_kept

    def ended(self, pattern: str, receiver: str) -> None:
        """Forget a subscription for good, and tell the parents."""
        self._own.pop((pattern, receiver), None)
        self._forget((pattern, receiver))
        for parent in self._kernel.hierarchy.parents:
            self._send(parent, wire.encode(Unkeep([(pattern, receiver)])))

    # What others tell

    def receive(self, arrival: Arrival, told: Keep | Unkeep) -> None:
        """Keep, or forget, what a leaf tells of those that are reached over it."""
        session = self._kernel.session_of(arrival.message)
        hierarchy = self._kernel.hierarchy
        if session is None or session.is_parent or not hierarchy.is_hub:
            return
        if isinstance(told, Keep):
            for pattern, receiver, keep in told.subscriptions:
                if not self._kernel.permissions.may(session, Action.SUBSCRIBE, pattern):
                    continue
                is_new = (pattern, receiver) not in self._kept
                if self._is_at(session, receiver) and not (is_new and len(self._kept) >= LIMIT):
                    self._keep((pattern, receiver), keep)
        else:
            for pattern, receiver in told.subscriptions:
                # It may be gone by now; and nobody else knows such a name.
                if self._kernel.entry(receiver) is None or self._is_at(session, receiver):
                    self._forget((pattern, receiver))
        for parent in hierarchy.parents:
            if parent is not session:
                self._send(parent, wire.encode(told))

    def link_opened(self, session: Session) -> None:
        """Tell a parent of all that are reached from here."""
        if session.is_parent:
            self._tell_all(session)

    def sweep(self) -> None:
        """Tell the parents again now and then, and forget who was away for too long."""
        now = self._now()
        if now - self._told_at < RENEWAL:
            return
        self._told_at = now
        for key in self._own:
            self._keep(key, self._kept[key].keep)
        for parent in self._kernel.hierarchy.parents:
            self._tell_all(parent)
        for key, kept in list(self._kept.items()):
            if now > kept.seen + kept.keep:
                self._forget(key)

    # Inside

    def _is_at(self, session: Session, receiver: str) -> bool:
        entry = self._kernel.entry(receiver)
        return entry is not None and entry.address == session.address

    def _now(self) -> int:
        return self._kernel.tick() // 1_000_000

    def _keep(self, key: Key, keep: int, written: Done | None = None) -> None:
        try:
            self._matching.subscribe(*key)
        except LocalError:
            return  # no pattern
        kept = self._kept[key] = _Kept(keep, self._now())
        row = (*key, kept.keep, kept.seen)
        insert = "insert or replace into kept values (?, ?, ?, ?)"
        self._store.submit(lambda db: db.execute(insert, row), written)

    def _forget(self, key: Key) -> None:
        if self._kept.pop(key, None) is not None:
            self._matching.unsubscribe(*key)
            delete = "delete from kept where pattern = ? and receiver = ?"
            self._store.submit(lambda db: db.execute(delete, key))

    def _tell_all(self, parent: Session) -> None:
        told = [
            (pattern, receiver, kept.keep)
            for (pattern, receiver), kept in self._kept.items()
            if (entry := self._kernel.entry(receiver)) is not None
            and entry.local
            and entry.address != parent.address
        ]
        for begin in range(0, len(told), BATCH):
            self._tell(parent, told[begin : begin + BATCH])

    def _tell(self, parent: Session, told: list[tuple[str, str, int]]) -> None:
        self._send(parent, wire.encode(Keep(told)))

    def _send(self, parent: Session, payload: bytes) -> None:
        if parent.is_open and (parent.can(wire.TAKES) or parent.can(wire.PASSES)):
            kernel = self._kernel
            onward, back = Route((parent.address, ADDRESS)), Route((ADDRESS,))
            expiry = kernel.expiry_in(RENEWAL)
            message = Message(onward, back, payload, kernel.new_id(), expiry)
            asyncio.get_running_loop().call_soon(kernel.post, message)
