"""Compare what a what-if forecasts with what happens: verdicts of both, counted.

A message for one receiver counts once. A broadcast counts once for each receiver.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple, TypeAlias

from msgspec import Struct

from waystation.testing.twins.running import Run
from waystation.testing.twins.script import COMPARED_UNTIL, Script
from waystation.whatif.changes import Changes
from waystation.whatif.local import SmallJournal
from waystation.whatif.verdicts import LOST, MOVED, SAME, SAVED, UNCERTAIN

Row: TypeAlias = Mapping[str, Any]
Key: TypeAlias = tuple[int, str]
"""A letter, and the receiver of its broadcast."""

CLASSES: Final = (SAVED, LOST, MOVED)
"""What a forecast is judged by."""

_DELIVERED: Final = "DELIVERED"
_DROPPED: Final = "DROPPED"


class Fate(NamedTuple):
    """How a letter ended."""

    outcome: str | None
    reason: str | None
    node: str | None

    @property
    def arrived(self) -> bool:
        """Whether it reached whom it was for."""
        return self.outcome == _DELIVERED


class Compared(Struct):
    """How often each verdict was forecast where each was true: `saved lost` for one that is lost.

    >>> found = Compared({"saved saved": 9, "saved same": 1, "unknown lost": 2, "same same": 88})
    >>> found.precision("saved"), found.recall("saved"), found.recall("lost")
    (0.9, 1.0, None)
    >>> found.differing, found.right, found.right_if_nothing_changes, round(found.unknown, 3)
    (12, 9, 1, 0.167)
    """

    counts: dict[str, int] = {}

    def add(self, forecast: str, true: str, times: int = 1) -> None:
        """Count one."""
        key = f"{forecast} {true}"
        self.counts[key] = self.counts.get(key, 0) + times

    def merge(self, other: Compared) -> None:
        """Count all of another."""
        for key, times in other.counts.items():
            forecast, true = key.split(" ")
            self.add(forecast, true, times)

    def _of(self, forecast: str | None = None, true: str | None = None) -> int:
        wanted = (forecast, true)
        return sum(
            times
            for key, times in self.counts.items()
            if all(w in (None, one) for w, one in zip(wanted, key.split(" "), strict=True))
        )

    @property
    def all(self) -> int:
        """How many there are."""
        return self._of()

    @property
    def differing(self) -> int:
        """Of how many the fate differs, in the runs or in the forecast."""
        return self.all - self._of(SAME, SAME)

    @property
    def right(self) -> int:
        """Of those that differ, how many were forecast as they came."""
        return sum(self._of(one, one) for one in CLASSES)

    @property
    def right_if_nothing_changes(self) -> int:
        """Of those that differ, how many a forecast has right that says: nothing changes."""
        return self._of(true=SAME) - self._of(SAME, SAME)

    @property
    def unknown(self) -> float:
        """The share of those that differ of which the forecast says that it does not know."""
        return self._of(UNCERTAIN) / max(self.differing, 1)

    @property
    def unknown_of_all(self) -> float:
        """The same of all."""
        return self._of(UNCERTAIN) / max(self.all, 1)

    def precision(self, verdict: str) -> float | None:
        """The share of what was forecast to have a verdict that has it."""
        forecast = self._of(verdict)
        return self._of(verdict, verdict) / forecast if forecast else None

    def recall(self, verdict: str) -> float | None:
        """The share of what has a verdict, and was not said to be unknown, that was forecast."""
        true = self._of(true=verdict) - self._of(UNCERTAIN, verdict)
        return self._of(verdict, verdict) / true if true else None


def compared(script: Script, first: Run, second: Run, changes: Changes) -> Iterator[Difference]:
    """Each letter with what was forecast of it and what was true, and how it ended."""
    wanted = {letter.number for letter in script.letters if letter.at < COMPARED_UNTIL}
    broadcast = {letter.number for letter in script.letters if letter.kind == "publish"}
    before, after = SmallJournal(first.journal), SmallJournal(second.journal)
    nothing = Changes()
    was = dict(_fates(before.rows(nothing), first, broadcast))
    came = dict(_fates(after.rows(nothing), second, broadcast))
    forecasts: dict[Key, Row] = {}
    for row in before.rows(changes):
        key = _key(row, first, broadcast)
        if key is not None and (key not in forecasts or row["verdict"] != SAME):
            forecasts[key] = row
    _pair_unheard(was, came)
    both = {number for number, _ in was} & {number for number, _ in came} & wanted
    for key in sorted({*was, *came, *forecasts}):
        if key[0] in both:
            forecast = forecasts[key]["verdict"] if key in forecasts else SAME
            fates = was.get(key), came.get(key)
            yield Difference(key, forecast, _verdict(*fates), *fates, forecasts.get(key))


def _pair_unheard(was: Mapping[Key, Fate], came: dict[Key, Fate]) -> None:
    """Let a broadcast that nobody heard be saved if somebody hears it then."""
    for number, label in was:
        if label == "" and (number, "") not in came and was[number, ""].outcome == _DROPPED:
            new = (key for key in came if key[0] == number and key not in was)
            reached = next((came[key] for key in new if came[key].arrived), None)
            if reached is not None:
                came[number, ""] = reached


class Difference(NamedTuple):
    """A letter in both runs, and in the forecast."""

    key: Key
    forecast: str
    true: str
    was: Fate | None
    came: Fate | None
    row: Row | None


def arrivals(run: Run, script: Script) -> set[tuple[int, str | None]]:
    """Which letters arrived by the journal of a run, and with whom."""
    broadcast = {letter.number for letter in script.letters if letter.kind == "publish"}
    return {
        (run.letters[row["message_id"]], run.labels.get(row["recipient"], row["recipient"]))
        for row in SmallJournal(run.journal).rows(Changes())
        if row["before_outcome"] == _DELIVERED and _key(row, run, broadcast) is not None
    }


def _fates(rows: Iterable[Row], run: Run, broadcast: set[int]) -> Iterator[tuple[Key, Fate]]:
    arrived: set[Key] = set()
    for row in rows:
        key = _key(row, run, broadcast)
        if key is None or key in arrived or row["before_outcome"] is None:
            continue
        fate = Fate(row["before_outcome"], row["before_reason"], row["before_node"])
        if fate.arrived:
            arrived.add(key)
        yield key, fate


def _key(row: Row, run: Run, broadcast: set[int]) -> Key | None:
    """Of which letter a row is; None for an answer, and for what nodes say to each other."""
    number = run.letters.get(row["message_id"])
    if number is None or row["internal"]:
        return None
    name = row["recipient"] or ""
    return number, run.labels.get(name, name) if number in broadcast else ""


def _verdict(was: Fate | None, came: Fate | None) -> str:
    if was == came:
        return SAME
    if was is not None and was.arrived:
        return MOVED if came is not None and came.arrived else LOST
    if was is not None and was.outcome == _DROPPED and came is not None and came.arrived:
        return SAVED
    return MOVED
