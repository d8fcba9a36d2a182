"""Durable subscriptions: kept on disk where they are made, and at the hubs above (DU-8).

A durable subscription has a name of its own, so it is the same after a restart. What is published
durably becomes one letter for each of them that matches, as soon as a node has custody of it, and
waits as every letter does if the subscriber is away. All copies have the number of what was
published, whichever hub makes them, so the subscriber's node knows a second one as a repetition.

A node tells its parents of its durable subscriptions, and of those told to it, whenever a link
opens and once a minute. One that was not told for as long as it is to be kept is forgotten. A hub
without a store keeps none beyond its own process, and tells its parents all the same (DU-2).

Only who has a subscriber's name speaks for it, and what is not granted is neither kept nor told
(ID-3): the parents believe this node.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec
from msgspec import Struct

from waystation.core.address import Route
from waystation.core.grants import Action
from waystation.core.message import Arrival, Message
from waystation.core.multicast import Subscriptions
from waystation.core.who import Who
from waystation.errors import LocalError
from waystation.node.custody_taking import ADDRESS
from waystation.node.permissions import Grantee
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

_decoder: Final = msgspec.json.Decoder(Who)


class _Teller(Struct, frozen=True):
    """Who told of a subscription, as far as a node remembers it when that is away.

    The store has it too, but not over which session: that was of an earlier process.
    """

    owner: str
    who: Who
    session: bytes = b""  # its local address


class _Kept(Struct):
    keep: int  # seconds
    seen: int  # seconds since the epoch, when it was told last
    told_by: _Teller | None = None  # None: this node itself, or a store of before it was noted


class KeptSubscriptions:
    """The durable subscriptions that one node knows."""

    def __init__(self, custody: Custody, store: Store | None) -> None:
        self._custody = custody
        self._kernel = custody.kernel
        self._store = store
        self._kept: dict[Key, _Kept] = {}
        self._own: dict[Key, None] = {}  # those that this process has made
        self._matching = Subscriptions()
        self._told_at = 0
        for pattern, receiver, keep, seen, owner, who in [] if store is None else store.kept:
            told_by = None if owner is None else _Teller(owner, _decoder.decode(who))
            self._kept[pattern, receiver] = _Kept(keep, seen, told_by)
            with contextlib.suppress(LocalError):
                self._matching.subscribe(pattern, receiver)
        self._withdrawn = self._not_granted()  # while this node did not run; for the parents
        for key in self._withdrawn:
            self._forget(key)

    def __len__(self) -> int:
        return len(self._kept)

    def name_of(self, name: str) -> str:
        """The participant that a durable subscription of this node is, by its own name."""
        store = self._custody.need_store()
        digits = sha256(f"{store.id} {name}".encode()).hexdigest()[:16]
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
        self._end([(pattern, receiver)])

    # What others tell

    def receive(self, arrival: Arrival, told: Keep | Unkeep) -> None:
        """Keep, or forget, what a leaf tells of those that are reached over it."""
        session = self._kernel.session_of(arrival.message)
        if session is None or session.is_parent or session.from_outside:
            return
        if not self._kernel.hierarchy.is_hub:
            return
        if isinstance(told, Keep):
            self._keep_told(session, told)
        else:
            self._end([key for key in told.subscriptions if self._may_end(session, key)], session)
        if self._store is None:  # nothing else makes it look
            self.sweep()

    def _keep_told(self, session: Session, told: Keep) -> None:
        """Keep what a leaf may tell of, and tell the parents of that alone."""
        kept, refused = [], []
        owner = self._kernel.hierarchy.claims.speaker(session)
        teller = _Teller(owner, session.who, session.address.data)
        keep_told = partial(self._keep, told_by=teller)
        for pattern, receiver, keep in told.subscriptions:
            key = (pattern, receiver)
            if not self._is_at(session, receiver):
                continue
            if not self._kernel.permissions.may(session, Action.SUBSCRIBE, pattern):
                refused.append(key)  # it may have been granted once
            elif (key in self._kept or len(self._kept) < LIMIT) and keep_told(key, keep):
                kept.append((pattern, receiver, keep))
        self._end([key for key in refused if key in self._kept], session)
        for parent in self._parents_besides(session) if kept else ():
            self._tell(parent, kept)

    def _may_end(self, session: Session, key: Key) -> bool:
        """Whether a leaf speaks for a subscriber, which may be gone by now."""
        if self._kernel.entry(key[1]) is not None:
            return self._is_at(session, key[1])
        kept = self._kept.get(key)
        if kept is None or key in self._own:
            return False
        speaker = self._kernel.hierarchy.claims.speaker(session)
        return kept.told_by is None or kept.told_by.owner == speaker

    def take_back(self) -> None:
        """End what is no longer granted to who told of it, also while that is away (ID-5)."""
        self._end(self._not_granted())

    def _not_granted(self) -> list[Key]:
        """What its tellers may no longer have; what this node has made itself is not asked for."""
        may_still = self._kernel.permissions.may_still
        return [
            key
            for key, kept in self._kept.items()
            if (by := kept.told_by) is not None
            and not may_still(Grantee(by.session, by.who), Action.SUBSCRIBE, key[0])
        ]

    def link_opened(self, session: Session) -> None:
        """Tell a parent of all that are reached from here, and of what ended meanwhile."""
        if session.is_parent:
            self._tell_ended(session, self._withdrawn)
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

    def _keep(
        self,
        key: Key,
        keep: int,
        written: Done | None = None,
        told_by: _Teller | None = None,
    ) -> bool:
        try:
            self._matching.subscribe(*key)
        except LocalError:
            return False  # no pattern
        before = self._kept.get(key)
        if told_by is None and before is not None:
            told_by = before.told_by
        kept = self._kept[key] = _Kept(keep, self._now(), told_by)
        row, by = (*key, kept.keep, kept.seen), None
        if told_by is not None:
            by = (*key, told_by.owner, msgspec.json.encode(told_by.who).decode())

        def write(db: sqlite3.Connection) -> None:
            db.execute("insert or replace into kept values (?, ?, ?, ?)", row)
            if by is not None:
                db.execute("insert or replace into kept_by values (?, ?, ?, ?)", by)

        if self._store is not None:
            self._store.submit(write, written)
        return True

    def _end(self, keys: list[Key], besides: Session | None = None) -> None:
        """Forget subscriptions, and tell the parents that they have ended."""
        for key in keys:
            self._forget(key)
        for parent in self._parents_besides(besides):
            self._tell_ended(parent, keys)

    def _tell_ended(self, parent: Session, keys: list[Key]) -> None:
        for begin in range(0, len(keys), BATCH):
            self._send(parent, wire.encode(Unkeep(keys[begin : begin + BATCH])))

    def _forget(self, key: Key) -> None:
        if self._kept.pop(key, None) is None:
            return
        self._matching.unsubscribe(*key)

        def write(db: sqlite3.Connection) -> None:
            db.execute("delete from kept where pattern = ? and receiver = ?", key)
            db.execute("delete from kept_by where pattern = ? and receiver = ?", key)

        if self._store is not None:
            self._store.submit(write)

    def _parents_besides(self, session: Session | None) -> list[Session]:
        return [one for one in self._kernel.hierarchy.parents if one is not session]

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
