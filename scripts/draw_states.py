"""Draw the tables of states and events into the pages of docs/explanation.

    python scripts/draw_states.py            after a table has changed
    python scripts/draw_states.py --check    report outdated pages, and exit with 1

A page has a pair of marks for each table; what is between them is generated from the code:

    <!-- states: transitionstation.core.session.TRANSITIONS -->
    <!-- end of states -->

Such a table is a `Mapping[tuple[State, Event], tuple[State, tuple[Effect, ...]]]` of three enums.
The value of each member describes it; the first state is the initial one; a missing pair cannot
happen.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from enum import Enum
from importlib import import_module
from itertools import product
from typing import TypeAlias

import generated  # type: ignore[import-not-found] # it is beside this file

PAGES = sorted((generated.ROOT / "docs/explanation").glob("*.md"))
MARKS = re.compile(r"(<!-- states: ([\w.]+) -->\n).*?(<!-- end of states -->)", re.DOTALL)

Table: TypeAlias = Mapping[tuple[Enum, Enum], tuple[Enum, tuple[Enum, ...]]]


def table_of(path: str) -> Table:
    """The table that a mark names."""
    module, _, name = path.rpartition(".")
    found: Table = getattr(import_module(module), name)
    return found


def diagram(table: Table) -> Iterable[str]:
    """The transitions between states, as a Mermaid diagram."""
    transitions: dict[tuple[Enum, Enum], list[str]] = defaultdict(list)
    for (state, event), (after, _) in in_order(table):
        if after is not state:
            transitions[state, after].append(event.name)
    first = next(iter(pairs_of(table)))[0]
    yield from ("```mermaid", "stateDiagram-v2", f"    [*] --> {first.name}")
    for (state, after), names in transitions.items():
        yield f"    {state.name} --> {after.name}: {', '.join(names)}"
    yield "```"


def meanings(kind: str, words: Iterable[Enum]) -> Iterable[str]:
    """What the members of an enum mean."""
    yield from (f"| {kind} | meaning |", "|---|---|")
    for word in words:
        yield f"| `{word.name}` | {word.value} |"


def steps(table: Table) -> Iterable[str]:
    """Each pair of state and event that leads somewhere, or has an effect."""
    yield from ("| state | event | next state | effects, in this order |", "|---|---|---|---|")
    for (state, event), (after, effects) in in_order(table):
        if after is not state or effects:
            done = ", ".join(f"`{effect.name}`" for effect in effects)
            yield f"| `{state.name}` | `{event.name}` | `{after.name}` | {done} |"


def pairs_of(table: Table) -> Iterable[tuple[Enum, Enum]]:
    """All pairs of a state and an event, whether they can happen or not."""
    state, event = next(iter(table))
    return product(type(state), type(event))


def in_order(table: Table) -> list[tuple[tuple[Enum, Enum], tuple[Enum, tuple[Enum, ...]]]]:
    """The rows, by state and then by event."""
    return [(pair, table[pair]) for pair in pairs_of(table) if pair in table]


def others(table: Table) -> Iterable[str]:
    """The pairs that change nothing, and those that cannot happen."""
    unchanged = [pair for pair, step in in_order(table) if step == (pair[0], ())]
    impossible = [pair for pair in pairs_of(table) if pair not in table]
    for pairs, title in ((unchanged, "Changes nothing"), (impossible, "Cannot happen")):
        if pairs:
            yield from ("", f"{title}:", "")
            yield from by_event(pairs)


def by_event(pairs: Iterable[tuple[Enum, Enum]]) -> Iterable[str]:
    """Pairs as a list, one line for each event."""
    states: dict[Enum, list[str]] = defaultdict(list)
    for state, event in pairs:
        states[event].append(f"`{state.name}`")
    for event, names in states.items():
        yield f"- `{event.name}` in {', '.join(names)}"


def drawn(path: str) -> str:
    """A table in the form that a page shows."""
    table = table_of(path)
    state, event = next(iter(table))
    effect = next(effect for _, effects in table.values() for effect in effects)
    lines = ["", *diagram(table), ""]
    for kind, words in (("state", type(state)), ("event", type(event)), ("effect", type(effect))):
        lines += [*meanings(kind, words), ""]
    return "\n".join([*lines, *steps(table), *others(table), "", ""])


def written(page: str) -> str:
    """The page with the tables as they are in the code."""
    return MARKS.sub(lambda match: match[1] + drawn(match[2]) + match[3], page)


if __name__ == "__main__":
    generated.main({page: written(page.read_text("utf-8")) for page in PAGES})
