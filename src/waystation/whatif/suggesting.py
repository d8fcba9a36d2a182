"""Suggest changes: try a stated set of them on a journal, and say which would have saved most.

That is said of all losses, and of those by each kind of incident.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from msgspec.structs import replace
from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.storagelevel import StorageLevel

from waystation.pipeline.journal import Journal
from waystation.pipeline.making import built
from waystation.whatif.asking import Asked, is_counted, summary
from waystation.whatif.candidates import CANDIDATES, OfKind, Suggestion, ranked
from waystation.whatif.changes import changes_of
from waystation.whatif.verdicts import SAVED

_KEY: Final = ("message_id", "origin", "recipient")


def suggestions(
    journal: Journal, progress: Callable[[int, int], None] | None = None
) -> list[Suggestion]:
    """The changes that would have saved somebody, the best first; of equal ones the smallest."""
    return ranked(with_best(_tried(journal, progress)))


def with_best(found: Iterable[Suggestion]) -> list[Suggestion]:
    """Suggestions, the smallest first, that say for which kinds of incidents each is the best."""
    told = list(found)
    for kind in sorted({kind for one in told for kind in one.by_kind}):
        saved = [one.by_kind[kind].saved for one in told]
        if max(saved):
            place = saved.index(max(saved))
            best = replace(told[place].by_kind[kind], is_best=True)
            told[place] = replace(told[place], by_kind={**told[place].by_kind, kind: best})
    return told


def suggestion_lines(found: Sequence[Suggestion]) -> Iterator[str]:
    """Suggestions for people: all of them in order, and the best for each kind of incident."""
    if not found:
        yield "none of the changes that were tried would have saved more than it lost"
        return
    for number, one in enumerate(found, 1):
        yield f"{number}. {one.sentence}"
        yield f"   Price: {one.price}."
    yield "For each kind of incident, the smallest change that would have saved most:"
    for kind, told in found[0].by_kind.items():
        best = next((n for n, one in enumerate(found, 1) if one.by_kind[kind].is_best), None)
        if best is None:
            yield f"   {kind}: none of these ({told.lost:,} lost)"
        else:
            saved = found[best - 1].by_kind[kind].saved
            yield f"   {kind}: {best} ({saved:,} of {told.lost:,} would have arrived)"


def _tried(journal: Journal, progress: Callable[[int, int], None] | None) -> Iterator[Suggestion]:
    asked = Asked(journal)
    kinds = _kinds(journal).persist(StorageLevel.MEMORY_AND_DISK)
    lost = _counted(kinds)
    for number, (told, price) in enumerate(CANDIDATES):
        if progress is not None:
            progress(number, len(CANDIDATES))
        changes = changes_of(told)
        if not asked.has_what_is_left_out(changes):
            continue
        frame = asked.frame(changes)
        sentence = summary(changes, frame)
        if sentence.saved > sentence.lost:
            saved = _counted(_saved(frame, kinds))
            by_kind = {kind: OfKind(saved.get(kind, 0), lost[kind]) for kind in sorted(lost)}
            yield Suggestion(sentence, price, told, by_kind)
    kinds.unpersist()


def _kinds(journal: Journal) -> DataFrame:
    """The losses that sentences count, with the kind of the incident behind each."""
    named = built(journal, "incidents").select("incident_id", "kind")
    losses = built(journal, "losses").where(is_counted())
    return losses.join(named, "incident_id").select(*_KEY, "kind")


def _saved(frame: DataFrame, kinds: DataFrame) -> DataFrame:
    """The losses that would have arrived."""
    saved = frame.where(f.col("verdict") == SAVED).select(*_KEY)
    same = [saved[name].eqNullSafe(kinds[name]) for name in _KEY]
    return kinds.join(saved, same, "left_semi")


def _counted(kinds: DataFrame) -> dict[str, int]:
    return {row["kind"]: row["count"] for row in kinds.groupBy("kind").count().collect()}
