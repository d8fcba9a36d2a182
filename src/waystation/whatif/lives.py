"""Messages that live longer or shorter, as far as one node can tell. No Spark."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np
import pyarrow as pa

from waystation.core.outcome import Outcome, Reason
from waystation.pipeline.kernels.columns import NEVER, are, column, instants, longs
from waystation.pipeline.kernels.visits import entries
from waystation.whatif.changes import Ttl
from waystation.whatif.copies import Verdict
from waystation.whatif.standing import standing_for

_DROPPED: Final = str(Outcome.DROPPED)


class Lives:
    """Messages with another life.

    A message began to live when it entered the fabric, and the record here may not tell when that
    was. So what had expired here may live, and what lived may have expired: whoever knows its
    beginning decides that.
    """

    def __init__(self, rows: pa.Table, ttl: Iterable[Ttl]) -> None:
        self._rows = rows
        some = [one for one in ttl if one.messages]
        self._expiry = longs(rows, "expiry", NEVER)
        self._received, self._at = longs(rows, "received_at"), longs(rows, "at")
        self.expired: set[int] = set()
        self.waited: set[int] = set()
        self._shortened: set[int] = set()
        self._ended: dict[int, int] = {}
        if not some or not rows.num_rows:
            return
        stand = entries(rows)
        mortal = self._expiry != NEVER
        late = mortal & (self._received >= self._expiry)
        self.expired = set(stand[late[stand]].tolist())
        ended = np.flatnonzero(mortal & ~late & are(column(rows, "reason"), Reason.EXPIRED))
        self._ended = {
            stand: int(self._at[row]) for row, stand in standing_for(rows, ended).items()
        }
        self.waited = set(self._ended)
        if any(one.factor is not None and one.factor < 1 for one in some):
            self._shortened = set(stand[(mortal & ~late)[stand]].tolist()) - self.waited

    def changed(self) -> pa.Table:
        """The messages, of which those live on that had expired."""
        if not self.expired:
            return self._rows
        expiry = self._expiry.copy()
        expiry[sorted(self.expired)] = NEVER
        place = self._rows.column_names.index("expiry")
        return self._rows.set_column(place, "expiry", instants(expiry))

    def rows(self) -> list[int]:
        """The visits that may end otherwise."""
        return sorted(self.expired | self.waited | self._shortened)

    def instead(self, row: int, verdicts: list[Verdict]) -> list[Verdict]:
        """What becomes of a message that has expired."""
        if row not in self._shortened:
            return verdicts
        reason = str(Reason.EXPIRED)
        names = dict.fromkeys(verdict.recipient for verdict in verdicts)
        return [Verdict(name, _DROPPED, reason, None) for name in names]

    def alive_at(self, row: int) -> int | None:
        """Until when a message has to live."""
        if row in self.expired:
            return int(self._received[row])
        return self._ended[row] if row in self.waited else None

    def expired_at(self, row: int) -> int | None:
        """When a message must have expired."""
        return int(self._received[row]) if row in self._shortened else None
