"""The section of the report on what would have been, from the table `whatif` (SP-9)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.pipeline.test_report import id_of, write_all
from waystation.pipeline.tables import WHATIF
from waystation.report import write_report
from waystation.report.blocks import Grid, Section
from waystation.report.facts import gather
from waystation.report.page import sections
from waystation.report.reading import Tables

DELIVERED = ("DELIVERED", None)
NO_ROUTE = ("DROPPED", "NO_ROUTE")
CHANGE = "all <routes> had been sticky"


def asked(directory: Path, *rows: tuple[str, Any, Any], internal: bool = False) -> None:
    """Write the table `whatif`, with the verdict, the end before and the end after of each row."""
    found: list[dict[str, Any]] = [
        {
            "message_id": id_of(number),
            "verdict": verdict,
            "before_outcome": before[0],
            "before_reason": before[1],
            "after_outcome": after[0],
            "after_reason": after[1],
            "internal": internal,
            "change": CHANGE,
        }
        for number, (verdict, before, after) in enumerate(rows)
    ]
    columns = {name: [row.get(name) for row in found] for name in WHATIF.names}
    (directory / "whatif").mkdir(exist_ok=True)
    path = directory / "whatif" / f"{'ours' if internal else 'theirs'}.parquet"
    pq.write_table(pa.table(columns, WHATIF), path)


def section(directory: Path) -> Section | None:
    facts = gather(Tables(directory), lambda _: None)
    return next((one for one in sections(facts, directory) if one.id == "what-if"), None)


def texts(grid: Any) -> list[list[str]]:
    assert isinstance(grid, Grid)
    return [[str(cell.text) for cell in row] for row in grid.rows]


@pytest.mark.rule("SP-9")
def test_the_report_shows_how_messages_ended_before_and_after(tmp_path: Path) -> None:
    write_all(tmp_path)
    same = ("same", DELIVERED, DELIVERED)
    rows = [same, same, ("saved", NO_ROUTE, DELIVERED), ("same", NO_ROUTE, NO_ROUTE)]
    asked(tmp_path, *rows, ("lost", DELIVERED, NO_ROUTE), ("unknown", NO_ROUTE, (None, None)))
    asked(tmp_path, ("saved", NO_ROUTE, DELIVERED), internal=True)
    found = section(tmp_path)
    assert found is not None
    words, ends, verdicts = found.blocks
    assert getattr(words, "text", "") == (
        f"If {CHANGE}: 1 of 3 lost messages would have arrived; 1 other would not."
    )
    assert texts(ends) == [["delivered", "3", "3", "0"], ["no_route", "3", "2", "-1"]]
    assert [row[:1] + row[2:3] for row in texts(verdicts)] == [
        ["saved", "1"],
        ["lost", "1"],
        ["unknown", "1"],
        ["same", "3"],
    ]
    assert texts(verdicts)[0][3].startswith(f"waystation why {id_of(2)} --tables ")


def test_names_in_it_are_escaped(tmp_path: Path) -> None:
    write_all(tmp_path)
    asked(tmp_path, ("saved", NO_ROUTE, DELIVERED))
    write_report(tmp_path, tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert "all &lt;routes&gt; had been sticky" in page
    assert CHANGE not in page


def test_without_an_answer_there_is_no_section(tmp_path: Path) -> None:
    write_all(tmp_path)
    assert section(tmp_path) is None
