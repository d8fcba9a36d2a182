"""Error answers: what a node sends back instead of the answer to a question that it dropped.

An error answer is a message along the return route like any other. It comes from the reserved name
`waystation.undeliverable`, and its payload is a JSON object that names the reason and the node.
Only questions get one: a message that nobody waits for is dropped with a record and without a word.
"""

from __future__ import annotations

from typing import Final

import msgspec

from waystation.core.address import LOCAL, Address, Route
from waystation.core.message import Message
from waystation.core.outcome import Reason

SENDER: Final = Address(LOCAL, b"waystation.undeliverable")

_SILENT: Final = (Reason.EXPIRED,)  # whoever asked has given up already


class Undeliverable(msgspec.Struct, frozen=True):
    """Why there will be no answer, and whose word that is (None: this node's)."""

    reason: Reason
    node: str | None = None


_decoder: Final = msgspec.json.Decoder(Undeliverable)


def wants_to_know(message: Message, reason: Reason, questions: str) -> bool:
    """Whether somebody elsewhere waits for an answer; `questions` is how their names begin."""
    last = message.return_route.addresses[-1:]
    return (
        reason not in _SILENT
        and bool(last)
        and last[0].type == LOCAL
        and last[0].data.startswith(questions.encode())
    )


def error_answer(message: Message, reason: Reason, node: str, id: str) -> Message:
    """What to send back instead of an answer."""
    payload = msgspec.json.encode(Undeliverable(reason, node))
    return Message(message.return_route, Route((SENDER,)), payload, id, message.expiry)


def is_error(message: Message) -> Undeliverable | None:
    """What an answer says, if it is an error answer."""
    if message.return_route.addresses[-1:] != (SENDER,):
        return None
    try:
        return _decoder.decode(message.payload)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
