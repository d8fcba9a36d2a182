"""MQTT 5 packets out of a stream of bytes, for the client and for the broker.

What stands in a packet is the business of the library `mqtt5`; here are the pieces put together,
and whatever the library does about bad bytes becomes one kind of error.
"""

from __future__ import annotations

from typing import Final

from mqtt5 import Packet, read

from waystation.errors import DecodeError

PACKET_LIMIT: Final = 17 * 1024 * 1024
"""By default no packet is longer: the longest frame of a message, and room for what is around."""

PING: Final = b"\xc0\x00"
PONG: Final = b"\xd0\x00"

_LONGEST_HEAD: Final = 5  # bytes: the type, and a length of four


def acknowledgement(packet_id: int) -> bytes:
    """A PUBACK that says nothing but success.

    >>> acknowledgement(7).hex(" ")
    '40 02 00 07'
    """
    return b"\x40\x02" + packet_id.to_bytes(2, "big")


def packet_size(data: bytes | bytearray, at: int = 0) -> int:
    r"""How long the packet is that begins here; 0 when its head is not whole.

    >>> packet_size(bytes.fromhex("30 80 01 00")), packet_size(b"\x30\x80")
    (131, 0)
    """
    size = shift = 0
    for position in range(at + 1, min(at + _LONGEST_HEAD, len(data))):
        size |= (data[position] & 0x7F) << shift
        if data[position] < 0x80:
            return position + 1 - at + size
        shift += 7
    return 0


class PacketReader:
    """Takes the bytes of one connection as they come, and gives the packets.

    >>> reader = PacketReader()
    >>> reader.feed(PING + PONG[:1])
    [PingReqPacket()]
    >>> reader.feed(PONG[1:])
    [PingRespPacket()]

    What is wrong never costs what came before it: `feed` returns the packets in front of the bad
    bytes, and `error` tells that there are such. After that it gives nothing more.

    With `wary`, all text is checked before the library sees it, which panics (and says so on
    stderr) over what is not UTF-8. A broker needs that; brokers do it for their clients.
    """

    __slots__ = ("_held", "_needed", "_wary", "error", "limit")

    def __init__(self, limit: int = PACKET_LIMIT, *, wary: bool = False) -> None:
        self.limit = limit
        self._wary = wary
        self.error: DecodeError | None = None
        self._held = bytearray()
        self._needed = 0  # nothing can be done with fewer bytes held

    @property
    def unfinished(self) -> bool:
        """Whether a packet has begun and not ended."""
        return bool(self._held)

    def feed(self, data: bytes) -> list[Packet]:
        """The packets that these bytes complete."""
        packets: list[Packet] = []
        if self.error is not None:
            return packets
        if self._held:
            self._held += data
            if len(self._held) < self._needed:
                return packets
            data = bytes(self._held)
            self._held.clear()
        try:
            self._read(data, packets)
        except DecodeError as error:
            self.error = error
        return packets

    def _read(self, data: bytes, packets: list[Packet]) -> None:
        view = memoryview(data)
        at, end = 0, len(data)
        while at < end:
            if self._wary:
                _check_texts(data, at)
            try:
                packet, size = read(view[at:])
            except IndexError:
                self._keep(data, at)
                return
            except ValueError as error:
                raise _malformed(str(error)) from None
            except BaseException as error:
                # The library panics over text that is not UTF-8, and that is no Exception.
                if type(error).__name__ != "PanicException":
                    raise
                raise _malformed("a text is not UTF-8") from None
            if size > self.limit:
                raise self._too_large(size)
            packets.append(packet)
            at += size

    def _keep(self, data: bytes, at: int) -> None:
        """Keep the beginning of a packet until the rest is there."""
        size = packet_size(data, at)
        if size > self.limit:
            raise self._too_large(size)
        if 0 < size <= len(data) - at or (not size and len(data) - at >= _LONGEST_HEAD):
            raise _malformed("a packet ends before its contents do")
        self._needed = size or len(data) - at + 1
        self._held += memoryview(data)[at:]

    def _too_large(self, size: int) -> DecodeError:
        problem = f"a packet of {size} bytes is longer than {self.limit}"
        return DecodeError(problem, format="mqtt", too_large=True)


# --- Text -----------------------------------------------------------------------------------------

_CONNECT, _PUBLISH, _SUBSCRIBE, _UNSUBSCRIBE = 1, 3, 8, 10
_WIDTHS: Final = {
    **dict.fromkeys((0x01, 0x17, 0x19, 0x24, 0x25, 0x28, 0x29, 0x2A), 1),
    **dict.fromkeys((0x13, 0x21, 0x22, 0x23), 2),
    **dict.fromkeys((0x02, 0x11, 0x18, 0x27), 4),
}
"""The properties that are numbers, by their bytes; one more, 0x0b, has as many as it needs."""

_TEXTS: Final = frozenset({0x03, 0x08, 0x12, 0x15, 0x1A, 0x1C, 0x1F})
_BINARIES: Final = frozenset({0x09, 0x16})
_PAIR: Final = 0x26
_NUMBER: Final = 0x0B
_BEFORE_PROPERTIES: Final = {2: 2, 4: 3, 5: 3, 6: 3, 7: 3, 9: 2, 11: 2}
"""In the other packets: bytes before the properties, by the kind of packet; in the rest it is 1."""


def _check_texts(data: bytes, at: int) -> None:
    """Refuse a whole packet with text that is not UTF-8, or in which it cannot be found.

    >>> _check_texts(bytes.fromhex("30 04 0001 ff 00"), 0)
    Traceback (most recent call last):
    waystation.errors.DecodeError: mqtt: a text is not UTF-8
    """
    size = packet_size(data, at)
    if not 0 < size <= len(data) - at:
        return
    try:
        _Walk(data, at, at + size).packet()
    except UnicodeDecodeError:
        raise _malformed("a text is not UTF-8") from None
    except IndexError:
        raise _malformed("a length leads out of its packet, or a property is unknown") from None


class _Walk:
    """A way through a packet from text to text."""

    __slots__ = ("_at", "_data", "_end")

    def __init__(self, data: bytes, at: int, end: int) -> None:
        self._data = data
        self._at = at
        self._end = end

    def packet(self) -> None:
        data = self._data
        head = data[self._at]
        self._at += 1
        self._number()
        kind = head >> 4
        if kind == _PUBLISH:
            self._text()
            self._at += 2 if head & 0x06 else 0
            self._properties()
        elif kind == _CONNECT:
            self._connect()
        elif kind in (_SUBSCRIBE, _UNSUBSCRIBE):
            self._at += 2
            self._properties()
            while self._at < self._end:
                self._text()
                self._at += kind == _SUBSCRIBE  # its options
        elif self._end - self._at > 1:
            self._at += _BEFORE_PROPERTIES.get(kind, 1)
            self._properties()

    def _connect(self) -> None:
        self._text()
        flags = self._data[self._at + 1]
        self._at += 4
        self._properties()
        self._text()
        if flags & 0x04:
            self._properties()
            self._text()
            self._pass_over()
        if flags & 0x80:
            self._text()

    def _properties(self) -> None:
        if self._at >= self._end:
            return
        size = self._number()
        end = self._at + size
        while self._at < end:
            kind = self._data[self._at]
            self._at += 1
            if kind in _WIDTHS:
                self._at += _WIDTHS[kind]
            elif kind in _TEXTS:
                self._text()
            elif kind in _BINARIES:
                self._pass_over()
            elif kind == _PAIR:
                self._text()
                self._text()
            elif kind == _NUMBER:
                self._number()
            else:
                raise IndexError
        if self._at != end:
            raise IndexError

    def _text(self) -> None:
        start = self._at + 2
        self._pass_over()
        text = self._data[start : self._at]
        if not text.isascii():
            text.decode()

    def _pass_over(self) -> None:
        data, at = self._data, self._at
        if at + 2 > self._end:
            raise IndexError
        self._at = at + 2 + (data[at] << 8 | data[at + 1])
        if self._at > self._end:
            raise IndexError

    def _number(self) -> int:
        number = shift = 0
        while True:
            byte = self._data[self._at]
            self._at += 1
            number |= (byte & 0x7F) << shift
            if byte < 0x80 or shift > 21:
                return number
            shift += 7


def _malformed(problem: str) -> DecodeError:
    return DecodeError(problem, format="mqtt")
