"""The gossip router as a server: clients on one side, the rules of core/gossip.py on the other.

The rules decide; here their effects are carried out. What is looked up for every message (who gets
it) is remembered by the readers, and holds until `generation` says that the membership changed.
Listening, limits and deadlines of connections are the business of net/server.py.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import islice
from typing import Final, TypeAlias, assert_never, cast

from msgspec import Struct

from waystation.core.clock import current_clock, now_ns
from waystation.core.gossip import (
    Dialect,
    Disconnect,
    Effect,
    GossipRouter,
    MemberChange,
    MemberKind,
    Refused,
    Registered,
    Suspect,
    Unregistered,
)
from waystation.core.grants import Action
from waystation.core.identity import LogicalAddress
from waystation.core.outcome import Reason
from waystation.core.record import ChangeRecord, MessageRecord, SessionKind, SessionRecord
from waystation.core.who import Who
from waystation.errors import LocalError
from waystation.gossip_router.admission import Admission, GrantedAdmission
from waystation.gossip_router.client import FRONT, Client
from waystation.gossip_router.metrics import Counts
from waystation.gossip_router.outcomes import MemberRecord, Outcomes
from waystation.gossip_router.settings import Settings
from waystation.net.connection import Failure
from waystation.net.held import FREE, HeldBytes
from waystation.net.server import Server
from waystation.net.tls import Tls
from waystation.wire import jgroups2, jgroups5
from waystation.wire.jgroups import Address

_log = logging.getLogger("waystation.router")
BUFFER: Final = 256 * 1024
"""How many bytes are read at a time."""

_GONE: Final = frozenset({MemberKind.LEAVE, MemberKind.SUSPECT})

TOGETHER: Final = 0.05
"""Seconds for which deaths are collected: a client is told of all of them in one write."""

DENIALS: Final = 100
"""How many groups that a client was not admitted to are recorded; all are counted."""

SLICE: Final = 250
"""So many clients are told of deaths before others are served."""

Entry: TypeAlias = jgroups2.PingData | jgroups5.PingData
"""A member as its dialect lists it."""

Observer = Callable[[ChangeRecord], object]
MessageObserver = Callable[[MessageRecord], object]
DenialObserver = Callable[[SessionRecord], object]


class Listed(Struct, frozen=True, gc=False):
    """A member on a list: its address as its dialect has it, and its entry as bytes."""

    address: Address
    encoded: bytes


class Roster(Struct):
    """The members of a group by UUID, and the last answer made of it."""

    entries: dict[bytes, Listed] = {}
    answer: bytes = b""


class GossipServer:
    """A router that listens, from `start` to `drain`.

    `observe` is called with each change of membership (OB-4), `observe_messages` with each message
    that is dropped. With `journal_messages` it is called with those that are passed on as well,
    which costs a look at each of them. `observe_denials` is called with who wanted to join a group
    that it is not admitted to (ID-3).
    """

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        tls: Tls | None = None,
        admission: Admission | GrantedAdmission | None = None,
        observe: Observer | None = None,
        observe_messages: MessageObserver | None = None,
        journal_messages: bool = False,
        observe_denials: DenialObserver | None = None,
    ) -> None:
        self._asks_for_certificates = tls is not None and tls.mutual
        self._check_admission(admission)
        self.settings = settings or Settings()
        self.connection_limits = self.settings.of_connections()
        self.counts = Counts()
        self.generation = 0  # of the membership
        # Whichever connection is read, it is read into this; one read never fills a queue.
        self.buffer = bytearray(FRONT + max(4096, min(BUFFER, self.settings.queue // 8)))
        self.view = memoryview(self.buffer)
        self.touched: list[Client] = []  # with something to write at the end of the turn
        self.held: HeldBytes[Client] = HeldBytes(
            self.settings.budget, self._measure, self._give_up_largest
        )
        self.rosters: dict[tuple[Dialect, str], Roster] = {}
        self.outcomes: Outcomes | None = None  # of messages, if somebody observes them
        if observe_messages is not None:
            self.outcomes = Outcomes(observe_messages, forwarded=journal_messages)
        self._admission = admission
        self._observe = observe
        self._observe_denials = observe_denials
        self._rules = GossipRouter(self.settings.of_members())
        self._clients: dict[int, Client] = {}  # whose dialect is known, by number
        self._greeted = 0  # how many there were so far
        self._waker: asyncio.TimerHandle | None = None
        self._dead: dict[tuple[Dialect, str, bytes], Listed] = {}  # whom groups may have to hear of
        self._notices: deque[Iterator[Client]] = deque()  # each tells the next clients of deaths
        self._server = Server(
            lambda: Client(self), limits=self.settings.of_server(), tls=tls, log=_log
        )
        self.counts.refused = self._server.refused

    # From start to drain

    async def start(self, place: str) -> None:
        """Listen; port 0 takes a free one, and `place` says which."""
        self.loop = asyncio.get_running_loop()
        await self._server.start(place)
        self._wake()

    async def drain(self) -> None:
        """Stop accepting, write what waits, and end all connections."""
        if self._waker is not None:
            self._waker.cancel()
        for client in self.clients():
            self._part(client)
        await self._server.drain(self.settings.linger + 1)

    @property
    def place(self) -> str:
        """Where it listens."""
        return self._server.place

    @property
    def draining(self) -> bool:
        """Whether it is ending."""
        return self._server.draining

    def clients(self) -> list[Client]:
        """The clients that are connected, whether they have spoken or not."""
        return cast("list[Client]", list(self._server.connections))

    def _wake(self) -> None:
        """Do what is due, and set the alarm anew."""
        self._do_due()
        self.flush()
        self._wake_in_time()

    def _do_due(self) -> None:
        """End clients that should have sent heartbeats and did not, and tell who died."""
        batch: list[Effect] = []
        for effect in self._rules.wake(self._now_ms()):
            batch.append(effect)
            if isinstance(effect, Disconnect):  # the last of those about one connection
                self._apply(batch, self._clients[effect.connection].reader.dialect)
                batch = []
            elif isinstance(effect, Suspect):
                self._apply([batch.pop()], effect.dialect)

    def _wake_in_time(self) -> None:
        """Set the alarm for what the rules have to do next."""
        now = self.loop.time()
        due = self._rules.wake_at() / 1000 - now + 0.001
        pause = max(TOGETHER, min(self.settings.silence / 4, due))
        waker = self._waker
        if waker is not None and not waker.cancelled() and now < waker.when() <= now + pause:
            return
        if waker is not None:
            waker.cancel()
        self._waker = self.loop.call_later(pause, self._wake)

    # What is read again (ID-5)

    def renew_certificate(self) -> None:
        """Use the certificate that is in its file now, for the clients to come."""
        self._server.renew_certificate()

    def change_admission(self, admission: Admission | GrantedAdmission | None) -> None:
        """Let others in from now on; whoever is in a group that it may not use has to go."""
        self._check_admission(admission)
        self._admission = admission
        self.generation += 1  # who was refused, or not, is not remembered
        for client in self.clients():
            client.admitted = {
                group
                for group, token in client.tokens.items()
                if admission is not None and admission.by_token(group, token)
            }
            lost = [group for group, _ in self.members_of(client) if not self.admits(client, group)]
            if lost:
                detail = f"not admitted to {lost[0]!r} any more"
                self._count_disconnected(client, "not_admitted", detail)
                self._dismiss(client)
        self.flush()

    def _check_admission(self, admission: Admission | GrantedAdmission | None) -> None:
        wants = admission is not None and admission.wants_certificates
        if wants and not self._asks_for_certificates:
            raise LocalError(
                "groups open by certificates, and clients are not asked for one",
                rule="GR-2",
                hint="give TLS with authorities, and make it mutual",
            )

    # What clients tell

    def greeted(self, client: Client) -> None:
        """Note a client whose dialect is known. That registers nobody (GR-1)."""
        self._greeted += 1
        current_clock().pin()
        client.number = self._greeted
        self._clients[client.number] = client
        dialect = client.reader.dialect
        self._rules.connected(client.number, dialect, self._now_ms())
        _log.debug("%s: client %d speaks %s", client.place, client.number, dialect.value)

    def heard(self, client: Client, *, heartbeat: bool = False) -> None:
        """Note that something arrived."""
        self._rules.heard(client.number, self._now_ms(), heartbeat=heartbeat)

    def left(self, client: Client) -> None:
        """End a client that said goodbye."""
        self._forget(client, goodbye=True)
        client.close()

    def lost(self, client: Client, failure: Failure | None) -> None:
        """Note that a connection ended, for whatever reason."""
        if failure is not None:
            _log.info("%s ended: %s", client.place, failure.detail)
        self.counts.bytes_sent += client.written
        self.held.forget(client)
        if not self.draining:
            self._forget(client)
            self.flush()
        self._clients.pop(client.number, None)

    def reject(self, client: Client, cause: str, detail: str) -> None:
        """End a client that broke the protocol; its groups learn that its members are gone."""
        self._server.refuse(cause, client.place, detail)
        self._dismiss(client)

    def give_up(self, client: Client, cause: str, detail: str) -> None:
        """End a connection that is of no use any more; the others learn of it when it is lost."""
        self._count_disconnected(client, cause, detail)
        client.abort()

    def _measure(self, client: Client) -> int:
        """How many bytes wait for a receiver; when too many do for all, its room is looked up."""
        if self.held.is_tight:
            client.room = 0
        return client.unsent

    def _give_up_largest(self, client: Client) -> None:
        """End the receiver that holds most, when all together hold too much (FL-1)."""
        self.give_up(client, "over budget", "it holds most of what waits for slow receivers")

    def shed(self, client: Client, count: int) -> None:
        """Note that messages found no room in the queue of a receiver (GR-10)."""
        self.counts.dropped[Reason.QUEUE_FULL.value] += count
        _log.debug("%s: %d messages dropped: its queue is full", client.place, count)
        self._server.complain("queue full", client.place, "it is too slow, and loses messages")
        client.shed()

    def _forget(self, client: Client, *, goodbye: bool = False) -> None:
        """Remove its members, and release the senders that wait for it."""
        client.sender_hold.release_all()
        if client.number:
            effects = self._rules.closed(client.number, self._now_ms(), goodbye=goodbye)
            self.generation += 1  # its members may have other paths, which are used from now on
            self._apply(effects, client.reader.dialect)
            if effects and not self.draining:
                self._tell_in_time()

    def _tell_in_time(self) -> None:
        """See to it that groups learn of deaths: at once, or when the wait is over."""
        if self.settings.suspect_after:
            self._wake_in_time()
        else:
            self._do_due()

    def _dismiss(self, client: Client) -> None:
        self._forget(client)
        self._part(client)

    @staticmethod
    def _part(client: Client) -> None:
        """Say goodbye, write what is left, and end."""
        if client.number:
            client.tell(client.reader.farewell)
        client.close()

    def _count_disconnected(self, client: Client, cause: str, detail: str) -> None:
        self.counts.disconnected[cause] += 1
        self._server.complain(f"disconnected: {cause}", client.place, detail)

    def _now_ms(self) -> int:
        return int(self.loop.time() * 1000)

    # What readers ask for

    def register(
        self,
        client: Client,
        group: str,
        entry: Entry,
        places: Sequence[Address | None],
        token: bytes = b"",
    ) -> None:
        """Let a member join a group, if it may."""
        assert entry.address is not None  # or its reader has refused it
        member = LogicalAddress(entry.address.key, entry.name or "")
        if self._admission is not None and self._admission.by_token(group, token):
            client.admitted.add(group)
            client.tokens[group] = token
        if not self.admits(client, group):
            self._note_denial(client, group, entry.name or None)
            self._refuse_member(Refused(client.number, group, member, f"not admitted to {group!r}"))
            return
        physical = tuple(str(place) for place in places if place is not None)
        effects = self._rules.register(client.number, group, member, physical)
        if isinstance(effects[0], Registered):
            roster = self.rosters.setdefault((client.reader.dialect, group), Roster())
            encoded = client.reader.encode_entry(entry)
            roster.entries[member.uuid] = Listed(entry.address, encoded)
            roster.answer = b""
            self._dead.pop((client.reader.dialect, group, member.uuid), None)
            client.reader.admit()
        self._apply(effects, client.reader.dialect)

    def unregister(self, client: Client, group: str, uuid: bytes) -> None:
        """Let a member leave a group."""
        effects = self._rules.unregister(client.number, group, uuid)
        self._apply(effects, client.reader.dialect)

    def unregister_everywhere(self, client: Client, uuid: bytes) -> None:
        """Let a member leave all groups, with one answer."""
        effects: list[Effect] = [Unregistered(client.number, "", uuid)]
        for group in [group for group, member in self.members_of(client) if member == uuid]:
            effects += self._rules.unregister(client.number, group, uuid)[1:]
        self._apply(effects, client.reader.dialect)

    def members_of(self, client: Client) -> Collection[tuple[str, bytes]]:
        """The group and the UUID of each member that a client has registered."""
        return self._rules.owned(client.number)

    def route(self, client: Client, group: str, uuid: bytes | None) -> tuple[Client, ...]:
        """The clients that a message is for."""
        found = self._rules.route(client.number, group, uuid)
        return tuple(self._clients[number] for number in found)

    def admits(self, client: Client, group: str) -> bool:
        """Whether a client may send to a group, ask for its members, and join it."""
        if self._admission is None or group in client.admitted:
            return True
        return self._admission.by_name(group, client.names)

    def groups(self, client: Client) -> list[str]:
        """The groups that a client may see."""
        return [group for group in self._rules.groups(client.number) if self.admits(client, group)]

    def entries(self, client: Client, group: str) -> list[bytes]:
        """The members of a group, each as bytes; empty for a client that is not admitted."""
        roster = self.rosters.get((client.reader.dialect, group))
        if roster is None or not self.admits(client, group):
            return []
        return [listed.encoded for listed in roster.entries.values()]

    def members(self, client: Client, group: str) -> bytes:
        """The list of members of a group; made once, until the membership changes."""
        roster = self.rosters.get((client.reader.dialect, group))
        if roster is None or not self.admits(client, group):
            return client.reader.encode_list(group, ())
        if not roster.answer:
            roster.answer = client.reader.encode_list(group, self.entries(client, group))
        return roster.answer

    def flush(self) -> None:
        """End a turn: write everything that it brought, once for each receiver."""
        touched = self.touched
        if not touched:
            return
        self.touched = []
        count_soon = self.held.count_soon
        for client in touched:
            client.flush()
            transport = client.transport
            if transport is not None and transport.get_write_buffer_size() > FREE:
                count_soon(client)

    # What is to be done

    def _apply(self, effects: Iterable[Effect], dialect: Dialect) -> None:
        for effect in effects:
            match effect:
                case Registered():
                    self.generation += 1
                    client = self._clients[effect.connection]
                    client.tell(client.reader.registered)
                case Refused():
                    self._refuse_member(effect)
                case Unregistered():
                    client = self._clients[effect.connection]
                    client.tell(client.reader.unregistered)
                case MemberChange():
                    self._note(effect, dialect)
                    if effect.kind in _GONE:
                        self._remove_member(effect, dialect)
                case Suspect():
                    self._tell_deaths(effect)
                case Disconnect():
                    self._disconnect(effect)
                case _:
                    assert_never(effect)

    def _refuse_member(self, effect: Refused) -> None:
        client = self._clients[effect.connection]
        self._server.refuse("registration", client.place, f"{effect.member}: {effect.why}")
        answer = client.reader.refused
        client.tell(answer)
        if not answer and not self.members_of(client):
            # A 5.x client understands no refusal but the end of its connection.
            self._dismiss(client)

    def _note_denial(self, client: Client, group: str, name: str | None) -> None:
        """Tell who wanted to join a group that is not open to it."""
        denial = f"{Action.REGISTER} {group}"[:300]
        if self._observe_denials is None or denial in client.denials:
            return
        if len(client.denials) >= DENIALS:
            return
        client.denials.add(denial)
        self._observe_denials(
            SessionRecord(
                SessionKind.DENIED,
                f"client-{client.number}",
                f"tcp#{client.place}",
                name,
                Reason.REFUSED,
                denial,
                now_ns() // 1000,
                transport="tcp",
                identity=Who(certificate=tuple(sorted(client.names))).text,
            )
        )

    def _note(self, change: MemberChange, dialect: Dialect) -> None:
        self.generation += 1
        self.counts.members[change.kind.value] += 1
        _log.info("%s", change)
        if self._observe is not None:
            self._observe(MemberRecord(change, now_ns() // 1000, dialect=dialect.value))

    def _remove_member(self, change: MemberChange, dialect: Dialect) -> None:
        """Take a member off the roster of its group, and keep its address for the notice."""
        group, uuid = change.group, change.mapping.uuid
        roster = self.rosters[dialect, group]
        roster.answer = b""
        entry = roster.entries.pop(uuid)
        if not roster.entries:
            del self.rosters[dialect, group]
        if change.kind is MemberKind.SUSPECT:
            self._dead[dialect, group, uuid] = entry

    def _tell_deaths(self, effect: Suspect) -> None:
        """Begin to tell the clients of a group who died; a large group is told in slices."""
        group = effect.group
        dead = [self._dead.pop((effect.dialect, group, member.uuid)) for member in effect.members]
        if not self.settings.suspect:
            return
        is_idle = not self._notices
        self._notices.append(self._telling(effect.connections, group, dead))
        if is_idle:
            self._tell_slice()

    def _telling(
        self, connections: Sequence[int], group: str, dead: Sequence[Listed]
    ) -> Iterator[Client]:
        """Tell one client after the other; what clients of one release are told is made once."""
        notices: dict[object, bytes] = {}
        for number in connections:
            client = self._clients.get(number)
            if client is None or not client.is_open:
                continue
            reader = client.reader
            form = reader.suspect_form
            if form not in notices:
                notices[form] = b"".join(reader.suspect(group, entry.address) for entry in dead)
            client.tell(notices[form])
            if client.is_overfull():
                self.give_up(client, "stuck", "it does not even take notices")
            yield client

    def _tell_slice(self) -> None:
        """Tell the next clients of deaths; the others when everybody has had a turn."""
        left = SLICE
        while self._notices and left:
            told = sum(1 for _ in islice(self._notices[0], left))
            if told < left:
                self._notices.popleft()
            left -= told
        self.flush()
        if self._notices:
            self.loop.call_soon(self._tell_slice)

    def _disconnect(self, effect: Disconnect) -> None:
        client = self._clients[effect.connection]
        self._count_disconnected(client, "silent", effect.why)
        self._dismiss(client)
