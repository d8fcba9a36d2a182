"""The elements of Java's data streams: big-endian numbers, modified UTF-8, strings or null.

Only what both generations of the JGroups formats share is here. Addresses and messages are in
jgroups.py, jgroups2.py and jgroups5.py.

Modified UTF-8 is UTF-8 with two twists: U+0000 is written C0 80, and a character beyond U+FFFF as
the two surrogates of UTF-16 with three bytes each. We read exactly what a Java writer can write, so
every text has one spelling. Java's own reader also takes a bare 00 byte, longer spellings of short
characters and half a surrogate pair; no writer produces the first two, and the third could not
leave this process in any other encoding, so all three are refused.
"""

from __future__ import annotations

import re
import struct
from typing import Final, NoReturn

from msgspec import Struct

from waystation.errors import DecodeError, LocalError, quote

MAX_UTF: Final = 0xFFFF
"""Maximum length of a text in modified UTF-8: its length has two bytes."""

MAX_ITEMS: Final = 0x7FFF
"""Maximum length of a list: its length is a signed number of two bytes."""

WORTH_A_VIEW: Final = 4096
"""From this size on, copying once through `cut` is faster than copying twice."""

_SHORT: Final = struct.Struct(">h")
_UNSIGNED_SHORT: Final = struct.Struct(">H")
_INTEGER: Final = struct.Struct(">i")
_LONG: Final = struct.Struct(">q")

_WELL_FORMED: Final = re.compile(
    rb"""(?: [\x01-\x7f]+
           | \xc0\x80
           | [\xc2-\xdf][\x80-\xbf]
           | \xe0[\xa0-\xbf][\x80-\xbf]
           | [\xe1-\xec\xee\xef][\x80-\xbf]{2}
           | \xed[\x80-\x9f][\x80-\xbf]
           | \xed[\xa0-\xaf][\x80-\xbf]\xed[\xb0-\xbf][\x80-\xbf]  # a pair of surrogates
         )*+  # possessive: what has been read is never read again
    """,
    re.VERBOSE,
)
_BEYOND_THREE_BYTES: Final = re.compile("[\U00010000-\U0010ffff]")


class FormatLimits(Struct, frozen=True, gc=False):
    """Limits of a decoder. A length above a limit is refused before memory is allocated for it.

    `frame` bounds one whole frame or structure in bytes, payload included; `control` a frame of 5.x
    that is no MESSAGE; `string` one text in bytes, and likewise the extra data of one address.
    `items` bounds one list, and twice as many are all that the lists of one structure may hold
    together: each member of a list brings about one address, not a long list of its own. The real
    routers know no limits; their members cut what they send into pieces of about 60 kB, their names
    are short, and their groups have less than 2,000 members.

    >>> FormatLimits(frame=1 << 20).string
    4096
    """

    frame: int = 16 << 20
    string: int = 4096
    items: int = 2048
    control: int = 1 << 20


DEFAULT_LIMITS: Final = FormatLimits()


class IncompleteError(Exception):
    """The stream of a cursor is incomplete: call again when the buffer has `need` bytes.

    This is not an error, and so not a WaystationError: decoders catch it, it never leaves this
    package.
    """

    def __init__(self, need: int) -> None:
        super().__init__(need)
        self.need = need


class Cursor:
    r"""A position in a buffer that moves over one value after the other, and never past a bound.

    A cursor over a `whole` frame raises a DecodeError where its bytes end too early; one over a
    stream raises IncompleteError instead, as long as the structure stays below the limit.

    >>> cursor = Cursor(b"\x01\x00\x04demo\x00\x07", format="jgroups5")
    >>> cursor.string(), cursor.short(), cursor.at_end()
    ('demo', 7, True)
    >>> cursor.byte()
    Traceback (most recent call last):
    waystation.errors.DecodeError: jgroups5: the bytes end too early (at byte 9)
    """

    __slots__ = (
        "base",
        "buffer",
        "edge",
        "format",
        "limits",
        "position",
        "room",
        "start",
        "whole",
    )

    def __init__(
        self,
        buffer: bytes | bytearray,
        *,
        format: str,
        limits: FormatLimits = DEFAULT_LIMITS,
        position: int = 0,
        end: int | None = None,
        whole: bool = True,
    ) -> None:
        self.buffer = buffer
        self.format = format
        self.limits = limits
        self.position = position
        self.start = position  # where the current structure begins
        self.edge = len(buffer) if end is None else end  # no read goes past it
        self.base = 0  # how many bytes of the stream came before the buffer
        self.whole = whole
        self.room = 2 * limits.items  # how many items the structure's lists may still have

    def at_end(self) -> bool:
        """Whether nothing is left."""
        return self.position == self.edge

    def begin(self) -> None:
        """A new structure of the stream begins here; its size counts from here."""
        self.start = self.position
        self.room = 2 * self.limits.items
        self.see()

    def see(self) -> None:
        """Include bytes that were added to the buffer."""
        self.edge = min(len(self.buffer), self.start + self.limits.frame)

    def error(self, problem: str, at: int | None = None, *, too_large: bool = False) -> DecodeError:
        """The error to raise for the current position, or for another one in the buffer."""
        offset = self.base + (self.position if at is None else at)
        return DecodeError(problem, format=self.format, offset=offset, too_large=too_large)

    def _run_out(self, need: int) -> NoReturn:
        if self.whole:
            raise self.error("the bytes end too early")
        size = need - self.start
        if size > self.limits.frame:
            raise self.error(
                f"a structure of at least {size} bytes is over the limit of {self.limits.frame}",
                too_large=True,
            )
        raise IncompleteError(need)

    def skip(self, size: int) -> int:
        """Skip bytes, and return the position where they start."""
        start = self.position
        stop = start + size
        if stop > self.edge:
            self._run_out(stop)
        self.position = stop
        return start

    def take(self, size: int) -> bytes:
        """The next bytes."""
        start = self.skip(size)
        if size < WORTH_A_VIEW:
            return bytes(self.buffer[start : start + size])
        return cut(self.buffer, start, start + size)

    def since(self, start: int) -> bytes:
        """The bytes from an earlier position up to here, within the limit of a text."""
        if self.position - start > self.limits.string:
            raise self._too_much_extra(self.position - start, start)
        return bytes(self.buffer[start : self.position])

    def skip_extra(self, size: int) -> None:
        """Skip extra data; raises at once if it exceeds the limit."""
        if size > self.limits.string:
            raise self._too_much_extra(size, self.position)
        self.skip(size)

    def _too_much_extra(self, size: int, at: int) -> DecodeError:
        problem = f"{size} bytes of extra data are over the limit of {self.limits.string}"
        return self.error(problem, at, too_large=True)

    def byte(self) -> int:
        """One byte, 0 to 255."""
        return self.buffer[self.skip(1)]

    def boolean(self) -> bool:
        """One byte; as Java reads it, everything but 0 is true."""
        return self.byte() != 0

    def short(self) -> int:
        """Two bytes, signed."""
        value: int = _SHORT.unpack_from(self.buffer, self.skip(2))[0]
        return value

    def unsigned_short(self) -> int:
        """Two bytes, 0 to 65535."""
        value: int = _UNSIGNED_SHORT.unpack_from(self.buffer, self.skip(2))[0]
        return value

    def integer(self) -> int:
        """Four bytes, signed."""
        value: int = _INTEGER.unpack_from(self.buffer, self.skip(4))[0]
        return value

    def long(self) -> int:
        """Eight bytes, signed."""
        value: int = _LONG.unpack_from(self.buffer, self.skip(8))[0]
        return value

    def count(self) -> int | None:
        """The length of a list, or None for no list at all, which is any negative number."""
        count = self.short()
        if count < 0:
            return None
        most = min(self.limits.items, self.room)
        if count > most:
            raise self.error(
                f"a list of {count} is over the limit of {most}", self.position - 2, too_large=True
            )
        self.room -= count
        return count

    def utf(self) -> str:
        """A text: its length in two bytes, then modified UTF-8."""
        size = self.unsigned_short()
        if size > self.limits.string:
            raise self.error(
                f"a text of {size} bytes is over the limit of {self.limits.string}",
                self.position - 2,
                too_large=True,
            )
        raw = self.take(size)
        if raw.isascii() and b"\0" not in raw:
            return raw.decode("ascii")
        good = well_formed(raw)
        if good < size:
            raise self.error("a text is not modified UTF-8", self.position - size + good)
        # UTF-16 puts the two halves of a pair together; C0 cannot be part of anything else.
        halves = raw.replace(b"\xc0\x80", b"\0").decode("utf-8", "surrogatepass")
        return halves.encode("utf-16-be", "surrogatepass").decode("utf-16-be")

    def string(self) -> str | None:
        """A text or null: exactly 1 says that a text follows, every other byte is null."""
        return self.utf() if self.byte() == 1 else None


def cut(buffer: bytes | bytearray, start: int, stop: int) -> bytes:
    """A part of a buffer, copied once.

    >>> cut(bytearray(b"abcdef"), 1, 3)
    b'bc'
    """
    with memoryview(buffer) as view:  # released at once, so that the buffer can be resized again
        return view[start:stop].tobytes()


def well_formed(raw: bytes) -> int:
    r"""How many of these bytes, from the first on, are modified UTF-8.

    >>> well_formed(b"caf\xc3\xa9"), well_formed(b"caf\xe9")
    (5, 3)
    """
    match = _WELL_FORMED.match(raw)
    return match.end() if match else 0


def encode_utf(text: str) -> bytes:
    r"""A text as Java's writeUTF has it.

    >>> encode_utf("a\0b").hex(" "), encode_utf("\U0001f600").hex(" ")
    ('00 04 61 c0 80 62', '00 06 ed a0 bd ed b8 80')
    """
    try:
        raw = text.encode()
    except UnicodeEncodeError as error:
        raise LocalError(
            f"text {quote(text)} has half a surrogate pair at {error.start}",
            rule="GR-11",
            hint="give whole characters",
        ) from None
    if not raw.isascii():
        raw = _BEYOND_THREE_BYTES.sub(_as_surrogates, text).encode("utf-8", "surrogatepass")
    raw = raw.replace(b"\0", b"\xc0\x80")
    if len(raw) > MAX_UTF:
        raise LocalError(
            f"text {quote(text)} takes {len(raw)} bytes",
            rule="GR-11",
            hint=f"give one of at most {MAX_UTF} bytes",
        )
    return _UNSIGNED_SHORT.pack(len(raw)) + raw


def _as_surrogates(match: re.Match[str]) -> str:
    high, low = divmod(ord(match[0]) - 0x10000, 0x400)
    return chr(0xD800 + high) + chr(0xDC00 + low)


def encode_string(text: str | None) -> bytes:
    """A text or null.

    >>> encode_string("A").hex(" "), encode_string(None).hex(" ")
    ('01 00 01 41', '00')
    """
    return b"\0" if text is None else b"\1" + encode_utf(text)


def encode_count(count: int) -> bytes:
    """The length of a list.

    >>> encode_count(2).hex(" ")
    '00 02'
    """
    if count > MAX_ITEMS:
        raise LocalError(
            f"a list of {count} is too long", rule="GR-11", hint=f"give at most {MAX_ITEMS}"
        )
    return _SHORT.pack(count)


def moved(error: DecodeError, by: int = 0) -> DecodeError:
    """A copy of an error, without traceback, with its offset shifted by some bytes.

    >>> moved(DecodeError("no such type", format="jgroups5", offset=4), by=100).offset
    104
    """
    return DecodeError(
        error.problem, format=error.format, offset=error.offset + by, too_large=error.too_large
    )
