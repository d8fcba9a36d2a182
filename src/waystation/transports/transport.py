"""The seam between the node and whatever carries its messages: one small protocol.

A transport opens links, by dialling or by listening. A link carries messages to one peer and back.
Its owner, the node's session, hears from it by plain calls in the event loop: nothing is awaited
and nothing is created per message. What every link must do is checked by
`waystation.testing.check_transport`; no word about any format or socket stands here.

WK-10 is the link's duty. It writes a message without the first address of its onward route, and
hands in what came from the peer with `owner.address` in front of the return route. A message
without any onward route is for the session itself and is handed in as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar, Protocol, runtime_checkable

from waystation.core.address import Address
from waystation.core.message import Message
from waystation.core.outcome import Reason


class LinkOwner(Protocol):
    """Whoever uses a link: told what happens to it."""

    @property
    def address(self) -> Address:
        """The local address that stands for the link in routes."""
        ...

    def opened(self, link: Link) -> None:
        """The link can be used. Comes once, before everything else."""
        ...

    def answered(self) -> None:
        """Whoever is at the other end speaks the link's format. Comes once, before any message."""
        ...

    def received(self, messages: Sequence[Message]) -> None:
        """The peer sent these; none at all is a sign of life, as a part of a large one."""
        ...

    def sent(self, messages: int | None = None) -> None:
        """The next so many messages that the link was given are out of this process's hands.

        None stands for all that it was given so far.
        """
        ...

    def pause(self) -> None:
        """Give the link no more messages for now: the peer, or the way there, is slower."""
        ...

    def resume(self) -> None:
        """The link takes messages again."""
        ...

    def closed(self, reason: Reason | None, detail: str) -> None:
        """The link is gone. Comes once, after everything else; None for an orderly end."""
        ...


class Link(Protocol):
    """A way to one peer."""

    @property
    def place(self) -> str:
        """Where the peer is: the data of an address of the transport's type."""
        ...

    def send(self, message: Message) -> Reason | None:
        """Take a message to the peer; says why not, if it cannot be (TOO_LARGE).

        Written with others at the end of the loop's turn. Not called between `pause` and `resume`,
        but for a few messages that were on their way.
        """
        ...

    def send_control(self, payload: bytes) -> None:
        """Take a payload to the peer's session, in order with the messages; b"" is a heartbeat."""
        ...

    def pause_reading(self) -> None:
        """Hand in nothing more for now, and let the peer feel it."""
        ...

    def resume_reading(self) -> None:
        """Hand in what comes again."""
        ...

    def close(self) -> None:
        """Write what was taken and end the link; `closed` follows in any case, and soon."""
        ...

    def abort(self) -> None:
        """End the link at once."""
        ...


class Listener(Protocol):
    """A place where peers can open links."""

    @property
    def place(self) -> str:
        """Where it is, with the port that was chosen if any would do."""
        ...

    async def close(self) -> None:
        """Accept no more links; those that are open stay."""
        ...


class Transport(Protocol):
    """Opens links of one kind."""

    type_name: ClassVar[str]
    """The name of its address type (AD-3): what stands before the # in a route."""

    async def listen(self, place: str, accept: Callable[[], LinkOwner | None]) -> Listener:
        """Open a listener; `accept` gives each new link its owner, or None to refuse it."""
        ...

    async def dial(self, places: Sequence[str], owner: LinkOwner) -> Link:
        """Open a link to the first place of a peer that answers; an OSError says why not."""
        ...


@runtime_checkable
class Broadcaster(Protocol):
    """A transport that also reaches whoever subscribed, as a broker does (MC-10 .. MC-12).

    The node calls `subscribe` for the first receiver of a pattern and `unsubscribe` after the last.
    What was subscribed stays so over a reconnect; what this node publishes does not come back.
    """

    def attach(self, received: Callable[[str, Message], None]) -> None:
        """Have a function called with the id and the message of each broadcast that arrives."""
        ...

    async def start(self) -> None:
        """Begin to connect; what is published until then waits, or is refused."""
        ...

    async def close(self) -> None:
        """Write what was taken and leave the broker."""
        ...

    def publish(self, multicast_id: str, message: Message) -> Reason | None:
        """Take a broadcast to everybody; says why not, if that cannot be now. Never waits."""
        ...

    def subscribe(self, pattern: str) -> None:
        """Let what matches arrive."""
        ...

    def unsubscribe(self, pattern: str) -> None:
        """Let it no longer arrive."""
        ...
