"""Other grants: what peers could have sent that was refused, and what they could not. No Spark.

A node judges what comes over a session by what its peer has proven, by all names on the route.
Announcements and subscriptions stay as they are recorded.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from waystation.core.address import Route
from waystation.core.grants import Grants
from waystation.core.outcome import Outcome, Reason
from waystation.core.visits import last_name
from waystation.core.who import NOBODY, Who
from waystation.pipeline.kernels.columns import Longs, are, column, longs
from waystation.whatif.copies import Verdict
from waystation.whatif.rooms import Overruled

_DROPPED: Final = str(Outcome.DROPPED)
_REFUSED: Final = str(Reason.REFUSED)
_INSIDE: Final = "0#waystation.custody"
"""Of what goes there the inside is judged, where it is taken out."""

_CERTIFICATE: Final = "certificate:"
_TOKEN: Final = "token:"  # noqa: S105 - how a proof by a token begins


class Judge:
    """What peers may send to a node."""

    def __init__(self, grants: Grants) -> None:
        self._grants = grants

    def refuses(self, identity: str | None, onward: tuple[str, ...]) -> bool:
        """Whether a message from somebody may not go where it wants to."""
        if not onward or onward[-1] == _INSIDE:
            return False
        return not self._grants.admits(who_of(identity), Route.parse(" => ".join(onward)))

    def overruled(
        self, rows: pa.Table, stands: Longs, identities: Mapping[tuple[int, str], str | None]
    ) -> tuple[Overruled, list[int]]:
        """The visits that are refused now, and those that were refused and are not any more."""
        found = Overruled()
        freed: list[int] = []
        via = column(rows, "via")
        came = np.asarray(via.is_valid())
        some = stands[came[stands]]
        if not len(some):
            return found, freed
        was_refused = are(column(rows, "reason"), Reason.REFUSED)
        incarnation = longs(rows, "incarnation")
        known: dict[tuple[str | None, tuple[str, ...]], bool] = {}
        routes = column(rows, "onward").take(pa.array(some)).to_pylist()
        sessions = pc.cast(via, pa.string()).take(pa.array(some)).to_pylist()
        for row, session, route in zip(some.tolist(), sessions, routes, strict=True):
            asked = identities.get((int(incarnation[row]), session)), tuple(route or ())
            if asked not in known:
                known[asked] = self.refuses(*asked)
            if known[asked] and not was_refused[row]:
                name = last_name(asked[1])
                found.stopped[row] = [Verdict(name, _DROPPED, _REFUSED, None)]
            elif was_refused[row] and not known[asked]:
                freed.append(row)
        return found, freed


def who_of(text: str | None) -> Who:
    """Who somebody is, as a journal has it.

    >>> who_of("certificate:truck-7"), who_of(None) == Who()
    (Who(identity=None, certificate=('truck-7',), token=None), True)
    """
    if text is None:
        return NOBODY
    if text.startswith(_CERTIFICATE):
        return Who(certificate=(text.removeprefix(_CERTIFICATE),))
    if text.startswith(_TOKEN):
        return Who(token=text.removeprefix(_TOKEN))
    return Who(identity=text)
