"""What every table of states and events must satisfy: shared by the tests of such tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Generic, NamedTuple, TypeVar

import pytest

from tests.rule_errors import breaks
from waystation.errors import LocalError

S = TypeVar("S", bound=Enum)
E = TypeVar("E", bound=Enum)
F = TypeVar("F", bound=Enum)


class Lifecycle(NamedTuple, Generic[S, E, F]):
    """A table, the function that looks a step up in it, and the pairs that cannot happen.

    A pair that cannot happen raises an error of the rule `rule`.
    """

    table: Mapping[tuple[S, E], tuple[S, tuple[F, ...]]]
    step: Callable[[S, E], tuple[S, tuple[F, ...]]]
    impossible: set[tuple[S, E]]
    rule: str

    def check_pair(self, state: S, event: E) -> None:
        """A pair is either in the table, with each effect at most once, or cannot happen."""
        if (state, event) in self.impossible:
            with pytest.raises(LocalError, match=event.name, check=breaks(self.rule)):
                self.step(state, event)
            return
        after, effects = self.step(state, event)
        assert (after, effects) == self.table[state, event]
        assert len(set(effects)) == len(effects)

    def check_all_used(self, first: S, effects: type[F]) -> None:
        """Every state can be reached from the first one, and every effect is used."""
        reached = {first}
        while more := {after for (state, _), (after, _) in self.table.items() if state in reached}:
            if more <= reached:
                break
            reached |= more
        assert reached == set(type(first))
        assert {effect for _, done in self.table.values() for effect in done} == set(effects)


def check_descriptions(*enums: type[Enum]) -> None:
    """Every member has a description of its own, which the docs show."""
    for words in enums:
        assert len({member.value for member in words}) == len(words.__members__)
        assert all(member.value for member in words)


def name_of(value: object) -> str:
    """The id of a parameter: the name of a state or an event."""
    return value.name if isinstance(value, Enum) else repr(value)
