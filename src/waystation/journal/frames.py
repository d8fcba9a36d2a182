"""Frames: the batches of a tail, each with a checksum (OB-9).

A tail is a sequence of frames, and nothing else:

    marker    8 bytes   the same for every frame
    offset    8 bytes   where the frame begins in its file
    length    4 bytes   of the payload
    rows      4 bytes   in the payload
    checksum  4 bytes   CRC-32 of the payload
    checksum  4 bytes   CRC-32 of the header up to here
    payload             one batch, as a complete Arrow stream

Numbers are little-endian. Every payload has its schema, so that no frame needs another one. After
bytes that are no header, the next frame is found by its marker. It counts only with the right
offset and checksum, because the marker may well be somewhere in a payload.

Bytes go in and frames come out; nothing here opens a file.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct as Layout
from typing import Final, TypeAlias
from zlib import crc32

from msgspec import Struct

MARKER: Final = b"\xf7WStail\x01"
_HEADER: Final = Layout("<8sQIII")
_CHECKSUM: Final = Layout("<I")
HEADER_SIZE: Final = _HEADER.size + _CHECKSUM.size

TORN: Final = "incomplete"
"""The problem with bytes that a writer was interrupted at, or is still writing."""


class Frame(Struct, frozen=True):
    """A frame with valid checksums."""

    payload: memoryview
    rows: int
    start: int
    size: int

    @property
    def end(self) -> int:
        """The offset of the byte after it."""
        return self.start + self.size


class Damage(Struct, frozen=True):
    """Bytes of a tail that are no valid frame.

    `rows` is the number of rows that were in them; 0 if that is unknown.
    """

    start: int
    size: int
    rows: int
    problem: str

    @property
    def end(self) -> int:
        """The offset of the byte after it."""
        return self.start + self.size

    @property
    def torn(self) -> bool:
        """Whether only the end is missing, as after a crash."""
        return self.problem == TORN

    def __str__(self) -> str:
        rows = f", {self.rows} row{'s' * (self.rows > 1)}" if self.rows else ""
        return f"{self.size} bytes from byte {self.start} on{rows}: {self.problem}"


Found: TypeAlias = Frame | Damage


class _Header(Struct, frozen=True):
    length: int
    rows: int
    checksum: int


def frame_header(payload: memoryview, rows: int, offset: int) -> bytes:
    """The header of a frame that begins at this offset."""
    header = _HEADER.pack(MARKER, offset, len(payload), rows, crc32(payload))
    return header + _CHECKSUM.pack(crc32(header))


def read_frames(data: bytes, start: int = 0) -> Iterator[Found]:
    """What the bytes of a tail contain, from this offset in the file on, in order.

    >>> one, two = (frame_header(b"rows", 3, at) + b"rows" for at in (0, 36))
    >>> [frame.end for frame in read_frames(one + two)]
    [36, 72]
    >>> for found in read_frames(one[:-1] + b"?" + two[:-1]): print(found)
    36 bytes from byte 0 on, 3 rows: wrong checksum
    35 bytes from byte 36 on, 3 rows: incomplete
    """
    view = memoryview(data)
    position = 0
    while position < len(data):
        found = _frame_at(view, position, start)
        if found is None:
            end = _next_header(data, view, position + 1, start)
            found = Damage(start + position, end - position, 0, "no valid header")
        yield found
        position = found.end - start


def _frame_at(view: memoryview, position: int, start: int) -> Found | None:
    """The frame at a position, or what is wrong with it; None if there is no header."""
    offset, rest = start + position, len(view) - position
    if rest < HEADER_SIZE:
        return Damage(offset, rest, 0, TORN)
    header = _header_at(view, position, offset)
    if header is None:
        return None
    size = HEADER_SIZE + header.length
    if size > rest:
        return Damage(offset, rest, header.rows, TORN)
    payload = view[position + HEADER_SIZE : position + size]
    if crc32(payload) != header.checksum:
        return Damage(offset, size, header.rows, "wrong checksum")
    return Frame(payload, header.rows, offset, size)


def _header_at(view: memoryview, position: int, offset: int) -> _Header | None:
    end = position + _HEADER.size
    (checksum,) = _CHECKSUM.unpack_from(view, end)
    if crc32(view[position:end]) != checksum:
        return None
    marker, stored_offset, length, rows, payload_checksum = _HEADER.unpack_from(view, position)
    if marker != MARKER or stored_offset != offset:
        return None
    return _Header(length, rows, payload_checksum)


def _next_header(data: bytes, view: memoryview, position: int, start: int) -> int:
    """Where the next frame with a valid header begins; else the end of the bytes."""
    last = len(data) - HEADER_SIZE
    while 0 <= (position := data.find(MARKER, position)) <= last:
        if _header_at(view, position, start + position) is not None:
            return position
        position += 1
    return len(data)
