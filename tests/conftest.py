"""What all tests share: the profiles of hypothesis."""

from __future__ import annotations

import os

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
