"""The parts of a page: sections with figures, tables, sentences and trees, as plain values.

The template turns these into HTML, and escapes all strings in them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, TypeAlias

from markupsafe import Markup
from msgspec import Struct

from waystation.report.charts import NARROW, WIDE, Bar, columns
from waystation.report.times import Bins

Narrowed: TypeAlias = Callable[[Sequence[Bar]], Sequence[Bar]]
"""How bars are labelled on a narrow page."""


class Key(Struct, frozen=True):
    """A line of a legend."""

    colour: str
    text: str
    mark: str = "box"
    number: int | None = None
    meaning: str = ""


class Figure(Struct, frozen=True):
    """A chart, drawn for a wide and for a narrow page, with its legend."""

    wide: Markup
    narrow: Markup
    legend: tuple[Key, ...] = ()
    caption: str = ""
    block: str = "figure"


class Cell(Struct, frozen=True):
    """One cell of a table: its text, its full text, and its sort key."""

    text: str | Markup
    whole: str = ""
    order: float | str | None = None
    bar: float | None = None  # a fraction, drawn as a bar behind the text
    note: str = ""


class Grid(Struct, frozen=True):
    """A table that can be sorted, and filtered when it is long.

    A column has a name and a kind: `name` for names from outside, `number`, or `text`.
    """

    title: str
    columns: tuple[tuple[str, str], ...]
    rows: tuple[tuple[Cell, ...], ...]
    note: str = ""
    block: str = "grid"


class Words(Struct, frozen=True):
    """One or two sentences."""

    text: str
    tone: Literal["plain", "good", "bad"] = "plain"
    block: str = "words"


class Branch(Struct, frozen=True):
    """A line that can be expanded to show its parts."""

    label: str
    number: int
    part: str
    meaning: str = ""
    colour: str = ""
    foreign: bool = False
    branches: tuple[Branch, ...] = ()
    commands: tuple[str, ...] = ()
    note: str = ""


class Tree(Struct, frozen=True):
    """Branches, the largest first."""

    branches: tuple[Branch, ...]
    block: str = "tree"


class Card(Struct, frozen=True):
    """Something that happened: what, when, what it cost, and the commands that tell more."""

    title: str
    when: str
    text: str
    lost: int = 0
    whom: str = ""
    commands: tuple[str, ...] = ()


class Cards(Struct, frozen=True):
    """Cards, the most important first."""

    cards: tuple[Card, ...]
    block: str = "cards"


class Section(Struct, frozen=True):
    """A section of the page: what it shows, and what to look for."""

    id: str
    title: str
    says: str
    blocks: tuple[Figure | Grid | Words | Tree | Cards, ...]


class Tile(Struct, frozen=True):
    """A number at the top of the page."""

    value: str
    name: str
    tone: Literal["plain", "good", "bad"] = "plain"
    note: str = ""


class Finding(Struct, frozen=True):
    """A notable finding, and the section with the details."""

    text: str
    section: str
    tone: Literal["good", "bad"] = "bad"


def figure(draw: Callable[[int], Markup], legend: Sequence[Key] = (), caption: str = "") -> Figure:
    """A figure from a function that draws it at any width."""
    return Figure(draw(WIDE), draw(NARROW), tuple(legend), caption)


def band_keys(bins: Bins) -> list[Key]:
    """What the bands of a chart over time are, if it has any."""
    return [Key("band", "an incident meanwhile")] if bins.bands else []


def spread(
    bars: Sequence[Bar], label: str, caption: str, narrow: Narrowed = list
) -> Figure | Words:
    """Numbers side by side; where all are in one group, words say as much as a picture."""
    groups = [name for name, number, _ in bars if number > 0]
    if len(groups) < 2:
        return Words(f"{caption} All are in one group: {groups[0]}." if groups else caption)

    def draw(width: int) -> Markup:
        return columns(bars if width > NARROW else narrow(bars), width, label)

    return figure(draw, (), caption)


def top(shown: int, all: int, what: str) -> str:
    """How much is shown, as text; empty if everything is.

    >>> top(20, 3412, "links"), top(20, 20, "links")
    ('top 20 of 3,412 links', '')
    """
    return f"top {shown:,} of {all:,} {what}" if shown < all else ""
