"""Links over a broker: what makes a way to one peer out of publications on topics.

All links of a node share one connection to the broker. A link counts what the broker has not
acknowledged, and hands in what came at the end of each turn. How a message looks, and what the two
peers tell each other besides, is said by the kinds of links: ockam.py and joynr.py.

A link lives as any `BaseLink` does. When its peer ends it, it takes nothing more, and is over
once its owner has taken what came before.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from mqtt5 import PubAckReasonCode

from waystation.core.budget import OVERHEAD, Account
from waystation.core.clock import now_ns
from waystation.core.expiry import NEVER, Expiry
from waystation.core.message import Message
from waystation.core.outcome import Reason
from waystation.errors import LocalError
from waystation.mqtt.client import OnAck
from waystation.mqtt.packets import REFUSED, words_of
from waystation.net.connection import ConnectionState
from waystation.transports.link import BaseLink, why_unsendable
from waystation.transports.transport import LinkOwner

if TYPE_CHECKING:
    from waystation.transports.mqtt.transport import Mqtt

_LONGEST_EXPIRY: Final = 0xFFFFFFFF
_OPEN: Final = ConnectionState.OPEN  # looked up for each message
_CLOSED: Final = ConnectionState.CLOSED


def expiry_seconds(expiry: Expiry) -> int | None:
    """The time that a message has left, as MQTT counts it: whole seconds, rounded up."""
    if expiry == NEVER:
        return None
    left = math.ceil(expiry / 1000 - now_ns() / 1e9)
    return max(1, min(left, _LONGEST_EXPIRY))


class MqttLink(BaseLink):
    """What all links do."""

    def __init__(
        self, hub: Mqtt, owner: LinkOwner, inbox: str, peer: str, *, qos: int | None = None
    ) -> None:
        super().__init__(owner, peer, linger=hub.limits.linger)
        self.key = (peer, b"")  # among all links
        self.inbox = inbox  # our topic that the peer answers to
        self._hub = hub
        assert hub.client.connection is not None  # links are made while it is open
        self._connection = hub.client.connection
        self._qos = hub.qos if qos is None else qos
        self._unacknowledged = 0  # publications
        self._sent = 0  # messages that are out of our hands, and the owner does not know yet
        self._arrived: list[Message] = []  # and not handed in
        # Bytes of that which wait because the owner does not read; here, and of all links.
        limits = hub.limits
        self._held = Account(max(limits.receiver, 2 * limits.unsent + limits.frame), hub.unread)
        self._ending: tuple[Reason | None, str] | None = None  # why, once the peer has ended it
        self._reading = True
        self._used = False  # since the last look for idle links

    # What the owner asks for

    def send(self, message: Message) -> Reason | None:
        """Publish a message, and let the owner wait if there is no room for more."""
        try:
            reason = self.publish(message)
        except LocalError as error:
            return why_unsendable(error)
        if not self._crowded and (self._connection.is_crowded or not self._has_room()):
            self._crowded = True
            self.owner.pause()
        return reason

    def send_control(self, payload: bytes) -> None:
        """Say nothing, unless the peer is one of our nodes: others have no session."""

    def pause_reading(self) -> None:
        """Hand in nothing more."""
        self._reading = False

    def resume_reading(self) -> None:
        """Hand in what came meanwhile, and what comes."""
        self._reading = True
        self._hub.settle_later(self)

    def close(self) -> None:
        """Write what was taken, within the time for it, and end."""
        if self._ending is None:
            super().close()
        else:
            self.end(*self._ending)

    # What the transport tells

    @property
    def is_receiving(self) -> bool:
        """Whether it takes what the peer sends: neither side has ended it."""
        return self.state is _OPEN and self._ending is None

    def open(self) -> None:
        """Tell the owner that the link can be used."""
        self.state = ConnectionState.OPEN
        self.hand_over()
        self.owner.answered()

    def settle(self) -> None:
        """The end of a turn: tell what is out of our hands, and hand in what came."""
        if self.state is ConnectionState.CLOSED:
            return
        self._used = True
        self._tell_sent()
        if self._reading:
            self._hand_in()
            if self._ending is not None:
                self.end(*self._ending)
        if self.state is ConnectionState.CLOSING and not self._has_unsent():
            self.owner.sent()
            self.end(None, "closed")

    def _tell_sent(self) -> None:
        """Tell the owner of the messages that the broker has acknowledged, or that left (OB-7)."""
        if self._sent:
            messages, self._sent = self._sent, 0
            self.owner.sent(messages)

    def relax(self) -> None:
        """Let the owner go on if there is room, here and at the peer."""
        if self._crowded and not self._connection.is_crowded and self._has_room():
            self._crowded = False
            self.owner.resume()

    def end_when_idle(self) -> None:
        """Let silence end the link: only our own nodes say goodbye."""
        self._used = False
        self.start_timer(self._hub.limits.idle, self._look_for_use)

    def _look_for_use(self) -> None:
        if self._used:
            self.end_when_idle()
        else:
            self.end(None, "silent for too long")

    # What kinds of links say

    @abstractmethod
    def publish(self, message: Message) -> Reason | None:
        """Publish a message, now or when there is room; LocalError if it cannot be written."""

    def _has_room(self) -> bool:
        """Whether the peer takes more."""
        return True

    def _has_unsent(self) -> bool:
        """Whether something is not out of our hands."""
        return self._unacknowledged > 0

    # What kinds of links call

    def _publish(
        self, topic: str, payload: bytes, on_ack: OnAck, **properties: Any
    ) -> Reason | None:
        reason = self._connection.publish(
            topic, payload, self._qos, response_topic=self.inbox, on_ack=on_ack, **properties
        )
        if reason is None:
            self._unacknowledged += 1
        return reason

    def _message_acknowledged(self, code: PubAckReasonCode) -> None:
        self._acknowledged(code)
        if self.state is not _CLOSED:  # else the broker took it for nobody
            self._sent += 1

    def _acknowledged(self, code: PubAckReasonCode) -> None:
        self._unacknowledged -= 1
        if int(code) >= REFUSED:
            self.end(Reason.REFUSED, f"the broker refused a message: {words_of(code)}")
        elif (
            code is PubAckReasonCode.NO_MATCHING_SUBSCRIBERS and self.state is ConnectionState.OPEN
        ):
            self.end(Reason.TRANSPORT_DOWN, "the peer's topic has no subscriber any more")
        self._hub.mark_unsettled(self)

    def _take(self, messages: Iterable[Message], size: int) -> None:
        """Keep what came until the end of the turn, or until the owner reads again."""
        self._arrived += messages
        if not self._reading:
            self._held.take(size + OVERHEAD)
            if self._held.is_over or self._hub.unread.is_over:
                self.end(Reason.QUEUE_FULL, "the peer sent more than there is room for")
        self._hub.mark_unsettled(self)

    def _end_when_handed_in(self, reason: Reason | None, detail: str) -> None:
        """End the link once the owner has what came before."""
        self._ending = (reason, detail)
        self._hub.mark_unsettled(self)

    def _hand_in(self) -> None:
        messages, self._arrived = self._arrived, []
        if self._held.used:
            self._held.give_back(self._held.used)
        if messages:
            self.owner.received(messages)

    # How it ends

    def say_goodbye(self) -> None:
        """End when all is acknowledged."""
        self._hub.settle_later(self)

    def on_end(self) -> None:
        """Tell what is out of our hands by now, and let the transport forget the link."""
        self._tell_sent()
        self._held.give_back(self._held.used)
        self._arrived = []
        self._hub.forget(self)
