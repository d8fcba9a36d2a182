"""MQTT: messages and broadcasts over a broker, in Ockam's frames or in joynr's (WK-10, MC-12).

A node has a topic of its own, on which everything for it arrives. `mqtt#hubs/hub-b` in a route is
the topic of a peer; a link to it is made of publications on the two topics (link.py). One
connection to the broker serves all links and all broadcasts. It exists while anything needs it, and
when it is lost, all links end with it: whoever wants them back dials again, as with any transport.

When the broker loses a node without a goodbye, it publishes the node's last will on the topic
`<topic>/gone`, and every peer with a link to it ends that link at once.

It needs `pip install 'waystation[mqtt]'`.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import ClassVar, Final, Literal

from mqtt5 import PublishPacket, QoS, SubAckReasonCode, Will

from waystation.core.address import LOCAL, Address, Route
from waystation.core.message import NO_ID, Message
from waystation.core.multicast import MulticastId, is_multicast_id
from waystation.core.outcome import Reason
from waystation.errors import DecodeError, LocalError, quote
from waystation.mqtt.client import (
    REFUSED,
    BrokerAt,
    Credentials,
    MqttClient,
    MqttLimits,
)
from waystation.net.backoff import pause_before
from waystation.net.tls import Tls
from waystation.transports.mqtt.joynr import (
    JoynrLink,
    decode_frame,
    encode_multicast,
    message_of,
    route_of,
)
from waystation.transports.mqtt.link import (
    Kind,
    MqttLink,
    OckamLink,
    PlainLink,
    expiry_seconds,
    read_label,
    write_label,
)
from waystation.transports.transport import Link, LinkOwner
from waystation.wire.joynr import (
    MessageType,
    multicast_filter,
    unicast_filter,
    unicast_topic,
)
from waystation.wire.ockam import decode_body, encode_frame

ANY: Final = "+"
"""The place of a listener that means the node's own topic, whatever that is."""

Format = Literal["ockam", "joynr"]
Received = Callable[[str, Message], None]

_GONE: Final = "/gone"
_QOS: Final = "?qos="
_RECENT: Final = 4_096
"""So many broadcasts are remembered: a broker may deliver one for each filter that matches."""

_PARTICIPANTS: Final = 10_000
_NOWHERE: Final = Route()


class MqttListener:
    """A topic on which links are taken."""

    def __init__(self, transport: Mqtt, place: str) -> None:
        self.place = place
        self._transport = transport

    async def close(self) -> None:
        """Take no more links; those that are open stay."""
        self._transport.stop_listening(self)


class Mqtt:
    """MQTT 5 through a broker: addresses `mqtt#<topic>`.

    >>> Mqtt("mqtt://127.0.0.1:1883", topic="hubs/hub-a").topic
    'hubs/hub-a'

    `topic` is the node's own; without one it gets a fresh one. `qos` is 1, or 0 for what may be
    lost; an address that ends in `?qos=0` or `?qos=1` has its own. `prefix` stands before the
    topics of broadcasts, and has to be the same at all nodes of a fleet. With `format="joynr"` all
    is SMRF on joynr's topics. `client_id` is what the broker knows the node by; two of the same
    cannot be connected. For `away` seconds the broker keeps what is published with QoS 1 while this
    node is not connected.

    `counts` has what nobody is told of otherwise: `lost` and `duplicates` (of links), `malformed`,
    `unknown` (for no link here), `repeated` (broadcasts that came again).
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
        wait: Callable[[int], float] = pause_before,
    ) -> None:
        self.topic = topic or f"waystation/{secrets.token_hex(8)}"
        unicast_topic(self.topic)  # raises the LocalError that says what is wrong with it
        if qos not in (0, 1) or format not in ("ockam", "joynr") or away < 0:
            raise LocalError(
                f"qos={quote(qos)}, format={quote(format)}, away={quote(away)}",
                rule="MC-12",
                hint="give a qos of 0 or 1, the format 'ockam' or 'joynr', and seconds from 0 on",
            )
        self.qos = qos
        self.limits = limits or MqttLimits()
        self.counts: Counter[str] = Counter()
        self._prefix = prefix
        self._joynr = format == "joynr"
        secret = password.encode() if isinstance(password, str) else password
        name = client_id or f"waystation-{secrets.token_hex(8)}"
        credentials = Credentials(client_id=name, username=username, password=secret)
        self.client = MqttClient(
            BrokerAt.parse(url),
            self,
            credentials,
            tls=tls,
            away=away,
            limits=self.limits,
            wait=wait,
        )
        self._incarnation = b""
        self._users: set[object] = set()  # as long as there are any, there is a connection
        self._accepts: dict[str, Callable[[], LinkOwner | None]] = {}  # by topic
        self._listeners: dict[MqttListener, str] = {}
        self._inboxes: dict[str, None] = {}  # topics of ours
        self._links: dict[tuple[str, bytes], MqttLink] = {}  # by the peer's topic and a tag
        self._neighbours: Counter[str] = Counter()  # links by the peer's topic
        self._participants: dict[str, JoynrLink] = {}  # of joynr: who speaks from where
        self._touched: dict[MqttLink, None] = {}
        self._received: Received | None = None
        self._recent: set[tuple[str, str]] = set()
        self._order: deque[tuple[str, str]] = deque()  # of those, the oldest first
        self._known_ids: dict[str, str] = {}  # multicast ids by topic, "" for what is none

    # A transport

    async def listen(self, place: str, accept: Callable[[], LinkOwner | None]) -> MqttListener:
        """Take links on a topic; `+`, or nothing, stands for the node's own."""
        topic = self.topic if place in ("", ANY) else place
        unicast_topic(topic)
        if topic in self._accepts:
            raise OSError(f"this node listens on {topic} already")
        listener = MqttListener(self, topic)
        self._use(listener)
        self._accepts[topic] = accept
        self._listeners[listener] = topic
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
        topic = self._listeners.pop(listener, None)
        if topic is not None:
            del self._accepts[topic]
            self._leave(listener)

    async def dial(self, places: Sequence[str], owner: LinkOwner) -> Link:
        """Open a link to the first of these topics from which somebody answers."""
        errors: list[str] = []
        for place in places:
            attempt = object()
            self._use(attempt)
            try:
                async with asyncio.timeout(self.limits.dial):
                    return await self._open(place, owner)
            except TimeoutError:
                errors.append(f"{place}: no answer within {self.limits.dial:g} s")
            except OSError as error:
                errors.append(str(error))
            finally:
                self._leave(attempt)
        raise ConnectionError("; ".join(errors) or "there is no place to connect to")

    async def _open(self, place: str, owner: LinkOwner) -> Link:
        topic, qos = _topic_and_qos(place)
        try:
            unicast_topic(topic)
        except LocalError as error:
            raise OSError(str(error)) from None
        await self._subscribed(self.topic)
        if self._joynr:
            if qos is not None:
                raise OSError(f"{place}: with joynr's format the QoS is that of the transport")
            joynr = JoynrLink(self, owner, self.topic, topic, self._learn)
            self._add(joynr, b"")
            joynr.open_up()
            return joynr
        link = OckamLink(self, owner, self.topic, topic, secrets.token_bytes(8), b"", qos)
        link.opening = asyncio.get_running_loop().create_future()
        self._add(link, link.tag)
        try:
            link.say(Kind.OPEN, self._incarnation)
            await link.opening
        except BaseException:
            link.refuse("given up")
            if not link.opening.cancelled():
                link.opening.exception()  # it is known here already
            self.forget(link)
            raise
        return link

    async def _subscribed(self, topic: str) -> None:
        """Wait until messages for a topic of ours arrive."""
        await self.client.ready()
        self._inboxes[topic] = None
        filter = unicast_filter(topic) if self._joynr else topic
        answer: asyncio.Future[SubAckReasonCode] = asyncio.get_running_loop().create_future()

        def hear(code: SubAckReasonCode) -> None:
            if not answer.done():
                answer.set_result(code)

        self.client.subscribe(filter, self.qos, answer=hear)
        code = await answer
        if int(code) >= REFUSED:
            raise ConnectionRefusedError(
                f"the broker refused the topic {topic}: {code.name.lower().replace('_', ' ')}"
            )

    # A broadcaster

    def attach(self, received: Received) -> None:
        """Have a function called with the id and the message of each broadcast that arrives."""
        self._received = received

    async def start(self) -> None:
        """Begin to connect."""
        self._use(self)

    async def close(self) -> None:
        """Write what was taken and leave the broker."""
        if self in self._users:
            await self.client.drained(self.limits.linger)
            self._leave(self)

    def publish(self, multicast_id: str, message: Message) -> Reason | None:
        """Take a broadcast to everybody; says why not, if that cannot be now."""
        MulticastId.parse(multicast_id)
        client = self.client
        if not client.is_open:
            return Reason.TRANSPORT_DOWN
        if client.is_crowded:
            return Reason.QUEUE_FULL
        if self._joynr:
            payload = encode_multicast(multicast_id, message)
            if len(payload) > self.limits.frame:
                return Reason.TOO_LARGE
        else:
            # The frame says what it was published under, as joynr's do: so nobody takes for a
            # broadcast what was meant for a single node.
            onward = message.onward_route.pushed(Address(LOCAL, multicast_id.encode()))
            addressed = message.rerouted(onward, message.return_route)
            try:
                payload = encode_frame(addressed, limit=self.limits.frame)
            except LocalError as error:
                return Reason.TOO_LARGE if error.rule == "OB-2" else Reason.MALFORMED
        return client.publish(
            self._prefix + multicast_id, payload, self.qos, expiry=expiry_seconds(message.expiry)
        )

    def subscribe(self, pattern: str) -> None:
        """Let what matches arrive, but for what this node publishes itself."""
        self.client.subscribe(multicast_filter(pattern, self._prefix), self.qos, no_local=True)

    def unsubscribe(self, pattern: str) -> None:
        """Let it no longer arrive."""
        self.client.unsubscribe(multicast_filter(pattern, self._prefix))

    # What the client tells

    def make_will(self) -> Will | None:
        """Have our end announced, under a name that holds for one connection only."""
        self._incarnation = secrets.token_bytes(8)
        if self._joynr:
            return None
        return Will(self.topic + _GONE, payload=self._incarnation, qos=QoS(self.qos))

    def connected(self) -> None:
        """Nothing is to be done: the client subscribes by itself."""

    def disconnected(self, detail: str) -> None:
        """Without the broker there are no links."""
        for link in list(self._links.values()):
            link.end(Reason.TRANSPORT_DOWN, detail)

    def received(self, packets: Sequence[PublishPacket]) -> None:
        """Give each publication to whom it is for."""
        inboxes = self._inboxes
        take = self._take_joynr if self._joynr else self._take_ockam
        for packet in packets:
            topic = packet.topic
            if topic in inboxes:
                take(packet, topic)
            else:
                self._take_other(packet, topic)
        self.settle()

    def settle(self) -> None:
        """The end of a turn: let the links tell their owners."""
        if not self._touched:
            return
        touched, self._touched = self._touched, {}
        is_written = self.client.is_written
        waiting = []
        for link in touched:
            link.settle()
            if not link.awaits_writing:
                continue
            if is_written:
                link.written()
            else:
                waiting.append(link)
        if waiting and self.client.is_open:
            self._touched.update(dict.fromkeys(waiting))
            asyncio.get_running_loop().call_later(0.005, self.settle)

    def uncrowded(self) -> None:
        """Let senders go on."""
        for link in list(self._links.values()):
            link.relax()

    # What links ask for

    def touch(self, link: MqttLink) -> None:
        """Let a link settle and hand in at the end of the turn."""
        self._touched[link] = None

    def forget(self, link: MqttLink) -> None:
        """A link is over."""
        tag = link.tag if isinstance(link, OckamLink) else b""
        if self._links.get((link.place, tag)) is not link:
            return
        del self._links[link.place, tag]
        self._neighbours[link.place] -= 1
        if not self._neighbours[link.place]:
            del self._neighbours[link.place]
            self.client.unsubscribe(link.place + _GONE)
        for name in [name for name, known in self._participants.items() if known is link]:
            del self._participants[name]
        self._leave(link)

    # Inside

    def _use(self, user: object) -> None:
        self._users.add(user)
        self.client.start()

    def _leave(self, user: object) -> None:
        self._users.discard(user)
        if not self._users:
            self.client.stop()

    def _add(self, link: MqttLink, tag: bytes) -> None:
        self._use(link)
        self._links[link.place, tag] = link
        self._neighbours[link.place] += 1
        if self._neighbours[link.place] == 1 and not self._joynr:
            self.client.subscribe(link.place + _GONE, self.qos)

    def _take_ockam(self, packet: PublishPacket, topic: str) -> None:
        """Something came for us: from a link, for a new one, or from somebody of another make."""
        peer = packet.response_topic
        label = read_label(packet.correlation_data)
        if peer is None:
            self.counts["malformed"] += 1
            return
        if label is None:
            self._take_plain(packet.payload, topic, peer)
            return
        kind, tag, number, taken = label
        link = self._links.get((peer, tag))
        if isinstance(link, OckamLink):
            link.heard(kind, number, taken, packet.payload)
        elif kind == Kind.OPEN:
            self._accept(topic, peer, tag, packet.payload)
        elif kind in (Kind.MESSAGE, Kind.ASKING):
            self.counts["unknown"] += 1
            self._say(Kind.UNKNOWN, topic, peer, tag)

    def _accept(self, topic: str, peer: str, tag: bytes, incarnation: bytes) -> None:
        accept = self._accepts.get(topic)
        owner = None if accept is None or not _is_place(peer) else accept()
        if owner is None:
            self._say(Kind.REFUSED, topic, peer, tag)
            return
        link = OckamLink(self, owner, topic, peer, tag, incarnation)
        self._add(link, tag)
        link.say(Kind.OPENED, self._incarnation)
        link.open_up()

    def _say(self, kind: Kind, topic: str, peer: str, tag: bytes) -> None:
        if _is_place(peer):
            label = write_label(kind, tag)
            self.client.publish(peer, b"", self.qos, response_topic=topic, correlation=label)

    def _take_plain(self, payload: bytes, topic: str, peer: str) -> None:
        link = self._links.get((peer, b""))
        if link is None:
            accept = self._accepts.get(topic)
            owner = accept() if accept is not None and _is_frame(payload, peer) else None
            if owner is None:
                self.counts["malformed" if accept is not None else "unknown"] += 1
                return
            link = PlainLink(self, owner, topic, peer)
            self._add(link, b"")
            link.open_up()
        if isinstance(link, PlainLink):
            link.heard(payload)

    def _take_joynr(self, packet: PublishPacket, topic: str) -> None:
        """A frame came for one of our participants."""
        try:
            frame, headers = decode_frame(packet.payload, limit=self.limits.frame)
        except DecodeError:
            self.counts["malformed"] += 1
            return
        if headers.type is MessageType.MULTICAST:
            self.counts["malformed"] += 1
            return
        reply_to = headers.reply_to
        link = None if reply_to is not None else self._participants.get(frame.sender)
        if reply_to is not None:
            link = self._joynr_link(topic, reply_to.topic)
        if link is None:
            self.counts["unknown"] += 1
            return
        self._learn(frame.sender, link)
        link.heard(message_of(frame, headers, route_of(frame.recipient)))

    def _joynr_link(self, topic: str, peer: str) -> JoynrLink | None:
        link = self._links.get((peer, b""))
        if link is None:
            accept = self._accepts.get(topic)
            owner = None if accept is None else accept()
            if owner is None:
                return None
            link = JoynrLink(self, owner, topic, peer, self._learn)
            self._add(link, b"")
            link.end_when_idle()
            link.open_up()
        return link if isinstance(link, JoynrLink) else None

    def _learn(self, participant: str, link: JoynrLink) -> None:
        if self._participants.get(participant) is not link:
            if len(self._participants) >= _PARTICIPANTS:
                self._participants.clear()
            self._participants[participant] = link

    def _take_other(self, packet: PublishPacket, topic: str) -> None:
        """A broadcast, the last will of a peer, or a frame on a topic below ours (joynr)."""
        if topic.endswith(_GONE) and topic[: -len(_GONE)] in self._neighbours:
            self._note_gone(topic[: -len(_GONE)], packet.payload)
            return
        if self._joynr and topic.endswith("/low"):
            own = next((own for own in self._inboxes if topic.startswith(f"{own}/")), None)
            if own is not None:
                self._take_joynr(packet, own)
                return
        id = self._known_ids.get(topic)
        if id is None:
            id = self._id_of(topic)
        if id and self._received is not None:
            self._take_broadcast(id, packet.payload, self._received)

    def _note_gone(self, peer: str, incarnation: bytes) -> None:
        """A peer is gone: so are the links to that incarnation of it."""
        for link in list(self._links.values()):
            if (
                isinstance(link, OckamLink)
                and link.place == peer
                and link.incarnation == incarnation
            ):
                link.end(Reason.TRANSPORT_DOWN, "the broker lost the peer")

    def _id_of(self, topic: str) -> str:
        """The multicast id that a topic stands for; nothing if it is none."""
        prefix = self._prefix
        id = topic[len(prefix) :] if topic.startswith(prefix) else ""
        if not is_multicast_id(id):
            id = ""
        if len(self._known_ids) >= _RECENT:
            self._known_ids.clear()
        self._known_ids[topic] = id
        return id

    def _take_broadcast(self, id: str, payload: bytes, received: Received) -> None:
        message = self._joynr_broadcast(id, payload) if self._joynr else _broadcast(id, payload)
        if message is None:
            self.counts["malformed"] += 1
            return
        key = (id, message.id)
        if message.id != NO_ID:
            if key in self._recent:
                self.counts["repeated"] += 1
                return
            self._recent.add(key)
            self._order.append(key)
            if len(self._order) > _RECENT:
                self._recent.discard(self._order.popleft())
        received(id, message)

    def _joynr_broadcast(self, id: str, payload: bytes) -> Message | None:
        try:
            frame, headers = decode_frame(payload, limit=self.limits.frame)
        except DecodeError:
            return None
        if headers.type is not MessageType.MULTICAST or frame.recipient != id:
            return None
        return message_of(frame, headers, _NOWHERE)


def _broadcast(id: str, payload: bytes) -> Message | None:
    """The message of a broadcast, if the frame says that it was published under this id."""
    try:
        message = decode_body(payload[4:])
    except DecodeError:
        return None
    addresses = message.onward_route.addresses
    if not addresses or addresses[0] != Address(LOCAL, id.encode()):
        return None
    return message.rerouted(Route(addresses[1:]), message.return_route)


def _topic_and_qos(place: str) -> tuple[str, int | None]:
    """The topic of a peer, and the QoS for what goes there if the place names one.

    >>> _topic_and_qos("hubs/hub-b?qos=0"), _topic_and_qos("hubs/hub-b")
    (('hubs/hub-b', 0), ('hubs/hub-b', None))
    """
    topic, mark, qos = place.rpartition(_QOS)
    return (topic, int(qos)) if mark and qos in ("0", "1") else (place, None)


def _is_place(topic: str) -> bool:
    """Whether a peer can be published to; it may be anything that it said."""
    try:
        unicast_topic(topic)
    except LocalError:
        return False
    return True


def _is_frame(payload: bytes, peer: str) -> bool:
    """Whether somebody of another make sent a message that can be answered."""
    if int.from_bytes(payload[:4], "big") != len(payload) - 4 or not _is_place(peer):
        return False
    try:
        return bool(decode_body(payload[4:]).onward_route.addresses)
    except DecodeError:
        return False
