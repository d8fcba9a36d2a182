"""What nodes tell each other about durable messages: take these, and these are taken (DU-2).

Both are payloads of messages to the worker `waystation.custody`, above every transport. Whoever has
custody sends a `Take`, and forgets a letter only when an `Answer` says who has it now. A batch is
of one pair (`waystation.core.custody.Pair`) and in the order of its numbers.

The instants of a letter are told by the expiry of the message that carries it, which every session
on the way translates (TM-2): so they are right whatever the clocks of the two nodes say. Address
types are told by name, since two nodes may number them differently (AD-3).

Bytes to values and back; what is done about them is the business of `waystation.node.custody`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Final, TypeAlias

import msgspec

from waystation.core.address import LOCAL, Address, Route
from waystation.core.custody import Letter, Pair
from waystation.core.expiry import LAST_INSTANT, NEVER, Expiry
from waystation.core.message import Message, check_message_id
from waystation.core.outcome import Reason
from waystation.errors import DecodeError, LocalError

TAKES: Final = "custody"
"""What a hello says of a node that takes custody: it has a store (DU-2)."""

PASSES: Final = "custody-passes"
"""What a hello says of a node that passes custody messages on to who takes custody."""

WORKER: Final = "waystation.custody"
"""The name of the worker at each node."""

NUMBER_LIMIT: Final = 2**63
"""What the number of a letter is below."""

TEXT_LIMIT: Final = 1_024
"""Maximum length of a name, in characters."""

_ROUTE_LIMIT: Final = 256

Names: TypeAlias = Callable[[int], str | None]
"""Gives the name of an address type."""

Seconds: TypeAlias = Annotated[int, msgspec.Meta(ge=0, lt=10**9)]

_Route: TypeAlias = list[tuple[str, bytes]]


class _Letter(msgspec.Struct, frozen=True, array_like=True):
    number: int
    id: str
    onward: _Route
    back: _Route
    payload: bytes
    life: int | None  # milliseconds beyond the expiry of the message around it; None: for ever
    age: int  # microseconds that it was queued before that expiry
    trace: str


class Take(msgspec.Struct, frozen=True, tag="take", tag_field="waystation"):
    """Take custody of these letters; `lowest` is the lowest number that may be alive (DU-3)."""

    transfer: str
    pair: Pair
    lowest: int
    letters: list[_Letter]


class Deposit(msgspec.Struct, frozen=True, tag="deposit", tag_field="waystation"):
    """Take custody of these letters as if they had been sent where they arrive (DU-1).

    Whoever offers them has no store: their numbers are only those of the answer.
    """

    transfer: str
    letters: list[_Letter]


class Answer(msgspec.Struct, frozen=True, tag="answer", tag_field="waystation"):
    """The `node` has all letters of a transfer, but those that had `ended` and the `refused`."""

    transfer: str
    node: str
    ended: list[int] = []
    refused: list[tuple[int, Reason]] = []


class Keep(msgspec.Struct, frozen=True, tag="keep", tag_field="waystation"):
    """Keep these durable subscriptions: pattern, receiver, and for how many seconds (DU-8)."""

    subscriptions: list[tuple[str, str, Seconds]]


class Unkeep(msgspec.Struct, frozen=True, tag="unkeep", tag_field="waystation"):
    """These durable subscriptions, pattern and receiver, have ended."""

    subscriptions: list[tuple[str, str]]


Payload: TypeAlias = Take | Deposit | Answer | Keep | Unkeep

_decoder: Final[msgspec.msgpack.Decoder[Payload]] = msgspec.msgpack.Decoder(Payload)
_body_decoder: Final[msgspec.msgpack.Decoder[_Letter]] = msgspec.msgpack.Decoder(_Letter)
encode: Final = msgspec.msgpack.Encoder().encode


def read(payload: bytes) -> Payload | None:
    """Decode a payload; None if it is of another kind, or breaks the limits.

    >>> read(encode(Answer("a1", "hub", [3])))
    Answer(transfer='a1', node='hub', ended=[3], refused=[])
    >>> read(b"hello") is None
    True
    """
    try:
        told = _decoder.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if isinstance(told, Take | Deposit):
        numbers = [letter.number for letter in told.letters]
        fits = numbers and sorted(set(numbers)) == numbers and numbers[-1] < NUMBER_LIMIT
        lowest, pair = (told.lowest, told.pair) if isinstance(told, Take) else (1, ())
        texts = (told.transfer, *pair)
        if not fits or not 1 <= lowest <= numbers[0] or max(map(len, texts)) > TEXT_LIMIT:
            return None
    elif isinstance(told, Answer) and len(told.node) > TEXT_LIMIT:
        return None
    return told


def take(
    transfer: str,
    pair: Pair,
    lowest: int,
    letters: tuple[Letter, ...],
    expiry: Expiry,
    names: Names,
) -> bytes:
    """The payload that offers letters, in a message that lives until `expiry`.

    `names` gives the name of an address type of ours.
    """
    return encode(
        Take(
            transfer,
            pair,
            lowest,
            [_told(one, expiry, names) for one in letters],
        )
    )


def deposit(transfer: str, letters: Iterable[Letter], expiry: Expiry, names: Names) -> bytes:
    """The payload that gives letters of a node without a store into the custody of another."""
    return encode(Deposit(transfer, [_told(one, expiry, names) for one in letters]))


def body(letter: Letter, names: Names) -> bytes:
    """A letter as a store keeps it: as it is offered, with instants since the epoch."""
    return encode(_told(letter, 0, names))


def letter_of(body: bytes, types: Mapping[str, int]) -> Letter:
    """The letter that a store kept; raises DecodeError if it cannot be read any more."""
    try:
        return _letter(_body_decoder.decode(body), 0, Route(), types)
    except (LocalError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DecodeError(str(error), format="custody") from error


def _told(letter: Letter, expiry: Expiry, names: Names) -> _Letter:
    message = letter.message
    return _Letter(
        letter.number,
        message.id,
        _named(message.onward_route, names),
        _named(message.return_route, names),
        message.payload,
        None if message.expiry == NEVER else int(message.expiry - expiry),
        int(expiry * 1000) - letter.queued_at,
        message.trace_context,
    )


def letters_of(
    told: Take | Deposit, expiry: Expiry, back: Route, types: Mapping[str, int]
) -> list[Letter]:
    """The letters of an offer, which came in a message with this expiry, on our clock.

    `back` leads to the node that offers them; `types` are the numbers of our address types. Raises
    DecodeError for what is no letter.
    """
    try:
        return [_letter(one, expiry, back, types) for one in told.letters]
    except LocalError as error:
        raise DecodeError(str(error), format="custody") from error


def _letter(told: _Letter, expiry: Expiry, back: Route, types: Mapping[str, int]) -> Letter:
    onward, home = _numbered(told.onward, types), _numbered(told.back, types)
    if not onward.addresses:
        raise DecodeError("a letter without a route", format="custody")
    ends = NEVER if told.life is None else max(0, expiry + told.life)
    message = Message(
        onward,
        Route(back.addresses + home.addresses),
        told.payload,
        check_message_id(told.id),
        ends if ends <= LAST_INSTANT else NEVER,
        told.trace,
    )
    return Letter(told.number, message, max(0, int(expiry * 1000) - told.age))


def _named(route: Route, names: Names) -> _Route:
    return [
        ("" if one.type == LOCAL else names(one.type) or str(one.type), one.data)
        for one in route.addresses
    ]


def _numbered(route: _Route, types: Mapping[str, int]) -> Route:
    if len(route) > _ROUTE_LIMIT:
        raise DecodeError("a route of too many addresses", format="custody")
    return Route(tuple(Address(_number(name, types), data) for name, data in route))


def _number(name: str, types: Mapping[str, int]) -> int:
    if not name:
        return LOCAL
    number = types.get(name)
    if number is None and name.isascii() and name.isdigit():
        number = int(name) if len(name) <= 3 else 256
    if number is None or number > 255:
        raise DecodeError("an unknown address type", format="custody")
    return number
