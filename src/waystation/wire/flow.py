"""What sessions tell each other when a receiver has no room: `hold`, and `go` (FL-3).

A name is the first address of an onward route as it stands on this link, written as text with the
type numbers of the link. A hold ends with `go`, with the link, or when it is not renewed. These
payloads are for the session itself, as those of a hierarchy are; the first version ignores them.

Pure: when to send them, and what to do about them, is the business of `waystation.node`.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import msgspec

CAPABILITY: Final = "hold"
"""What a hello says of a node that understands these payloads (UP-1)."""

HOLD_TIME: Final = 5.0
"""Seconds after which a hold that was not renewed is over."""

RENEWAL: Final = 2.0
"""Seconds after which a hold is renewed."""

NAMES: Final = 256
"""Maximum number of names in one payload."""


class Hold(msgspec.Struct, frozen=True, tag="hold", tag_field="waystation"):
    """Send nothing to these names for now."""

    names: list[str]


class Go(msgspec.Struct, frozen=True, tag="go", tag_field="waystation"):
    """Send to these names again."""

    names: list[str]


Payload: TypeAlias = Hold | Go

_decoder: Final[msgspec.json.Decoder[Payload]] = msgspec.json.Decoder(Payload)
encode: Final = msgspec.json.Encoder().encode


def read(payload: bytes) -> Payload | None:
    """Decode a payload; None if it is of another kind.

    >>> read(encode(Hold(["0#truck-7"])))
    Hold(names=['0#truck-7'])
    >>> read(b'{"waystation": "hello"}') is None
    True
    """
    try:
        return _decoder.decode(payload)
    except (
        msgspec.DecodeError,
        UnicodeDecodeError,
        RecursionError,
    ):  # not UTF-8; nested too deeply
        return None
