"""Following messages through the newest part of a journal."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

from waystation.console.journal_follower import JournalFollower, MessageRow
from waystation.core.record import MessageRecord
from waystation.journal import Journal
from waystation.journal.layout import SEALED, table_directory
from waystation.node import Node
from waystation.testing import async_test, until


async def lose(node: Node, name: str) -> str:
    """Send a message to nobody; returns its id."""
    ids: list[str] = []

    def note(record: object) -> None:
        if isinstance(record, MessageRecord):
            ids.append(record.arrival.message.id)

    stop = node.observe(note)
    await node.send(name, b"")
    stop()
    return ids[0]


@async_test
async def test_each_row_is_returned_once_and_again_for_other_ids(tmp_path: Path) -> None:
    async with Node("hub") as node:
        journal = Journal(tmp_path, "hub", flush_seconds=0.01)
        node.observe(journal.note)
        one = await lose(node, "a")
        follower = JournalFollower(tmp_path, time.time())
        found: list[MessageRow] = []

        def seen_at_last() -> bool:
            found.extend(follower.look(frozenset({one})))
            return bool(found)

        await until(seen_at_last)
        assert [(seen.message_id, seen.outcome, seen.reason) for seen in found] == [
            (one, "DROPPED", "NO_ROUTE")
        ]
        assert follower.look(frozenset({one})) == []
        two = await lose(node, "b")
        both = frozenset({one, two})
        await until(lambda: len(JournalFollower(tmp_path, time.time()).look(both)) == 2)
        assert {seen.message_id for seen in follower.look(both)} == both
        await asyncio.to_thread(journal.close)
        sealed = JournalFollower(tmp_path, time.time())
        assert {seen.message_id for seen in sealed.look(both)} == both
        assert sealed.look(both) == []


@async_test
async def test_sealed_and_damaged_files_are_skipped(
    tmp_path: Path,
) -> None:
    async with Node("hub") as node:
        journal = Journal(tmp_path, "hub")
        node.observe(journal.note)
        lost = await lose(node, "a")
        await asyncio.to_thread(journal.close)
    directory = table_directory(tmp_path, "messages", "hub")
    [path] = directory.glob(f"*{SEALED}")
    assert len(JournalFollower(tmp_path, time.time()).look(frozenset({lost}))) == 1
    os.utime(path, (0, 0))
    assert JournalFollower(tmp_path, time.time()).look(frozenset({lost})) == []
    path.write_bytes(b"torn")
    (directory / ".1-1.arrows").write_bytes(b"torn as well")
    assert JournalFollower(tmp_path, time.time()).look(frozenset({lost})) == []
