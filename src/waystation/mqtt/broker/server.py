"""The broker as a server: sessions, subscriptions, retained messages and last wills (MC-12).

Connections bring packets and take bytes; here is decided who gets what, and what is kept for whom.
A message is matched once per topic (the result holds until a subscription changes), written once
for all that get the same bytes, and put into each receiver's own queue. Nobody waits for a receiver
that does not read: what finds no room is dropped for it alone, and counted by reason.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from typing import Final

from mqtt5 import (
    ConnAckPacket,
    ConnAckReasonCode,
    ConnectPacket,
    DisconnectPacket,
    DisconnectReasonCode,
    PubAckReasonCode,
    QoS,
    RetainHandling,
    SubAckPacket,
    SubAckReasonCode,
    SubscribePacket,
    TopicFilter,
    UnsubAckPacket,
    UnsubAckReasonCode,
    UnsubscribePacket,
    Will,
)

from waystation.core.outcome import Reason
from waystation.mqtt.broker.access import Authenticate
from waystation.mqtt.broker.connection import Connection
from waystation.mqtt.broker.counts import Counts
from waystation.mqtt.broker.publication import Delivery, Publication
from waystation.mqtt.broker.session import FOREVER, Session, Subscription
from waystation.mqtt.broker.settings import Settings
from waystation.mqtt.broker.topics import Filters, TopicTree, is_filter, is_topic
from waystation.net.complaints import Complaints
from waystation.net.place import place_of
from waystation.net.sockets import open_listener
from waystation.net.tls import Tls

_LOG: Final = logging.getLogger("waystation.broker")
_SWEEP: Final = 0.5
_KNOWN_TOPICS: Final = 10_000
_GRANTED: Final = (
    SubAckReasonCode.GRANTED_QOS_AT_MOST_ONCE,
    SubAckReasonCode.GRANTED_QOS_AT_LEAST_ONCE,
)


class _Target:
    """A session that gets what is published on a topic, and how."""

    __slots__ = ("ids", "own", "qos", "retain_as_published", "session")

    def __init__(self, subscriptions: list[Subscription]) -> None:
        self.session = subscriptions[0].session
        self.qos = max(subscription.qos for subscription in subscriptions)
        self.retain_as_published = any(s.retain_as_published for s in subscriptions)
        self.ids = tuple(s.id for s in subscriptions if s.id is not None)
        self.own: _Target | None = self  # for what it publishes itself
        foreign = [s for s in subscriptions if not s.no_local]
        if len(foreign) < len(subscriptions):
            self.own = _Target(foreign) if foreign else None


class Broker:
    """A broker that listens, from `start` to `drain`.

    >>> async def main():
    ...     broker = Broker()
    ...     await broker.start("127.0.0.1:0")
    ...     await broker.drain()
    ...     return broker.counts.opened
    >>> asyncio.run(main())
    0

    `authenticate` says who may connect: it gets a client's id, user name and password. Without it
    everybody may.
    """

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        tls: Tls | None = None,
        authenticate: Authenticate | None = None,
    ) -> None:
        self.settings = settings or Settings()
        self.counts = Counts()
        self.now = 0.0  # of the event loop's clock, when something last came
        self.touched: list[Connection] = []  # with something to write at the end of the turn
        self.known_topics: dict[str, tuple[_Target, ...]] = {}  # until a subscription changes
        self.place = ""
        self.draining = False
        self._tls = tls
        self._authenticate = authenticate
        self._connections: set[Connection] = set()
        self._sessions: dict[str, Session] = {}
        self._filters: Filters[Subscription] = Filters()
        self._retained: TopicTree[Publication] = TopicTree()
        self._retained_count = self._retained_bytes = 0
        self._server: asyncio.Server | None = None
        self._sweeper: asyncio.TimerHandle | None = None
        self._complaints = Complaints(_LOG)
        self._empty = asyncio.Event()
        self._empty.set()

    # From start to drain

    async def start(self, place: str) -> None:
        """Listen; port 0 takes a free one, and `place` says which."""
        context = self._tls.for_listener() if self._tls else None
        self.loop = asyncio.get_running_loop()
        self.now = self.loop.time()
        self._server = await open_listener(
            lambda: Connection(self),
            place,
            backlog=self.settings.backlog,
            tls=context,
            handshake=self.settings.greeting,
        )
        self.place = place_of(self._server.sockets[0].getsockname())
        self._sweep()

    async def drain(self) -> None:
        """Accept nobody any more, write what waits, and end all connections without their wills."""
        self.draining = True
        if self._server is not None:
            self._server.close()
        if self._sweeper is not None:
            self._sweeper.cancel()
        for session in self._sessions.values():
            session.stop_timers()
        for connection in list(self._connections):
            connection.end(DisconnectReasonCode.SERVER_SHUTTING_DOWN, "the broker is ending")
        try:
            await asyncio.wait_for(self._empty.wait(), self.settings.linger + 1)
        except TimeoutError:
            for connection in list(self._connections):
                connection.transport.abort()

    def _sweep(self) -> None:
        """End connections that have been silent for longer than they promised."""
        self.now = now = self.loop.time()
        for connection in list(self._connections):
            silence = now - connection.heard
            if connection.keep_alive and silence > connection.keep_alive:
                connection.end(DisconnectReasonCode.KEEP_ALIVE_TIMEOUT)
                self.lost(connection, "keep_alive_timeout", f"nothing for {silence:.1f} s")
        self.flush()
        self._sweeper = self.loop.call_later(_SWEEP, self._sweep)

    def flush(self) -> None:
        """The end of a turn: everything that it brought is written, once for each connection."""
        touched, self.touched = self.touched, []
        for connection in touched:
            connection.flush()

    # Connections

    def accept(self, connection: Connection) -> bool:
        """A connection opened; False when there is no room for it."""
        if self.draining or len(self._connections) >= self.settings.connections:
            self._refused(connection, "connections", "there are as many as the limit allows")
            return False
        self.counts.opened += 1
        self._connections.add(connection)
        self._empty.clear()
        return True

    def gone(self, connection: Connection) -> None:
        """A connection is closed."""
        self._connections.discard(connection)
        if not self._connections:
            self._empty.set()

    def lost(self, connection: Connection, cause: str, detail: str) -> None:
        """A connection ended without a goodbye: the client's will is done."""
        self.counts.disconnected[cause] += 1
        if cause != "lost":
            self._complain(f"disconnected: {cause}", connection.place, detail)
        if not self.draining:
            self.now = self.loop.time()
            self._leave(connection)
            self.flush()

    def goodbye(self, connection: Connection, packet: DisconnectPacket) -> None:
        """A client says goodbye, with its will or without."""
        session = connection.session
        assert session is not None
        self.counts.disconnected["goodbye"] += 1
        if packet.session_expiry_interval is not None:
            if not session.expiry and packet.session_expiry_interval:
                connection.end(DisconnectReasonCode.PROTOCOL_ERROR, "the session had no expiry")
                self._leave(connection)
                return
            session.expiry = self._bounded(packet.session_expiry_interval)
        if packet.reason_code is DisconnectReasonCode.NORMAL_DISCONNECTION:
            session.will = None
        connection.end()
        self._leave(connection)

    def connect(self, connection: Connection, packet: ConnectPacket) -> None:
        """A client says who it is: let it in, or say why not."""
        refusal = self._refusal(packet)
        if refusal is not None:
            code, detail = refusal
            self._refused(connection, code.name.lower(), detail)
            connection.refuse(code, detail)
            return
        client_id = packet.client_id or f"waystation-{secrets.token_hex(12)}"
        session, present = self._session(client_id, clean=packet.clean_start)
        session.connection = connection
        session.expiry = self._bounded(packet.session_expiry_interval)
        session.will = packet.will
        connection.session = session
        connection.receive_maximum = packet.receive_max
        connection.largest = packet.max_packet_size
        connection.keep_alive = packet.keep_alive * 1.5
        connection.greeted()
        asked = packet.session_expiry_interval
        connection.tell(
            ConnAckPacket(
                session_present=present,
                session_expiry_interval=None if asked == session.expiry else session.expiry,
                assigned_client_id=None if packet.client_id else client_id,
                receive_max=self.settings.receive_maximum,
                topic_alias_max=self.settings.aliases,
                max_qos=QoS.AT_LEAST_ONCE,
                max_packet_size=self.settings.packet,
                shared_subscription_available=False,
            ).write()
        )
        for packet_id, delivery in session.inflight.items():
            connection.deliver(delivery, packet_id, again=True)
        self.pump(session)

    def _refusal(self, packet: ConnectPacket) -> tuple[ConnAckReasonCode, str] | None:
        code = ConnAckReasonCode
        if packet.authentication_method is not None:
            return code.BAD_AUTHENTICATION_METHOD, "there is no extended authentication here"
        known = packet.client_id in self._sessions
        if not known and len(self._sessions) >= self.settings.sessions:
            return code.QUOTA_EXCEEDED, "there are as many sessions as the limit allows"
        if not packet.client_id and not packet.clean_start:
            return code.CLIENT_ID_NOT_VALID, "a session to come back to needs a client id"
        will = packet.will
        if will is not None and int(will.qos) > 1:
            return code.QUALITY_NOT_SUPPORTED, "QoS 2 is not spoken here"
        if will is not None and not all(map(is_topic, (will.topic, will.response_topic or "-"))):
            return code.TOPIC_NAME_INVALID, "nothing can be published on the topic of the will"
        if self._authenticate is not None and not self._authenticate(
            packet.client_id, packet.username, packet.password
        ):
            return code.BAD_USER_NAME_OR_PASSWORD, "the user name or the password is wrong"
        return None

    def _session(self, client_id: str, *, clean: bool) -> tuple[Session, bool]:
        """The session of a client that connects, and whether there was one."""
        session = self._sessions.get(client_id)
        if session is not None and session.connection is not None:
            old = session.connection
            self.counts.disconnected["session_taken_over"] += 1
            old.end(DisconnectReasonCode.SESSION_TAKEN_OVER, "another client has the same id")
            self._leave(old)
            session = self._sessions.get(client_id)
        if session is not None and clean:
            self._end_session(session)
            session = None
        if session is not None:
            session.stop_timers()
            return session, True
        session = self._sessions[client_id] = Session(client_id)
        return session, False

    def _leave(self, connection: Connection) -> None:
        """Note that a client is away, and what has to happen when it stays away."""
        session = connection.session
        if session is None or session.connection is not connection:
            return
        session.connection = None
        will = session.will
        if will is not None:
            delay = min(will.will_delay_interval, session.expiry)
            if delay:
                session.will_timer = self.loop.call_later(delay, self._do_will, session)
            else:
                self._do_will(session)
        if not session.expiry:
            self._end_session(session)
        elif session.expiry != FOREVER:
            session.end_timer = self.loop.call_later(session.expiry, self._end_session, session)

    def _do_will(self, session: Session) -> None:
        will: Will | None = session.will
        session.will = session.will_timer = None
        if will is not None:
            self.counts.wills += 1
            self.publish(Publication.will(will, self.loop.time()), None)
            self.flush()

    def _end_session(self, session: Session) -> None:
        session.stop_timers()
        self._do_will(session)
        for filter in session.subscriptions:
            self._filters.remove(filter, session.client_id)
        if session.subscriptions:
            self.known_topics.clear()
        lost = len(session.queue) + len(session.inflight)
        if lost:
            self.counts.dropped[Reason.TRANSPORT_DOWN.value] += lost
        if self._sessions.get(session.client_id) is session:
            del self._sessions[session.client_id]

    def _bounded(self, expiry: int) -> int:
        return min(expiry, self.settings.session_expiry)

    # Subscriptions

    def subscribe(self, connection: Connection, packet: SubscribePacket) -> None:
        """Add subscriptions, each with its own answer, and send what is retained."""
        session = connection.session
        assert session is not None
        codes: list[SubAckReasonCode] = []
        retained: list[tuple[Subscription, TopicFilter]] = []
        for asked in packet.topic_filters:
            code = self._filter_refusal(session, asked.pattern)
            if code is not None:
                self._refused(connection, code.name.lower(), f"the filter {asked.pattern[:80]!r}")
                codes.append(code)
                continue
            subscription = Subscription(
                asked.pattern,
                session,
                min(int(asked.max_qos), 1),
                asked.no_local,
                asked.retain_as_published,
                packet.subscription_id,
            )
            is_new = asked.pattern not in session.subscriptions
            session.subscriptions[asked.pattern] = subscription
            self._filters.put(asked.pattern, session.client_id, subscription)
            codes.append(_GRANTED[subscription.qos])
            handling = asked.retain_handling
            if handling is RetainHandling.SEND_ALWAYS or (
                handling is RetainHandling.SEND_IF_SUBSCRIPTION_NOT_EXISTS and is_new
            ):
                retained.append((subscription, asked))
        self.known_topics.clear()
        connection.tell(SubAckPacket(packet.packet_id, codes).write())
        for subscription, _ in retained:
            self._send_retained(subscription)

    def _filter_refusal(self, session: Session, filter: str) -> SubAckReasonCode | None:
        if filter.startswith("$share/"):
            return SubAckReasonCode.SHARED_SUBSCRIPTIONS_NOT_SUPPORTED
        if not is_filter(filter):
            return SubAckReasonCode.TOPIC_FILTER_INVALID
        if (
            len(session.subscriptions) >= self.settings.subscriptions
            and filter not in session.subscriptions
        ):
            return SubAckReasonCode.QUOTA_EXCEEDED
        return None

    def unsubscribe(self, connection: Connection, packet: UnsubscribePacket) -> None:
        """Take subscriptions away."""
        session = connection.session
        assert session is not None
        codes: list[UnsubAckReasonCode] = []
        for filter in packet.patterns:
            if session.subscriptions.pop(filter, None) is None:
                codes.append(UnsubAckReasonCode.NO_SUBSCRIPTION_EXISTED)
            else:
                self._filters.remove(filter, session.client_id)
                codes.append(UnsubAckReasonCode.SUCCESS)
        self.known_topics.clear()
        connection.tell(UnsubAckPacket(packet.packet_id, codes).write())

    # Messages

    def publish(self, publication: Publication, origin: Session | None) -> PubAckReasonCode:
        """Give a message to all that subscribed to its topic; says how it went."""
        if publication.retain and not self._retain(publication):
            return PubAckReasonCode.QUOTA_EXCEEDED
        targets = self.known_topics.get(publication.topic)
        if targets is None:
            targets = self._find(publication.topic)
        for found in targets:
            target: _Target | None = found
            if found.session is origin:
                target = found.own
                if target is None:
                    continue
            assert target is not None
            qos = min(publication.qos, target.qos)
            retain = publication.retain and target.retain_as_published
            self._deliver(target.session, Delivery(publication, qos, retain, target.ids))
        if targets:
            return PubAckReasonCode.SUCCESS
        self.counts.unmatched += 1
        return PubAckReasonCode.NO_MATCHING_SUBSCRIBERS

    def _find(self, topic: str) -> tuple[_Target, ...]:
        by_session: dict[str, list[Subscription]] = {}
        for subscription in self._filters.match(topic):
            by_session.setdefault(subscription.session.client_id, []).append(subscription)
        targets = tuple(map(_Target, by_session.values()))
        if len(self.known_topics) >= _KNOWN_TOPICS:
            self.known_topics.clear()
        self.known_topics[topic] = targets
        return targets

    def _deliver(self, session: Session, delivery: Delivery) -> None:
        connection = session.connection
        if not delivery.qos:
            if connection is None:
                self.counts.dropped[Reason.TRANSPORT_DOWN.value] += 1
            elif connection.crowded:
                self._drop(session, Reason.QUEUE_FULL)
            elif not connection.deliver(delivery, 0):
                self._drop(session, Reason.TOO_LARGE)
        elif session.held_bytes >= self.settings.queue_bytes:
            self._drop(session, Reason.QUEUE_FULL)
        elif (
            connection is not None
            and not session.queue
            and not connection.crowded
            and len(session.inflight) < connection.receive_maximum
        ):
            self._send(session, connection, delivery)
        elif len(session.queue) < self.settings.queue:
            session.enqueue(delivery)
        else:
            self._drop(session, Reason.QUEUE_FULL)

    def _send(self, session: Session, connection: Connection, delivery: Delivery) -> None:
        packet_id = session.hold(delivery)
        if not connection.deliver(delivery, packet_id):
            session.release(packet_id)
            self._drop(session, Reason.TOO_LARGE)

    def pump(self, session: Session) -> None:
        """Send what waits for a client, as far as it takes it."""
        connection = session.connection
        while (
            connection is not None
            and session.queue
            and not connection.crowded
            and len(session.inflight) < connection.receive_maximum
        ):
            delivery = session.dequeue()
            if delivery.publication.expired(self.now):
                self.counts.dropped[Reason.EXPIRED.value] += 1
            else:
                self._send(session, connection, delivery)

    def _drop(self, session: Session, reason: Reason) -> None:
        self.counts.dropped[reason.value] += 1
        self._complain(f"dropped: {reason.value}", session.client_id, "it loses messages")

    def _retain(self, publication: Publication) -> bool:
        """Keep a message for who subscribes later; False when there is no room."""
        old = self._retained.get(publication.topic)
        size = publication.size if publication.payload else 0
        count = self._retained_count + bool(size) - (old is not None)
        total = self._retained_bytes + size - (0 if old is None else old.size)
        if size and (count > self.settings.retained or total > self.settings.retained_bytes):
            self.counts.dropped["RETAINED_FULL"] += 1
            return False
        if size:
            self._retained.put(publication.topic, publication)
        elif old is not None:
            self._retained.remove(publication.topic)
        self._retained_count, self._retained_bytes = count, total
        return True

    def _send_retained(self, subscription: Subscription) -> None:
        ids = () if subscription.id is None else (subscription.id,)
        for publication in self._retained.match(subscription.filter):
            if not publication.expired(self.now):
                qos = min(publication.qos, subscription.qos)
                self._deliver(subscription.session, Delivery(publication, qos, True, ids))

    # What is told to people

    def connected(self) -> int:
        """How many clients are connected now."""
        return sum(session.connection is not None for session in self._sessions.values())

    def sessions(self) -> int:
        """How many sessions there are, those of clients that are away included."""
        return len(self._sessions)

    def retained(self) -> int:
        """How many messages are retained."""
        return self._retained_count

    def _refused(self, connection: Connection, cause: str, detail: str) -> None:
        self.counts.refused[cause] += 1
        self._complain(f"refused: {cause}", connection.place, detail)

    def _complain(self, sort: str, who: str, detail: str) -> None:
        self._complaints.add(self.now, sort, who, detail)
