"""Which rule a LocalError is about: for `pytest.raises(LocalError, check=breaks("RE-6"))`."""

from __future__ import annotations

from collections.abc import Callable

from waystation.errors import LocalError


def breaks(rule: str) -> Callable[[LocalError], bool]:
    """Whether an error names this rule."""
    return lambda error: error.rule == rule
