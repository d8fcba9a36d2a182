"""SVG elements as text: everything from outside is escaped, numbers are rounded."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from typing import Final

from markupsafe import Markup, escape

WHOLE: Final = 400
"""Maximum length of a name in tooltips."""

_WIDE: Final = 2
_NAMED: Final = {"class_": "class", "for_": "for"}


def tag(name: str, *children: str, **attributes: object) -> Markup:
    """An element; attributes that are None are left out, `_` in their names stands for `-`.

    >>> tag("text", "a < b", x=1.25, text_anchor="end", class_="name", y=None)
    Markup('<text x="1.2" text-anchor="end" class="name">a &lt; b</text>')
    """
    told = "".join(
        f' {_NAMED.get(key, key.replace("_", "-"))}="{escape(_value(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    inner = Markup("").join(children)
    return Markup(f"<{name}{told}>{inner}</{name}>" if inner else f"<{name}{told}/>")  # noqa: S704


def picture(width: float, height: float, label: str, content: Iterable[str]) -> Markup:
    """A whole picture, with a description for those who cannot see it."""
    return tag(
        "svg",
        *content,
        viewBox=f"0 0 {_value(width)} {_value(height)}",
        width=width,
        height=height,
        role="img",
        aria_label=label,
    )


def hint(text: str) -> Markup:
    """The tooltip of an element."""
    return tag("title", text)


def text_width(text: str, size: float = 12) -> float:
    """The approximate width of a text, on the safe side."""
    units = sum(_WIDE if unicodedata.east_asian_width(c) in "WF" else 1.05 for c in text)
    return units * size * 0.56


def named(text: str, most: int = 40) -> str:
    r"""A name from outside that is safe to display: nothing hidden, and shortened in the middle.

    Marks that change the text direction, and control characters, are spelled out.

    >>> named("hub\u202e1"), named("a" * 30, 9)
    ('hub\\u202e1', 'aaaa…aaaa')
    """
    if not text:
        return "(no name)"
    seen = "".join(_visible(c) for c in text[: 4 * most] + text[4 * most :][-most:])
    if len(seen) <= most:
        return seen
    half = (most - 1) // 2
    return f"{seen[: most - 1 - half]}…{seen[-half:]}"


def _visible(character: str) -> str:
    if unicodedata.category(character) in ("Cc", "Cf", "Zl", "Zp") and character != "\u200d":
        return f"\\u{ord(character):04x}"
    return character


def _value(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.1f}".removesuffix(".0")
    return str(value)
