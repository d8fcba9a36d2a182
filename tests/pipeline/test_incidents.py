"""Losses and incidents against what really happened, and Spark's rows against the core's."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.journal.test_damage import damage_second_batch
from tests.journal.test_recovery import left_tail
from tests.pipeline.small import put_rows, row
from waystation.journal.seal import seal_all_left
from waystation.pipeline.inprocess import listed, nodes_of, survey, survey_of
from waystation.pipeline.listing import EVERYTHING
from waystation.pipeline.lost import LARGE, Question, lost_in_journal
from waystation.simulate.fleet import Fleet
from waystation.simulate.journal import CellWriter, prepare
from waystation.simulate.scoring import Tally, score_incidents, score_losses
from waystation.why import explain

pytestmark = pytest.mark.timeout(1200)

SENT = f"{777:032x}"


def written(directory: Path, fleet: Fleet) -> Path:
    """A fleet written without Spark, cell by cell."""
    prepare(directory)
    for cell in range(fleet.cells):
        CellWriter(fleet, cell, directory).write()
    return directory


def measured(directory: Path, seeds: range, *, gaps: bool) -> tuple[Tally, Tally]:
    """Every loss that can be found is, and none is invented; and how incidents fared."""
    scores = []
    for seed in seeds:
        fleet = Fleet(9, 150, 3_000, seed, gaps=gaps)
        journal = written(directory / f"{seed}", fleet)
        told = survey(str(journal))
        every, tellable = score_losses(journal, told)
        assert every.precision == 1.0, f"seed {seed}: invented losses"
        assert tellable.recall == 1.0, f"seed {seed}: losses were not found"
        assert tellable.real > 0
        scores.append(score_incidents(journal, told.found.incidents))
    of_all, of_tellable = zip(*scores, strict=True)
    return summed(of_all), summed(of_tellable)


def summed(tallies: Iterable[Tally]) -> Tally:
    """All of them together."""
    numbers = ((one.real, one.found, one.right) for one in tallies)
    return Tally(*map(sum, zip(*numbers, strict=True)))


def check_incidents(every: Tally, tellable: Tally, *, gaps: bool) -> None:
    """Faults are incidents, as far as the journals tell; where they do not, none is invented."""
    assert every.precision >= 0.95
    assert tellable.recall >= 0.95
    assert tellable.real > 50
    # With gaps it is mostly not said that nobody heard a broadcast: a part of its way is unknown.
    assert every.recall >= (0.6 if gaps else 0.95)


@pytest.mark.parametrize("gaps", [False, True])
def test_every_loss_is_found_none_is_invented_and_faults_are_incidents(
    tmp_path: Path, gaps: bool
) -> None:
    check_incidents(*measured(tmp_path, range(2), gaps=gaps), gaps=gaps)


@pytest.mark.fault
@pytest.mark.parametrize("gaps", [False, True])
def test_twenty_fleets(tmp_path: Path, gaps: bool) -> None:
    check_incidents(*measured(tmp_path, range(20), gaps=gaps), gaps=gaps)


def test_the_rows_of_one_participant_tell_what_it_lost(tmp_path: Path) -> None:
    journal = str(written(tmp_path / "journal", Fleet(9, 150, 3_000, seed=3)))
    every = lost_in_journal(journal, Question(internal=True)).losses
    names = sorted({loss.recipient for loss in every if loss.recipient is not None})
    compared = 0
    for name in names[::5]:
        alone = survey_of(list(nodes_of(listed(journal), EVERYTHING)), name)
        assert alone is not None
        found = {(one.loss.message_id, one.loss.origin, one.cause) for one in alone.found.losses}
        assert found == {
            (one.message_id, one.origin, one.cause) for one in every if one.recipient == name
        }
        compared += len(found)
    assert compared > 50
    question = Question(participant=names[0], internal=True)
    as_a_whole = lost_in_journal(journal, question).losses
    assert lost_in_journal(journal, question, large=0).losses == as_a_whole


def sent_to_garage(journal: Path) -> Path:
    """A hub sent a message to the garage, which has no row of it; returns the tail of the garage.

    The garage was killed a minute later.
    """
    sent = row("messages", 1, message_id=SENT, outcome="FORWARDED", next_node="garage", out="tcp-1")
    put_rows(journal, "messages", [sent], "hub", version=2)
    later = row("nodes", 100, 60_000_000, kind="clock", incarnation=5)
    put_rows(journal, "nodes", [later], "garage", version=2)
    return left_tail(journal)


def state_of(directory: Path) -> dict[str, tuple[int, bytes]]:
    """The files of a journal: when each was changed, and its content."""
    return {
        str(path.relative_to(directory)): (path.stat().st_mtime_ns, path.read_bytes())
        for path in directory.rglob("*")
        if path.is_file()
    }


@pytest.mark.rule("OB-5")
@pytest.mark.parametrize("large", [LARGE, 0], ids=["as a whole", "by participant"])
def test_who_asks_what_was_lost_reads_tails_and_writes_nothing(tmp_path: Path, large: int) -> None:
    sent_to_garage(tmp_path)
    before = state_of(tmp_path)
    for question in (Question(), Question(participant="a")):
        [loss] = lost_in_journal(str(tmp_path), question, large=large).losses
        assert (loss.reason, loss.node, loss.next_node) == ("VANISHED", "hub", "garage")
    assert explain(tmp_path, SENT).ways[0].reason == "VANISHED"
    assert state_of(tmp_path) == before


@pytest.mark.rule("OB-9")
@pytest.mark.parametrize("sealed", [False, True])
def test_what_may_be_in_the_damaged_part_of_a_tail_is_not_lost(
    tmp_path: Path, sealed: bool
) -> None:
    damage_second_batch(sent_to_garage(tmp_path))
    if sealed:
        seal_all_left(tmp_path)
    answer = lost_in_journal(str(tmp_path), Question())
    assert answer.losses == []
    [way] = explain(tmp_path, SENT).ways
    assert (way.outcome, way.unknown_copies) == ("FORWARDED", 1)


def test_a_subscriber_is_told_what_it_may_have_missed_without_reading_the_rest(
    tmp_path: Path,
) -> None:
    journal = str(written(tmp_path / "journal", Fleet(9, 150, 3_000, seed=3)))
    files = Path(journal).glob("subscriptions/node=*/*.parquet")
    ears = {name for file in files for name in pq.read_table(file)["receiver"].to_pylist()}
    missed = 0
    for name in sorted(ears)[::12]:
        question = Question(participant=name, internal=True)
        told = lost_in_journal(journal, question, large=0).losses
        assert told == lost_in_journal(journal, question).losses
        missed += sum(loss.may_have_missed for loss in told)
    assert missed > 0
