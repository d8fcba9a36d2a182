"""One row of `messages` as `health` counts it: how it ended, over which kind of address, how fast.

Arrow in, Arrow out; the counting itself is Spark's.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from waystation.core.address import STANDARD_TYPES, Address
from waystation.pipeline.columns import codes, column, longs, picked
from waystation.pipeline.deciding import first_addresses
from waystation.pipeline.schema import INSTANT, TEXT

SAMPLES: Final = pa.schema(
    {
        "node": TEXT,
        "at": INSTANT,
        "outcome": TEXT,
        "reason": TEXT,
        "address_type": TEXT,
        "bytes": pa.int64(),
        "milliseconds": pa.float64(),
    }
)

NO_TYPE: Final = "none"
"""What stands for the address type of a message that was sent to no address."""

_NAMES: Final = {number: name for name, number in STANDARD_TYPES.items()}


def sample(messages: pa.Table) -> pa.Table:
    """What `health` needs of these rows of `messages` (with `node`)."""
    outcome = column(messages, "outcome")
    first = first_addresses(messages, np.arange(messages.num_rows))
    aimed = pc.if_else(pc.equal(outcome, "FORWARDED"), column(messages, "next_hop"), first)
    types = pc.if_else(pc.equal(outcome, "DELIVERED"), "local", _types_of(aimed))
    taken = longs(messages, "at") - longs(messages, "received_at")
    columns = {
        "node": messages.column("node"),
        "at": messages.column("at"),
        "outcome": outcome,
        "reason": messages.column("reason"),
        "address_type": types,
        "bytes": column(messages, "bytes").cast(pa.int64()),
        "milliseconds": pa.array(taken / 1_000),
    }
    return pa.table(columns, schema=SAMPLES)


def _types_of(addresses: pa.Array) -> pa.Array:
    """The type of each address by name, where it has a standard one, else its number."""
    encoded = addresses.dictionary_encode()
    names = [_type_of(text) for text in encoded.dictionary.to_pylist()]
    return pc.fill_null(picked(pa.array(names, TEXT), codes(encoded)), NO_TYPE)


def _type_of(address: str) -> str:
    try:
        number = Address.parse(address).type
    except ValueError:  # next_hop is told as the node wrote it
        return NO_TYPE
    return _NAMES.get(number, str(number))
