"""How often each message entered a node: the visits that the rows of `messages` tell of.

Arrow in, numbers out; no Spark.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from waystation.core.address_types import GOSSIP
from waystation.pipeline.kernels.columns import Flags, Longs, codes, column, encoded, longs
from waystation.pipeline.schema import VERSION

_TUNNEL: Final = f"{GOSSIP}#"


def is_of_version_2(messages: pa.Table) -> Flags:
    """Which rows are of files of version 2 or later."""
    if VERSION not in messages.column_names:
        return np.zeros(messages.num_rows, np.bool_)
    found: Flags = np.asarray(column(messages, VERSION)) >= 2
    return found


def without_tunnelled(messages: pa.Table) -> pa.Table:
    """The rows without those of version 2 about what members of a group send each other."""
    firsts = first_addresses(messages, np.arange(messages.num_rows))
    to_group = np.asarray(pc.starts_with(firsts.dictionary, _TUNNEL))
    tunnelled = np.append(to_group, False)[codes(firsts)]
    gone = tunnelled & is_of_version_2(messages)
    return messages.filter(pa.array(~gone)) if gone.any() else messages


def entries(messages: pa.Table) -> Longs:
    """One row for each time that a message entered the node: the one with the lowest seq."""
    received = longs(messages, "received_at")
    order = np.argsort(received, kind="stable")
    same = received[order[1:]] == received[order[:-1]]
    if not same.any():
        return order
    shared = np.append(same, False) | np.append(False, same)
    doubtful = order[shared]  # the ids are compared only where timestamps are equal
    ids = codes(column(messages, "message_id").take(pa.array(doubtful)))
    keys = (longs(messages, "incarnation")[doubtful], received[doubtful], ids)
    sorting = np.lexsort((longs(messages, "seq")[doubtful], *keys))
    differs = np.zeros(len(doubtful), np.bool_)
    differs[0] = True
    for key in keys:
        ordered = key[sorting]
        differs[1:] |= ordered[1:] != ordered[:-1]
    return np.sort(np.concatenate([order[~shared], doubtful[sorting[differs]]]))


def first_addresses(
    messages: pa.Table, rows: Longs, addresses: pa.DictionaryArray | None = None
) -> pa.DictionaryArray:
    """The address that a router looks at (AD-5); null if the onward route is empty.

    `addresses` are those of all onward routes, if they are known to be encoded already.
    """
    onward = column(messages, "onward")
    bounds = np.asarray(onward.offsets)
    starts = bounds[rows]
    addresses = encoded(onward.values) if addresses is None else addresses
    which = np.append(codes(addresses), -1)[np.where(bounds[rows + 1] > starts, starts, -1)]
    indices = pa.array(which.astype(np.int32), mask=which < 0)
    return pa.DictionaryArray.from_arrays(indices, addresses.dictionary)
