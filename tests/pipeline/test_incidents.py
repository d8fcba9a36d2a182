"""Losses and incidents against what really happened, and Spark's rows against the core's."""

from __future__ import annotations

from pathlib import Path

import pytest

from waystation.pipeline.inprocess import survey, survey_of
from waystation.pipeline.lost import Question, lost_in_journal
from waystation.simulate.fleet import Fleet
from waystation.simulate.journal import CellWriter, prepare
from waystation.simulate.scoring import Tally, score_incidents, score_losses

pytestmark = pytest.mark.timeout(1200)


def written(directory: Path, fleet: Fleet) -> Path:
    """A fleet written without Spark, cell by cell."""
    prepare(directory)
    for cell in range(fleet.cells):
        CellWriter(fleet, cell, directory).write()
    return directory


def measured(directory: Path, seeds: range, *, gaps: bool) -> Tally:
    """Every loss that can be found is, and none is invented; and how incidents fared."""
    real = found = right = 0
    for seed in seeds:
        fleet = Fleet(9, 150, 3_000, seed, gaps=gaps)
        journal = written(directory / f"{seed}", fleet)
        told = survey(str(journal))
        every, tellable = score_losses(journal, told)
        assert every.precision == 1.0, f"seed {seed}: invented losses"
        assert tellable.recall == 1.0, f"seed {seed}: losses were not found"
        assert tellable.real > 0
        tally = score_incidents(journal, told.found.incidents)
        real, found, right = real + tally.real, found + tally.found, right + tally.right
    return Tally(real, found, right)


@pytest.mark.parametrize("gaps", [False, True])
def test_every_loss_is_found_none_is_invented_and_faults_are_incidents(
    tmp_path: Path, gaps: bool
) -> None:
    tally = measured(tmp_path, range(2), gaps=gaps)
    if not gaps:
        assert tally.precision >= 0.95
        assert tally.recall >= 0.95


@pytest.mark.fault
def test_twenty_fleets(tmp_path: Path) -> None:
    whole = measured(tmp_path / "whole", range(20), gaps=False)
    assert whole.precision >= 0.95
    assert whole.recall >= 0.95
    measured(tmp_path / "gaps", range(20), gaps=True)


def test_the_rows_of_one_participant_tell_what_it_lost(tmp_path: Path) -> None:
    journal = str(written(tmp_path / "journal", Fleet(9, 150, 3_000, seed=3)))
    every = lost_in_journal(journal, Question(internal=True)).losses
    names = sorted({loss.recipient for loss in every if loss.recipient is not None})
    compared = 0
    for name in names[::5]:
        alone = survey_of(journal, name)
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
