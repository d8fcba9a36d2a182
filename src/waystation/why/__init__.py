"""Why a message went where it went: one message, explained from the journal (OB).

No Spark: file statistics say where the message is not, and only the rows about it are read. The
rules are asked of the core itself, which is what the live nodes asked.
"""

import waystation.journal  # noqa: F401 - it says what to install
from waystation.why.account import Account, Decision, Hop, Step
from waystation.why.explain import explain
from waystation.why.telling import tell

__all__ = ["Account", "Decision", "Hop", "Step", "explain", "tell"]
