"""Why a message went where it went: one message, explained from the journal (OB).

No Spark: file statistics say where the message is not, and only the rows about it are read. The
rules are asked of the core itself, which is what the live nodes asked.
"""

import waystation.journal  # noqa: F401 - it says what to install
from waystation.why.explain import explain
from waystation.why.explanation import Decision, Explanation, Hop, Step
from waystation.why.text import explanation_lines

__all__ = ["Decision", "Explanation", "Hop", "Step", "explain", "explanation_lines"]
