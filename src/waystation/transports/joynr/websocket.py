"""The WebSocket between joynr's applications and their cluster controller, from both ends.

    node = Node("hub", hub=True, transports=[Tcp(), JoynrWebSocket()])
    await node.listen("joynr+ws://127.0.0.1:4242")

The first message of an application is its address, every other one an SMRF frame, in both
directions. To the node an application is a leaf: application.py says it in the words of one. A node
that connects with `parent=True` is an application of a cluster controller of joynr's own
(controller.py).
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, ClassVar, Final, cast

from waystation.core.message import Message
from waystation.core.outcome import Reason
from waystation.errors import LocalError
from waystation.net.connection import ConnectionState, Failure
from waystation.net.tls import Tls
from waystation.transports.joynr.application import Application, Applications
from waystation.transports.joynr.controller import Controller
from waystation.transports.joynr.controller_time import HEADER, ControllerTime, answer_to, now
from waystation.transports.link import CONTROL, why_unsendable
from waystation.transports.transport import LinkOwner
from waystation.transports.websocket import (
    AcceptedLink,
    DialledLink,
    Upgrades,
    WebSocket,
    WebSocketLimits,
)
from waystation.wire.joynr_services import encode_opening

if TYPE_CHECKING:
    from websockets.datastructures import Headers
    from websockets.http11 import Response
    from websockets.protocol import Event

LARGEST: Final = 4_000_000
"""Maximum size of a frame in bytes: more ends the connection of an application in Java."""


class JoynrLimits(WebSocketLimits, frozen=True, kw_only=True):
    """Those of WebSockets; an application has `greeting` seconds to say its address as well."""

    frame: int = LARGEST


class AcceptedApplication(AcceptedLink):
    """A connection that an application opened."""

    __slots__ = ("_unread",)

    def __init__(self, upgrades: Upgrades) -> None:
        super().__init__(upgrades)
        self._unread = 0  # bytes of answers since the application stopped reading

    @property
    def _application(self) -> Application:
        return cast("Application", self._bodies)

    # Opening

    def _add_headers(self, headers: Headers) -> None:
        headers[HEADER] = str(now())

    def _greet(self, owner: LinkOwner) -> None:
        """Tell the owner that it has a link; who is there, the application has yet to say."""
        transport = cast("JoynrWebSocket", self._upgrades.transport)
        self._bodies = Application(
            owner.address, transport.channel, transport.applications, limit=self._frame_limit
        )
        owner.opened(self)

    def _look_for_admission(self) -> None:
        if self._application.id:
            super()._look_for_admission()

    def on_silence(self) -> None:
        """End a connection whose opening takes too long."""
        if self._bodies is None:
            super().on_silence()
            return
        seconds = self.limits.first_byte
        self.fail(Reason.REFUSED, f"no joynr application said its address within {seconds:g} s")

    def on_closed(self, failure: Failure | None) -> None:
        """Tell the owner how it ended; what the application announced is remembered."""
        if self._bodies is not None:
            self._application.close()
        super().on_closed(failure)

    # Reading

    def _read_body(self, body: bytes, bodies: Application, messages: list[Message]) -> None:
        if bodies.id:
            bodies.read(body, messages)
            self._say_answers()
            return
        bodies.open(body, messages)
        self.peer_spoke()
        self._owner.answered()

    def _on_pong(self, data: bytes, messages: list[Message]) -> None:
        answer = answer_to(data)
        if answer:
            self._pong(answer)
        else:
            self._application.answered_ping(data, messages)

    # Writing

    def send(self, message: Message) -> Reason | None:
        """Put the frame of a message with the others of this turn."""
        try:
            frame = self._application.write(message)
        except LocalError as error:
            return why_unsendable(error)
        if len(frame) > self._frame_limit:
            return Reason.TOO_LARGE
        self.give(self._framed(frame))
        return None

    def send_control(self, payload: bytes) -> None:
        """Let the application be told, as far as it can be."""
        application = self._application
        if not payload:
            self._ping(b"")
            return
        ping = application.hear(payload)
        if ping:
            self._ping(ping)
        self._say_answers()

    def on_clear(self) -> None:
        """Let senders go on; the application reads again."""
        self._unread = 0
        super().on_clear()

    def _say_answers(self) -> None:
        """Write the answers to its calls; one that keeps calling and never reads is given up."""
        answers, self._application.answers = self._application.answers, []
        for answer in answers:
            if self.holds_senders_back:
                self._unread += len(answer)
                if self._unread > CONTROL:
                    self.fail(Reason.QUEUE_FULL, "the application does not read the answers")
                    return
            self.write(self._framed(answer))

    def _ping(self, data: bytes) -> None:
        if self.state is ConnectionState.OPEN:
            self._protocol.send_ping(data)
            self._write_out()


class DialledController(DialledLink):
    """A connection that this node opened to a cluster controller."""

    __slots__ = ("_bodies_for", "_early", "_time")

    def __init__(self, transport: WebSocket, owner: LinkOwner, url: str, path: str) -> None:
        super().__init__(transport, owner, url, path)
        self._bodies_for = cast("JoynrWebSocket", transport)
        self._early: list[bytes] = []  # frames of messages whose sender is not known there yet
        self._time = ControllerTime()

    @property
    def _controller(self) -> Controller:
        return cast("Controller", self._bodies)

    def _shake_hands(self, events: list[Event]) -> None:
        for event in events[:1]:
            self._time.told(cast("Response", event).headers.get_all(HEADER))
        super()._shake_hands(events)

    def _greet(self, owner: LinkOwner) -> None:
        id, limit = self._bodies_for.id, self._frame_limit
        self._bodies = Controller(owner.address, id, self.place, limit=limit, time=self._time)
        self.peer_spoke()
        self._ask_time()
        self.write(self._framed(encode_opening(id)))
        owner.opened(self)
        if self.is_open:
            owner.answered()
            self._look_for_admission()
            self._say()

    def _read_body(self, body: bytes, bodies: Controller, messages: list[Message]) -> None:
        self._ask_time()
        bodies.read(body, messages)
        self._say()
        if self._early and not bodies.is_waiting:
            held, self._early = self._early, []
            for frame in held:
                self.give(self._framed(frame))
            if not self.holds_senders_back:
                self._owner.resume()

    def send(self, message: Message) -> Reason | None:
        """Put the frame of a message with the others, or let it wait until its sender is known."""
        try:
            frame = self._controller.write(message)
        except LocalError as error:
            return why_unsendable(error)
        if len(frame) > self._frame_limit:
            return Reason.TOO_LARGE
        self._say()
        if self._controller.is_waiting or self._early:
            if not self._early:
                self._owner.pause()
            self._early.append(frame)
        else:
            self.give(self._framed(frame))
        return None

    def _on_pong(self, data: bytes, messages: list[Message]) -> None:
        del messages
        self._time.answered(data)

    def _ask_time(self) -> None:
        question = self._time.question()
        if question:
            self._pong(question)

    def on_clear(self) -> None:
        """Let senders go on, unless something waits for its sender to be known."""
        if not self._early:
            super().on_clear()

    def send_control(self, payload: bytes) -> None:
        """Let the cluster controller be told, as far as it can be."""
        if payload:
            self._controller.hear(payload)
            self._say()
        elif self.state is ConnectionState.OPEN:
            self._protocol.send_ping(b"")
            self._write_out()
            self._ask_time()

    def _say(self) -> None:
        controller = self._controller
        frames, controller.frames = controller.frames, []
        for frame in frames:
            self.write(self._framed(frame))
        if controller.words and self.is_open:
            self._loop.call_soon(self._tell)

    def _tell(self) -> None:
        words, self._controller.words = self._controller.words, []
        if words and self.is_open:
            self._owner.received(words)


class JoynrWebSocket(WebSocket):
    """WebSockets for joynr's applications: `joynr+ws://host:port`, addresses `joynr#host:port`.

    `channel` is the MQTT topic of this node, where whoever got a request of an application replies
    to. Applications know no token: they are taken by a node that asks for none.
    """

    type_name: ClassVar[str] = "joynr"
    scheme: ClassVar[str] = "joynr+ws"
    accepted_link: ClassVar[type[AcceptedLink]] = AcceptedApplication
    dialled_link: ClassVar[type[DialledLink]] = DialledController

    def __init__(
        self,
        *,
        channel: str = "waystation",
        tls: Tls | None = None,
        limits: JoynrLimits | None = None,
    ) -> None:
        super().__init__(tls=tls, limits=limits or JoynrLimits())
        self.channel = channel
        self.applications = Applications()
        self.id = f"waystation_{secrets.token_hex(16)}"  # as an application of others
