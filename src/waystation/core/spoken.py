"""How people speak of receivers: names that nodes made up for a short while are told in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

from waystation.core.address_types import GENERATED

_MADE_UP: Final = ("subscriber", "request")
_DIGITS: Final = frozenset("0123456789abcdef")


def receiver(name: str) -> str:
    """Who receives a message.

    >>> receiver("truck-7"), receiver("subscriber-67c5dc23c9d6c3fe")
    ('truck-7', 'a subscriber')
    """
    word, _, digits = name.partition("-")
    made_up = word in _MADE_UP and len(digits) == GENERATED and _DIGITS.issuperset(digits)
    return f"a {word}" if made_up else name


def receivers(names: Iterable[str]) -> list[str]:
    """Several of them, each once; those without a name of their own last, with their number.

    >>> receivers(["subscriber-67c5dc23c9d6c3fe", "truck-7", "subscriber-7098b61aa36508d9"])
    ['truck-7', '2 subscribers']
    """
    found = list(names)
    counts = Counter(spoken for name in found if (spoken := receiver(name)) != name)
    named = [name for name in dict.fromkeys(found) if receiver(name) == name]
    return named + [
        spoken if count == 1 else f"{count:,} {spoken.removeprefix('a ')}s"
        for spoken, count in counts.items()
    ]
