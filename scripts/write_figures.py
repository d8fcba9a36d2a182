"""Write the figures of the benchmarks into the pages of docs/explanation, and a few into README.

    python scripts/write_figures.py            after `make bench`
    python scripts/write_figures.py --check    report outdated pages, and exit with 1

A page has a pair of marks for each benchmark; what is between them is generated from
benchmarks/results/<name>.json:

    <!-- figures: routing -->
    <!-- end of figures -->
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import generated  # type: ignore[import-not-found] # it is beside this file
import growth_plot  # type: ignore[import-not-found] # it is beside this file

README = generated.ROOT / "README.md"
PAGES = sorted((generated.ROOT / "docs/explanation").glob("*.md"))
RESULTS = generated.ROOT / "benchmarks/results"
MARKS = re.compile(r"(<!-- figures: (\w+) -->\n).*?(<!-- end of figures -->)", re.DOTALL)
HEADLINE_MARKS = re.compile(r"(<!-- headlines -->\n).*?(<!-- end of headlines -->)", re.DOTALL)

_OCKAM = "waystation, TCP / Ockam in Rust, one thread"

HEADLINES = (
    (
        "{} times the messages per second of JGroups 5.5's own gossip router",
        ("router", "one to one, 100 B", "waystation / JGroups 5.5.7.Final"),
    ),
    (
        (
            "{} times the messages per second of an Ockam node in Rust, over TCP; "
            "a round trip takes {} times as long"
        ),
        ("live", "TCP, 1 hop, 100 B, one way", _OCKAM),
        ("live", "TCP, 1 hop, 100 B, round trip p50", _OCKAM),
    ),
    (
        "{} times as fast as the same question in DuckDB: what should have become of 10 M messages",
        ("pipeline", "expected with histories, 10 M rows, warm", "waystation / DuckDB"),
    ),
)
"""The sentences of README, with the result, case and subject of each figure in them."""


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
    """A measured value, rounded to three digits."""
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


def _figure(name: str, case: str, subject: str) -> float:
    rows = json.loads((RESULTS / f"{name}.json").read_text("utf-8"))
    [value] = [row["value"] for row in rows if (row["case"], row["subject"]) == (case, subject)]
    return float(value)


def headlines() -> str:
    """The figures of README, one to a line."""
    lines = []
    for sentence, *figures in HEADLINES:
        lines.append(f"- {sentence.format(*(readable(_figure(*figure)) for figure in figures))}")
    return "\n".join([*lines, ""])


def all_written() -> dict[Path, str]:
    """Every page, and the picture, as they should be."""
    pages = {page: written(page.read_text("utf-8")) for page in PAGES}
    readme = README.read_text("utf-8")
    pages[README] = HEADLINE_MARKS.sub(lambda match: match[1] + headlines() + match[2], readme)
    drawn = growth_plot.picture()
    return pages if drawn is None else {**pages, growth_plot.PICTURE: drawn}


if __name__ == "__main__":
    generated.main(all_written())
