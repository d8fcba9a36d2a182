"""What a row costs, in fleets of growing size, and what that comes to for 100 million participants.

An hour of a fleet is simulated and its tables are built, again for twice and four times as many
nodes that do as much each. The first figures are measured: if the cost of a row is the same at all
sizes, it may be multiplied. Those called "computed" are the products, for one hour, with
100,000 nodes of 1,000 participants that send 10 messages each.

A core-second is a second of one core that the run had, used or not.
"""

from __future__ import annotations

import os
from typing import Any

from benchmarks.harness import Report
from benchmarks.scaling.child import measured
from benchmarks.scaling.fleets import (
    MESSAGES_A_PARTICIPANT,
    NODES_A_CELL,
    PARTICIPANTS_A_NODE,
    scratch,
)

PACKAGES = ("pyspark", "pyarrow", "numpy")
CELLS = [int(cells) for cells in os.environ.get("WAYSTATION_BENCH_CELLS", "1,2,4").split(",")]
PARTICIPANTS = 100_000_000
OF_MESSAGES = ("expected", "traces", "audit", "health")
GIGA, TERA = 1e9, 1e12


def run(report: Report) -> None:
    cores = len(os.sched_getaffinity(0))
    found = [_measured(cells) for cells in CELLS]
    for cells, answer in zip(CELLS, found, strict=True):
        _note_costs(report, f"{cells * NODES_A_CELL} nodes", answer, cores)
    largest = found[-1]
    _note_sizes(report, f"{CELLS[-1] * NODES_A_CELL} nodes", largest)
    _compute(report, largest, CELLS[-1], cores)


def _measured(cells: int) -> dict[str, Any]:
    with scratch() as directory:
        return measured(
            master="local[*]",
            journal=str(directory / "journal"),
            directory=str(directory / "work"),
            cells=cells,
        )


def _note_costs(report: Report, size: str, answer: dict[str, Any], cores: int) -> None:
    rows = answer["rows"]
    total = sum(rows.values())
    report.add(f"{size}, journal", "simulate", total / 1e6, "M rows")
    _cost(report, f"{size}, simulate", answer["simulate"], total, cores)
    _cost(report, f"{size}, all tables", answer["build"], total, cores)
    _cost(
        report, f"{size}, route_history", answer["tables"]["route_history"], rows["routes"], cores
    )
    for table in OF_MESSAGES:
        _cost(report, f"{size}, {table}", answer["tables"][table], rows["messages"], cores)


def _cost(report: Report, case: str, taken: float, rows: int, cores: int) -> None:
    report.add(case, "cost of a row", taken * cores / rows * 1e6, "core-µs")


def _note_sizes(report: Report, size: str, answer: dict[str, Any]) -> None:
    for table in ("routes", "messages"):
        report.add(
            f"{size}, {table}",
            "journal",
            answer["bytes"][table] / answer["rows"][table],
            "bytes/row",
        )
    total = sum(answer["rows"].values())
    report.add(f"{size}, tables", "written", sum(answer["written"].values()) / total, "bytes/row")
    exchanged = answer["exchanged"] / answer["rows"]["messages"]
    report.add(f"{size}, traces and health", "exchanged", exchanged, "bytes/row")
    report.add(f"{size}, files", "listed", answer["files"] / answer["listing"], "files/s")


def _compute(report: Report, answer: dict[str, Any], cells: int, cores: int) -> None:
    """What it comes to for so many participants, in one hour and in a day."""
    times = PARTICIPANTS / (cells * NODES_A_CELL * PARTICIPANTS_A_NODE)
    rows = answer["rows"]
    messages = PARTICIPANTS * MESSAGES_A_PARTICIPANT
    case = f"100 M participants, {messages / GIGA:g} G messages, an hour"
    hours = answer["build"] * cores * times / 3_600
    for what, value, unit in (
        ("rows of the journal, computed", sum(rows.values()) * times / GIGA, "G"),
        ("journal, computed", sum(answer["bytes"].values()) * times / TERA, "TB"),
        ("tables, computed", sum(answer["written"].values()) * times / TERA, "TB"),
        ("exchanged, computed", answer["exchanged"] * times / TERA, "TB"),
        ("files, computed", answer["files"] * times / 1e6, "M"),
        ("time to list them, computed", answer["listing"] * times, "s"),
        ("simulate, computed", answer["simulate"] * cores * times / 3_600, "core-hours"),
        ("all tables, computed", hours, "core-hours"),
        ("cores to keep pace, computed", hours, "cores"),
    ):
        report.add(case, what, value, unit)
