"""What sessions say to each other over a link that may lose it: numbered, acknowledged, repeated.

The hello is number 0 and says whether its sender acknowledges (`CAPABILITY`). To those who do, what
follows is sent in a `Numbered`, and repeated until an `Acknowledged` says that it came. It is taken
in order, each payload once. Every link has a name, the nonce of its hello, so that nothing of an
earlier link between the same places is mistaken for this one's. Peers that do not acknowledge, as
plain Ockam nodes, get every payload once and as it is.

Bytes to values and back; no sockets, no clock: the link says when it is time to repeat something.
"""

from __future__ import annotations

from collections import deque
from typing import Final, TypeAlias

import msgspec

from waystation.wire.hello import Hello

CAPABILITY: Final = "ack"
"""What a hello says of a node that acknowledges."""

WINDOW: Final = 16
"""Maximum number of payloads that are on their way; further ones wait for an acknowledgement."""


class Numbered(msgspec.Struct, frozen=True, tag="numbered", tag_field="waystation"):
    """A payload, with its place in the order of those of a link."""

    link: str
    number: int
    payload: msgspec.Raw


class Acknowledged(msgspec.Struct, frozen=True, tag="ack", tag_field="waystation"):
    """All payloads of a link before this number came."""

    link: str
    next: int


_Payload: TypeAlias = Hello | Numbered | Acknowledged

_decoder: Final[msgspec.json.Decoder[_Payload]] = msgspec.json.Decoder(_Payload)
_encode: Final = msgspec.json.Encoder().encode


class ControlStream:
    """What the sessions at both ends of a link say to each other, seen from one end.

    >>> a, b = (Hello(name, {}, nonce=f"link of {name}", can=("ack",)) for name in "ab")
    >>> here, there = ControlStream(), ControlStream()
    >>> to_there, to_here = here.say(_encode(a)), there.say(_encode(b))
    >>> heard, ack = there.hear(to_there)
    >>> heard, _ = here.hear(to_here)
    >>> here.say(b'{"waystation":"news"}')
    b'{"waystation":"numbered","link":"link of a","number":1,"payload":{"waystation":"news"}}'

    Nothing of that came, so all of it is due again:

    >>> [payload[:25] for payload in here.due()]
    [b'{"waystation":"hello","no', b'{"waystation":"numbered",']
    >>> there.hear(here.due()[1])
    (b'{"waystation":"news"}', [b'{"waystation":"ack","link":"link of a","next":2}'])
    >>> here.hear(b'{"waystation":"ack","link":"link of a","next":2}'), here.due()
    ((None, []), [])
    """

    __slots__ = (
        "_acknowledges", "_expected", "_hello", "_link", "_next", "_released", "_their_link",
        "_unacknowledged", "unacknowledged_size",
    )  # fmt: skip

    def __init__(self) -> None:
        self._link = ""  # the name of ours, from our hello; "" if that says nothing of this
        self._next = 0  # the number of what is said next
        self._released = 0  # the number of the first that was not sent yet
        self._unacknowledged: deque[bytes] = deque()  # the numbers before `_next`
        self.unacknowledged_size = 0
        self._acknowledges: bool | None = None  # the peer; None until its hello tells
        self._hello = b""  # the peer's, as it came
        self._their_link = ""
        self._expected = 0  # the number of what is heard next

    @property
    def knows_peer(self) -> bool:
        """Whether the peer's hello came."""
        return self._expected > 0

    @property
    def waits(self) -> bool:
        """Whether something is to be repeated, should it not be acknowledged."""
        return bool(self._acknowledges and self._unacknowledged)

    def say(self, payload: bytes) -> bytes | None:
        """What to send for a payload now; None if it has to wait for others."""
        if not payload or self._acknowledges is False:
            return payload
        if not self._next:
            self._begin(payload)
            if not self._link:
                return payload
        number = self._next
        self._next += 1
        self._unacknowledged.append(payload)
        self.unacknowledged_size += len(payload)
        if self._acknowledges is None:
            self._released = self._next
            return payload
        return next(iter(self._release()), None) if self._released == number else None

    def hear(self, payload: bytes) -> tuple[bytes | None, list[bytes]]:
        """What a payload from the peer brings for the session, and what to send because of it."""
        told = _read(payload)
        if isinstance(told, Hello):
            return self._hear_hello(payload, told)
        if isinstance(told, Numbered):
            return self._hear_numbered(told)
        if isinstance(told, Acknowledged):
            return None, self._hear_acknowledged(told)
        return payload, []

    def due(self) -> list[bytes]:
        """What is to be sent again: the first that are not acknowledged."""
        if not self.waits:
            return []
        first = self._first
        self._released = max(self._released, min(self._next, first + WINDOW))
        return [self._form(number) for number in range(first, min(self._next, first + WINDOW))]

    def forget(self) -> None:
        """Repeat nothing any more, and keep nothing for that."""
        self._acknowledges = False
        self._unacknowledged.clear()
        self.unacknowledged_size = 0

    @property
    def _first(self) -> int:
        """The number of the first that is not acknowledged."""
        return self._next - len(self._unacknowledged)

    def _begin(self, payload: bytes) -> None:
        """Take the name of the link from our hello."""
        told = _read(payload)
        if isinstance(told, Hello) and CAPABILITY in told.can:
            self._link = told.nonce
        if not self._link:
            self.forget()

    def _release(self) -> list[bytes]:
        """Those that may go now and did not yet."""
        end = min(self._next, self._first + WINDOW)
        begin, self._released = self._released, max(self._released, end)
        return [self._form(number) for number in range(begin, end)]

    def _form(self, number: int) -> bytes:
        payload = self._unacknowledged[number - self._first]
        if not number:
            return payload
        return _encode(Numbered(self._link, number, msgspec.Raw(payload)))

    def _hear_hello(self, payload: bytes, hello: Hello) -> tuple[bytes | None, list[bytes]]:
        if self._expected:  # a second one is none of ours, unless it is the first again
            return (None, self._acknowledge()) if payload == self._hello else (payload, [])
        self._expected = 1
        self._hello = payload
        if CAPABILITY in hello.can and hello.nonce:
            self._their_link = hello.nonce
            if self._acknowledges is None:
                self._acknowledges = True
        else:
            self.forget()
        return payload, self._acknowledge()

    def _hear_numbered(self, told: Numbered) -> tuple[bytes | None, list[bytes]]:
        if told.link != self._their_link or told.number > self._expected:
            return None, []
        heard = None
        if told.number == self._expected:
            self._expected += 1
            heard = bytes(told.payload)
        return heard, self._acknowledge()

    def _hear_acknowledged(self, told: Acknowledged) -> list[bytes]:
        if told.link != self._link or not self._first < told.next <= self._next:
            return []
        for _ in range(told.next - self._first):
            self.unacknowledged_size -= len(self._unacknowledged.popleft())
        return self._release()

    def _acknowledge(self) -> list[bytes]:
        if not self._their_link:
            return []
        return [_encode(Acknowledged(self._their_link, self._expected))]


def is_hello(payload: bytes) -> bool:
    """Whether a payload is a hello."""
    return isinstance(_read(payload), Hello)


def _read(payload: bytes) -> _Payload | None:
    """Decode a payload; None if it is of another kind."""
    try:
        return _decoder.decode(payload)
    except (
        msgspec.DecodeError,
        UnicodeDecodeError,
        RecursionError,
    ):  # not UTF-8; nested too deeply
        return None
