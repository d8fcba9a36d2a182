"""`waystation parked`: durable messages in the store of a node (DU-5)."""

from __future__ import annotations

from typing import Final

from waystation.cli.letters import letters_group

_HELP: Final = """List, show, retry and drop durable messages that a node has in custody.

The node may be running. An ID may be abbreviated.

\b
Examples:
  waystation parked list --store DIR --participant truck-7
  waystation parked show 4bf92f35 --store DIR
  waystation parked retry 4bf92f35 --store DIR
"""

parked = letters_group("parked", _HELP)
