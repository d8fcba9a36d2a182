"""Write generated files, or check them: the command line of the scripts that generate pages."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main(files: Mapping[Path, str]) -> None:
    """Write the files with these contents; with `--check`, exit with 1 if any is out of date."""
    stale = {
        path: text
        for path, text in files.items()
        if not path.exists() or path.read_text("utf-8") != text
    }
    if sys.argv[1:] == ["--check"]:
        for path in stale:
            print(f"{path.relative_to(ROOT)} is out of date; run `make docs`", file=sys.stderr)
        sys.exit(bool(stale))
    for path, text in stale.items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, "utf-8")
