"""MQTT 5 packets out of a stream of bytes, for the client and for the broker.

What stands in a packet is the business of the library `mqtt5`; here the pieces are put together,
and whatever the library does about bad bytes becomes one kind of error.
"""

from __future__ import annotations

from typing import Any, Final, TypeVar

from mqtt5 import Packet, PubAckPacket, PubAckReasonCode, read

from waystation.errors import DecodeError

PACKET_LIMIT: Final = 17 * 1024 * 1024
"""The default for the longest packet: the longest frame of a message, and room for the rest."""

PING: Final = b"\xc0\x00"
PONG: Final = b"\xd0\x00"

REFUSED: Final = 0x80
"""From here on a reason code says that something did not happen. (The library's codes are numbers,
but have no order of their own.)"""

_PLAIN_ACK: Final = b"\x40\x02"  # the head of a PUBACK that has only a packet id
_SUCCESS: Final = PubAckReasonCode.SUCCESS
_LONGEST_HEAD: Final = 5  # bytes: the type, and a length of four
_LAST_ID: Final = 65_535

T = TypeVar("T")


def acknowledgement(packet_id: int, code: PubAckReasonCode = _SUCCESS) -> bytes:
    """A PUBACK; of success it says nothing but the packet id.

    >>> acknowledgement(7).hex(" ")
    '40 02 00 07'
    """
    if code is _SUCCESS:
        return _PLAIN_ACK + packet_id.to_bytes(2, "big")
    return PubAckPacket(packet_id, reason_code=code).write()


class Inflight(dict[int, T]):
    """What has no answer yet, by packet id.

    >>> inflight = Inflight()
    >>> inflight.hold("first"), inflight.hold("second"), inflight
    (1, 2, {1: 'first', 2: 'second'})
    """

    __slots__ = ("_last_id",)

    def __init__(self) -> None:
        super().__init__()
        self._last_id = 0

    def hold(self, what: T) -> int:
        """Remember something under a packet id that is free."""
        last = self._last_id
        while True:
            last = last + 1 if last < _LAST_ID else 1
            if last not in self:
                self._last_id = last
                self[last] = what
                return last


def words_of(code: Any) -> str:
    """A reason code in words.

    >>> from mqtt5 import ConnAckReasonCode
    >>> words_of(ConnAckReasonCode.NOT_AUTHORIZED)
    'not authorized'
    """
    return str(code.name).lower().replace("_", " ")


def packet_size(data: bytes | bytearray, at: int = 0) -> int:
    r"""The length of the packet that begins here; 0 when its head is incomplete.

    >>> packet_size(bytes.fromhex("30 80 01 00")), packet_size(b"\x30\x80")
    (131, 0)
    """
    try:
        size, start = _number(data, at + 1)
    except IndexError:
        return 0
    return start - at + size


class PacketReader:
    """Takes the bytes of one connection as they come, and returns the packets.

    >>> reader = PacketReader()
    >>> reader.feed(PING + PONG[:1])
    [PingReqPacket()]
    >>> reader.feed(PONG[1:])
    [PingRespPacket()]

    Packets in front of bad bytes are still returned; then `error` says what is wrong, and nothing
    more is returned.

    With a `limit` that is low until the client is admitted, `raise_limit` reads on where a packet
    was too large.

    With `check_text`, all text is checked before the library sees it, which panics (and says so on
    stderr) over what is not UTF-8. A broker needs that; brokers do it for their clients.
    """

    __slots__ = ("_check_text", "_held", "_needed", "_refused", "error", "limit")

    def __init__(self, limit: int = PACKET_LIMIT, *, check_text: bool = False) -> None:
        self.limit = limit
        self._check_text = check_text
        self.error: DecodeError | None = None
        self._held = bytearray()
        self._needed = 0  # nothing can be done with fewer bytes held
        self._refused = b""  # what was read from a packet on that was too large

    @property
    def unfinished(self) -> bool:
        """Whether a packet has begun and not ended."""
        return bool(self._held)

    @property
    def held(self) -> int:
        """How many bytes there are of a packet that has begun and not ended."""
        return len(self._held)

    def raise_limit(self, limit: int) -> list[Packet]:
        """Take packets of up to this many bytes; returns those in what was refused before."""
        self.limit = limit
        refused, self._refused = self._refused, b""
        if not refused:
            return []
        self.error = None
        return self.feed(refused)

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
            if self._check_text:
                _check_text(data, at)
            try:
                packet, size = read(view[at:])
            except IndexError:
                self._keep(data, at)
                return
            except ValueError as error:
                raise _malformed(str(error)) from None
            except BaseException as error:
                # The library panics over text that is not UTF-8; that is not an Exception.
                if type(error).__name__ != "PanicException":
                    raise
                raise _malformed("a text is not UTF-8") from None
            if size > self.limit:
                raise self._too_large(size, data[at:])
            packets.append(packet)
            at += size

    def _keep(self, data: bytes, at: int) -> None:
        """Keep the beginning of a packet until the rest is there."""
        size = packet_size(data, at)
        if size > self.limit:
            raise self._too_large(size, data[at:])
        if 0 < size <= len(data) - at or (not size and len(data) - at >= _LONGEST_HEAD):
            raise _malformed("a packet ends before its contents do")
        self._needed = size or len(data) - at + 1
        self._held += memoryview(data)[at:]

    def _too_large(self, size: int, refused: bytes) -> DecodeError:
        self._refused = refused
        problem = f"a packet of {size} bytes is longer than {self.limit}"
        return DecodeError(problem, format="mqtt", too_large=True)


# --- Text -----------------------------------------------------------------------------------------

_CONNECT, _PUBLISH, _SUBSCRIBE, _UNSUBSCRIBE = 1, 3, 8, 10
_LAYOUTS: Final = {2: "2p", 9: "2p", 11: "2p", **dict.fromkeys((4, 5, 6, 7), "3p")}
"""Fields of other packets by kind, "1p" for the rest: t is text, b binary, p properties, v a number
of variable length, and a digit the number of bytes that hold no text."""

_PROPERTIES: Final = {
    **dict.fromkeys((0x01, 0x17, 0x19, 0x24, 0x25, 0x28, 0x29, 0x2A), "1"),
    **dict.fromkeys((0x13, 0x21, 0x22, 0x23), "2"),
    **dict.fromkeys((0x02, 0x11, 0x18, 0x27), "4"),
    **dict.fromkeys((0x03, 0x08, 0x12, 0x15, 0x1A, 0x1C, 0x1F), "t"),
    **dict.fromkeys((0x09, 0x16), "b"),
    0x26: "tt",
    0x0B: "v",
}


def _check_text(data: bytes, at: int) -> None:
    """Refuse a complete packet with text that is not UTF-8, or in which it cannot be found.

    And one with a reserved bit that the library lets pass.

    >>> _check_text(bytes.fromhex("30 04 0001 ff 00"), 0)
    Traceback (most recent call last):
    waystation.errors.DecodeError: mqtt: a text is not UTF-8
    """
    if data.startswith(_PLAIN_ACK, at):  # as many as messages, and without text
        return
    size = packet_size(data, at)
    if not 0 < size <= len(data) - at:
        return
    try:
        _check_packet(data, at, at + size)
    except UnicodeDecodeError:
        raise _malformed("a text is not UTF-8") from None
    except LookupError:
        raise _malformed("a length leads out of its packet, or a property is unknown") from None


def _check_packet(data: bytes, at: int, end: int) -> None:
    head = data[at]
    kind = head >> 4
    _, at = _number(data, at + 1)
    if kind == _PUBLISH:
        _check_fields("t2p" if head & 0x06 else "tp", data, at, end)
    elif kind == _CONNECT:
        at = _check_fields("t1", data, at, end)
        flags = data[at]
        if flags & 0x01:
            raise _malformed("a reserved bit of CONNECT is set")
        will, user = "ptb" if flags & 0x04 else "", "t" if flags & 0x80 else ""
        _check_fields(f"3pt{will}{user}", data, at, end)
    elif kind in (_SUBSCRIBE, _UNSUBSCRIBE):
        at = _check_fields("2p", data, at, end)
        while at < end:
            at = _check_fields("t1" if kind == _SUBSCRIBE else "t", data, at, end)
            if kind == _SUBSCRIBE and data[at - 1] & 0xC0:
                raise _malformed("a reserved bit of a subscription is set")
    elif end - at > 1:
        _check_fields(_LAYOUTS.get(kind, "1p"), data, at, end)


def _check_fields(layout: str, data: bytes, at: int, end: int) -> int:
    """Check the texts of some fields; returns where they end."""
    for field in layout:
        if field in "tb":
            start = at + 2
            at = start + (data[at] << 8 | data[at + 1])
            if at > end:
                raise IndexError
            if field == "t":
                data[start:at].decode()
        elif field == "p" and at < end:
            size, at = _number(data, at)
            stop = at + size
            while at < stop:
                at = _check_fields(_PROPERTIES[data[at]], data, at + 1, end)
            if at != stop:
                raise IndexError
        elif field == "v":
            _, at = _number(data, at)
        elif field != "p":
            at += int(field)
    return at


def _number(data: bytes | bytearray, at: int) -> tuple[int, int]:
    """A number of variable length, and where it ends."""
    number = 0
    for shift in (0, 7, 14, 21):
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
    raise IndexError("a number of more than four bytes")


def _malformed(problem: str) -> DecodeError:
    return DecodeError(problem, format="mqtt")
