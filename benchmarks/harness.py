"""How things are measured here: side by side, in turns, medians, with versions, written to JSON.

A benchmark is a module `bench_<name>.py` with a function `run(report: Report) -> None`. It gives
`Report.compare` several subjects that do the same work; each subject is a callable that does some
operations and returns how many. The subjects take turns, so that a noisy moment of the machine
hits them all, and the median of the turns counts.
"""

from __future__ import annotations

import gc
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import TypeVar

from waystation import __version__

RESULTS = Path(__file__).parent / "results"
MEASURED = ("src", "benchmarks", ":!benchmarks/results")
"""What figures depend on, of what is committed."""

Subject = Callable[[], int]
T = TypeVar("T")


def seconds(work: Callable[[], object], *, collect: bool = True) -> float:
    """How long one call takes, with the garbage collector quiet as in `timeit`."""
    if collect:
        gc.collect()
    gc.disable()
    try:
        start = time.perf_counter()
        work()
        return time.perf_counter() - start
    finally:
        gc.enable()


class Report:
    """The results of one benchmark: printed and written to `results/<name>.json` as they come.

    Until the end, figures of an earlier run stay in the file where this one has none yet, so an
    interrupted run loses nothing. With `keep` they stay for good where this run has no figure of
    their case: for benchmarks that take so long that they are run in parts.

    With `resume` this run goes on with an earlier one of the same `revision`: what that measured is
    not measured again. Who takes long for a case asks `has` before it begins.
    """

    def __init__(
        self,
        name: str,
        packages: tuple[str, ...] = (),
        *,
        keep: bool = False,
        revision: str = "",
        resume: bool = False,
    ) -> None:
        self.name = name
        self._revision = revision
        self._resume = resume and bool(revision)
        self.rows: list[dict[str, object]] = []
        self._path = RESULTS / f"{name}.json"
        self._keep = keep
        self._former: list[dict[str, object]] = []
        if self._path.exists():
            self._former = json.loads(self._path.read_text("utf-8"))
        self.versions = {
            "python": platform.python_version(),
            "machine": platform.machine(),
            "waystation": __version__,
            **{package: metadata.version(package) for package in packages},
        }

    def add(self, case: str, subject: str, value: float, unit: str) -> None:
        """Note one figure."""
        rounded = float(f"{value:.4g}")
        row = {"case": case, "subject": subject, "value": rounded, "unit": unit}
        at = {"revision": self._revision, "is_part": True} if self._revision else {}
        self.rows.append({**row, "versions": self.versions, **at})
        print(f"  {case:<44} {subject:<28} {rounded:>14,.6g} {unit}", flush=True)
        measured = {(row["case"], row["subject"]) for row in self.rows}
        self._save([old for old in self._former if (old["case"], old["subject"]) not in measured])

    def compare(
        self, case: str, subjects: Mapping[str, Subject], *, turns: int = 5, unit: str = "ops/s"
    ) -> dict[str, float]:
        """Measure the subjects in turns; the ratios of the first, ours, to the others are noted."""
        if self.has(case):
            return {str(row["subject"]): float(str(row["value"])) for row in self._of(case)}
        rates: dict[str, list[float]] = {name: [] for name in subjects}
        for subject in subjects.values():  # warm up
            subject()
        for _ in range(turns):
            for name, subject in subjects.items():
                done = 0

                def work(subject: Subject = subject) -> None:
                    nonlocal done
                    done = subject()

                elapsed = seconds(work)
                rates[name].append(done / elapsed)
        medians = medians_of(rates)
        self.note(case, medians, unit)
        return medians

    def note(self, case: str, figures: Mapping[str, float], unit: str) -> None:
        """Note a figure for each subject, and the ratios of the first, ours, to the others."""
        ours = next(iter(figures))
        for name, value in figures.items():
            self.add(case, name, value, unit)
        for name, value in figures.items():
            if name != ours and value:
                self.add(case, f"{ours} / {name}", figures[ours] / value, "ratio")

    def has(self, *cases: str, subjects: Sequence[str] = ()) -> bool:
        """Whether the run that this one goes on with measured these cases; then they stay.

        The name of a case may end with a `*`. Give `subjects` where others have cases so named.
        """
        found = [self._resumed(case, subjects) for case in cases]
        if not all(found):
            return False
        for rows in found:
            self.rows += [row for row in rows if row not in self.rows]
        print(f"  {cases[0]}: measured before", flush=True)
        return True

    @property
    def is_finished(self) -> bool:
        """Whether the run that this one would go on with came to its end."""
        found = [row for row in self._former if row.get("revision") == self._revision]
        return self._resume and bool(found) and not any(row.get("is_part") for row in found)

    def _resumed(self, case: str, subjects: Sequence[str]) -> list[dict[str, object]]:
        return [
            row
            for row in self._former
            if self._resume
            and row.get("revision") == self._revision
            and _is_named(str(row["case"]), case)
            and (not subjects or str(row["subject"]).partition(" / ")[0] in subjects)
        ]

    def _of(self, case: str) -> list[dict[str, object]]:
        return [row for row in self.rows if row["case"] == case and row["unit"] != "ratio"]

    def write(self) -> None:
        """Write the JSON file that the documentation's figures come from."""
        for row in self.rows:
            row.pop("is_part", None)
        measured = {row["case"] for row in self.rows}
        kept = [row for row in self._former if self._keep and row["case"] not in measured]
        self._save(kept)

    def _save(self, kept: list[dict[str, object]]) -> None:
        """Replace the file at once: who interrupts this run never finds half of one."""
        self._path.parent.mkdir(exist_ok=True)
        new = self._path.with_suffix(".new")
        new.write_text(json.dumps([*kept, *self.rows], indent=1) + "\n", "utf-8")
        new.replace(self._path)


def _is_named(case: str, name: str) -> bool:
    return case.startswith(name[:-1]) if name.endswith("*") else case == name


def source_revision() -> str:
    """The commit that is measured; empty if what is measured differs from it."""
    git = ["git", "-C", str(Path(__file__).parent.parent)]
    if subprocess.run([*git, "diff", "--quiet", "HEAD", "--", *MEASURED], check=False).returncode:  # noqa: S603
        return ""
    found = subprocess.run(  # noqa: S603
        [*git, "rev-list", "-1", "HEAD", "--", *MEASURED],
        capture_output=True,
        text=True,
        check=False,
    )
    return found.stdout.strip()


def in_turns(measures: Mapping[str, Callable[[], T]], turns: int) -> dict[str, list[T]]:
    """What each subject gave, turn by turn; in a turn all of them are measured."""
    found: dict[str, list[T]] = {name: [] for name in measures}
    for _ in range(turns):
        for name, measure in measures.items():
            found[name].append(measure())
    return found


def medians_of(found: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """The median of what each subject gave."""
    return {name: statistics.median(values) for name, values in found.items()}


def resident_bytes(pid: int | None = None) -> int:
    """The resident memory of a process, by default this one (Linux)."""
    pages = int(Path(f"/proc/{pid or 'self'}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def fail(text: str) -> None:
    """End the run with one clear line."""
    sys.exit(f"bench: {text}")
