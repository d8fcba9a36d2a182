"""Write the figures of the benchmarks into docs, and a few of them into README.

    python scripts/write_figures.py            after `make bench`
    python scripts/write_figures.py --check    report outdated pages, and exit with 1

docs/reference/figures.md has all of them. Other pages have a pair of marks for each benchmark; what
is between them is generated from benchmarks/results/<name>.json:

    <!-- figures: simulate -->
    <!-- end of figures -->

Sentences with single figures stand in README and on top of docs/explanation/performance.md, between
marks as well; benchmarks/sentences.toml has them.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import generated  # type: ignore[import-not-found] # it is beside this file
import growth_plot  # type: ignore[import-not-found] # it is beside this file

Rows = list[dict[str, Any]]

README = generated.ROOT / "README.md"
FIGURES = generated.ROOT / "docs/reference/figures.md"
DOCS = generated.ROOT / "docs"
PAGES = sorted([*(DOCS / "explanation").glob("*.md"), *(DOCS / "how-to").glob("*.md")])
SENTENCES = tomllib.loads((generated.ROOT / "benchmarks/sentences.toml").read_text("utf-8"))
RESULTS = generated.ROOT / "benchmarks/results"
MARKS = re.compile(r"(<!-- figures: (\w+) -->\n).*?(<!-- end of figures -->)", re.DOTALL)
HEADLINE_MARKS = re.compile(r"(<!-- headlines -->\n).*?(<!-- end of headlines -->)", re.DOTALL)
SUMMARY_MARKS = re.compile(r"(<!-- summary -->\n).*?(<!-- end of summary -->)", re.DOTALL)
RATIO = re.compile(r"(?P<ours>.+) / (?P<theirs>.+?)(?:, above 1 is better)?")

TITLES = {
    "routing": "The routing table",
    "hub": "A large routing table in a node",
    "multicast": "Multicast matching",
    "publish": "Broadcasts in one node",
    "live": "Live nodes",
    "secure": "Secure channels and identities",
    "durable": "Durable messages",
    "start": "Start of a command",
    "websocket": "WebSocket",
    "mqtt": "MQTT",
    "router": "The gossip router",
    "groups": "Groups",
    "claims": "Claims in a large hub",
    "flow": "Beside a receiver that is stopped",
    "journal": "The journal",
    "pipeline": "The pipeline",
    "memory": "Memory of a build",
    "watch": "Tables that follow a journal",
    "why": "One message",
    "lost": "What was lost",
    "sink": "The data source",
    "wire_ockam": "Ockam's format",
    "wire_jgroups": "JGroups' formats",
    "wire_smrf": "SMRF",
    "against": "Before and after the live code was rebuilt",
    "flow_cost": "What flow control, the clock and random ids cost",
    "claims_cost": "What claims cost a hub",
}
"""The benchmarks on the page of all figures, in its order; others have a page of their own."""

INTRODUCTION = """# Figures

Everything that `make bench` measured last; `scripts/write_figures.py` writes this page from
`benchmarks/results`. [Performance](../explanation/performance.md) says what it means. The subjects
of a row took turns in one run on two shared cores, and the values are medians: the ratios are what
counts. In brackets: the first subject's value divided by this one's.
"""


def tables(rows: Rows) -> str:
    """The rows of one benchmark: a line for each case and a column for each subject."""
    cases: dict[str, Rows] = {}
    for row in rows:
        cases.setdefault(row["case"], []).append(row)
    groups: dict[tuple[str, ...], list[Rows]] = {}
    mixed: Rows = []
    for found in cases.values():
        if len({row["unit"] for row in found} - {"ratio"}) > 1:
            mixed += found
        else:
            groups.setdefault(_subjects(found), []).append(found)
    parts = [_table(subjects, alike) for subjects, alike in groups.items()]
    parts += [_list(mixed)] if mixed else []
    versions = ", ".join(f"{name} {version}" for name, version in rows[0]["versions"].items())
    return "\n".join([*parts, f"Measured with {versions}.", ""])


def _list(rows: Rows) -> str:
    """Rows of cases that have several units: a line for each value."""
    lines = ["| case | subject | value | unit |", "|---|---|---:|---|"]
    lines += [
        f"| {row['case']} | {row['subject']} | {readable(row['value'])} | {row['unit']} |"
        for row in rows
    ]
    return "\n".join([*lines, ""])


def _subjects(rows: Rows) -> tuple[str, ...]:
    """The columns of a case: who was measured, and the ratios that belong to none of these."""
    measured = [row["subject"] for row in rows if row["unit"] != "ratio"]
    return tuple(row["subject"] for row in rows if _compared(row, measured) is None)


def _compared(row: dict[str, Any], measured: Sequence[str]) -> str | None:
    """Whom a ratio compares with the first subject; None for everything else."""
    found = RATIO.fullmatch(row["subject"]) if row["unit"] == "ratio" else None
    if found is None or found["theirs"] not in measured or found["ours"] not in measured:
        return None
    return found["theirs"]


def _table(subjects: tuple[str, ...], cases: list[Rows]) -> str:
    lines = [
        f"| case | {' | '.join(subjects)} | unit |",
        f"|---|{'---:|' * len(subjects)}---|",
    ]
    for rows in cases:
        measured = [row["subject"] for row in rows if row["unit"] != "ratio"]
        cells = {row["subject"]: readable(row["value"]) for row in rows}
        for row in rows:
            theirs = _compared(row, measured)
            if theirs is not None:
                cells[theirs] += f" ({readable(row['value'])})"
        values = " | ".join(cells[subject] for subject in subjects)
        unit = next((row["unit"] for row in rows if row["unit"] != "ratio"), "ratio")
        lines.append(f"| {rows[0]['case']} | {values} | {unit} |")
    return "\n".join([*lines, ""])


def readable(value: float) -> str:
    """A measured value, rounded to three digits."""
    if value >= 1_000_000:
        return f"{value / 1_000_000:.3g} M"
    if value >= 1_000:
        return f"{value / 1_000:.3g} k"
    return f"{value:.3g}"


def _results(name: str) -> Rows | None:
    path = RESULTS / f"{name}.json"
    rows: Rows | None = json.loads(path.read_text("utf-8")) if path.exists() else None
    return rows


def written(page: str) -> str:
    """The page with the newest figures."""

    def section(match: re.Match[str]) -> str:
        rows = _results(match[2])
        return match[0] if rows is None else match[1] + tables(rows) + match[3]

    page = MARKS.sub(section, page)
    return SUMMARY_MARKS.sub(lambda match: match[1] + sentences("summary") + match[2], page)


def all_figures() -> str:
    """The page with the figures of all benchmarks."""
    parts = [INTRODUCTION]
    for name, title in TITLES.items():
        rows = _results(name)
        told = f"Not measured yet: `make bench ONLY={name}`.\n" if rows is None else tables(rows)
        parts.append(f"## {title}\n\n{told}")
    return "\n".join(parts)


def _figure(name: str, case: str, subject: str) -> float:
    [value] = [
        row["value"]
        for row in _results(name) or ()
        if (row["case"], row["subject"]) == (case, subject)
    ]
    return float(value)


def sentences(name: str) -> str:
    """The sentences of a page with their figures, one to a line."""
    lines = []
    for told in SENTENCES[name]:
        figures = [readable(_figure(*figure)) for figure in told["figures"]]
        lines.append(f"- {told['sentence'].format(*figures)}")
    return "\n".join([*lines, ""])


def all_written() -> dict[Path, str]:
    """Every page, and the picture, as they should be."""
    pages = {page: written(page.read_text("utf-8")) for page in PAGES}
    pages[FIGURES] = all_figures()
    readme = README.read_text("utf-8")
    headlines = sentences("readme")
    pages[README] = HEADLINE_MARKS.sub(lambda match: match[1] + headlines + match[2], readme)
    drawn = growth_plot.picture()
    return pages if drawn is None else {**pages, growth_plot.PICTURE: drawn}


if __name__ == "__main__":
    generated.main(all_written())
