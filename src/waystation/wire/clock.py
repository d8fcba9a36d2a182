"""The question what time it is at the other end of a session, and its answer (TM-2).

Only peers whose hello says that they understand `clock` are asked. Times are microseconds since the
epoch, each on the clock of whoever wrote it. The payload is a JSON object for the session itself.
"""

from __future__ import annotations

from typing import Final

import msgspec

CAPABILITY: Final = "clock"
"""How a hello says that its sender answers."""


class ClockSample(msgspec.Struct, frozen=True, tag="clock", tag_field="waystation"):
    """A question, or with `received` and `answered` the answer to it."""

    asked: int
    received: int = 0
    answered: int = 0

    @property
    def is_answer(self) -> bool:
        """Whether somebody has answered it."""
        return self.received != 0


_BEGINNING: Final = b'{"waystation":"clock"'
_decoder: Final = msgspec.json.Decoder(ClockSample)
encode: Final = msgspec.json.Encoder().encode


def read(payload: bytes) -> ClockSample | None:
    """Decode a payload; None if it is of another kind.

    >>> read(encode(ClockSample(1_700_000_000_000_000)))
    ClockSample(asked=1700000000000000, received=0, answered=0)
    >>> read(b'{"waystation":"hello"}') is None
    True
    """
    if not payload.startswith(_BEGINNING):
        return None
    try:
        return _decoder.decode(payload)
    except (msgspec.DecodeError, RecursionError):  # the latter if it is nested too deeply
        return None
