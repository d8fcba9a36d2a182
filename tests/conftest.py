"""What all tests share: the profiles of hypothesis, and which tests stay together."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings

from waystation.testing.spark import SHORT_LIVED

# `make test` looks briefly and the same every time; `make faults` looks long and anew. Neither
# explains what it found: that takes minutes for a state machine, and the shrunk example says it.
settings.register_profile(
    "test",
    max_examples=60,
    deadline=None,
    derandomize=True,
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
)
settings.register_profile(
    "faults",
    settings.get_profile("test"),
    max_examples=3_000,
    derandomize=False,
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
)
settings.load_profile(os.environ.get("WAYSTATION_HYPOTHESIS", "test"))

# Whoever started the tests may ignore it, as nohup does, and every process below would as well.
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# Every Java below ends soon; compiling all it does as well as it can takes longer than doing it.
os.environ.setdefault("SPARK_SUBMIT_OPTS", " ".join(SHORT_LIVED))

_PIPELINE = Path(__file__).parent / "pipeline"
_FIRST = (
    "test_build",
    "test_clocks",
    "test_command_line",
    "test_days",
    "test_exact",
    "test_notebook",
    "test_schema",
    "test_shipping",
)
"""Tests of the pipeline that take about half of the time; the others, and pages of documentation,
have a second Spark session, so that two processes have work."""

_SESSION = "pipeline.session("
_JOURNALS = Path(__file__).parent / "data" / "journals"


@pytest.fixture(scope="session", autouse=True)
def journals_of_earlier_versions_stay_as_they_are() -> Iterator[None]:
    """Fail if a test let something write to them instead of to a copy."""
    before = _state_of(_JOURNALS)
    yield
    assert _state_of(_JOURNALS) == before, "something changed tests/data/journals"


def _state_of(directory: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}


@pytest.hookimpl(tryfirst=True)  # xdist reads the groups in the same hook
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep tests in one process that share what takes seconds to start: a Spark session, mostly."""
    on_spark = {item.path for item in items if "spark" in getattr(item, "fixturenames", ())}
    for item in items:
        group = _group_of(item, on_spark)
        if group is not None:
            item.add_marker(pytest.mark.xdist_group(group))


def pytest_collection_finish() -> None:
    """Leave what now exists, and stays, out of what the tests collect; else that takes most time.

    Each asynchronous test collects garbage when it ends, so that no error remains unseen.
    """
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    """Let all be collected at the end: modules in C complain of what is left then."""
    gc.unfreeze()


@pytest.hookimpl(tryfirst=True)  # before it is written down what failed
def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Take the group off the name of a test again, so that `--last-failed` finds it."""
    name, mark, group = report.nodeid.rpartition("@")
    if "PYTEST_XDIST_WORKER" in os.environ:  # it has to tell of tests by the names it was given
        return
    if mark and group in ("spark", "second spark", Path(name.partition("::")[0]).stem):
        report.nodeid = name


def _group_of(item: pytest.Item, on_spark: set[Path]) -> str | None:
    name = item.path.stem
    if item.path in on_spark:
        return "spark" if name.startswith(_FIRST) else "second spark"
    if _PIPELINE in item.path.parents:
        return name
    page = getattr(item, "callspec", None) and item.callspec.params.get("path")  # type: ignore[attr-defined]
    if isinstance(page, Path) and page.suffix == ".md" and _SESSION in page.read_text("utf-8"):
        return "second spark"
    return None
