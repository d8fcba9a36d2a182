"""Patterns by their shape: what two programs need that match by equality (MC-3, MC-4).

A pattern's shape is how many segments it has, which of them are `+`, and whether it ends in `*`.
An id that is rewritten to what a pattern of a shape would have to be matches by a plain join.
"""

from __future__ import annotations

from collections.abc import Iterable


def shape_of(pattern: str) -> str:
    """`a/+/c` has the shape `./+/.`, `a/*` the shape `./*`."""
    return "/".join(part if part in "+*" else "." for part in pattern.split("/"))


def shapes_of(patterns: Iterable[str]) -> list[str]:
    """All shapes that there are."""
    return sorted({shape_of(pattern) for pattern in patterns})


def rewriting(shape: str) -> tuple[int, bool, list[int | None]]:
    """How many segments an id needs, whether more are allowed, and which are kept (None: `+`)."""
    parts = shape.split("/")
    open_ended = parts[-1] == "*"
    fixed = parts[:-1] if open_ended else parts
    return len(fixed), open_ended, [None if part == "+" else n for n, part in enumerate(fixed)]
