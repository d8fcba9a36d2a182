"""The copies of multicasts that go up: to the parents of a node, or over its global transports.

A node has a parent from the first opening of the session with it until its incarnation ends, and
likewise a global transport: one that is down then makes the copy a drop, not nobody's business.
A copy may also wait for that first opening: a row that says which session it left by, or waited
for, proves that its node had this parent when the message came. Arrow and numpy; no Spark.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa

from waystation.pipeline.kernels.columns import (
    Flags,
    Longs,
    are,
    chosen,
    column,
    encoded,
    longs,
    numbered,
    pair_codes,
    picked,
    spread,
)
from waystation.pipeline.kernels.columns import codes as numbers_of
from waystation.pipeline.kernels.lookup import Groups, common_codes, positions

_PARENT: Final = "parent"
_GLOBAL: Final = "global"


class Upward:
    """Whom a node sends copies up to, from when on."""

    def __init__(self, sessions: pa.Table, messages: pa.Table) -> None:
        known = first_upward(sessions)
        self._incarnations, life = numbered(longs(known, "incarnation"))
        order = np.argsort(life, kind="stable")
        self._messages = messages
        self._session = column(known, "session").take(pa.array(order))
        peers = encoded(column(known, "peer"))
        self._peers = peers.dictionary
        self._peer = numbers_of(peers)[order]
        self._since = longs(known, "opened_at")[order]
        self._is_parent = are(column(known, "role"), _PARENT)[order]
        self._groups = Groups(life[order], len(self._incarnations))

    def __len__(self) -> int:
        return len(self._since)

    def of(self, incarnation: Longs, at: Longs, visible: Flags) -> tuple[Longs, pa.Array]:
        """The copies of messages: the number of its message, and the peer that each goes to.

        `visible` says of which messages the provider is known outside: only these leave over a
        global transport, and only from a node without a parent.
        """
        first, end = self._groups.spans(positions(self._incarnations, incarnation))
        owner, place = spread(first, end - first)
        begun = self._since[place] <= at[owner]
        if not begun.all():
            early = np.flatnonzero(~begun)
            begun[early] = self._waited_for(place[early], at[owner[early]])
        owner, place = owner[begun], place[begun]
        has_parent = np.zeros(len(at), np.bool_)
        has_parent[owner[self._is_parent[place]]] = True
        goes = self._is_parent[place] | (visible[owner] & ~has_parent[owner])
        return owner[goes], chosen(self._peers, self._peer[place[goes]])

    def _waited_for(self, place: Longs, at: Longs) -> Flags:
        """Of which of these sessions a message that came at an instant has a row."""
        messages = self._messages
        session, out = common_codes(self._session, column(messages, "out"))
        copies = (out >= 0) & are(column(messages, "kind"), "multicast")
        came = longs(messages, "received_at")[copies]
        asked = pair_codes(np.append(session[place], out[copies]), np.append(at, came))
        return np.isin(asked[: len(at)], asked[len(at) :])


def first_upward(sessions: pa.Table) -> pa.Table:
    """The first interval of each session that copies go up over, with its peer's name if known."""
    roles = column(sessions, "role")
    sessions = sessions.filter(pa.array(are(roles, _PARENT) | are(roles, _GLOBAL)))
    life, name = longs(sessions, "incarnation"), numbers_of(column(sessions, "session"))
    order = np.lexsort((longs(sessions, "opened_at"), name, life))
    life, name = life[order], name[order]
    first = np.ones(len(life), np.bool_)
    first[1:] = (life[1:] != life[:-1]) | (name[1:] != name[:-1])
    sessions = sessions.take(pa.array(order))
    peer = _first_known(column(sessions, "peer"), np.cumsum(first) - 1)
    place = sessions.column_names.index("peer")
    return sessions.filter(pa.array(first)).set_column(place, "peer", peer)


def _first_known(peers: pa.Array, group: Longs) -> pa.Array:
    """The first name that the peer of each session gave itself; null if it gave none."""
    found = np.full(int(group[-1]) + 1 if len(group) else 0, -1)
    known = np.flatnonzero(np.asarray(peers.is_valid()))[::-1]
    found[group[known]] = known  # the first is written last
    return picked(peers, found)
