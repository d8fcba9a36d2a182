"""Explains one message from the journal: where it went, and why (OB).

No Spark: file statistics rule most files out, and only the rows about the message are read. What
the rules say is computed by the core, the same code that the live nodes ran.
"""

import waystation.journal  # noqa: F401 - raises an error that says what to install
from waystation.why.explain import explain
from waystation.why.explanation import Decision, Explanation, Hop, Step, Way
from waystation.why.text import explanation_lines

__all__ = ["Decision", "Explanation", "Hop", "Step", "Way", "explain", "explanation_lines"]
