"""Write the figures of the benchmarks into docs/explanation/performance.md.

    python scripts/write_figures.py            after `make bench`
    python scripts/write_figures.py --check    say whether the page is out of date, and end with 1

The page has a pair of marks for each benchmark, and what stands between them comes from
benchmarks/results/<name>.json:

    <!-- figures: routing -->
    <!-- end of figures -->
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/explanation/performance.md"
RESULTS = ROOT / "benchmarks/results"
MARKS = re.compile(r"(<!-- figures: (\w+) -->\n).*?(<!-- end of figures -->)", re.DOTALL)


def table(rows: list[dict[str, Any]]) -> str:
    """The rows of one benchmark as a table, with the versions below."""
    lines = ["| case | subject | value | unit |", "|---|---|---:|---|"]
    lines += [
        f"| {row['case']} | {row['subject']} | {readable(row['value'])} | {row['unit']} |"
        for row in rows
    ]
    versions = ", ".join(f"{name} {version}" for name, version in rows[0]["versions"].items())
    return "\n".join([*lines, "", f"Measured with {versions}.", ""])


def readable(value: float) -> str:
    """Three digits are all that a measurement deserves."""
    if value >= 1_000_000:
        return f"{value / 1_000_000:.3g} M"
    if value >= 1_000:
        return f"{value / 1_000:.3g} k"
    return f"{value:.3g}"


def written(page: str) -> str:
    """The page with the newest figures."""

    def section(match: re.Match[str]) -> str:
        results = RESULTS / f"{match[2]}.json"
        if not results.exists():
            return match[0]
        return match[1] + table(json.loads(results.read_text("utf-8"))) + match[3]

    return MARKS.sub(section, page)


def main(arguments: list[str]) -> int:
    """Write the page, or check it."""
    before = PAGE.read_text("utf-8")
    after = written(before)
    if arguments == ["--check"]:
        if before != after:
            print(
                "the figures of the docs are not those of the results: `make docs`", file=sys.stderr
            )
        return int(before != after)
    PAGE.write_text(after, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
