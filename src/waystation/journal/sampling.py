"""Which messages a journal keeps when it does not keep all.

The choice hangs on the id of the message alone, so every node that samples alike keeps the same
messages, and their traces stay whole. What was dropped is always kept. The number behind the choice
is the CRC-32 of the id's 32 characters: anybody can compute it again, Spark as `crc32(message_id)`.
"""

from __future__ import annotations

from zlib import crc32

from waystation.core.outcome import Outcome
from waystation.core.record import MessageRecord
from waystation.errors import LocalError, quote


def threshold(share: float) -> int:
    """Ids whose number is below this are kept.

    >>> threshold(1.0) == 2**32, threshold(0.0)
    (True, 0)
    """
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share <= 1:
        raise LocalError(
            f"the share of messages to keep is {quote(share)}", rule="OB-4", hint="give 0 to 1"
        )
    return round(share * 2**32)


def is_kept(message_id: str, below: int) -> bool:
    """Whether the messages with this id are kept.

    >>> [is_kept(f"{number:032x}", threshold(0.5)) for number in range(1, 5)]
    [False, True, True, False]
    """
    return crc32(message_id.encode()) < below


def keeps(record: object, below: int) -> bool:
    """Whether a record is kept: all but messages, all drops, and the chosen messages."""
    if not isinstance(record, MessageRecord) or record.verdict.outcome is Outcome.DROPPED:
        return True
    return is_kept(record.arrival.message.id, below)
