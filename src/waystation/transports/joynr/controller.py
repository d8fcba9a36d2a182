"""The hub that a link plays for this node at a real cluster controller of joynr's.

The node is a leaf there and says so in the words of one (wire/hierarchy.py). Each word becomes a
call of the cluster controller's routing provider, and its replies become the hub's answers. A
cluster controller drops the reply to a sender that it was not told of. So whoever sends is
announced first, and what it sends waits for the answer to that.

Pure: what it has to say is left in `frames` for the link, what the node is told in `words`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from msgspec import structs

from waystation.core.address import LOCAL, Address, Route
from waystation.core.message import Message, reply_id
from waystation.core.multicast import ADDRESS_TYPE as MULTICAST
from waystation.errors import DecodeError
from waystation.transports.joynr.application import types_in, word
from waystation.transports.joynr.controller_time import ControllerTime, now
from waystation.transports.joynr.directory import directory_reply, discovery_call
from waystation.wire import hello, hierarchy, smrf
from waystation.wire.joynr import (
    CORRELATION,
    JoynrHeaders,
    MessageType,
    Reply,
    decode_payload,
    encode_payload,
)
from waystation.wire.joynr_frames import (
    OpenRequests,
    decode_frame,
    encode_unicast,
    id_of,
    joynr_name_of,
    message_of,
    participant_of,
    route_of,
)
from waystation.wire.joynr_services import DISCOVERY_PROVIDER, ROUTING_PROVIDER, Opening, call_of

NAMES: Final = 10_000
"""Senders that are announced at once; the first of them is withdrawn when there are more."""

CALL_TIME: Final = 60_000
"""Milliseconds that the cluster controller has for an answer."""

_DIRECTORY: Final = (Address(LOCAL, b"waystation.directory"),)
_REQUEST: Final = b"request-"
_CLIENT: Final = "joynr.system.RoutingTypes.WebSocketClientAddress"
_Answered = Callable[[Reply], None]


class Controller:
    """What stands for a cluster controller to a session here; `id` is our address there."""

    def __init__(
        self, session: Address, id: str, place: str, *, limit: int, time: ControllerTime
    ) -> None:
        self.id = id
        self._time = time
        self.frames: list[bytes] = []  # for the cluster controller, not counted as messages
        self.words: list[Message] = []  # for the session here
        self._session = session
        self._place = place
        self._limit = limit
        self._proxy = f"{id}.routing"  # in whose name it is called
        self._prefix = f"{id}.".encode()
        self._calls: dict[str, _Answered] = {}
        self._last_call = 0
        self._announced: dict[str, bool] = {}  # names there, and whether that was answered
        self._asked = OpenRequests()

    @property
    def is_waiting(self) -> bool:
        """Whether what is sent has to wait until a sender is known there."""
        return not all(self._announced.values())

    # What the session here says

    def hear(self, payload: bytes) -> None:
        """Take a word of the session."""
        told = hierarchy.read(payload)
        if isinstance(told, hierarchy.Announce):
            for name, visible, _ in told.participants:
                self._announce(joynr_name_of(name), visible=visible)
        elif isinstance(told, hierarchy.Withdraw):
            for name in told.participants:
                self._withdraw(joynr_name_of(name))
        elif isinstance(told, hierarchy.Subscribe | hierarchy.Unsubscribe):
            add = isinstance(told, hierarchy.Subscribe)
            method = "addMulticastReceiver" if add else "removeMulticastReceiver"
            for pattern, receiver in told.pairs:
                texts = (pattern, joynr_name_of(receiver), pattern.partition("/")[0])
                self._call(method, [("String", text) for text in texts])
        elif isinstance(told, hierarchy.Resolve):
            self._resolve(told)
        elif told is None and (types := types_in(payload)):
            self._greet(types)

    def _greet(self, types: dict[str, int]) -> None:
        """Answer the session's hello, as a hub that understands what every version does."""
        name = f"joynr cluster controller {self._place}"
        self.words.append(word(hello.Hello(name[: hello.NAME_LIMIT], types, version="joynr")))
        self._announce(self._proxy, visible=False)

    def _resolve(self, told: hierarchy.Resolve) -> None:
        if told.ready or told.probe:  # what was told before was taken: calls are served at once
            self.words.append(word(hierarchy.Resolved(told.number, found=True)))
            return

        def answered(reply: Reply) -> None:
            found = bool(reply.response and reply.response[0] is True)
            self.words.append(word(hierarchy.Resolved(told.number, found)))

        self._call("resolveNextHop", [("String", joynr_name_of(told.participant))], answered)

    def _announce(self, name: str, *, visible: bool) -> None:
        self._announced.setdefault(name, False)

        def answered(reply: Reply) -> None:
            del reply
            if name in self._announced:
                self._announced[name] = True

        own = (_CLIENT, Opening(self.id))
        self._call("addNextHop", [("String", name), own, ("Boolean", visible)], answered)

    def _withdraw(self, name: str) -> None:
        if self._announced.pop(name, None) is not None:
            self._call("removeNextHop", [("String", name)])

    def _call(
        self, method: str, parameters: list[tuple[str, Any]], answered: _Answered | None = None
    ) -> None:
        self.frames.append(self._called(ROUTING_PROVIDER, method, parameters, answered))

    def _called(
        self,
        provider: str,
        method: str,
        parameters: list[tuple[str, Any]],
        answered: _Answered | None,
    ) -> bytes:
        self._last_call += 1
        id = f"{self.id}-{self._last_call}"
        if answered is not None:
            self._calls[id] = answered
        headers = JoynrHeaders(MessageType.REQUEST, id, None, False, {CORRELATION: id})
        frame = smrf.SmrfMessage(
            provider,
            self._proxy,
            self._time.there(now() // 1000 + CALL_TIME),
            headers.written(),
            encode_payload(call_of(id, method, parameters)),
        )
        return smrf.encode(frame)

    # Finding providers

    def _ask_directory(self, message: Message) -> bytes:
        """The call that asks the discovery provider what a node asks the directory of its hub."""

        def answered(reply: Reply) -> None:
            answer = directory_reply(reply)
            own = Route((self._session, *_DIRECTORY))
            id = reply_id(message.id, id_of(f"reply {message.id}"))
            back = message.return_route
            self.words.append(Message(back, own, answer, id, message.expiry))

        call = discovery_call(message.payload, self._time.ahead)
        return self._called(DISCOVERY_PROVIDER, *call, answered)

    # Messages

    def write(self, message: Message) -> bytes:
        """The frame of a message, whose sender is announced before; LocalError if there is none."""
        if message.onward_route.addresses[1:] == _DIRECTORY:
            return self._ask_directory(message)
        back = self._known_there(message.return_route)
        message = message.rerouted(message.onward_route, back)
        message = structs.replace(message, expiry=self._time.there(message.expiry))
        frame = encode_unicast(message, asked=self._asked).data
        sender = participant_of(back) if back.addresses else ""
        if sender and sender not in self._announced:
            if len(self._announced) >= NAMES:
                self._withdraw(next(name for name in self._announced if name != self._proxy))
            self._announce(sender, visible=False)
        return frame

    def _known_there(self, back: Route) -> Route:
        """A way back that nobody else has: who waits for a reply has a name that is only ours."""
        if len(back.addresses) == 1 and back.addresses[0].data.startswith(_REQUEST):
            return Route((Address(LOCAL, self._prefix + back.addresses[0].data),))
        return back

    def read(self, body: bytes, messages: list[Message]) -> None:
        """Take a frame of the cluster controller: an answer to a call, or a message."""
        frame, headers = decode_frame(body, limit=self._limit)
        if frame.recipient == self._proxy:
            self._take_answer(frame)
        elif headers.type is MessageType.MULTICAST:
            topic = Route((Address(MULTICAST, frame.recipient.encode()),))
            messages.append(self._arrived(message_of(body, frame, headers, topic)))
        else:
            self._asked.note(frame, headers)
            own = frame.recipient.removeprefix(self._prefix.decode())
            messages.append(self._arrived(message_of(body, frame, headers, route_of(own))))
        messages += self.words
        self.words.clear()

    def _arrived(self, message: Message) -> Message:
        message = structs.replace(message, expiry=self._time.here(message.expiry))
        return message.arrived(self._session)

    def _take_answer(self, frame: smrf.SmrfMessage) -> None:
        try:
            reply = decode_payload(frame.body, MessageType.REPLY, max_size=self._limit)
        except DecodeError:
            return  # what it says of a call that nobody here made
        assert isinstance(reply, Reply)
        answered = self._calls.pop(reply.request_reply_id, None)
        if answered is not None:
            answered(reply)
