"""The example notebook runs from top to bottom, and finds the lost message."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

NOTEBOOK = Path(__file__).parents[2] / "examples" / "pipeline_notebook.py"


def test_the_notebook_finds_the_lost_message(
    spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    assert spark is not None  # the notebook uses the existing session
    names = runpy.run_path(str(NOTEBOOK))
    [lost] = names["dropped"]
    assert (lost.node, lost.recipient, lost.reason) == ("hall", "scale", "NO_ROUTE")
    assert [interval.closed_by for interval in names["scale"]] == ["removed"]
    assert "hall: scale got nothing, NO_ROUTE (ok)" in capsys.readouterr().out
