"""Who gets which message: subscriptions, retained messages, and the queues of clients (MC-12).

A message is matched once per topic (the result holds until a subscription changes), written once
for all that get the same bytes, and put into each receiver's own queue. Nobody waits for a receiver
that does not read: what finds no room is dropped for it alone, and counted by reason. What waits is
counted in bytes, for each receiver and for all of them (FL-1). No packets and no bytes here.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from mqtt5 import PubAckReasonCode

from waystation.core.outcome import Reason
from waystation.mqtt.broker.connection import ClientConnection
from waystation.mqtt.broker.counts import Counts
from waystation.mqtt.broker.publication import Delivery, Publication
from waystation.mqtt.broker.session import Session, Subscription
from waystation.mqtt.broker.settings import Settings
from waystation.mqtt.broker.topics import TopicTrie
from waystation.net.held import HeldBytes

_log: Final = logging.getLogger("waystation.broker")

RETAINED_FULL: Final = "RETAINED_FULL"
"""Why a message was not retained, among the reasons of `Counts.dropped`."""

_KNOWN_TOPICS: Final = 10_000
_RETAINED: Final = ""  # the key of the one message that is retained under a topic


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


class _Shared:
    """The members of a group that share what is published on a topic: one of them gets it."""

    __slots__ = ("_members", "_next")

    def __init__(self, subscriptions: list[Subscription]) -> None:
        self._members = [_Target([subscription]) for subscription in subscriptions]
        self._next = 0

    def choose(self) -> _Target:
        """The next in turn, of those who are connected and read, if there are any."""
        members = self._members
        first = self._next
        for offset in range(len(members)):
            place = (first + offset) % len(members)
            connection = members[place].session.connection
            if connection is not None and not connection.peer_is_slow:
                self._next = place + 1
                return members[place]
        self._next = first + 1
        return members[first % len(members)]


class Dispatcher:
    """The subscriptions and the retained messages of a broker."""

    def __init__(
        self,
        settings: Settings,
        counts: Counts,
        complain: Callable[[str, str, str], None],
        give_up: Callable[[Session], None],
    ) -> None:
        self.counts = counts
        self.held: HeldBytes[Session] = HeldBytes(
            settings.budget, lambda session: session.size, give_up
        )
        self.now = 0.0  # of the event loop's clock, when something last happened
        self.retained = 0  # messages
        # What was found out for a topic holds until a subscription changes.
        self.known_topics: dict[str, tuple[_Target | _Shared, ...]] = {}
        self._settings = settings
        self._complain = complain
        self._filters: TopicTrie[Subscription] = TopicTrie()
        self._retained: TopicTrie[Publication] = TopicTrie()
        self.retained_bytes = 0

    def subscribe(self, subscription: Subscription) -> None:
        """Add a subscription, or change it."""
        session = subscription.session
        session.subscriptions[subscription.filter] = subscription
        self._filters.put(subscription.pattern, subscription.key, subscription)
        _log.debug("client %r subscribes to %r", session.key.client_id, subscription.filter)
        self.known_topics.clear()

    def unsubscribe(self, session: Session, filter: str) -> bool:
        """Remove a subscription; False when there is none."""
        subscription = session.subscriptions.pop(filter, None)
        if subscription is None:
            return False
        self._filters.remove(subscription.pattern, subscription.key)
        self.known_topics.clear()
        return True

    def forget(self, session: Session, reason: Reason = Reason.TRANSPORT_DOWN) -> None:
        """Remove the subscriptions of a session that ended, and count what it has not received."""
        self.held.forget(session)
        for filter in list(session.subscriptions):
            self.unsubscribe(session, filter)
        if lost := len(session.queue) + len(session.inflight):
            self.counts.dropped[reason.value] += lost

    def publish(self, publication: Publication, origin: Session | None) -> PubAckReasonCode:
        """Give a message to all that subscribed to its topic; says how it went."""
        if publication.retain and not self._retain(publication):
            return PubAckReasonCode.QUOTA_EXCEEDED
        targets = self.known_topics.get(publication.topic)
        if targets is None:
            targets = self._find(publication.topic)
        for found in targets:
            if type(found) is _Shared:
                target: _Target | None = found.choose()
            else:
                assert type(found) is _Target
                target = found.own if found.session is origin else found
            if target is None:
                continue
            qos = min(publication.qos, target.qos)
            retain = publication.retain and target.retain_as_published
            self._deliver(target.session, Delivery(publication, qos, retain, target.ids))
        if publication.qos or publication.retain:  # so that it may be kept
            publication.forget_written()
        if targets:
            return PubAckReasonCode.SUCCESS
        self.counts.unmatched += 1
        return PubAckReasonCode.NO_MATCHING_SUBSCRIBERS

    def send_retained(self, subscription: Subscription) -> None:
        """Give a new subscriber what is retained."""
        ids = () if subscription.id is None else (subscription.id,)
        for publication in self._retained.match_filter(subscription.filter):
            if not publication.expired(self.now):
                qos = min(publication.qos, subscription.qos)
                self._deliver(subscription.session, Delivery(publication, qos, True, ids))
                publication.forget_written()

    def send_waiting(self, session: Session) -> None:
        """Send what waits for a client, as far as it takes it."""
        connection = session.connection
        if connection is not None and session.unrepeated:
            self._repeat(session, connection)
        while (
            connection is not None
            and session.queue
            and not session.unrepeated
            and not connection.peer_is_slow
            and len(session.inflight) < connection.receive_maximum
        ):
            delivery = session.dequeue()
            if delivery.publication.expired(self.now):
                self.counts.dropped[Reason.EXPIRED.value] += 1
            else:
                self._send(session, connection, delivery)
                delivery.publication.forget_written()

    def _repeat(self, session: Session, connection: ClientConnection) -> None:
        """Send again what was not acknowledged before; the client may take fewer now."""
        unrepeated, inflight = session.unrepeated, session.inflight
        while (
            unrepeated
            and not connection.peer_is_slow
            and len(inflight) - len(unrepeated) < connection.receive_maximum
        ):
            packet_id, _ = unrepeated.popitem(last=False)
            if not connection.deliver(inflight[packet_id], packet_id, again=True):
                session.release(packet_id)
                self._drop(session, Reason.TOO_LARGE)

    def _find(self, topic: str) -> tuple[_Target | _Shared, ...]:
        by_session: dict[str, list[Subscription]] = {}
        by_group: dict[tuple[str, str], list[Subscription]] = {}
        for subscription in self._filters.match_topic(topic):
            if subscription.group:
                shared = (subscription.group, subscription.pattern)
                by_group.setdefault(shared, []).append(subscription)
            else:
                by_session.setdefault(subscription.session.name, []).append(subscription)
        targets: tuple[_Target | _Shared, ...] = (
            *map(_Target, by_session.values()),
            *map(_Shared, by_group.values()),
        )
        if len(self.known_topics) >= _KNOWN_TOPICS:
            self.known_topics.clear()
        self.known_topics[topic] = targets
        return targets

    def _deliver(self, session: Session, delivery: Delivery) -> None:
        connection = session.connection
        if self.held.is_tight and not self._is_allowed(session, delivery):
            self._drop(session, Reason.QUEUE_FULL)
        elif not delivery.qos:
            if connection is None:
                self.counts.dropped[Reason.TRANSPORT_DOWN.value] += 1
            elif connection.peer_is_slow:
                self._drop(session, Reason.QUEUE_FULL)
            elif not connection.deliver(delivery, 0):
                self._drop(session, Reason.TOO_LARGE)
        elif session.held_bytes and (  # for who has nothing, one message may always wait
            session.held_bytes + delivery.publication.size > self._settings.queue_bytes
        ):
            self._drop(session, Reason.QUEUE_FULL)
        elif (
            connection is not None
            and not session.queue
            and not session.unrepeated
            and not connection.peer_is_slow
            and len(session.inflight) < connection.receive_maximum
        ):
            self._send(session, connection, delivery)
        elif len(session.queue) < self._settings.queue:
            session.enqueue(delivery)
            self.held.count_soon(session)
        else:
            self._drop(session, Reason.QUEUE_FULL)

    def _is_allowed(self, session: Session, delivery: Delivery) -> bool:
        """Whether the budget is not spent, or a client holds less of it than its part."""
        return self.held.allows(session, delivery.publication.size)

    def _send(self, session: Session, connection: ClientConnection, delivery: Delivery) -> None:
        packet_id = session.hold(delivery)
        if not connection.deliver(delivery, packet_id):
            session.release(packet_id)
            self._drop(session, Reason.TOO_LARGE)

    def _drop(self, session: Session, reason: Reason) -> None:
        self.counts.dropped[reason.value] += 1
        _log.debug("a message for client %r was dropped: %s", session.key.client_id, reason.value)
        self._complain(f"dropped: {reason.value}", session.key.client_id, "messages are lost")

    def _retain(self, publication: Publication) -> bool:
        """Keep a message for later subscribers; False when there is no room."""
        old = self._retained.get(publication.topic, _RETAINED)
        size = publication.size if publication.payload else 0
        count = self.retained + bool(size) - (old is not None)
        total = self.retained_bytes + size - (0 if old is None else old.size)
        settings = self._settings
        if size and (count > settings.retained or total > settings.retained_bytes):
            self.counts.dropped[RETAINED_FULL] += 1
            return False
        if size:
            self._retained.put(publication.topic, _RETAINED, publication)
        elif old is not None:
            self._retained.remove(publication.topic, _RETAINED)
        self.retained, self.retained_bytes = count, total
        return True
