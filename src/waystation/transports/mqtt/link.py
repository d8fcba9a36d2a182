"""Links over a broker: what makes a way to one peer out of publications on topics.

All links of a node share one connection, and a broker neither tells a sender that its receiver is
slow nor keeps more than a little for it. So two of our nodes keep a window: a link has so many
messages on their way, and takes more when the peer says that it has taken them. Each publication
says in its correlation data to which link it belongs, its number, and what was taken last. A peer
of another make sends none of that: its messages are simply taken.

Nothing here knows the broker's protocol; that is mqtt/client.py.
"""

from __future__ import annotations

import asyncio
import math
import time
from abc import ABC, abstractmethod
from collections import Counter, deque
from enum import IntEnum
from struct import Struct as Layout
from typing import Final, Protocol

from mqtt5 import PubAckReasonCode

from waystation.core.expiry import NEVER, Expiry
from waystation.core.message import Message
from waystation.core.outcome import Reason
from waystation.errors import DecodeError, LocalError
from waystation.mqtt.client import REFUSED, MqttClient, MqttLimits
from waystation.transports.transport import LinkOwner
from waystation.wire.ockam import (
    HEARTBEAT_FRAME,
    PREFACE,
    FrameDecoder,
    encode_control,
    encode_departure,
)

MAGIC: Final = b"way1"
_HEAD: Final = Layout(">4sB8sQQ")
_REASONS: Final = {"OB-2": Reason.TOO_LARGE, "AD-6": Reason.NO_ROUTE}
"""Why a message cannot be written, by the rule that it breaks."""

_OVERHEAD: Final = 256  # bytes of memory that any message takes, however short
_LONGEST_EXPIRY: Final = 0xFFFFFFFF


class Kind(IntEnum):
    """What a publication is to its link."""

    MESSAGE = 0
    ASKING = 1  # a message whose sender wants to know when it is taken
    OPEN = 2
    OPENED = 3
    REFUSED = 4
    CLOSE = 5  # the last one, numbered like a message
    TAKEN = 6  # the answer to ASKING
    UNKNOWN = 7  # there is no such link here (any more)


_NUMBERED: Final = frozenset({Kind.MESSAGE, Kind.ASKING, Kind.CLOSE})


def write_label(kind: Kind, tag: bytes, number: int = 0, taken: int = 0) -> bytes:
    """The correlation data of a publication.

    >>> read_label(write_label(Kind.CLOSE, b"12345678", 3, 2))
    (5, b'12345678', 3, 2)
    """
    return _HEAD.pack(MAGIC, kind, tag, number, taken)


def read_label(data: bytes | None) -> tuple[int, bytes, int, int] | None:
    """What correlation data say; None when they are not ours.

    >>> read_label(b"something else")
    """
    if data is None or len(data) != _HEAD.size or not data.startswith(MAGIC):
        return None
    _, kind, tag, number, taken = _HEAD.unpack(data)
    return kind, tag, number, taken


def expiry_seconds(expiry: Expiry) -> int | None:
    """The time that a message has left, as MQTT counts it: whole seconds, rounded up."""
    if expiry == NEVER:
        return None
    left = math.ceil(expiry / 1000 - time.time())
    return max(1, min(left, _LONGEST_EXPIRY))


def _problem(error: DecodeError | None) -> tuple[Reason, str]:
    """What is wrong with a publication that is not one whole frame."""
    if error is None:
        return Reason.MALFORMED, "a publication holds half a frame"
    return Reason.TOO_LARGE if error.too_large else Reason.MALFORMED, str(error)


class Hub(Protocol):
    """What links share: the transport that they belong to."""

    client: MqttClient
    limits: MqttLimits
    qos: int
    counts: Counter[str]

    def touch(self, link: MqttLink) -> None:
        """Let a link settle and hand in at the end of the turn."""
        ...

    def forget(self, link: MqttLink) -> None:
        """A link is over."""
        ...


class MqttLink(ABC):
    """What all links do; how a message looks on its way is said by the kinds below."""

    def __init__(
        self, hub: Hub, owner: LinkOwner, inbox: str, peer: str, qos: int | None = None
    ) -> None:
        self.place = peer
        self._qos = hub.qos if qos is None else qos  # of messages
        self.owner = owner
        self.inbox = inbox
        self._hub = hub
        self._client = hub.client
        self._loop = asyncio.get_running_loop()
        self._unsettled: deque[bool] = deque()  # published: is it a message of the owner's?
        self._acknowledged = 0  # messages of the owner's, since it was told
        self._batch: list[Message] = []  # received in this turn
        self._reading = True
        self._owner_waits = False
        self._closing = False
        self._over = False
        self._alarm: asyncio.TimerHandle | None = None
        self._used = False  # since somebody looked
        self._idle: asyncio.TimerHandle | None = None

    # What the owner asks for

    @abstractmethod
    def send(self, message: Message) -> Reason | None:
        """Take a message to the peer."""

    @abstractmethod
    def send_control(self, payload: bytes) -> None:
        """Take a payload to the peer's session."""

    def pause_reading(self) -> None:
        """Hand in nothing more."""
        self._reading = False

    def resume_reading(self) -> None:
        """Hand in what came meanwhile, and what comes."""
        if self._reading:
            return
        self._reading = True
        self._take_held()
        self._hub.touch(self)
        self._client.schedule()

    def close(self) -> None:
        """Write what was taken, within the time for it, and end."""
        if self._closing or self._over:
            return
        self._closing = True
        self._say_goodbye()
        self._alarm = self._loop.call_later(self._hub.limits.linger, self._end_lingering)
        self._hub.touch(self)
        self._client.schedule()

    def abort(self) -> None:
        """End at once."""
        if not self._over:
            self._over = True
            self._break_off()
            self._loop.call_soon(self._finish, Reason.TRANSPORT_DOWN, "aborted")

    # What the transport tells

    def open_up(self) -> None:
        """The link can be used."""
        self.owner.opened(self)
        self.owner.answered()

    def acknowledged(self, code: PubAckReasonCode) -> None:
        """The broker has a publication of ours."""
        if self._unsettled and self._unsettled.popleft():
            self._acknowledged += 1
        if int(code) >= REFUSED:
            self.end(Reason.REFUSED, f"the broker refused a message: {code.name.lower()}")
        elif code is PubAckReasonCode.NO_MATCHING_SUBSCRIBERS and not self._closing:
            self.end(Reason.TRANSPORT_DOWN, "nobody has subscribed to the peer's topic any more")
        self._hub.touch(self)

    def settle(self) -> None:
        """The end of a turn: tell what is out of our hands, and hand in what came."""
        if self._acknowledged:
            messages, self._acknowledged = self._acknowledged, 0
            if not self._over:
                self.owner.sent(messages)
        self._hand_in()
        if self._closing and not self._over and self._is_empty():
            self.owner.sent()
            self.end(None, "closed")

    def written(self) -> None:
        """The system has taken everything: without QoS 1 that is all there is to know."""
        self._acknowledged += sum(self._unsettled)
        self._unsettled.clear()
        self.settle()

    @property
    def awaits_writing(self) -> bool:
        """Whether something was published that nobody will confirm."""
        return bool(self._unsettled) and not self._is_confirmed

    @property
    def _is_confirmed(self) -> bool:
        return self._qos > 0 and self._client.acknowledges

    def relax(self) -> None:
        """There is room again, here or at the peer."""
        if (
            self._owner_waits
            and not self._over
            and not self._client.is_crowded
            and self._has_room()
        ):
            self._owner_waits = False
            self.owner.resume()

    def end(self, reason: Reason | None, detail: str) -> None:
        """The link is over."""
        if not self._over:
            self._over = True
            self._finish(reason, detail)

    def end_when_idle(self) -> None:
        """Let silence end the link: its peer is of a make that never says goodbye."""
        self._idle = self._loop.call_later(self._hub.limits.idle, self._look)

    def _look(self) -> None:
        if self._used:
            self._used = False
            self.end_when_idle()
        else:
            self.end(None, "silent for too long")

    # What the kinds of links differ in

    @abstractmethod
    def _take_held(self) -> None:
        """Take what came while nothing was to be handed in."""

    def _has_room(self) -> bool:
        return True

    def _is_empty(self) -> bool:
        return not self._unsettled

    def _say_goodbye(self) -> None:  # noqa: B027 - only our own peers would listen
        """Tell the peer of an orderly end."""

    def _break_off(self) -> None:  # noqa: B027 - the same
        """Tell the peer of a disorderly end."""

    # Inside

    def _publish(
        self,
        topic: str,
        payload: bytes,
        expiry: int | None,
        *,
        correlation: bytes | None = None,
        properties: list[tuple[str, str]] | None = None,
        is_message: bool,
    ) -> Reason | None:
        reason = self._client.publish(
            topic,
            payload,
            self._qos,
            expiry=expiry,
            response_topic=self.inbox,
            correlation=correlation,
            properties=properties,
            whose=self,
        )
        if reason is None:
            self._used = True
            self._unsettled.append(is_message)
            if not self._is_confirmed:
                self._hub.touch(self)
        return reason

    def _hold_owner(self) -> None:
        """Let the owner wait if there is no room for more."""
        if not self._owner_waits and (self._client.is_crowded or not self._has_room()):
            self._owner_waits = True
            self.owner.pause()

    def _hand_in(self) -> None:
        messages, self._batch = self._batch, []
        if messages and not self._over:
            self.owner.received(messages)

    def _end_lingering(self) -> None:
        self._alarm = None
        self.end(Reason.TRANSPORT_DOWN, "the peer did not take what was left")

    def _finish(self, reason: Reason | None, detail: str) -> None:
        for alarm in (self._alarm, self._idle):
            if alarm is not None:
                alarm.cancel()
        self._hub.forget(self)
        self.owner.closed(reason, detail)


class FramedLink(MqttLink):
    """What links of Ockam's frames share: encoding, decoding, and holding what may not be taken."""

    def __init__(
        self, hub: Hub, owner: LinkOwner, inbox: str, peer: str, qos: int | None = None
    ) -> None:
        super().__init__(hub, owner, inbox, peer, qos)
        self._decoder = FrameDecoder(limit=hub.limits.frame, via=owner.address)
        self._decoder.feed(PREFACE)
        self._held: deque[tuple[int, int, bytes]] = deque()  # received, and not to be taken yet
        self._held_bytes = 0

    def send(self, message: Message) -> Reason | None:
        """Encode a message and publish it, now or when there is room."""
        try:
            frame = encode_departure(message, limit=self._hub.limits.frame)
        except LocalError as error:
            return _REASONS.get(error.rule, Reason.MALFORMED)
        reason = self._send_frame(frame, expiry_seconds(message.expiry))
        self._hold_owner()
        return reason

    @abstractmethod
    def _send_frame(self, frame: bytes, expiry: int | None) -> Reason | None:
        """Take the frame of a message to the peer."""

    @abstractmethod
    def _take(self, kind: int, number: int, payload: bytes) -> None:
        """Take what the peer sent, in its turn."""

    def _receive(self, kind: int, number: int, payload: bytes) -> None:
        if self._over or self._closing:
            return
        if self._reading:
            self._take(kind, number, payload)
            self._hub.touch(self)
            return
        self._held.append((kind, number, payload))
        self._held_bytes += len(payload) + _OVERHEAD
        if self._held_bytes > 4 * (self._hub.limits.unsent + self._hub.limits.frame):
            self.end(Reason.QUEUE_FULL, "the peer sent more than anybody here had room for")

    def _take_held(self) -> None:
        held, self._held = self._held, deque()
        self._held_bytes = 0
        for kind, number, payload in held:
            self._take(kind, number, payload)

    def _decode(self, payload: bytes) -> bool:
        """Decode a publication, which must be whole frames; whether it was."""
        if self._decoder.error is None:
            self._batch += self._decoder.feed(payload)
        return self._decoder.error is None and not self._decoder.unfinished

    def _end_undecoded(self) -> None:
        self._hand_in()
        self._break_off()
        self.end(*_problem(self._decoder.error))


class OckamLink(FramedLink):
    """A link to another node of ours: Ockam's frames, one to a publication, within a window."""

    def __init__(
        self,
        hub: Hub,
        owner: LinkOwner,
        inbox: str,
        peer: str,
        tag: bytes,
        incarnation: bytes,
        qos: int | None = None,
    ) -> None:
        super().__init__(hub, owner, inbox, peer, qos)
        self.tag = tag
        self.incarnation = incarnation  # of the peer's connection to the broker
        self.opening: asyncio.Future[None] | None = None  # until the peer has answered
        self._number = 0  # of the last publication
        self._waiting: deque[tuple[Kind, bytes, int | None, bool]] = deque()
        self._ahead: deque[int] = deque()  # sizes of what the peer has not taken yet
        self._ahead_bytes = 0
        self._since_asked = self._bytes_since_asked = 0
        self._received = 0  # the number of the last publication of the peer's
        self._taken = 0  # the number of the last one that was handed in
        self._asked = False  # whether the peer wants to know that

    def send_control(self, payload: bytes) -> None:
        """Publish a payload for the peer's session, in order with the messages."""
        frame = encode_control(payload) if payload else HEARTBEAT_FRAME
        self._give(Kind.MESSAGE, frame, None, is_message=False)

    def say(self, kind: Kind, payload: bytes = b"") -> None:
        """Publish something about the link itself, beside the window."""
        label = write_label(kind, self.tag, 0, self._taken)
        self._client.publish(
            self.place,
            payload,
            self._hub.qos,
            response_topic=self.inbox,
            correlation=label,
            whose=_Refusal(self) if kind is Kind.OPEN else None,
        )

    def heard(self, kind: int, number: int, taken: int, payload: bytes) -> None:
        """The peer published something for this link."""
        self._note_taken(taken)
        if kind == Kind.OPENED:
            if self.opening is not None and not self.opening.done():
                self.incarnation = payload
                self.opening.set_result(None)
                self.open_up()
        elif kind == Kind.REFUSED:
            self.refuse("it takes no links")
        elif kind == Kind.UNKNOWN:
            if self.opening is None or self.opening.done():
                self.end(Reason.TRANSPORT_DOWN, "the peer does not know this link any more")
        elif kind in _NUMBERED:
            if number <= self._received:  # the broker may deliver twice
                self._hub.counts["duplicates"] += 1
                return
            if number > self._received + 1:
                self._hub.counts["lost"] += number - self._received - 1
            self._received = number
            self._receive(kind, number, payload)

    def refuse(self, detail: str) -> None:
        """Nothing comes of the link that we asked for."""
        if self.opening is not None and not self.opening.done():
            self._over = True
            self.opening.set_exception(ConnectionRefusedError(f"{self.place}: {detail}"))

    def end(self, reason: Reason | None, detail: str) -> None:
        """The link is over, or nothing comes of it."""
        if self.opening is not None and not self.opening.done():
            self.refuse(detail)
        else:
            super().end(reason, detail)

    def _send_frame(self, frame: bytes, expiry: int | None) -> Reason | None:
        if not self._client.fits(len(frame) + len(self.place)):
            return Reason.TOO_LARGE
        self._give(Kind.MESSAGE, frame, expiry, is_message=True)
        return None

    def _has_room(self) -> bool:
        limits = self._hub.limits
        ahead = len(self._ahead)
        return not ahead or (ahead < limits.window and self._ahead_bytes < limits.unsent)

    def _is_empty(self) -> bool:
        return not self._waiting and not self._unsettled

    def _say_goodbye(self) -> None:
        self._give(Kind.CLOSE, b"", None, is_message=False)

    def _break_off(self) -> None:
        self.say(Kind.UNKNOWN)

    def _give(self, kind: Kind, payload: bytes, expiry: int | None, *, is_message: bool) -> None:
        if self._waiting or not self._has_room():
            self._waiting.append((kind, payload, expiry, is_message))
        else:
            self._number_and_publish(kind, payload, expiry, is_message=is_message)

    def _number_and_publish(
        self, kind: Kind, payload: bytes, expiry: int | None, *, is_message: bool
    ) -> None:
        size = len(payload)
        self._number += 1
        self._ahead.append(size)
        self._ahead_bytes += size
        self._since_asked += 1
        self._bytes_since_asked += size
        limits = self._hub.limits
        if kind is Kind.MESSAGE and (
            4 * self._since_asked >= limits.window or 4 * self._bytes_since_asked >= limits.unsent
        ):
            kind = Kind.ASKING
            self._since_asked = self._bytes_since_asked = 0
        label = write_label(kind, self.tag, self._number, self._taken)
        reason = self._publish(
            self.place, payload, expiry, correlation=label, is_message=is_message
        )
        if reason is not None and reason is not Reason.TRANSPORT_DOWN:  # of that it is told anyway
            self.abort()

    def _note_taken(self, taken: int) -> None:
        """The peer has taken everything up to this number."""
        ahead = self._ahead
        news = taken - (self._number - len(ahead))
        if not 0 < news <= len(ahead):
            return
        for _ in range(news):
            self._ahead_bytes -= ahead.popleft()
        while self._waiting and self._has_room():
            kind, payload, expiry, is_message = self._waiting.popleft()
            self._number_and_publish(kind, payload, expiry, is_message=is_message)
        self.relax()

    def _take(self, kind: int, number: int, payload: bytes) -> None:
        self._taken = number
        if kind == Kind.CLOSE:
            self._hand_in()
            self.end(None, "closed by the peer")
        elif not self._decode(payload):
            self._end_undecoded()
        elif kind == Kind.ASKING:
            self._asked = True

    def _hand_in(self) -> None:
        super()._hand_in()
        if self._asked and self._reading and not self._over:
            self._asked = False
            self.say(Kind.TAKEN)


class _Refusal:
    """Hears whether anybody has subscribed to the topic of a peer."""

    __slots__ = ("_link",)

    def __init__(self, link: OckamLink) -> None:
        self._link = link

    def acknowledged(self, code: PubAckReasonCode) -> None:
        if code is PubAckReasonCode.NO_MATCHING_SUBSCRIBERS:
            self._link.refuse("nobody has subscribed to this topic")
        elif int(code) >= REFUSED:
            self._link.refuse(f"the broker refused: {code.name.lower()}")


class PlainLink(FramedLink):
    """A link to a peer of another make that publishes Ockam's frames and has a response topic.

    It has no window, and never says goodbye: silence ends it.
    """

    def __init__(self, hub: Hub, owner: LinkOwner, inbox: str, peer: str) -> None:
        super().__init__(hub, owner, inbox, peer)
        self.end_when_idle()

    def send_control(self, payload: bytes) -> None:
        """Say nothing: a peer of another make has no session."""

    def heard(self, payload: bytes) -> None:
        """The peer published a frame."""
        self._used = True
        self._receive(Kind.MESSAGE, 0, payload)

    def _send_frame(self, frame: bytes, expiry: int | None) -> Reason | None:
        return self._publish(self.place, frame, expiry, is_message=True)

    def _take(self, kind: int, number: int, payload: bytes) -> None:
        del kind, number
        if not self._decode(payload):
            self._end_undecoded()
