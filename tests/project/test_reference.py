"""The pages of the reference that are written by hand say what the code says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.project.test_commands import COMMANDS, DOCUMENTS, variable_of
from waystation.core.outcome import Outcome, Reason
from waystation.journal.schema import SCHEMAS
from waystation.pipeline.tables import BUILT

ROOT = Path(__file__).resolve().parents[2]
REFERENCE = ROOT / "docs/reference"


def cells(page: str, first: str) -> list[str]:
    """The names in the last cell of the row that begins with a name."""
    text = (REFERENCE / page).read_text("utf-8")
    [row] = re.findall(rf"^\| `{first}` \|(.*)\|$", text, re.MULTILINE)
    return re.findall(r"`(\w+)`", re.sub(r"\([^)]*\)", "", row.split("|")[-1]))


@pytest.mark.parametrize("table", BUILT)
def test_every_column_of_a_built_table_is_on_its_page(table: str) -> None:
    assert cells("tables.md", table) == BUILT[table].names


@pytest.mark.parametrize("table", SCHEMAS)
def test_every_column_of_the_journal_is_on_its_page(table: str) -> None:
    assert ["incarnation", "seq", "at", *cells("journal.md", table)] == SCHEMAS[table].names


@pytest.mark.parametrize("page", ["errors.md", "reasons.md"])
def test_every_reason_and_outcome_is_told(page: str) -> None:
    text = (REFERENCE / page).read_text("utf-8")
    told = set(re.findall(r"^(?:## |\| `)([A-Z_]+)\b", text, re.MULTILINE))
    assert told >= {str(reason) for reason in Reason}
    assert told <= {str(word) for word in [*Reason, *Outcome]}


def test_every_variable_that_a_page_names_is_read_by_some_option() -> None:
    known: set[str | None] = {"WAYSTATION_HYPOTHESIS"}  # of the tests, not of a command
    for context in COMMANDS:
        known.update(variable_of(parameter, context) for parameter in context.command.params)
    for path in DOCUMENTS:
        named = set(re.findall(r"\bWAYSTATION_[A-Z][A-Z_]*\b", path.read_text("utf-8")))
        assert named <= known, f"{path.name} names {named - known}"
