"""Codec of UDP links: whole messages to datagrams, using the fragments of ockam.py.

Bytes to values and back; no sockets, no clock. One message is one body of ockam.py, in one or more
datagrams which all have its routing number. A message without an onward route is for the session
itself, as over TCP; one of these is ours alone: GOODBYE, since no datagram can say that no more
will come. Ockam's nodes ignore all of them.
"""

from __future__ import annotations

from typing import Final

from waystation.core.message import Message
from waystation.wire.ockam import (
    FRAME_LIMIT,
    Reassembly,
    encode_control,
    encode_departure,
    fragments,
)

GOODBYE: Final = b'{"waystation":"goodbye"}'
"""The last payload for the peer's session: its sender has ended the link."""

_LENGTH: Final = 4  # of the length in front of a frame, which no datagram has


def departing_datagrams(message: Message, number: int, *, limit: int = FRAME_LIMIT) -> list[bytes]:
    """The datagrams of a message that leaves, without the address of its link (WK-10).

    >>> from waystation.core.address import Route
    >>> message = Message(Route.parse("link => echoer"), Route.parse("app"), bytes(500))
    >>> [len(datagram) for datagram in departing_datagrams(message, 7)]
    [501, 38]
    """
    return fragments(encode_departure(message, limit=limit)[_LENGTH:], number)


def control_datagrams(payload: bytes, number: int) -> list[bytes]:
    """The datagrams of a payload for the peer's session; b"" is a heartbeat.

    >>> control_datagrams(b"", 7)[0].hex(" ")
    '85 01 07 00 f5 45 84 80 80 40 f6'
    """
    return fragments(encode_control(payload)[_LENGTH:], number)


class PeerReassembly(Reassembly):
    """Reassembles the messages of one peer, and tells how much of the next one is held.

    >>> reassembly = PeerReassembly()
    >>> datagrams = control_datagrams(bytes(600), 7)
    >>> reassembly.feed(datagrams[0]), reassembly.held
    (None, 493)
    >>> len(reassembly.feed(datagrams[1]).payload), reassembly.held
    (600, 0)
    >>> reassembly.feed(datagrams[1]), reassembly.passed_over
    (None, True)
    """

    def __init__(self, *, limit: int = FRAME_LIMIT) -> None:
        super().__init__(limit=limit)
        self.passed_over = False
        """Whether the last datagram was late: its message is complete, or its start is missing."""

    @property
    def held(self) -> int:
        """The bytes that wait for the rest of their message."""
        return len(self._held)

    def feed(self, datagram: bytes | bytearray | memoryview) -> Message | None:
        """The message that this datagram completes, or None."""
        before = (self._expected, len(self._held))
        self.passed_over = False
        message = super().feed(datagram)
        self.passed_over = message is None and (self._expected, len(self._held)) == before
        return message

    def forget(self) -> None:
        """Discard what is held, and ignore the rest of that message."""
        self._held.clear()
