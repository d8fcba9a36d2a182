"""What the node and its transports expect of each other: a few small protocols.

A transport opens links, by dialling or by listening. A link carries messages to one peer and back.
Its owner, the node's session, is told by plain calls in the event loop: nothing is awaited and
nothing is created per message. `waystation.testing.check_transport` checks what every link must do.
Formats and sockets have no place in this file.

WK-10 is the link's duty. It writes a message without the first address of its onward route, and
hands in what came from the peer with `owner.address` in front of the return route. A message
without any onward route is for the session itself and is handed in as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar, Protocol, runtime_checkable

from msgspec import Struct

from waystation.core.address import Address
from waystation.core.budget import Account
from waystation.core.message import Message
from waystation.core.outcome import Reason


class LinkOwner(Protocol):
    """Whoever uses a link: told what happens to it."""

    @property
    def address(self) -> Address:
        """The local address that stands for the link in routes."""

    @property
    def admitted(self) -> bool:
        """Whether the peer has proven all that it has to; until then a link holds little of it.

        It is asked after messages were handed in, and holds for one link, from `opened` on.
        """

    @property
    def is_stranger(self) -> bool:
        """Whether the peer has not said that it is a node of ours."""

    @property
    def account(self) -> Account | None:
        """Counts the bytes that a link holds of messages in part; None if nobody counts them."""

    def opened(self, link: Link) -> None:
        """The link can be used. Comes once, before everything else."""

    def answered(self) -> None:
        """The peer speaks the link's format. Comes once, before any message."""

    def received(self, messages: Sequence[Message]) -> None:
        """The peer sent these; an empty batch is a sign of life, as after part of a large one."""

    def sent(self, messages: int | None = None) -> None:
        """The next `messages` of those given to the link left this process; None: all of them."""

    def pause(self) -> None:
        """Give the link no more messages for now: the peer or the network does not keep up."""

    def resume(self) -> None:
        """The link takes messages again."""

    def closed(self, reason: Reason | None, detail: str) -> None:
        """The link is gone. Comes once, after everything else; None for an orderly end."""


class Link(Protocol):
    """A way to one peer."""

    __slots__ = ()

    @property
    def place(self) -> str:
        """Where the peer is: the data of an address of the transport's type."""

    def send(self, message: Message) -> Reason | None:
        """Take a message to the peer; the reason why not, if it cannot be sent (TOO_LARGE).

        It is written with others at the end of the loop's turn. Between `pause` and `resume` only
        the few messages come that were on their way.
        """

    def send_control(self, payload: bytes) -> None:
        """Send a payload to the peer's session, in order with the messages; b"" is a heartbeat."""

    def pause_reading(self) -> None:
        """Hand in nothing more for now, and slow the peer down."""

    def resume_reading(self) -> None:
        """Hand in messages again."""

    def close(self) -> None:
        """Write what was taken and end the link; `closed` follows in any case, and soon."""

    def abort(self) -> None:
        """End the link at once."""


class Listener(Protocol):
    """A place where peers can open links."""

    @property
    def place(self) -> str:
        """Where it is, with the port that was chosen if any would do."""

    async def close(self) -> None:
        """Accept no more links; those that are open stay."""


@runtime_checkable
class HasCertificate(Protocol):
    """A listener that may have a certificate, which can be replaced while it runs."""

    def renew_certificate(self) -> None:
        """Use the certificate that is in its file now for the connections to come (ID-5)."""


class Transport(Protocol):
    """Opens links of one kind."""

    type_name: ClassVar[str]
    """The name of its address type (AD-3): what stands before the # in a route."""

    async def listen(self, place: str, accept: Callable[[], LinkOwner | None]) -> Listener:
        """Open a listener; `accept` gives each new link its owner, or None to refuse it."""

    async def dial(self, places: Sequence[str], owner: LinkOwner) -> Link:
        """Open a link to the first place of a peer that answers; an OSError says why not."""


class ServerState(Struct, frozen=True):
    """A server that a transport needs: what it is, where it is, and whether it is reached."""

    kind: str  # broker, or gossip router
    place: str
    is_open: bool


@runtime_checkable
class Served(Protocol):
    """A transport that goes through servers, which stand between the nodes."""

    @property
    def servers(self) -> Sequence[ServerState]:
        """The servers that it needs at present."""


class BrokerState(Struct, frozen=True):
    """Whether there is a connection to a broker."""

    is_open: bool
    place: str
    detail: str = ""  # why it ended


@runtime_checkable
class Broadcaster(Protocol):
    """A transport that also reaches whoever subscribed, as a broker does (MC-10 .. MC-12).

    The node calls `subscribe` for the first receiver of a pattern and `unsubscribe` after the last.
    What was subscribed stays so over a reconnect; what this node publishes does not come back.
    """

    type_name: ClassVar[str]

    def attach(
        self,
        received: Callable[[str, Message], None],
        changed: Callable[[BrokerState], None] | None = None,
    ) -> None:
        """Have functions called: for each broadcast that arrives, and when the broker is lost."""

    async def start(self) -> None:
        """Begin to connect; what is published until then waits, or is refused."""

    async def close(self) -> None:
        """Write what was taken and leave the broker."""

    def publish(
        self, multicast_id: str, message: Message, on_end: Callable[[Reason | None], None]
    ) -> Reason | None:
        """Send a broadcast to all subscribers; the reason why not, if it cannot be. Never waits.

        If it can, `on_end` is called once, later: with None when the broadcast has left this
        process for good or the broker has acknowledged it, else with the reason why not (OB-7).
        """

    def subscribe(self, pattern: str) -> None:
        """Receive what matches a pattern."""

    def unsubscribe(self, pattern: str) -> None:
        """Receive it no longer."""
