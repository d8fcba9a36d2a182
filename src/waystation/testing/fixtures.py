"""The fixtures of the kit for pytest; the only module of the kit that needs pytest.

# conftest.py
from waystation.testing.fixtures import fleet

# test_trucks.py
@pytest.mark.parametrize("fleet", ["memory", "tcp"], indirect=True)
def test_trucks(fleet):
async def scenario(fleet):
...
fleet.run(scenario)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pytest

from waystation.testing.fleet import Fleet

FLEETS: Final[dict[str, Callable[[], Fleet]]] = {"memory": Fleet, "tcp": Fleet.over_tcp}
"""What an indirect parameter of the fixture may be."""


@pytest.fixture
def fleet(request: pytest.FixtureRequest) -> Fleet:
    """A fleet over the network in memory, or over what an indirect parameter says.

    Call `fleet.run(scenario)`, or enter it by `async with` where a plugin runs coroutines as tests.
    """
    return FLEETS[getattr(request, "param", "memory")]()
