"""What `send` and `publish` return: the id of the message, and what became of it here (OB-3)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from msgspec import Struct

from waystation.core.address import Address
from waystation.core.outcome import Outcome, Reason, Verdict

_FROM_BEST: Final = (Outcome.DELIVERED, Outcome.FORWARDED, Outcome.QUEUED)


class Sent(Struct, frozen=True, gc=False):
    """What became of a message at the node that sent it.

    By its `id` the journals tell where it went from there: `waystation why ID`.
    """

    id: str
    verdict: Verdict

    def __repr__(self) -> str:
        what = self.outcome if self.reason is None else f"{self.outcome} {self.reason}"
        whom = "" if self.recipient is None else f" to {self.recipient}"
        return f"<{type(self).__name__} {self.id}: {what}{whom}>"

    @property
    def outcome(self) -> Outcome:
        """DELIVERED, FORWARDED, QUEUED or DROPPED."""
        return self.verdict.outcome

    @property
    def reason(self) -> Reason | None:
        """Why it was dropped; None if it was not."""
        return self.verdict.reason

    @property
    def recipient(self) -> str | None:
        """Who gets it, as far as this node knows; None if it is for whoever is at a place."""
        return self.verdict.recipient

    @property
    def address(self) -> Address | None:
        """Where it went: the next address; None if it was dropped."""
        return self.verdict.address


class Published(Sent, frozen=True, gc=False):
    """What became of a broadcast at the node that published it.

    `copies` has a verdict for each subscriber that this node knows, and one for each copy that went
    up, to a parent or a broker, which has no recipient. The outcome is the best of them: DELIVERED
    if a subscriber of this node has it, else FORWARDED if a copy left, else QUEUED, else DROPPED
    with the reason of the first.
    """

    copies: tuple[Verdict, ...]

    @classmethod
    def of(cls, id: str, copies: Sequence[Verdict]) -> Published:
        """From all the verdicts, of which there is at least one."""
        return cls(id, _best(copies), tuple(copies))

    def __iter__(self) -> Iterator[Verdict]:
        return iter(self.copies)


def _best(copies: Sequence[Verdict]) -> Verdict:
    for outcome in _FROM_BEST:
        for verdict in copies:
            if verdict.outcome is outcome:
                return verdict
    return copies[0]
