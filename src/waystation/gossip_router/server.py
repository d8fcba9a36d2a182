"""The gossip router as a server: connections on one side, the rules of core/gossip.py on the other.

The rules decide; here their effects are carried out. What is looked up for every message (who gets
it) is remembered by the readers, and holds until `generation` says that the membership changed.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, assert_never

from waystation.core.expiry import NEVER
from waystation.core.gossip import (
    Dialect,
    Disconnect,
    Effect,
    GossipRouter,
    MemberChange,
    MemberKind,
    Refused,
    Registered,
    Superseded,
    Suspect,
    Unregistered,
)
from waystation.core.identity import LogicalAddress
from waystation.core.outcome import Reason
from waystation.core.record import ChangeRecord, MessageRecord
from waystation.errors import LocalError
from waystation.gossip_router.admission import Admission
from waystation.gossip_router.client import FRONT, Client, watch_handshakes
from waystation.gossip_router.metrics import PREFIX, Counts
from waystation.gossip_router.outbox import Outbox
from waystation.gossip_router.outcomes import MemberRecord, Outcomes
from waystation.gossip_router.reader import Reader
from waystation.gossip_router.settings import Settings
from waystation.net.complaints import Complaints
from waystation.net.metrics import Family, exposition, gauge
from waystation.net.monitor import Health
from waystation.net.place import place_of
from waystation.net.sockets import open_listener
from waystation.net.tls import Tls
from waystation.wire.jgroups import Address

_LOG: Final = logging.getLogger("waystation.router")
BUFFER: Final = 256 * 1024
"""So much is read at a time, at the most."""

_GOING: Final = frozenset({MemberKind.LEAVE, MemberKind.SUSPECT})

Observer = Callable[[ChangeRecord], object]
MessageObserver = Callable[[MessageRecord], object]


class _Roster:
    """The members of a group as its dialect lists them, and the last answer made of it."""

    __slots__ = ("answer", "entries")

    def __init__(self) -> None:
        self.entries: dict[bytes, tuple[Address, Any]] = {}
        self.answer = b""


class GossipServer:
    """A router that listens, from `start` to `drain`.

    `observe` is called with each change of membership (OB-4), `observe_messages` with each message
    that is dropped. With `journal_messages` it is called with those that are passed on as well,
    which costs a look at each of them.
    """

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        tls: Tls | None = None,
        admission: Admission | None = None,
        observe: Observer | None = None,
        observe_messages: MessageObserver | None = None,
        journal_messages: bool = False,
    ) -> None:
        self.settings = settings or Settings()
        self.counts = Counts()
        self.generation = 0  # of the membership
        # What is read, of whichever connection; one read never fills a queue.
        self.buffer = bytearray(FRONT + max(4096, min(BUFFER, self.settings.queue // 8)))
        self.view = memoryview(self.buffer)
        self.touched: list[Outbox] = []  # with something to write at the end of the turn
        self.place = ""
        self.draining = False
        self._tls = tls
        self._admission = admission
        if admission is not None and admission.wants_certificates and not (tls and tls.mutual):
            raise LocalError(
                "groups open by certificates, and nobody is asked for one",
                rule="GR-2",
                hint="give TLS with authorities, and make it mutual",
            )
        self._observe = observe
        self.outcomes: Outcomes | None = None  # when somebody wants to hear them
        if observe_messages is not None:
            self.outcomes = Outcomes(observe_messages, forwarded=journal_messages)
        self._rules = GossipRouter(self.settings.of_members())
        self._clients: dict[int, Client] = {}
        self._rosters: dict[tuple[Dialect, str], _Roster] = {}
        self._opened = 0
        self._server: asyncio.Server | None = None
        self._sweeper: asyncio.TimerHandle | None = None
        self._complaints = Complaints(_LOG)
        self._empty = asyncio.Event()
        self._empty.set()

    # From start to drain

    async def start(self, place: str) -> None:
        """Listen; port 0 takes a free one, and `place` says which."""
        context = self._tls.for_listener() if self._tls else None
        if context is not None:
            watch_handshakes(context, self._refuse_handshake)
        self.loop = asyncio.get_running_loop()
        self._server = await open_listener(
            self._make_client,
            place,
            backlog=self.settings.backlog,
            tls=context,
            handshake=self.settings.silence,
        )
        self.place = place_of(self._server.sockets[0].getsockname())
        self._sweep()

    async def drain(self) -> None:
        """Accept nobody any more, write what waits, and end all connections."""
        self.draining = True
        if self._server is not None:
            self._server.close()
        if self._sweeper is not None:
            self._sweeper.cancel()
        for client in list(self._clients.values()):
            if client.reader is not None:
                client.reader.ended = True
                client.tell(client.reader.farewell())
            client.close()
        try:
            await asyncio.wait_for(self._empty.wait(), self.settings.linger + 1)
        except TimeoutError:
            for client in list(self._clients.values()):
                client.abort()

    def now(self) -> float:
        """Seconds that only grow."""
        return self.loop.time()

    def _make_client(self) -> Client:
        self._opened += 1
        return Client(self, self._opened)

    def _sweep(self) -> None:
        """End what has been silent, or has left a frame unfinished, for too long."""
        now = self.now()
        batch: list[Effect] = []
        for effect in self._rules.wake(int(now * 1000)):
            batch.append(effect)
            if isinstance(effect, Disconnect):  # the last of those about one connection
                self._apply(batch, self._reader(self._clients[effect.connection]).dialect)
                batch = []
        oldest = now - self.settings.silence
        for client in list(self._clients.values()):
            if client.unfinished_since is not None and client.unfinished_since < oldest:
                self.give_up(client, "unfinished", "it left a frame unfinished")
        self.flush()
        pause = self.settings.silence / 4
        due = self._rules.wake_at()
        if due != NEVER:
            pause = max(0.01, min(pause, due / 1000 - now + 0.001))
        self._sweeper = self.loop.call_later(pause, self._sweep)

    # What connections tell

    def accept(self, client: Client) -> bool:
        """A connection opened; False when there is no room for it."""
        if self.draining or len(self._clients) >= self.settings.connections:
            self._refuse("connections", client, f"over {self.settings.connections} connections")
            return False
        self.counts.opened += 1
        self._clients[client.number] = client
        self._empty.clear()
        return True

    def greeted(self, client: Client) -> None:
        """The dialect of a connection is known. That registers nobody (GR-1)."""
        self._rules.connected(client.number, self._reader(client).dialect, self._now_ms())

    def heard(self, client: Client) -> None:
        """Something arrived."""
        self._rules.heard(client.number, self._now_ms())

    def beat(self, client: Client) -> None:
        """A heartbeat arrived."""
        self._rules.heard(client.number, self._now_ms(), heartbeat=True)

    def left(self, client: Client) -> None:
        """A client said goodbye."""
        self._forget(client, goodbye=True)

    def lost(self, client: Client, detail: str) -> None:
        """A connection ended, for whatever reason."""
        if self._clients.pop(client.number, None) is None:
            return
        if detail:
            _LOG.info("%s ended: %s", client.place, detail)
        if not self.draining:
            self._forget(client)
            self.flush()
        if not self._clients:
            self._empty.set()

    def failed(self, client: Client, cause: str, detail: str) -> None:
        """A client did something wrong: it goes, and nobody else notices (but that it is gone)."""
        self._refuse(cause, client, detail)
        self._forget(client)
        if client.reader is not None:
            client.tell(client.reader.farewell())
        client.close()

    def give_up(self, client: Client, cause: str, detail: str) -> None:
        """End a connection that is of no use any more."""
        self.counts.disconnected[cause] += 1
        self._complain(f"disconnected: {cause}", client.place, detail)
        client.abort()
        self._forget(client)
        self.flush()

    def _forget(self, client: Client, *, goodbye: bool = False) -> None:
        if client.reader is not None:
            effects = self._rules.closed(client.number, goodbye=goodbye)
            self._apply(effects, client.reader.dialect)
        client.members.clear()

    def shed(self, outbox: Outbox, count: int) -> None:
        """Messages found no room in the queue of a receiver (GR-10)."""
        self.counts.dropped[Reason.QUEUE_FULL.value] += count
        client = self._clients.get(outbox.number)
        if client is not None:
            self._complain("queue full", client.place, "it does not keep up, and loses messages")
            client.shed()

    # What readers ask for

    def register(
        self,
        client: Client,
        group: str,
        address: Address,
        name: str | None,
        physical: tuple[str, ...],
        entry: Any,
        token: bytes = b"",
    ) -> None:
        """A member joins a group, if it may."""
        member = LogicalAddress(address.key, name or "")
        if self._admission is not None and self._admission.by_token(group, token):
            client.admitted.add(group)
        if not self.admits(client, group):
            self._turn_away(Refused(client.number, group, member, f"not admitted to {group!r}"))
            return
        effects = self._rules.register(client.number, group, member, physical)
        if isinstance(effects[0], Registered):
            self._enter(client, group, address, entry)
        self._apply(effects, self._reader(client).dialect)

    def _enter(self, client: Client, group: str, address: Address, entry: Any) -> None:
        key = (self._reader(client).dialect, group)
        roster = self._rosters.get(key)
        if roster is None:
            roster = self._rosters[key] = _Roster()
        roster.entries[address.key] = (address, entry)
        roster.answer = b""
        client.members.add((group, address.key))

    def unregister(self, client: Client, group: str, uuid: bytes) -> None:
        """A member leaves a group."""
        self._apply(
            self._rules.unregister(client.number, group, uuid), self._reader(client).dialect
        )

    def unregister_everywhere(self, client: Client, uuid: bytes) -> None:
        """A member leaves all groups; there is one answer."""
        effects: list[Effect] = [Unregistered(client.number, "", uuid)]
        for group, member in list(client.members):
            if member == uuid:
                effects += self._rules.unregister(client.number, group, uuid)[1:]
                client.members.discard((group, uuid))
        self._apply(effects, self._reader(client).dialect)

    def route(self, client: Client, group: str, uuid: bytes | None) -> tuple[Outbox, ...]:
        """The outboxes of all that a message is for."""
        found = self._rules.route(client.number, group, uuid)
        return tuple(self._clients[number].outbox for number in found)

    def admits(self, client: Client, group: str) -> bool:
        """Whether a client may send to a group, ask for its members, and join it."""
        if self._admission is None or group in client.admitted:
            return True
        return self._admission.by_name(group, client.names)

    def groups(self, client: Client) -> list[str]:
        """The groups that a client may see."""
        return [group for group in self._rules.groups(client.number) if self.admits(client, group)]

    def entries(self, client: Client, group: str) -> tuple[Any, ...]:
        """The members of a group as its dialect lists them; to whom it is closed, it is empty."""
        roster = self._rosters.get((self._reader(client).dialect, group))
        if roster is None or not self.admits(client, group):
            return ()
        return tuple(entry for _, entry in roster.entries.values())

    def members(
        self, client: Client, group: str, encode: Callable[[str, tuple[Any, ...]], bytes]
    ) -> bytes:
        """The answer to who is in a group; made once, and told until somebody joins or leaves."""
        roster = self._rosters.get((self._reader(client).dialect, group))
        if roster is None or not self.admits(client, group):
            return encode(group, ())
        if not roster.answer:
            roster.answer = encode(group, self.entries(client, group))
        return roster.answer

    @staticmethod
    def _reader(client: Client) -> Reader:
        assert client.reader is not None  # it has spoken
        return client.reader

    def flush(self) -> None:
        """The end of a turn: everything that it brought is written, once for each receiver."""
        touched = self.touched
        if not touched:
            return
        self.touched = []
        for outbox in touched:
            outbox.flush()

    # What is to be done

    def _apply(self, effects: Iterable[Effect], dialect: Dialect) -> None:
        gone: dict[tuple[str, bytes], Address] = {}
        for effect in effects:
            match effect:
                case Registered():
                    self.generation += 1
                    client = self._clients[effect.connection]
                    client.tell(self._reader(client).registered())
                case Refused():
                    self._turn_away(effect)
                case Unregistered():
                    client = self._clients[effect.connection]
                    client.members.discard((effect.group, effect.uuid))
                    client.tell(self._reader(client).unregistered())
                case MemberChange():
                    self._note(effect, dialect)
                    if effect.kind in _GOING:
                        place = effect.group, effect.mapping.uuid
                        gone[place] = self._strike(dialect, *place)
                case Superseded():
                    place = effect.group, effect.member.uuid
                    self._clients[effect.connection].members.discard(place)
                case Suspect():
                    address = gone[effect.group, effect.member.uuid]
                    self._tell_suspect(effect, address)
                case Disconnect():
                    self._end(effect)
                case _:
                    assert_never(effect)

    def _turn_away(self, effect: Refused) -> None:
        client = self._clients[effect.connection]
        reader = self._reader(client)
        self._refuse("registration", client, f"{effect.member}: {effect.why}")
        client.tell(reader.refused())
        if not reader.refused() and not client.members:
            # A 5.x client understands no refusal but the end of its connection.
            client.tell(reader.farewell())
            client.close()

    def _note(self, change: MemberChange, dialect: Dialect) -> None:
        self.generation += 1
        self.counts.members[change.kind.value] += 1
        _LOG.info("%s", change)
        if self._observe is not None:
            self._observe(MemberRecord(change, time.time_ns() // 1000, dialect.value))

    def _strike(self, dialect: Dialect, group: str, uuid: bytes) -> Address:
        """Take a member off the list of its group."""
        roster = self._rosters[dialect, group]
        address, _ = roster.entries.pop(uuid)
        roster.answer = b""
        if not roster.entries:
            del self._rosters[dialect, group]
        return address

    def _tell_suspect(self, effect: Suspect, address: Address) -> None:
        notice = b""
        for number in effect.connections:
            client = self._clients.get(number)
            if client is not None and client.reader is not None:
                notice = notice or client.reader.suspect(effect.group, address)
                client.tell(notice)
                if client.outbox.is_overfull():
                    self.give_up(client, "stuck", "it does not even take notices")

    def _end(self, effect: Disconnect) -> None:
        client = self._clients[effect.connection]
        cause = "silent" if effect.why.startswith("silent") else "superseded"
        self.counts.disconnected[cause] += 1
        self._complain(f"disconnected: {cause}", client.place, effect.why)
        client.tell(self._reader(client).farewell())
        client.close()

    # What is told to people

    def metrics(self) -> str:
        """What happened and what is the case now, for Prometheus."""
        return exposition(PREFIX, (*self.counts.families(), *self._gauges()))

    def health(self) -> Health:
        """Whether it serves members."""
        return Health(status="draining" if self.draining else "ok", listening=self.place)

    def _gauges(self) -> Iterator[Family]:
        connections: Counter[str] = Counter()
        queued = 0
        for client in self._clients.values():
            connections[client.reader.dialect.value if client.reader else "unknown"] += 1
            queued += client.outbox.waiting()
        groups = Counter(dialect.value for dialect, _ in self._rosters)
        members: Counter[str] = Counter()
        for (dialect, _), roster in self._rosters.items():
            members[dialect.value] += len(roster.entries)
        yield gauge("connections", "Open connections.", connections, "dialect")
        yield gauge("groups", "Groups with members.", groups, "dialect")
        yield gauge("members", "Members of groups.", members, "dialect")
        yield gauge("queued_bytes", "Bytes that wait for receivers.", queued)
        yield gauge("draining", "Whether the router is ending.", int(self.draining))

    def _refuse(self, cause: str, client: Client, detail: str) -> None:
        self.counts.refused[cause] += 1
        self._complain(f"refused: {cause}", client.place, detail)

    def _refuse_handshake(self, detail: str) -> None:
        self.counts.refused["tls"] += 1
        self._complain("refused: tls", "a client", detail)

    def _complain(self, sort: str, place: str, detail: str) -> None:
        self._complaints.add(self.now(), sort, place, detail)

    def _now_ms(self) -> int:
        return int(self.loop.time() * 1000)
