"""`waystation dead`: durable messages in the store of a node (DU-5)."""

from __future__ import annotations

from typing import Final

from waystation.cli.letters import letters_group

_HELP: Final = """List, show, send again and remove durable messages that ended undelivered.

The node may be running. An ID may be abbreviated.

\b
Examples:
  waystation dead list --store DIR --participant truck-7
  waystation dead show 4bf92f35 --store DIR
  waystation dead retry 4bf92f35 --store DIR
"""

dead = letters_group("dead", _HELP)
