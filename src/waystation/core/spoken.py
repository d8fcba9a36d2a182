"""How people speak of names, addresses and numbers; names that nodes made up are told in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

from waystation.core.address_types import GENERATED, USUAL_TYPES, is_session_name
from waystation.core.message import INTERNAL

_MADE_UP: Final = ("subscriber", "request")
_DIGITS: Final = frozenset("0123456789abcdef")
_TRANSPORTS: Final = {str(number): name for name, number in USUAL_TYPES.items() if number}


def is_internal(name: str) -> bool:
    """Whether only nodes use a name: for what they offer each other, sessions, requests.

    >>> is_internal("waystation.status"), is_internal("tcp-67c5dc23c9d6c3fe"), is_internal("echo")
    (True, True, False)
    """
    return name.startswith(INTERNAL) or is_session_name(name) or receiver(name) != name


def place(address: str) -> str:
    """An address with its transport by name; a participant of the node itself by its name alone.

    >>> place("1#10.0.0.7:4000"), place("77#x"), place("0#echo"), place("x")
    ('tcp 10.0.0.7:4000', '77 x', 'echo', 'x')
    """
    kind, mark, rest = address.partition("#")
    if not mark or kind == "0":
        return rest or address
    return f"{_TRANSPORTS.get(kind, kind)} {rest}"


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
        spoken if count == 1 else plural(count, spoken.removeprefix("a "))
        for spoken, count in counts.items()
    ]


def plural(number: int, one: str, many: str | None = None) -> str:
    """A number with its noun.

    >>> plural(1, "node"), plural(3_412, "copy", "copies")
    ('1 node', '3,412 copies')
    """
    return f"{number:,} {one if number == 1 else many or one + 's'}"
