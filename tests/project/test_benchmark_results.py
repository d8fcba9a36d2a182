"""The results of a benchmark: written figure by figure, so that an interrupted run leaves some."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import harness
from benchmarks.harness import Report


@pytest.fixture(autouse=True)
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(harness, "RESULTS", tmp_path / "results")
    return tmp_path / "results"


def told(results: Path) -> dict[tuple[str, str], float]:
    rows = json.loads((results / "one.json").read_text("utf-8"))
    return {(row["case"], row["subject"]): row["value"] for row in rows}


def test_each_figure_is_in_the_file_at_once(results: Path) -> None:
    report = Report("one")
    report.note("put", {"ours": 4.0, "theirs": 2.0}, "ops/s")
    assert told(results) == {
        ("put", "ours"): 4.0, ("put", "theirs"): 2.0, ("put", "ours / theirs"): 2.0,
    }  # fmt: skip
    assert [path.name for path in results.iterdir()] == ["one.json"]


def test_an_interrupted_run_keeps_what_it_has_not_measured_again(results: Path) -> None:
    former = Report("one")
    former.add("put", "ours", 1.0, "s")
    former.add("get", "ours", 2.0, "s")
    former.write()
    Report("one").add("put", "ours", 3.0, "s")
    assert told(results) == {("put", "ours"): 3.0, ("get", "ours"): 2.0}


@pytest.mark.parametrize("keep", [True, False])
def test_a_finished_run_keeps_other_cases_only_if_asked(results: Path, keep: bool) -> None:
    former = Report("one")
    former.add("put", "theirs", 1.0, "s")
    former.add("get", "ours", 2.0, "s")
    report = Report("one", keep=keep)
    report.add("put", "ours", 3.0, "s")
    report.write()
    assert told(results) == {("put", "ours"): 3.0} | ({("get", "ours"): 2.0} if keep else {})


def test_a_write_that_fails_leaves_the_former_file(
    results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = Report("one")
    report.add("put", "ours", 1.0, "s")

    def full(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OSError, match="no space"):
        report.add("get", "ours", 2.0, "s")
    assert told(results) == {("put", "ours"): 1.0}


def resumed(revision: str = "abc") -> Report:
    return Report("one", revision=revision, resume=True)


def test_a_resumed_run_measures_only_what_is_missing(results: Path) -> None:
    interrupted = Report("one", revision="abc")
    interrupted.note("put", {"ours": 4.0, "theirs": 2.0}, "ops/s")

    def measured() -> int:
        raise AssertionError("it was measured before")

    report = resumed()
    assert not report.is_finished
    found = report.compare("put", {"ours": measured, "theirs": measured})
    assert found == {"ours": 4.0, "theirs": 2.0}
    assert not report.has("put", "get")
    report.add("get", "ours", 1.0, "s")
    report.write()
    assert told(results) == {
        ("put", "ours"): 4.0, ("put", "theirs"): 2.0, ("put", "ours / theirs"): 2.0,
        ("get", "ours"): 1.0,
    }  # fmt: skip
    assert resumed().is_finished


def test_figures_of_another_commit_are_measured_again(results: Path) -> None:
    former = Report("one", revision="abc")
    former.add("put", "ours", 4.0, "ops/s")
    former.write()
    assert not resumed("def").is_finished
    assert not resumed("def").has("put")
    assert not Report("one", revision="abc").has("put"), "nobody asked to resume"
    assert not resumed("").has("put"), "what is measured is not committed"
    assert told(results) == {("put", "ours"): 4.0}


def test_cases_of_one_name_are_told_apart_by_their_subjects() -> None:
    former = Report("one", revision="abc")
    former.note("put at 7/s", {"ours": 4.0, "theirs": 2.0}, "ops/s")
    report = resumed()
    assert not report.has("put*", subjects=["another"])
    assert report.has("put*", subjects=["ours", "theirs"])
    assert [row["subject"] for row in report.rows] == ["ours", "theirs", "ours / theirs"]


DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_every_result_is_shown_in_a_table() -> None:
    script = (DOCS.parent / "scripts/write_figures.py").read_text("utf-8")
    pages = "".join(path.read_text("utf-8") for path in (DOCS / "explanation").glob("*.md"))
    for path in (DOCS.parent / "benchmarks/results").glob("*.json"):
        assert f'"{path.stem}": ' in script or f"<!-- figures: {path.stem} -->" in pages, path.name


def test_the_page_on_performance_can_be_read_in_ten_minutes() -> None:
    page = (DOCS / "explanation/performance.md").read_text("utf-8")
    assert len(page.split()) <= 2_000
    summary = page.partition("<!-- summary -->\n")[2].partition("<!-- end of summary -->")[0]
    assert len(summary.splitlines()) == 10
