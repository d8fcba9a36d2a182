"""The clock of a context: the system's, unless something else was given."""

from __future__ import annotations

import time
from contextvars import copy_context

from waystation.core.clock import current_clock, now_ns, use_clock


def test_it_is_the_system_s_clock() -> None:
    before = time.time_ns()
    assert before <= now_ns() <= time.time_ns()
    assert current_clock() is time.time_ns


def test_a_context_may_have_another_and_only_that_context() -> None:
    def elsewhere() -> tuple[int, int]:
        use_clock(lambda: 7)
        return now_ns(), current_clock()()

    assert copy_context().run(elsewhere) == (7, 7)
    assert now_ns() > 7
