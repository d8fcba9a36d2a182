"""What a member tells about its group: every change, and how every message ended (OB-4).

The observers and the journal are told through one hook. Without any of them nothing is made.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

from waystation.core.address import Address, Route
from waystation.core.address_types import GOSSIP
from waystation.core.clock import now_ns
from waystation.core.expiry import NEVER, Expiry
from waystation.core.gossip import MemberChange
from waystation.core.identity import Mapping, Uuid
from waystation.core.membership import Member
from waystation.core.message import Arrival, Message
from waystation.core.outcome import Outcome, Reason, Verdict
from waystation.core.record import ChangeRecord, MessageRecord, Record
from waystation.core.sequences import OnEnd
from waystation.groups.packets import EVERYBODY

if TYPE_CHECKING:
    from waystation.journal import Journal

_log = logging.getLogger("waystation.group")

EVERYONE: Final = "*"
"""The recipient of what goes to all."""

Observer: TypeAlias = Callable[[Record], None]
Entry: TypeAlias = tuple[Member, bytes, int, bool]
"""A message that came: its sender, its payload, its number, and whether it went to all."""


class Records:
    """The records of one member."""

    def __init__(self, group: str) -> None:
        self.observers: list[Observer] = []
        self._group = group
        self._journal: Journal | None = None
        self._latest = 0

    def open_journal(self, directory: str | Path, name: str) -> None:
        """Keep a journal, unless there is one."""
        from waystation.journal import Journal  # noqa: PLC0415 - it needs pyarrow

        if self._journal is None:
            self._journal = Journal(directory, name)
            self.observers.append(self._journal.note)

    async def close_journal(self) -> None:
        """Write what is left of it."""
        if self._journal is not None:
            journal, self._journal = self._journal, None
            self.observers.remove(journal.note)
            await asyncio.to_thread(journal.close)

    def add_change(self, change: MemberChange) -> None:
        """Tell what happened to a member."""
        _log.info("%s", change)
        if self.observers:
            self._tell(ChangeRecord(change, self._tick()))

    def add_outcome(self, arrival: Arrival, verdict: Verdict) -> None:
        """Tell how a message ended."""
        self._tell(MessageRecord(arrival, verdict, self._tick()))

    def on_end(self, arrival: Arrival, verdict: Verdict) -> OnEnd:
        """A function that tells how a message ended: with this verdict, or dropped."""

        def tell(reason: Reason | None) -> None:
            dropped = reason and Verdict.dropped(reason, verdict.recipient)
            self.add_outcome(arrival, dropped or verdict)

        return tell

    def add_received(self, entry: Entry, own: Mapping, reason: Reason | None) -> None:
        """Tell that a message was read, or why it never was."""
        if not self.observers:
            return
        member, payload, number, to_all = entry
        id = message_id(member.uuid, EVERYBODY if to_all else own.uuid, number)
        recipient = own.member.name
        addressed = EVERYONE if to_all else recipient
        arrival = self.arrival(member.name, addressed, payload, NEVER, id)
        verdict = Verdict(Outcome.DELIVERED, None, recipient)
        self.add_outcome(arrival, verdict if reason is None else Verdict.dropped(reason, recipient))

    def arrival(
        self, sender: str, recipient: str | None, payload: bytes, expiry: Expiry, id: str = ""
    ) -> Arrival:
        """A message as it came to this member; without an id it gets one."""
        onward = Route((self.address(recipient),))
        back = Route((self.address(sender),))
        message = Message(onward, back, payload, id or secrets.token_hex(16), expiry)
        multicast_id = self._group if recipient == EVERYONE else None
        return Arrival(message, self._tick(), multicast_id=multicast_id)

    def address(self, name: str | None) -> Address:
        """A member, or the whole group, as it stands in a route."""
        text = self._group if name == EVERYONE else f"{self._group}/{name or '?'}"
        return Address(GOSSIP, text.encode())

    def _tell(self, record: Record) -> None:
        for observer in self.observers:
            try:
                observer(record)
            except Exception:  # noqa: BLE001 - the group goes on, whatever it is
                _log.exception("an observer of %s failed", self._group)

    def _tick(self) -> int:
        now = now_ns() // 1000
        self._latest = now = max(now, self._latest + 1)
        return now


def message_id(sender: Uuid, receiver: Uuid, number: int) -> str:
    """The id of a message, which both of its ends work out alike: it need not travel.

    >>> len(message_id(bytes(16), bytes(16), 1))
    32
    """
    return hashlib.blake2b(
        sender + receiver + number.to_bytes(8, "big"), digest_size=16
    ).hexdigest()
