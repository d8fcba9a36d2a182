"""The leaf that a link plays for the joynr application at its other end.

An application knows nothing of hubs. It calls the routing provider of its cluster controller: this
participant is reached here, that one receives these broadcasts. A hub expects the same of a leaf,
in its own words (wire/hierarchy.py). So each call becomes such a word, in order with the messages,
and everything that holds for a leaf holds for an application: whose a name is, what ends with the
session, who is told of it further up.

Pure: it reads bodies and makes words, and what it has to say to the application it leaves in
`answers` for its link.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import msgspec

from waystation.core.address import Address, Route
from waystation.core.clock import now_ns
from waystation.core.message import Message
from waystation.core.multicast import ADDRESS_TYPE as MULTICAST
from waystation.core.multicast import check_pattern
from waystation.errors import LocalError
from waystation.wire import hello, hierarchy, smrf
from waystation.wire.joynr import (
    JoynrHeaders,
    MessageType,
    Reply,
    Request,
    decode_payload,
    encode_payload,
)
from waystation.wire.joynr_frames import (
    OpenRequests,
    decode_frame,
    encode_unicast,
    id_of,
    is_route,
    message_of,
    name_of,
    route_of,
)
from waystation.wire.joynr_services import (
    ROUTING_PROVIDER,
    CallError,
    Parameters,
    answer_to,
    error_to,
    failed_call,
    global_address,
    read_opening,
    unknown_call,
)

NAMES: Final = 10_000
"""Names of an application that are remembered, so that they are announced once."""

REMEMBERED: Final = 100_000
"""Names and subscriptions that are remembered of applications that are away."""

QUESTIONS: Final = 1_000
"""Questions of an application that may be open at once."""

_NOWHERE: Final = Route()


class Announced:
    """What an application has announced: its names, and who of them receives which broadcasts."""

    __slots__ = ("names", "pairs")

    def __init__(self, before: Announced | None = None) -> None:
        self.names: dict[str, bool] = {}  # and whether they are globally visible
        self.pairs: dict[tuple[str, str], None] = {}  # pattern and receiver
        if before is not None:
            self.names |= before.names
            self.pairs |= before.pairs

    def words(self) -> Iterator[Message]:
        """All of it again, as a leaf says it over a new link."""
        names = [(name, visible, None) for name, visible in self.names.items()]
        for some in hierarchy.in_payloads(names):
            yield word(hierarchy.Announce(list(some)))
        for pairs in hierarchy.in_payloads(list(self.pairs)):
            yield word(hierarchy.Subscribe(pairs))

    def __len__(self) -> int:
        return 1 + len(self.names) + len(self.pairs)


class Applications:
    """What the applications of one transport have announced, also those that are away for now.

    An application that connects again says its address and nothing more: what it announced before
    still holds. Who left first is forgotten first, when there is too much to remember.
    """

    def __init__(self, limit: int = REMEMBERED) -> None:
        self._limit = limit
        self._known: dict[str, Announced] = {}
        self._away: dict[str, int] = {}  # and how much is remembered of each
        self._remembered = 0

    def came(self, id: str) -> Announced:
        """What an application has announced before: nothing, if it is new."""
        self._remembered -= self._away.pop(id, 0)
        self._known[id] = announced = Announced(self._known.get(id))
        return announced

    def left(self, id: str, announced: Announced) -> None:
        """Note that a connection of an application has ended, unless it has a newer one."""
        if self._known.get(id) is not announced:
            return
        self._away[id] = len(announced)
        self._remembered += len(announced)
        while self._remembered > self._limit:
            first = next(iter(self._away))
            self._remembered -= self._away.pop(first)
            del self._known[first]


class Application:
    """What stands for one application at a hub; `id` is empty until it has said its own."""

    def __init__(self, session: Address, channel: str, known: Applications, *, limit: int) -> None:
        self.id = ""
        self.answers: list[bytes] = []  # frames for the application
        self._session = session
        self._channel = channel
        self._limit = limit
        self._types: dict[str, int] = {}  # of the node here: they are the same
        self._known = known
        self._announced = Announced()
        self._questions: dict[int, tuple[smrf.SmrfMessage, JoynrHeaders, Request]] = {}
        self._last_question = 0
        self._probes: dict[bytes, int] = {}  # the hub's questions whether it lives, by the ping
        self._asked = OpenRequests()

    # What the application says

    def open(self, body: bytes, messages: list[Message]) -> None:
        """Take its first message: the hello of a leaf, and what it had announced before."""
        self.id = read_opening(body)
        self._announced = self._known.came(self.id)
        words = hello.Hello(
            self.id[: hello.NAME_LIMIT],
            self._types,
            version="joynr",
            can=(hierarchy.CAPABILITY,),
            # Whoever says the same address is the same application, over a newer connection.
            secret=f"joynr {self.id}"[: hello.NAME_LIMIT],
            session=now_ns() // 1000,
        )
        messages.append(word(words))
        messages.extend(self._announced.words())

    def close(self) -> None:
        """Note that the connection has ended."""
        if self.id:
            self._known.left(self.id, self._announced)

    def read(self, body: bytes, messages: list[Message]) -> None:
        """Take a frame: words for the hub, a message, or both."""
        frame, headers = decode_frame(body, limit=self._limit)
        if not is_route(frame.sender):
            self._announce(name_of(frame.sender), None, messages)
        if frame.recipient == ROUTING_PROVIDER:
            self._serve(frame, headers, messages)
            return
        if headers.type is MessageType.MULTICAST:
            onward = Route((Address(MULTICAST, frame.recipient.encode()),))
        else:
            onward = route_of(frame.recipient)
            self._asked.note(frame, headers)
        message = message_of(body, frame, headers, onward)
        messages.append(message.arrived(self._session))

    # What is said to the application

    def write(self, message: Message) -> bytes:
        """The frame of a message for it; LocalError if there is none."""
        return encode_unicast(message, asked=self._asked).data

    def hear(self, payload: bytes) -> bytes:
        """Take what the hub's session says to the leaf; returns what to ping the application with.

        A hub that asks whether a leaf lives is answered when the application has answered a ping.
        """
        told = hierarchy.read(payload)
        if isinstance(told, hierarchy.Resolved):
            asked = self._questions.pop(told.number, None)
            if asked is not None:
                self._reply(*asked[:2], answer_to(asked[2], [told.found]))
        elif isinstance(told, hierarchy.Resolve):
            self._probes[ping := b"%d" % told.number] = told.number
            return ping
        elif told is None and not self._types:
            self._types = types_in(payload)
        return b""

    def answered_ping(self, data: bytes, messages: list[Message]) -> None:
        """Tell the hub that the application lives, if it asked."""
        number = self._probes.pop(data, None)
        if number is not None:
            messages.append(word(hierarchy.Resolved(number, found=True)))

    # The routing provider

    def _serve(
        self, frame: smrf.SmrfMessage, headers: JoynrHeaders, messages: list[Message]
    ) -> None:
        if headers.type is not MessageType.REQUEST:
            return  # nothing else is asked of it
        request = decode_payload(frame.body, MessageType.REQUEST, max_size=self._limit)
        assert isinstance(request, Request)
        try:
            if request.method_name == "resolveNextHop":
                self._resolve(frame, headers, request, messages)
                return
            call = _CALLS.get(request.method_name)
            if call is None:
                raise unknown_call(request)
            response = call(self, Parameters(request), messages)
            reply = answer_to(request, () if response is None else (response,))
        except CallError as error:
            reply = error_to(request, error)
        self._reply(frame, headers, reply)

    def _resolve(
        self,
        frame: smrf.SmrfMessage,
        headers: JoynrHeaders,
        request: Request,
        messages: list[Message],
    ) -> None:
        participant = Parameters(request).at(0, str)
        if is_route(participant) or name_of(participant) in self._announced.names:
            self._reply(frame, headers, answer_to(request, (True,)))
            return
        if len(self._questions) >= QUESTIONS:
            raise failed_call(f"more than {QUESTIONS} questions at once")
        self._last_question = number = self._last_question + 1
        self._questions[number] = (frame, headers, request)
        messages.append(word(hierarchy.Resolve(number, name_of(participant))))

    def _add_next_hop(self, parameters: Parameters, messages: list[Message]) -> None:
        # Whatever address it gives is its own: this connection leads there.
        visible = parameters.optional(2, bool, True)
        self._announce(name_of(parameters.at(0, str)), visible, messages)

    def _remove_next_hop(self, parameters: Parameters, messages: list[Message]) -> None:
        name = name_of(parameters.at(0, str))
        announced = self._announced
        if announced.names.pop(name, None) is not None:
            for pair in [pair for pair in announced.pairs if pair[1] == name]:
                del announced.pairs[pair]
            messages.append(word(hierarchy.Withdraw([name])))

    def _add_receiver(self, parameters: Parameters, messages: list[Message]) -> None:
        pair = self._receiver(parameters)
        self._announce(pair[1], None, messages)
        if len(self._announced.pairs) < NAMES:
            self._announced.pairs[pair] = None
        messages.append(word(hierarchy.Subscribe([pair])))

    def _remove_receiver(self, parameters: Parameters, messages: list[Message]) -> None:
        pair = self._receiver(parameters)
        self._announced.pairs.pop(pair, None)
        messages.append(word(hierarchy.Unsubscribe([pair])))

    def _receiver(self, parameters: Parameters) -> tuple[str, str]:
        pattern = parameters.at(0, str)
        try:
            check_pattern(pattern)
        except LocalError as error:
            raise failed_call(str(error)) from None
        return pattern, name_of(parameters.at(1, str))

    def _tell_address(self, parameters: Parameters, messages: list[Message]) -> str:
        del parameters, messages
        return global_address(self._channel)

    def _announce(self, name: str, visible: bool | None, messages: list[Message]) -> None:
        """Announce a name, unless that was done; None leaves its visibility as it is."""
        names = self._announced.names
        known = names.get(name)
        if known is not None and visible in (None, known):
            return
        if len(names) < NAMES:
            names[name] = bool(visible)
        messages.append(word(hierarchy.Announce([(name, bool(visible), None)])))

    def _reply(self, frame: smrf.SmrfMessage, headers: JoynrHeaders, reply: Reply) -> None:
        """Answer a call in the name of the routing provider."""
        written = smrf.SmrfMessage(
            frame.sender,
            ROUTING_PROVIDER,
            frame.ttl,
            headers.for_reply(id_of(f"reply {headers.id}")).written(),
            encode_payload(reply),
        )
        self.answers.append(smrf.encode(written))


_CALLS: Final[Mapping[str, Callable[[Application, Parameters, list[Message]], Any]]] = {
    "addNextHop": Application._add_next_hop,  # noqa: SLF001 - a table of its own methods
    "removeNextHop": Application._remove_next_hop,  # noqa: SLF001
    "addMulticastReceiver": Application._add_receiver,  # noqa: SLF001
    "removeMulticastReceiver": Application._remove_receiver,  # noqa: SLF001
    "getGlobalAddress": Application._tell_address,  # noqa: SLF001
    "getReplyToAddress": Application._tell_address,  # noqa: SLF001
}


def word(said: hello.Hello | hierarchy.Payload) -> Message:
    """A payload for the hub's session itself."""
    return Message(_NOWHERE, _NOWHERE, hierarchy.encode(said))


def types_in(payload: bytes) -> dict[str, int]:
    """The address types in the hello of the node here; none if it is something else."""
    try:
        return msgspec.json.decode(payload, type=hello.Hello).types
    except msgspec.DecodeError:
        return {}
