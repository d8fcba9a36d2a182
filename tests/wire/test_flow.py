"""Payloads about receivers without room: what is said is read, and nothing else."""

from __future__ import annotations

import pytest

from waystation.wire import flow, hello, hierarchy
from waystation.wire.flow import Go, Hold


@pytest.mark.rule("FL-3")
@pytest.mark.parametrize("said", [Hold(["0#a", "1#b:4000"]), Go(["0#a"])])
def test_what_is_said_is_read(said: Hold | Go) -> None:
    assert flow.read(flow.encode(said)) == said
    assert hierarchy.read(flow.encode(said)) is None


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"{",
        b"\xff",
        b"[" * 10_000,
        b'{"waystation": "hold"}',
        b'{"waystation": "hold", "names": [7]}',
        b'{"waystation": "go", "names": "a"}',
        hierarchy.encode(hierarchy.Withdraw(["a"])),
        flow.encode(hello.Hello("a", {})),
    ],
)
def test_anything_else_is_not(payload: bytes) -> None:
    assert flow.read(payload) is None
