"""Sections on expected and actual outcomes, and on incomplete messages and rejected rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from waystation.core.spoken import plural
from waystation.report.arrays import Found
from waystation.report.blocks import Branch, Cell, Grid, Section, Tree, Words, top
from waystation.report.facts import Ending, Facts, Judgement
from waystation.report.numbers import count, share
from waystation.report.svg import named
from waystation.report.traffic import name_cell, number_cell
from waystation.report.words import REASONS, VERDICTS, reason_colour, why_command

NODES: Final = 20
ORDER: Final = ("missing", "different", "unexpected", "ok")
_NAMELESS: Final = "These rows are about routing entries, or about messages without an id."
_TITLES: Final = {"ok": "dropped as the rules require"}


def expected_against_actual(facts: Facts, tables: str | Path) -> Section:
    """Expected and actual outcomes."""
    says = (
        "For every message that entered a node, the outcome that the rules require against the "
        "one in the journal. Open a line to go from a verdict to the nodes, the reasons, and "
        "example messages. Look for anything that is missing or unexpected."
    )
    id, title = "audit", "Expected against actual"
    if not facts.verdicts:
        return Section(id, title, says, (Words("The table audit has no rows."),))
    wrong = sum(n for (verdict, _, _), n in facts.verdicts.items() if verdict != "ok")
    total = facts.verdicts.total()
    words = Words(f"All {count(total)} outcomes are as the rules require.", "good")
    if wrong:
        agreed = f"{count(total - wrong)} of {count(total)} outcomes are as the rules require"
        words = Words(f"{agreed}; {count(wrong)} {'is' if wrong == 1 else 'are'} not.", "bad")
    tree = Tree(tuple(_verdict(facts, verdict, tables) for verdict in _verdicts_found(facts)))
    drill_down = (tree,) if tree.branches else ()
    return Section(id, title, says, (words, *drill_down, _matrix(facts)))


def _verdicts_found(facts: Facts) -> list[str]:
    found = {judgement.verdict for judgement in facts.judgements}
    return [verdict for verdict in ORDER if verdict in found] + sorted(found - {*ORDER})


def _verdict(facts: Facts, verdict: str, tables: str | Path) -> Branch:
    rows = [judgement for judgement in facts.judgements if judgement.verdict == verdict]
    nodes = _grouped(rows, lambda row: row.node or "")
    number = _total(rows)
    branches = tuple(_node(node, own, number, tables) for node, own in nodes[:NODES])
    return Branch(
        _TITLES.get(verdict, verdict),
        number,
        f"{share(number, facts.verdicts.total())} of all outcomes",
        VERDICTS.get(verdict, ""),
        "calm" if verdict == "ok" else "bad",
        branches=branches,
        note=top(len(branches), len(nodes), "nodes"),
    )


def _node(node: str, rows: list[Judgement], whole: int, tables: str | Path) -> Branch:
    number = _total(rows)
    reasons = _grouped(rows, how_it_went)
    return Branch(
        named(node),
        number,
        share(number, whole),
        foreign=True,
        branches=tuple(_reason(told, own, number, tables) for told, own in reasons),
    )


def _reason(told: str, rows: list[Judgement], whole: int, tables: str | Path) -> Branch:
    number = _total(rows)
    reason = rows[0].reason
    examples = Found()
    for row in rows:
        examples.add(row.found.messages, row.found.first, row.found.last)
    commands = tuple(why_command(id, tables) for id in examples.examples)
    return Branch(
        told,
        number,
        share(number, whole),
        REASONS.get(reason or "", ""),
        reason_colour(reason) if reason else "",
        commands=commands,
        note="" if commands else _NAMELESS,
    )


def how_it_went(row: Judgement) -> str:
    """The outcome in one line: the reason, and the expected outcome if that differs."""
    actual = row.actual or "nothing"
    what = f"{actual} {row.reason}" if row.reason and row.verdict != "missing" else actual
    if row.expected == row.actual:
        return what
    should = f"{row.expected or 'nothing'}"
    if row.verdict == "missing" and row.reason:
        should += f" {row.reason}"
    return f"{what} instead of {should}"


def _grouped(
    rows: Sequence[Judgement], key: Callable[[Judgement], str]
) -> list[tuple[str, list[Judgement]]]:
    """Rows grouped by key, the largest group first."""
    groups: dict[str, list[Judgement]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return sorted(groups.items(), key=lambda item: (-_total(item[1]), item[0]))


def _total(rows: Sequence[Judgement]) -> int:
    return sum(row.found.messages for row in rows)


def _matrix(facts: Facts) -> Grid:
    """Expected outcomes as rows, actual outcomes as columns."""
    pairs: Counter[tuple[str, str]] = Counter()
    for (_, expected, actual), number in facts.verdicts.items():
        pairs[expected or "nothing", actual or "nothing"] += number
    rows_of = sorted({expected for expected, _ in pairs})
    columns_of = sorted({actual for _, actual in pairs})
    rows = tuple(
        (
            Cell(expected, order=expected),
            *(
                Cell(
                    count(pairs[expected, actual]) if pairs[expected, actual] else "·",
                    order=pairs[expected, actual],
                    note="agrees"
                    if expected == actual
                    else "differs"
                    if pairs[expected, actual]
                    else "",
                )
                for actual in columns_of
            ),
        )
        for expected in rows_of
    )
    titles = (("expected", "text"), *((f"was {actual}", "number") for actual in columns_of))
    return Grid("Expected outcomes (rows) against actual ones (columns)", titles, rows)


def followed(facts: Facts, tables: str | Path) -> Section:
    """Traces that are incomplete, looped or not symmetric, and rejected rows."""
    says = (
        "Messages that did not reach everybody, and journal rows that could not be used. "
        "Look for loops, and for messages without a final outcome."
    )
    kinds: tuple[tuple[str, str, Callable[[Ending], bool]], ...] = (
        (
            "incomplete",
            "somebody went without it, it waits, or what became of a copy is unknown",
            lambda e: not e.complete,
        ),
        ("looped", "it arrived twice at a node along the same route", lambda e: e.looped),
        (
            "answered another way",
            "its answer did not come back by the same nodes",
            lambda e: e.symmetric is False,
        ),
    )
    branches = [
        branch
        for name, meaning, chosen in kinds
        if (branch := _ending(facts, name, meaning, chosen, tables)) is not None
    ]
    blocks: list[Words | Tree | Grid] = []
    if not facts.endings:
        blocks.append(Words("The table traces has no rows."))
    elif branches:
        blocks.append(Tree(tuple(branches)))
    else:
        blocks.append(Words("Every message reached everybody it was for.", "good"))
    blocks += _rejected(facts)
    return Section("followed", "Incomplete", says, tuple(blocks))


def _ending(
    facts: Facts, name: str, meaning: str, chosen: Callable[[Ending], bool], tables: str | Path
) -> Branch | None:
    found = Found()
    for ending in facts.endings:
        if chosen(ending):
            found.add(ending.found.messages, ending.found.first, ending.found.last)
    if not found.messages:
        return None
    return Branch(
        name,
        found.messages,
        f"{share(found.messages, facts.messages)} of all messages",
        meaning,
        "bad",
        commands=tuple(why_command(id, tables) for id in found.examples),
    )


def _rejected(facts: Facts) -> list[Words | Grid]:
    total = sum(row["rows"] for row in facts.rejects)
    if not total:
        return [Words("No journal rows were rejected.", "good")]
    shown = facts.rejects[:NODES]
    rows = tuple(
        (name_cell(row["table"] or ""), name_cell(row["problem"] or ""), number_cell(row["rows"]))
        for row in shown
    )
    titles = (("table", "text"), ("what is wrong", "text"), ("rows or files", "number"))
    return [
        Words(
            f"{plural(total, 'row or file', 'rows or files')} of the journal could not be used.",
            "bad",
        ),
        Grid("Rejects", titles, rows, top(len(rows), len(facts.rejects), "kinds of problem")),
    ]
