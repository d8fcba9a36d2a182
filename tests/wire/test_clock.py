"""The question what time it is at a peer."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waystation.wire.clock import ClockSample, encode, read

INSTANTS = st.integers(0, 2**62)


@pytest.mark.rule("TM-2")
@given(st.builds(ClockSample, INSTANTS, INSTANTS, INSTANTS))
def test_a_sample_is_read_as_it_was_written(sample: ClockSample) -> None:
    assert read(encode(sample)) == sample


def test_an_answer_says_when_the_question_came() -> None:
    assert not ClockSample(1).is_answer
    assert ClockSample(1, 2, 3).is_answer


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b'{"waystation":"hello"}',
        b'{"waystation":"clock"',
        b'{"waystation":"clock"}',
        b'{"waystation":"clock","asked":"now"}',
        b'{"waystation":"clock","asked":1e400}',
        b'{"waystation":"clock","asked":1,"x":' + b"[" * 100_000,
    ],
)
def test_anything_else_is_none(payload: bytes) -> None:
    assert read(payload) is None
