"""One row of `messages` as `health` counts it: how it ended, over which kind of address, how fast.

Arrow in, Arrow out; the counting itself is Spark's.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import numpy as np
import pyarrow as pa

from waystation.core.address import STANDARD_TYPES, Address
from waystation.pipeline.columns import Longs, are, codes, column, encoded, longs, picked
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

_LOCAL: Final = "local"
_NAMES: Final = {number: name for name, number in STANDARD_TYPES.items()}


def sample(messages: pa.Table) -> pa.Table:
    """What `health` needs of these rows of `messages` (with `node`)."""
    count = messages.num_rows
    outcome = encoded(column(messages, "outcome"))
    forwarded = are(outcome, "FORWARDED")
    aims = [first_addresses(messages, np.arange(count)), encoded(column(messages, "next_hop"))]
    names: dict[str, int] = {_LOCAL: 0}
    first, hop = (_types_of(aim, names) for aim in aims)
    types = np.where(are(outcome, "DELIVERED"), 0, np.where(forwarded, hop, first))
    took = longs(messages, "at") - longs(messages, "received_at")
    columns = {
        "node": messages.column("node").cast(TEXT),
        "at": messages.column("at"),
        "outcome": outcome.cast(TEXT),
        "reason": messages.column("reason").cast(TEXT),
        "address_type": picked(pa.array(list(names), TEXT), types),
        "bytes": column(messages, "bytes").cast(pa.int64()),
        "milliseconds": pa.array(took / 1_000),
    }
    return pa.table(columns, schema=SAMPLES)


def _types_of(addresses: pa.DictionaryArray, names: dict[str, int]) -> Longs:
    """The type of each address by number; `names` numbers them, and gets those that are new."""
    texts = [*addresses.dictionary.to_pylist(), None]
    numbers = [names.setdefault(_type_of(text), len(names)) for text in texts]
    return np.array(numbers, np.int64)[codes(addresses)]


@lru_cache(maxsize=65_536)
def _type_of(address: str | None) -> str:
    """The name of an address's type, where it has a standard one, else its number."""
    try:
        number = Address.parse(address).type if address is not None else None
    except ValueError:  # next_hop is told as the node wrote it
        number = None
    return NO_TYPE if number is None else _NAMES.get(number, str(number))
