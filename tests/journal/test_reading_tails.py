"""Tails that are read as if they had been sealed, while their node goes on."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow.fs import LocalFileSystem

from waystation.journal.layout import table_directory, tails_in
from waystation.journal.read import SealedFile
from waystation.journal.schema import MESSAGES
from waystation.journal.write import Journal
from waystation.node import Node
from waystation.testing import async_test, echo, until


def tail_in(journal: Path) -> str:
    """The only tail about messages."""
    [path] = tails_in(table_directory(journal, MESSAGES, "hub")).values()
    return str(path)


def rows_in(journal: Path) -> int:
    """How many rows the tail about messages has; none if there is no tail yet."""
    try:
        return int(SealedFile(LocalFileSystem(), tail_in(journal)).footer.num_rows)
    except ValueError:
        return 0


@pytest.mark.rule("OB-5")
@async_test
async def test_a_tail_is_read_as_it_was_then_also_if_it_grows_or_is_sealed(tmp_path: Path) -> None:
    kept = Journal(tmp_path, "hub", flush_seconds=0.02)
    async with Node("hub", hub=True) as hub, Node("leaf") as leaf:
        hub.observe(kept.note)
        echo(hub)
        await hub.send("nobody", b"")
        await until(lambda: rows_in(tmp_path) == 1)
        path = tail_in(tmp_path)
        early = SealedFile(LocalFileSystem(), path)
        await leaf.connect((await hub.listen("tcp://127.0.0.1:0")).url, parent=True)
        await leaf.request("echo", b"")
        await until(lambda: rows_in(tmp_path) >= 3)  # with columns that the first row has not
        grown = SealedFile(LocalFileSystem(), path)
        assert {"via", "from_node"} <= set(grown.schema.names) - set(early.schema.names)
        early.close()
        assert early.read(["outcome"]).column(0).to_pylist() == ["DROPPED"]
    kept.close()
    sealed = SealedFile(LocalFileSystem(), path)
    assert sealed.footer.num_rows >= grown.footer.num_rows
    assert sealed.read(["seq"]).num_rows == sealed.footer.num_rows
    with pytest.raises((OSError, pa.ArrowException)):
        SealedFile(LocalFileSystem(), str(tmp_path / ".7-7.tail"))
    with pytest.raises(FileNotFoundError):
        SealedFile(LocalFileSystem(), str(tmp_path / "unnamed.tail"))
