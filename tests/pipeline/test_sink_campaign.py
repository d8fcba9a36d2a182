"""The example campaign reaches the right trucks, and nobody else."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

EXAMPLE = Path(__file__).parents[2] / "examples" / "campaign.py"


@pytest.mark.timeout(300)
def test_the_campaign_reaches_the_trucks_that_were_in_a_munich(
    spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    assert spark is not None  # the example uses the existing session
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    assert capsys.readouterr().out.splitlines() == [
        "truck-1: come in for a check",
        "truck-4: come in for a check",
    ]
