"""What tests share takes seconds to start, so those that share it run in the same process."""

from __future__ import annotations

import pytest


def test_tests_on_a_spark_session_run_in_one_process(request: pytest.FixtureRequest) -> None:
    if not request.config.getoption("loadgroup", default=False):
        pytest.skip("one process runs all the tests")
    groups = {item.nodeid.rpartition("@")[2] for item in request.session.items if uses_spark(item)}
    assert groups <= {"spark", "second spark"}


def uses_spark(item: pytest.Item) -> bool:
    return "spark" in getattr(item, "fixturenames", ())
