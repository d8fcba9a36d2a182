"""The states that the documentation shows are those of the code."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_tables_of_states_on_the_pages_are_up_to_date() -> None:
    checked = subprocess.run(
        [sys.executable, ROOT / "scripts/draw_states.py", "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (checked.returncode, checked.stderr) == (0, "")
