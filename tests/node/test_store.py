"""The store on disk: one writer, its limits, and a disk that fails (DU-1, DU-3, DU-5)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sqlite3
import time
from pathlib import Path

import pytest

from waystation.core.message import Message
from waystation.core.outcome import Outcome, Reason
from waystation.errors import LocalError
from waystation.node import Context, Node, StoreSettings
from waystation.node.store import DATABASE, Store
from waystation.testing import until
from waystation.testing.workers import collect


def settings(directory: Path) -> StoreSettings:
    return StoreSettings(directory=directory, fsync="off")


@pytest.mark.rule("DU-1")
def test_a_store_has_one_writer(tmp_path: Path) -> None:
    store = Store(settings(tmp_path))
    with pytest.raises(LocalError, match="is in use by another node"):
        Store(settings(tmp_path))
    store.close()
    store.close()
    Store(settings(tmp_path)).close()


@pytest.mark.parametrize(
    ("bad", "why"),
    [({"messages": 0}, "messages 0"), ({"fsync": "never"}, "fsync"), ({"ttl": -1}, "ttl -1")],
)
def test_invalid_settings_are_refused(tmp_path: Path, bad: dict[str, object], why: str) -> None:
    with pytest.raises(LocalError, match=why):
        Store(StoreSettings(directory=tmp_path, **bad))  # type: ignore[arg-type]


def test_a_directory_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(LocalError, match=r"file/store.*give a directory"):
        Store(settings(tmp_path / "file" / "store"))


@pytest.mark.rule("DU-1")
@pytest.mark.parametrize(("fsync", "number"), [("full", 2), ("normal", 1), ("off", 0)])
def test_what_is_synced_is_settled_by_the_settings(tmp_path: Path, fsync: str, number: int) -> None:
    async def scenario() -> None:
        store = Store(StoreSettings(directory=tmp_path, fsync=fsync))  # type: ignore[arg-type]
        found: asyncio.Future[tuple[str, int]] = asyncio.get_running_loop().create_future()

        def ask(db: sqlite3.Connection) -> tuple[str, int]:
            mode = db.execute("pragma journal_mode").fetchone()[0]
            return mode, db.execute("pragma synchronous").fetchone()[0]

        store.submit(ask, found.set_result)
        assert await found == ("wal", number)
        await asyncio.to_thread(store.close)

    asyncio.run(scenario())


@pytest.mark.rule("DU-3")
def test_a_damaged_store_is_not_opened_and_not_emptied(tmp_path: Path) -> None:
    Store(settings(tmp_path)).close()
    database = tmp_path / DATABASE
    whole = database.read_bytes()
    damaged = bytearray(whole)
    damaged[100:4096] = b"\xff" * 3996
    for content in (b"no database at all" * 100, bytes(damaged), b""):
        database.write_bytes(content)
        with pytest.raises(LocalError, match=r"damaged.*move the directory away"):
            Store(settings(tmp_path))
        assert database.read_bytes() == content
    database.write_bytes(whole)
    Store(settings(tmp_path)).close()


@pytest.mark.rule("DU-3")
def test_a_database_that_vanished_is_not_made_anew(tmp_path: Path) -> None:
    Store(settings(tmp_path)).close()
    (tmp_path / DATABASE).unlink()
    with pytest.raises(LocalError, match="damaged"):
        Store(settings(tmp_path))


def test_a_store_of_a_later_format_is_not_opened(tmp_path: Path) -> None:
    Store(settings(tmp_path)).close()
    with contextlib.closing(sqlite3.connect(tmp_path / DATABASE)) as db, db:
        db.execute("update meta set value = '2' where key = 'format'")
    with pytest.raises(LocalError, match="format 2, and this version knows 1"):
        Store(settings(tmp_path))


@pytest.mark.rule("DU-5")
def test_a_full_disk_refuses_what_is_new_and_loses_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with Node("hub", store=settings(tmp_path)) as node:
            for _ in range(3):
                await node.send("archive", b"x" * 100, durable=True)
            limit = await pages(node, None)
            await pages(node, limit)  # as if the disk had no more
            big = b"x" * 1_000_000
            refused = [await node.send("archive", big, durable=True) for _ in range(3)]
            assert {one.reason for one in refused} == {Reason.QUEUE_FULL}
            assert node.custody is not None
            assert (node.custody.messages, node.custody.trouble) == (3, "database or disk is full")
            complaints = [r for r in caplog.records if "cannot be written" in r.getMessage()]
            assert len(complaints) == 1
            found = collect(node, "archive")
            await until(lambda: len(found) == 3)
            await pages(node, 10**9)
            assert (await node.send("archive", big, durable=True)).outcome is Outcome.QUEUED
            await until(lambda: len(found) == 4)
            assert not node.custody.trouble

    with caplog.at_level(logging.WARNING, "waystation.node"):
        asyncio.run(scenario())
    assert "writing works again" in caplog.text


async def pages(node: Node, limit: int | None) -> int:
    """Let the database have no more pages than so many; returns how many it has."""
    store = node._kernel.custody.store  # noqa: SLF001
    assert store is not None
    found: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    ask = "page_count" if limit is None else f"max_page_count = {limit}"
    store.submit(lambda db: int(db.execute(f"pragma {ask}").fetchone()[0]), found.set_result)
    return await found


@pytest.mark.rule("DU-5")
def test_a_disk_that_becomes_read_only_refuses_what_is_new_and_loses_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with Node("hub", store=settings(tmp_path)) as node:
            for number in range(3):
                await node.send("archive", b"%d" % number, durable=True)
            read_only(node, "on")
            refused = [await node.send("archive", b"new", durable=True) for _ in range(3)]
            assert {one.reason for one in refused} == {Reason.QUEUE_FULL}
            assert node.custody is not None
            assert node.custody.messages == 3
            assert node.custody.trouble == "attempt to write a readonly database"
            found = collect(node, "archive")  # an attempt is recorded before it is made
            wishes, looks = node._kernel.custody._wishes, list[object]()  # noqa: SLF001
            monkeypatch.setattr(wishes, "_found", looks.append)
            for _ in range(100):
                wishes.look()  # as once a second
            read_only(node, "off")
            await until(lambda: node.custody is not None and node.custody.messages == 0)
            assert len(looks) <= 1  # the others did not pile up
            assert [message.payload for message in found] == [b"0", b"1", b"2"]
            assert not node.custody.trouble
            assert (await node.send("archive", b"3", durable=True)).outcome is Outcome.QUEUED

    with caplog.at_level(logging.WARNING, "waystation.node"):
        asyncio.run(scenario())
    said = [r.getMessage() for r in caplog.records if "store" in r.getMessage()]
    assert len(said) == 2
    assert "cannot be written: attempt to write a readonly database; new durable" in said[0]
    assert "writing works again" in said[1]


def read_only(node: Node, value: str) -> None:
    """Let the database refuse every change, as on a disk that can only be read, or no longer."""
    store = node._kernel.custody.store  # noqa: SLF001
    assert store is not None
    store._db.execute(f"pragma query_only = {value}")  # noqa: SLF001 - no job gets that far


@pytest.mark.rule("DU-5")
def test_what_was_handled_while_the_disk_failed_is_recorded_when_it_works_again(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        handled: list[bytes] = []
        async with Node("hub", store=settings(tmp_path)) as node:
            store = node._kernel.custody.store  # noqa: SLF001
            assert store is not None
            blocker = sqlite3.connect(tmp_path / DATABASE, isolation_level=None)

            @node.worker("archive")
            async def archive(message: Message, context: Context) -> None:  # noqa: ARG001
                handled.append(message.payload)
                if message.payload == b"1":  # another program holds the database
                    store.submit(lambda db: db.execute("pragma busy_timeout = 10"))
                    blocker.execute("begin immediate")

            for number in (b"1", b"2"):
                assert (await node.send("archive", number, durable=True)).reason in {
                    None,
                    Reason.QUEUE_FULL,
                }
            await until(lambda: store.trouble)
            blocker.execute("rollback")
            blocker.close()
            await until(lambda: not store.trouble)
            await until(lambda: node.custody and not node.custody.messages)
        first = list(handled)
        async with Node("hub", store=settings(tmp_path)) as node:
            assert node.custody is not None
            assert node.custody.messages == 0
        assert handled == first

    asyncio.run(scenario())


def test_dead_letters_are_bounded(tmp_path: Path) -> None:
    async def scenario() -> None:
        bounded = StoreSettings(directory=tmp_path, fsync="off", dead=2)
        async with Node("hub", store=bounded) as node:
            for _ in range(5):
                await node.send("77#nowhere => x", b"", durable=True)
            await until(lambda: node.custody and not node.custody.messages)
            await until(lambda: node.custody and node.custody.dead == 2)

    asyncio.run(scenario())


def test_a_node_that_cannot_be_made_lets_its_store_go(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(LocalError, match="cannot write a journal"):
        Node("hub", store=tmp_path / "store", journal=tmp_path / "file")
    Store(settings(tmp_path / "store")).close()


@pytest.mark.rule("DU-1")
def test_the_first_job_is_told_of_however_fast_it_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread may have committed it before the loop goes on."""
    find_loop = asyncio.get_running_loop

    def find_it_late() -> asyncio.AbstractEventLoop:
        time.sleep(0.2)
        return find_loop()

    async def scenario() -> None:
        store = Store(settings(tmp_path))
        told = asyncio.Event()
        with monkeypatch.context() as patch:
            patch.setattr("waystation.node.store.asyncio.get_running_loop", find_it_late)
            store.submit(lambda _: None, lambda _: told.set())
        await asyncio.wait_for(told.wait(), 30)
        store.close()

    asyncio.run(scenario())
