"""What all tests share: the profiles of hypothesis, and which tests stay together."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings

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

_PIPELINE = Path(__file__).parent / "pipeline"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the tests of the pipeline in one process: they share a Spark session."""
    for item in items:
        if _PIPELINE in item.path.parents:
            item.add_marker(pytest.mark.xdist_group("spark"))
