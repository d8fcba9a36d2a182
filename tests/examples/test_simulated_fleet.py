"""The example of a simulated fleet finds the bug that was planted in it, and only that."""

from __future__ import annotations

import pytest

from examples import simulated_fleet


def test_the_planted_bug_is_found(capsys: pytest.CaptureFixture[str]) -> None:
    simulated_fleet.main(careful=False)
    assert capsys.readouterr().out == "seed 0: booked twice: 36\n"


def test_where_there_is_no_bug_nothing_is_found(capsys: pytest.CaptureFixture[str]) -> None:
    simulated_fleet.main(careful=True)
    assert capsys.readouterr().out == "20 seeds, nothing was booked twice\n"
