"""The checksum of a sealed file, all of it (OB-9).

Parquet has checksums for the content of pages, but none for their headers, the indexes and the
footer, and a changed bit there may well change rows. So the footer has a CRC-32 of the whole file
under a key of its own. It is calculated with zeros in its own place, and then written there.
"""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO, Final
from zlib import crc32

KEY: Final = "waystation.checksum"
ZEROS: Final = "crc32:00000000"

_PREFIX: Final = b"crc32:"
_DIGITS: Final = 8
_TRAILER: Final = 8  # bytes: the length of the footer, and Parquet's magic number
_AT_ONCE: Final = 2**20


def write_checksum(path: Path) -> None:
    """Replace the zeros in a complete file by its checksum."""
    with path.open("r+b") as file:
        place = _place(file)
        if place is None:
            raise ValueError(f"{path.name} has no place for a checksum")
        checksum = _checksum(file, place)
        file.seek(place)
        file.write(checksum)


def is_changed(path: Path) -> bool:
    """Whether a file differs from what was sealed; False if it has no checksum.

    Raises OSError if it cannot be read.
    """
    with path.open("rb") as file:
        return differs(file)


def differs(file: BinaryIO) -> bool:
    """The same of a file that is open, or of all of its bytes."""
    place = _place(file)
    if place is None:
        return False
    file.seek(place)
    return file.read(_DIGITS) != _checksum(file, place)


def _place(file: BinaryIO) -> int | None:
    """Where the digits of the checksum are."""
    size = file.seek(0, 2)
    file.seek(max(0, size - _TRAILER))
    length = int.from_bytes(file.read(4), "little")
    begin = max(0, size - _TRAILER - length)
    file.seek(begin)
    footer = file.read(size - begin)
    key = footer.find(KEY.encode())
    found = footer.find(_PREFIX, key) if key >= 0 else -1
    return None if found < 0 else begin + found + len(_PREFIX)


def _checksum(file: BinaryIO, place: int) -> bytes:
    """The digits that belong there."""
    file.seek(0)
    checksum = 0
    left = place
    while part := file.read(min(left, _AT_ONCE)):  # it ends early if the file was cut meanwhile
        left -= len(part)
        checksum = crc32(part, checksum)
    file.seek(_DIGITS, 1)
    checksum = crc32(b"0" * _DIGITS, checksum)
    while part := file.read(_AT_ONCE):
        checksum = crc32(part, checksum)
    return b"%08x" % checksum
