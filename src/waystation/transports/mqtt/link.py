"""Links over a broker: what makes a way to one peer out of publications on topics.

All links of a node share one connection to the broker. A link counts what the broker has not
acknowledged, and hands in what came at the end of each turn. How a message looks, and what the two
peers tell each other besides, is said by the kinds of links: ockam.py and joynr.py.

The life of a link:

    OPENING --the peer answers--> OPEN --close()--> CLOSING --all is acknowledged--> ENDED
    OPEN --the peer ends it--> ENDING --all is handed in--> ENDED
    any state --abort() or end()--> ENDED
"""

from __future__ import annotations

import asyncio
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from enum import IntEnum
from typing import TYPE_CHECKING, Final

from mqtt5 import PubAckReasonCode

from waystation.core.clock import now_ns
from waystation.core.expiry import NEVER, Expiry
from waystation.core.message import Message
from waystation.core.outcome import Reason
from waystation.mqtt.packets import REFUSED, words_of
from waystation.transports.transport import LinkOwner

if TYPE_CHECKING:
    from waystation.transports.mqtt.transport import Mqtt

_LONGEST_EXPIRY: Final = 0xFFFFFFFF
_OVERHEAD: Final = 256  # bytes of memory that any message takes, however short


def expiry_seconds(expiry: Expiry) -> int | None:
    """The time that a message has left, as MQTT counts it: whole seconds, rounded up."""
    if expiry == NEVER:
        return None
    left = math.ceil(expiry / 1000 - now_ns() / 1e9)
    return max(1, min(left, _LONGEST_EXPIRY))


class LinkState(IntEnum):
    """Where a link is in its life."""

    OPENING = 0
    OPEN = 1
    CLOSING = 2
    ENDING = 3
    ENDED = 4


_OPEN: Final = LinkState.OPEN
_CLOSING: Final = LinkState.CLOSING
_ENDING: Final = LinkState.ENDING
_ENDED: Final = LinkState.ENDED


class MqttLink(ABC):
    """What all links do."""

    def __init__(
        self, hub: Mqtt, owner: LinkOwner, inbox: str, peer: str, *, qos: int | None = None
    ) -> None:
        self.place = peer
        self.key = (peer, b"")  # among all links
        self.state = _OPEN
        self.inbox = inbox  # our topic that the peer answers to
        self._owner = owner
        self._hub = hub
        assert hub.client.connection is not None  # links are made while it is open
        self._connection = hub.client.connection
        self._qos = hub.qos if qos is None else qos
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._unacknowledged = 0  # publications
        self._sent = 0  # messages that are out of our hands, and the owner does not know yet
        self._arrived: list[Message] = []  # and not handed in
        self._arrived_bytes = 0
        self._ending: tuple[Reason | None, str] = (None, "")  # why, once all is handed in
        self._reading = True
        self._owner_waits = False

    # What the owner asks for

    def send(self, message: Message) -> Reason | None:
        """Publish a message, and let the owner wait if there is no room for more."""
        reason = self._send(message)
        if not self._owner_waits and (self._connection.is_crowded or not self._has_room()):
            self._owner_waits = True
            self._owner.pause()
        return reason

    @abstractmethod
    def send_control(self, payload: bytes) -> None:
        """Take a payload to the peer's session."""

    def pause_reading(self) -> None:
        """Hand in nothing more."""
        self._reading = False

    def resume_reading(self) -> None:
        """Hand in what came meanwhile, and what comes."""
        self._reading = True
        self._hub.settle_later(self)

    def close(self) -> None:
        """Write what was taken, within the time for it, and end."""
        if self.state is _ENDING:
            self.end(*self._ending)
        elif self.state is _OPEN:
            self.state = _CLOSING
            self._start_timer(self._hub.limits.linger, self._end_lingering)
            self._hub.settle_later(self)

    def abort(self) -> None:
        """End at once."""
        if self.state is not _ENDED:
            self.state = _ENDED
            self._loop.call_soon(self._finish, Reason.TRANSPORT_DOWN, "aborted")

    # What the transport tells

    def open(self) -> None:
        """Tell the owner that the link can be used."""
        self.state = _OPEN
        self._owner.opened(self)
        self._owner.answered()

    def settle(self) -> None:
        """The end of a turn: tell what is out of our hands, and hand in what came."""
        if self.state is _ENDED:
            return
        if self._sent:
            messages, self._sent = self._sent, 0
            self._owner.sent(messages)
        if self._reading:
            self._hand_in()
            if self.state is _ENDING:
                self.end(*self._ending)
        if self.state is _CLOSING and not self._has_unsent():
            self._owner.sent()
            self.end(None, "closed")

    def relax(self) -> None:
        """Let the owner go on if there is room, here and at the peer."""
        if (
            self._owner_waits
            and self.state is not _ENDED
            and not self._connection.is_crowded
            and self._has_room()
        ):
            self._owner_waits = False
            self._owner.resume()

    def end(self, reason: Reason | None, detail: str) -> None:
        """End the link, and tell the owner why."""
        if self.state is not _ENDED:
            self.state = _ENDED
            self._finish(reason, detail)

    # What kinds of links say

    @abstractmethod
    def _send(self, message: Message) -> Reason | None:
        """Publish a message, now or when there is room."""

    def _has_room(self) -> bool:
        """Whether the peer takes more."""
        return True

    def _has_unsent(self) -> bool:
        """Whether something is not out of our hands."""
        return self._unacknowledged > 0

    # What kinds of links call

    def _publish(
        self,
        topic: str,
        payload: bytes,
        *,
        expiry: int | None = None,
        correlation: bytes | None = None,
        properties: list[tuple[str, str]] | None = None,
        is_message: bool = True,
    ) -> Reason | None:
        reason = self._connection.publish(
            topic,
            payload,
            self._qos,
            expiry=expiry,
            response_topic=self.inbox,
            correlation=correlation,
            properties=properties,
            on_ack=self._message_acknowledged if is_message else self._acknowledged,
        )
        if reason is None:
            self._unacknowledged += 1
        return reason

    def _message_acknowledged(self, code: PubAckReasonCode) -> None:
        self._sent += 1
        self._acknowledged(code)

    def _acknowledged(self, code: PubAckReasonCode) -> None:
        self._unacknowledged -= 1
        if int(code) >= REFUSED:
            self.end(Reason.REFUSED, f"the broker refused a message: {words_of(code)}")
        elif code is PubAckReasonCode.NO_MATCHING_SUBSCRIBERS and self.state is not _CLOSING:
            self.end(Reason.TRANSPORT_DOWN, "the peer's topic has no subscriber any more")
        self._hub.mark_unsettled(self)

    def _take(self, messages: Iterable[Message], size: int) -> None:
        """Keep what came until the end of the turn, or until the owner reads again."""
        self._arrived += messages
        self._arrived_bytes += size + _OVERHEAD
        limits = self._hub.limits
        if not self._reading and self._arrived_bytes > 4 * (limits.unsent + limits.frame):
            self.end(Reason.QUEUE_FULL, "the peer sent more than there is room for")
        self._hub.mark_unsettled(self)

    def _end_when_handed_in(self, reason: Reason | None, detail: str) -> None:
        """End the link once the owner has what came before."""
        if self.state is _OPEN:
            self.state = _ENDING
            self._ending = (reason, detail)
            self._hub.mark_unsettled(self)

    def _hand_in(self) -> None:
        messages, self._arrived = self._arrived, []
        self._arrived_bytes = 0
        if messages:
            self._owner.received(messages)

    def _start_timer(self, seconds: float, act: Callable[[], None]) -> None:
        self._stop_timer()
        self._timer = self._loop.call_later(seconds, act)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _end_lingering(self) -> None:
        self.end(Reason.TRANSPORT_DOWN, "the peer did not take what was left")

    def _finish(self, reason: Reason | None, detail: str) -> None:
        self._stop_timer()
        self._hub.forget(self)
        self._owner.closed(reason, detail)


class ForeignLink(MqttLink):
    """A link to a peer that is not one of our nodes.

    It has no window and no session, and never says goodbye: silence ends it.
    """

    def __init__(self, hub: Mqtt, owner: LinkOwner, inbox: str, peer: str) -> None:
        super().__init__(hub, owner, inbox, peer)
        self._used = False  # since the last look

    def send(self, message: Message) -> Reason | None:
        """Publish a message."""
        self._used = True
        return super().send(message)

    def send_control(self, payload: bytes) -> None:
        """Say nothing: the peer has no session."""

    def end_when_idle(self) -> None:
        """Let silence end the link."""
        self._used = False
        self._start_timer(self._hub.limits.idle, self._look_for_use)

    def _look_for_use(self) -> None:
        if self._used:
            self.end_when_idle()
        else:
            self.end(None, "silent for too long")

    def _take(self, messages: Iterable[Message], size: int) -> None:
        self._used = True
        super()._take(messages, size)
