"""Incidents: what went wrong, when, what it cost, and the messages that show it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from waystation.core.incidents import NAMES, OTHER, Incident, as_sentence
from waystation.core.spoken import receivers
from waystation.report.blocks import Card, Cards, Cell, Grid, Section, Words, top
from waystation.report.facts import Facts
from waystation.report.numbers import count, duration
from waystation.report.times import moment
from waystation.report.words import why_command

CARDS: Final = 12
"""Maximum number of incidents with a card; all are in the table below."""

ROWS: Final = 200
"""Maximum number of incidents in the table."""

_NAMED: Final = 3  # participants


def incidents(facts: Facts, tables: str | Path) -> Section:
    """The section on incidents."""
    found = facts.incidents
    blocks: tuple[Words | Cards | Grid, ...]
    if found:
        cards = Cards(tuple(_card(incident, tables) for incident in found[:CARDS]))
        blocks = (cards, _grid(found)) if len(found) > CARDS else (cards,)
    elif found is None:
        blocks = (
            Words("These tables were built without incidents; build them again to see them here."),
        )
    else:
        blocks = (Words("As far as the tables show, nothing went wrong.", "good"),)
    return Section(
        "incidents",
        "Incidents",
        "What went wrong, the costliest first: one card for each cause, not for each message. "
        "Charts over time show each as a band, unless it lasted for more than a quarter of them.",
        blocks,
    )


def _card(incident: Incident, tables: str | Path) -> Card:
    cause, is_other = as_sentence(incident.cause), incident.kind == OTHER
    return Card(
        title=cause if is_other else NAMES.get(incident.kind, incident.kind),
        when=_when(incident),
        text="" if is_other else cause,
        lost=incident.lost,
        whom=_whom(incident.participants),
        commands=tuple(why_command(id, tables) for id in incident.evidence[:1]),
    )


def _when(incident: Incident) -> str:
    begin = f"{moment(incident.started)} UTC"
    if incident.ended is None:
        return f"{begin}, no end on record"
    return f"{begin}, for {duration(max(incident.ended - incident.started, 0))}"


def _whom(participants: list[str]) -> str:
    """Who went without, in a few words.

    >>> _whom(["truck-1"]), _whom([f"truck-{number}" for number in range(5)])
    ('truck-1', 'truck-0, truck-1, truck-2 and 2 more')
    """
    names = receivers(participants)
    more = f" and {len(names) - _NAMED:,} more" if len(names) > _NAMED else ""
    return f"{', '.join(names[:_NAMED])}{more}"


def _grid(found: list[Incident]) -> Grid:
    columns = (("began", "text"), ("what", "text"), ("node", "name"), ("lost", "number"))
    rows = tuple(
        (
            Cell(moment(one.started), order=one.started),
            Cell(one.cause),
            Cell(one.node or ""),
            Cell(count(one.lost), order=one.lost),
        )
        for one in found[:ROWS]
    )
    return Grid("All incidents", columns, rows, top(len(rows), len(found), "incidents"))
