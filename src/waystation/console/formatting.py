"""Formatting of values on the pages: times, durations, numbers, and names chosen by peers.

HTML escaping is not done here: the templates escape everything.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from waystation.core import spoken
from waystation.core.message import INTERNAL
from waystation.node.requests import REQUEST_PREFIX

INTERNALS: Final = (INTERNAL, REQUEST_PREFIX, "subscriber-")
"""How the names begin that nodes use among themselves."""

_LONGEST: Final = 200
_ENDLESS: Final = 1e11  # seconds


def plain(text: object) -> str:
    r"""Text from a peer, with control characters replaced, and shortened.

    >>> plain("truck-7"), plain("a\tb"), plain("x" * 300)[-3:]
    ('truck-7', 'a�b', 'xx…')
    """
    words = str(text)
    harmless = "".join(letter if letter.isprintable() else "\ufffd" for letter in words[:_LONGEST])
    return harmless + "…" * (len(words) > _LONGEST)


def place(address: str) -> str:
    """An address with its transport by name."""
    return plain(spoken.place(address))


def receiver(name: str) -> str:
    """Who receives a message, in words where the name was made up."""
    return plain(spoken.receiver(name))


def receivers(names: Sequence[str]) -> list[str]:
    """Several of them, each once."""
    return [plain(name) for name in spoken.receivers(names)]


def instant(microseconds: int) -> str:
    """The time of day, in milliseconds.

    >>> instant(1_700_000_000_123_456), instant(10**30)
    ('22:13:20.123', '?')
    """
    return full_instant(microseconds).rstrip("Z").rpartition(" ")[2]


def full_instant(microseconds: int) -> str:
    """The date and time, in milliseconds.

    >>> full_instant(1_700_000_000_123_456)
    '2023-11-14 22:13:20.123Z'
    """
    try:
        moment = datetime.fromtimestamp(microseconds / 1_000_000, UTC)
    except (OSError, OverflowError, ValueError):  # out of range
        return "?"
    return moment.strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] + "Z"


def since(seconds: float) -> str:
    """A duration in its two largest units.

    >>> since(42), since(3_725), since(200_000), since(-5), since(1e300)
    ('42 s', '1 h 2 min', '2 d 7 h', '0 s', '?')
    """
    if not seconds < _ENDLESS:
        return "?"
    whole = max(0, int(seconds))
    if whole < 60:
        return f"{whole} s"
    minutes, hours, days = whole // 60, whole // 3_600, whole // 86_400
    if minutes < 60:
        return f"{minutes} min"
    return f"{hours} h {minutes % 60} min" if hours < 24 else f"{days} d {hours % 24} h"


def duration(microseconds: int) -> str:
    """A short duration, with about three digits.

    >>> duration(0), duration(42), duration(1_234), duration(123_456), duration(6_064_000)
    ('0 ms', '0.04 ms', '1.2 ms', '123 ms', '6.1 s')
    """
    milliseconds = microseconds / 1_000
    if abs(milliseconds) >= 1_000:
        return f"{milliseconds / 1_000:,.1f} s"
    digits = (
        0 if abs(milliseconds) >= 100 or not microseconds else 1 if abs(milliseconds) >= 1 else 2
    )
    return f"{milliseconds:,.{digits}f} ms"


def number(value: float) -> str:
    """A number with thousands separators, and without needless decimals.

    >>> number(1234567), number(0.5), number(12.0)
    ('1,234,567', '0.5', '12')
    """
    return f"{value:,.1f}".removesuffix(".0")


def rate(value: float) -> str:
    """A number per second, with two digits.

    >>> rate(0.52), rate(12.34), rate(1234.5)
    ('0.5', '12', '1,234')
    """
    return number(round(value, 1) if value < 10 else round(value))


def payload(data: bytes) -> str:
    r"""A payload: as text if it is UTF-8, otherwise in hexadecimal.

    >>> payload(b"hello"), payload(bytes([255, 0])), payload("a\tü".encode()[:-1])
    ('hello', '0xff00', 'a\t')
    """
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        if error.reason != "unexpected end of data" or not error.start:
            return f"0x{data.hex()}"
        text = data[: error.start].decode()  # it was cut within a character
    return "".join(
        letter if letter.isprintable() or letter in "\n\t" else "\ufffd" for letter in text
    )
