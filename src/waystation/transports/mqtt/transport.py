"""MQTT: messages and broadcasts over a broker, in Ockam's frames or in joynr's (WK-10, MC-12).

A node has a topic of its own, on which everything for it arrives. `mqtt#hubs/hub-b` in a route is
the topic of a peer; a link to it is made of publications on the two topics (link.py, and ockam.py
or joynr.py). One connection to the broker serves all links and all broadcasts. It exists while
anything needs it, and when it is lost, all links end with it: whoever wants them back dials again,
as with any transport.

When the broker loses a node without a goodbye, it publishes the node's last will on the topic
`<topic>/gone`, and every peer with a link to it ends that link at once.

It needs `pip install 'waystation[mqtt]'`.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import ClassVar, Final, Literal

from mqtt5 import PubAckReasonCode, PublishPacket, Will

from waystation.core.budget import Account
from waystation.core.message import Message
from waystation.core.multicast import MulticastId, is_multicast_id
from waystation.core.outcome import Reason
from waystation.errors import LocalError, quote
from waystation.mqtt.client import BrokerAt, Credentials, MqttClient, MqttLimits
from waystation.mqtt.packets import REFUSED, words_of
from waystation.net.backoff import Backoff
from waystation.net.dialer import within
from waystation.net.tls import Tls
from waystation.transports.link import why_unsendable
from waystation.transports.mqtt.joynr import JoynrFormat
from waystation.transports.mqtt.link import MqttLink, expiry_seconds
from waystation.transports.mqtt.ockam import OckamFormat
from waystation.transports.transport import BrokerState, Link, LinkOwner, ServerState
from waystation.wire.joynr import multicast_filter, unicast_topic

ANY: Final = "+"
"""The place of a listener that means the node's own topic, whatever that is."""

Format = Literal["ockam", "joynr"]
Received = Callable[[str, Message], None]
Changed = Callable[[BrokerState], None]
OnEnd = Callable[[Reason | None], None]

_QOS: Final = "?qos="
_TOPICS: Final = 4_096
"""Number of topics whose multicast ids are remembered."""


class MqttListener:
    """A topic on which links are taken."""

    def __init__(self, transport: Mqtt, place: str, accept: Callable[[], LinkOwner | None]) -> None:
        self.place = place
        self.accept = accept
        self._transport = transport

    async def close(self) -> None:
        """Take no more links; those that are open stay."""
        self._transport.stop_listening(self)


class Mqtt:
    """MQTT 5 through a broker: addresses `mqtt#<topic>`.

    >>> Mqtt("mqtt://127.0.0.1:1883", topic="hubs/hub-a").topic
    'hubs/hub-a'

    `topic` is the node's own, by default a random one. `qos` is 1, or 0 for what may be lost; an
    address that ends in `?qos=0` or `?qos=1` has its own. `prefix` stands before the topics of
    broadcasts, and has to be the same at all nodes of a fleet. With `format="joynr"` everything is
    SMRF on joynr's topics. `client_id` is the node's name at the broker; two clients with the same
    one disconnect each other. For `away` seconds the broker keeps what is published with QoS 1
    while this node is not connected. `backoff` says how long to wait before connecting again.

    `counts` has what is told nowhere else: `lost` and `duplicates` (of links), `malformed`,
    `unknown` (for no link here).
    """

    type_name: ClassVar[str] = "mqtt"

    def __init__(
        self,
        url: str,
        *,
        topic: str | None = None,
        qos: int = 1,
        prefix: str = "",
        format: Format = "ockam",
        client_id: str | None = None,
        username: str | None = None,
        password: str | bytes | None = None,
        tls: Tls | None = None,
        away: int = 0,
        limits: MqttLimits | None = None,
        backoff: Backoff | None = None,
    ) -> None:
        self.topic = topic or f"waystation/{secrets.token_hex(8)}"
        unicast_topic(self.topic)  # raises the LocalError that says what is wrong with it
        if qos not in (0, 1) or format not in ("ockam", "joynr") or away < 0:
            raise LocalError(
                f"invalid qos={quote(qos)}, format={quote(format)} or away={quote(away)}",
                rule="MC-12",
                hint="give a qos of 0 or 1, the format 'ockam' or 'joynr', and seconds from 0 on",
            )
        self.qos = qos
        self.limits = limits or MqttLimits()
        self.counts: Counter[str] = Counter()
        self.links: dict[tuple[str, bytes], MqttLink] = {}  # by the peer's topic and a tag
        self.client = MqttClient(
            BrokerAt.parse(url),
            self,
            Credentials(
                client_id=client_id or f"waystation-{secrets.token_hex(8)}",
                username=username,
                password=password.encode() if isinstance(password, str) else password,
            ),
            tls=tls,
            away=away,
            limits=self.limits,
            backoff=backoff,
        )
        self._prefix = prefix
        self._format = JoynrFormat(self) if format == "joynr" else OckamFormat(self)
        self._users: set[object] = set()  # while there are any, there is a connection
        self._listeners: dict[str, MqttListener] = {}  # by topic
        self.inboxes: set[str] = set()  # topics of ours
        self._unsettled: dict[MqttLink, None] = {}  # in this turn
        self._received: Received | None = None
        self._changed: Changed | None = None
        self.unread = Account(self.limits.budget)  # for links whose owners do not read
        self._broadcasts: dict[int, OnEnd] = {}  # that are on their way
        self._last_broadcast = 0
        self._id_of = lru_cache(_TOPICS)(partial(_multicast_id, prefix))

    @property
    def in_use(self) -> bool:
        """Whether anything needs the connection to the broker: a listener, a link, broadcasts."""
        return bool(self._users)

    @property
    def servers(self) -> list[ServerState]:
        """The broker, while anything needs it."""
        if not self.in_use:
            return []
        return [ServerState("broker", self.client.place, self.client.is_open)]

    # A transport

    async def listen(self, place: str, accept: Callable[[], LinkOwner | None]) -> MqttListener:
        """Take links on a topic; `+`, or nothing, stands for the node's own."""
        topic = self.topic if place in ("", ANY) else place
        unicast_topic(topic)
        if topic in self._listeners:
            raise OSError(f"this node listens on {topic} already")
        self._listeners[topic] = listener = MqttListener(self, topic, accept)
        self._use(listener)
        try:
            async with asyncio.timeout(self.limits.dial):
                await self._subscribed(topic)
        except BaseException as error:
            self.stop_listening(listener)
            if isinstance(error, TimeoutError):
                raise TimeoutError(f"cannot listen on {topic}: {self.client.failure}") from None
            raise
        return listener

    def stop_listening(self, listener: MqttListener) -> None:
        """Take no more links on a topic."""
        if self._listeners.get(listener.place) is listener:
            del self._listeners[listener.place]
            self._leave(listener)

    async def dial(self, places: Sequence[str], owner: LinkOwner) -> Link:
        """Open a link to the first of these topics from which somebody answers."""
        errors: list[str] = []
        for place in places:
            attempt = object()
            self._use(attempt)
            try:
                topic, qos = _topic_and_qos(place)
                unicast_topic(topic)
                async with within(self.limits.dial, [place]):
                    await self._subscribed(self.topic)
                    return await self._format.open(topic, qos, owner)
            except (OSError, LocalError) as error:
                errors.append(str(error))
            finally:
                self._leave(attempt)
        raise ConnectionError("; ".join(errors) or "no topic to connect to")

    async def _subscribed(self, topic: str) -> None:
        """Wait until messages for a topic of ours arrive."""
        await self.client.ready()
        self.inboxes.add(topic)
        filter = self._format.inbox_filter(topic)
        self.client.subscribe(filter, self.qos)
        code = await self.client.subscriptions.answer(filter)
        if int(code) >= REFUSED:
            raise ConnectionRefusedError(f"the broker refused the topic {topic}: {words_of(code)}")

    # A broadcaster

    def attach(self, received: Received, changed: Changed | None = None) -> None:
        """Have functions called: for each broadcast that arrives, and when the broker is lost."""
        self._received = received
        self._changed = changed

    async def start(self) -> None:
        """Begin to connect."""
        self._use(self)

    async def close(self) -> None:
        """Write what was taken and leave the broker."""
        if self in self._users:
            await self.client.drained(self.limits.linger)
            self._leave(self)

    def publish(
        self, multicast_id: str, message: Message, on_end: OnEnd | None = None
    ) -> Reason | None:
        """Take a broadcast to everybody; says why not, if that cannot be now.

        What becomes of it `on_end` is told: the broker acknowledges it (QoS 1) or it leaves this
        process (QoS 0), or else the connection is lost first (OB-7).
        """
        MulticastId.parse(multicast_id)
        connection = self.client.connection
        if connection is None:
            return Reason.TRANSPORT_DOWN
        if connection.is_crowded:
            return Reason.QUEUE_FULL
        try:
            payload = self._format.encode_broadcast(multicast_id, message)
        except LocalError as error:
            return why_unsendable(error)
        self._last_broadcast = number = self._last_broadcast + 1
        if on_end is not None:
            self._broadcasts[number] = on_end
        reason = connection.publish(
            self._prefix + multicast_id,
            payload,
            self.qos,
            expiry=expiry_seconds(message.expiry),
            on_ack=partial(self._broadcast_acknowledged, number),
        )
        if reason is not None:
            self._broadcasts.pop(number, None)
        return reason

    def _broadcast_acknowledged(self, number: int, code: PubAckReasonCode) -> None:
        on_end = self._broadcasts.pop(number, None)
        if on_end is not None:
            on_end(Reason.REFUSED if int(code) >= REFUSED else None)

    def subscribe(self, pattern: str) -> None:
        """Let what matches arrive, except for what this node publishes itself."""
        self.client.subscribe(multicast_filter(pattern, self._prefix), self.qos, no_local=True)

    def unsubscribe(self, pattern: str) -> None:
        """Let it no longer arrive."""
        self.client.unsubscribe(multicast_filter(pattern, self._prefix))

    # What the client tells

    def make_will(self) -> Will | None:
        """Have our end announced."""
        return self._format.make_will()

    def connected(self) -> None:
        """Tell that there is a connection."""
        if self._changed is not None:
            self._changed(BrokerState(is_open=True, place=self.client.place))

    def disconnected(self, detail: str) -> None:
        """End all links, which need the broker, and all broadcasts that are still here."""
        for link in list(self.links.values()):
            link.end(Reason.TRANSPORT_DOWN, detail)
        broadcasts, self._broadcasts = self._broadcasts, {}
        for on_end in broadcasts.values():
            on_end(Reason.TRANSPORT_DOWN)
        if self._changed is not None:
            self._changed(BrokerState(is_open=False, place=self.client.place, detail=detail))

    def received(self, packets: Sequence[PublishPacket]) -> None:
        """Take publications: for links, or broadcasts."""
        inboxes, take = self.inboxes, self._format.take
        for packet in packets:
            topic = packet.topic
            if topic in inboxes:
                take(packet, topic)
            elif not self._format.take_other(packet, topic):
                self._take_broadcast(topic, packet.payload)

    def settle(self) -> None:
        """Let links tell their owners what happened to them in this turn."""
        while self._unsettled:
            unsettled, self._unsettled = self._unsettled, {}
            for link in unsettled:
                link.settle()

    def uncrowded(self) -> None:
        """Let senders go on."""
        for link in list(self.links.values()):
            link.relax()

    # What links ask for

    def accept(self, topic: str) -> LinkOwner | None:
        """The owner of a new link on a topic of ours; None to refuse it."""
        listener = self._listeners.get(topic)
        return None if listener is None else listener.accept()

    def add(self, link: MqttLink) -> None:
        """Note that a link exists."""
        self._use(link)
        self.links[link.key] = link

    def mark_unsettled(self, link: MqttLink) -> None:
        """Let a link settle with the others, once the client has told all that came at once."""
        self._unsettled[link] = None

    def settle_later(self, link: MqttLink) -> None:
        """Let a link settle at the end of the turn, although nothing came."""
        asyncio.get_running_loop().call_soon(self.settle)
        self._unsettled[link] = None

    def forget(self, link: MqttLink) -> None:
        """Note that a link is over."""
        if self.links.get(link.key) is link:
            del self.links[link.key]
            self._format.forgot(link)
            self._leave(link)

    def _use(self, user: object) -> None:
        self._users.add(user)
        self.client.start()

    def _leave(self, user: object) -> None:
        self._users.discard(user)
        if not self._users:
            self.client.stop()

    # Broadcasts that arrive

    def _take_broadcast(self, topic: str, payload: bytes) -> None:
        id = self._id_of(topic)
        if not id or self._received is None:
            return
        message = self._format.decode_broadcast(id, payload)
        if message is None:
            self.counts["malformed"] += 1
            owner = self.accept(self.topic)
            if owner is not None:  # and so it is on record
                owner.closed(Reason.MALFORMED, f"{topic}: what was published is no broadcast")
        else:
            self._received(id, message)


def _multicast_id(prefix: str, topic: str) -> str:
    """The multicast id that a topic stands for; "" if it is not one."""
    id = topic.removeprefix(prefix) if topic.startswith(prefix) else ""
    return id if is_multicast_id(id) else ""


def _topic_and_qos(place: str) -> tuple[str, int | None]:
    """The topic of a peer, and the QoS for what goes there if the place names one.

    >>> _topic_and_qos("hubs/hub-b?qos=0"), _topic_and_qos("hubs/hub-b")
    (('hubs/hub-b', 0), ('hubs/hub-b', None))
    """
    topic, mark, qos = place.rpartition(_QOS)
    return (topic, int(qos)) if mark and qos in ("0", "1") else (place, None)
