"""Ids: random, and never the same in two processes (FL-6)."""

from __future__ import annotations

import os
import sys

import pytest

from waystation.core.message import check_message_id
from waystation.node.ids import new_ids


@pytest.mark.rule("FL-6")
def test_ids_are_different_and_none_follows_from_another() -> None:
    new_id = new_ids()
    ids = [new_id() for _ in range(1_000)]  # of several batches
    assert len({check_message_id(id) for id in ids}) == 1_000
    for half in (slice(16), slice(16, 32)):
        assert len({id[half] for id in ids}) == 1_000
    assert sum(int(id, 16).bit_count() for id in ids) == pytest.approx(64_000, abs=3_000)


def test_two_nodes_give_different_ids() -> None:
    one, other = new_ids(), new_ids()
    assert {one() for _ in range(300)}.isdisjoint({other() for _ in range(300)})


@pytest.mark.rule("FL-6")
@pytest.mark.skipif(sys.platform == "win32", reason="nothing forks there")
def test_a_forked_process_gives_other_ids_than_its_parent() -> None:
    new_id = new_ids()
    before = new_id()
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.write(writer, "".join(new_id() for _ in range(600)).encode())
        finally:
            os._exit(0)
    os.close(writer)
    mine = [new_id() for _ in range(600)]
    with os.fdopen(reader, "rb") as pipe:
        text = pipe.read().decode()
    os.waitpid(child, 0)
    theirs = [text[first : first + 32] for first in range(0, len(text), 32)]
    assert len(theirs) == 600
    assert len({before, *mine, *theirs}) == 1_201
