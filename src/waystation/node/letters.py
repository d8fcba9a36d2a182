"""What lies in a store, for people: messages in custody (parked), and dead letters (DU-5).

It is read beside the node that has the store, and changed by it alone: whoever wants a message
retried or dropped leaves a wish there, which the node carries out within a second, or when it is
started next. So whoever may write the directory may do this, and nobody over the network.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Literal, TypeAlias

import msgspec
from msgspec import Struct

from waystation.core.address import STANDARD_TYPES
from waystation.core.custody import Letter
from waystation.errors import DecodeError, LocalError, quote
from waystation.node.store import DATABASE
from waystation.wire import custody as wire

Kind: TypeAlias = Literal["parked", "dead"]

_QUERIES: Final = {
    "parked": "select message_id, sender, receiver, '' as reason, detail, queued_at, null as "
    "ended_at, expiry, size, attempt, body from letters join pairs on pairs.id = pair",
    "dead": "select message_id, sender, receiver, reason, detail, queued_at, ended_at, "
    "null as expiry, size, attempt, body from dead",
}

LATER: Final = "the node is not running; this will be done when it starts"
"""What is said of a wish while nobody can carry it out."""


class Wish(Struct, frozen=True):
    """What the node is to do with messages, by their ids."""

    do: Literal["retry", "drop"]
    kind: Kind
    ids: list[str]


class Selection(Struct, frozen=True, kw_only=True):
    """Which messages are meant: those that fit all that is given. An id may be a beginning."""

    ids: tuple[str, ...] = ()
    participant: str | None = None
    reason: str | None = None
    before: int | None = None  # queued before that, in microseconds


class Described(Struct, frozen=True):
    """A message in a store; instants in microseconds since the epoch."""

    id: str
    sender: str
    participant: str
    reason: str | None  # why it is dead
    detail: str  # what its handler raised, or more about the reason
    queued_at: int
    ended_at: int | None
    expiry: int | None
    size: int
    attempts: int
    route: str
    return_route: str
    payload: bytes


def select(
    directory: Path, kind: Kind, selection: Selection, *, most: int = -1, skip: int = 0
) -> list[Described]:
    """The messages in a store that fit, the oldest first; at most so many of them."""
    return list(find(directory, kind, selection, most=most, skip=skip))


def find(
    directory: Path, kind: Kind, selection: Selection, *, most: int = -1, skip: int = 0
) -> Iterator[Described]:
    """The same, one after the other: a store may have more than the memory."""
    where, values = _condition(selection)
    query = f"{_QUERIES[kind]} where {where} order by queued_at limit ? offset ?"
    with _reading(directory) as db:
        for row in db.execute(query, [*values, most, skip]):
            yield _described(row)


def select_ids(directory: Path, kind: Kind, selection: Selection) -> list[str]:
    """The ids of the messages that fit, each once."""
    where, values = _condition(selection)
    query = f"select distinct message_id from ({_QUERIES[kind]}) where {where}"  # noqa: S608
    with _reading(directory) as db:
        return [row[0] for row in db.execute(query, values)]


def _condition(selection: Selection) -> tuple[str, list[object]]:
    conditions, values = ["true"], list[object]()
    if selection.ids:
        for id in selection.ids:
            _check_beginning(id)
        conditions.append(f"({' or '.join(['message_id like ?'] * len(selection.ids))})")
        values += [f"{id}%" for id in selection.ids]
    participant = selection.participant
    if participant is not None:  # a copy for a subscriber has the topic behind its name
        conditions.append("(receiver = ? or substr(receiver, 1, ?) = ?)")
        values += [participant, len(participant) + 1, f"{participant}\n"]
    for condition, value in (
        ("reason = ?", selection.reason),
        ("queued_at < ?", selection.before),
    ):
        if value is not None:
            conditions.append(condition)
            values.append(value)
    return " and ".join(conditions), values


def _check_beginning(id: str) -> None:
    if not re.fullmatch("[0-9a-fA-F]{1,32}", id):
        raise LocalError(
            f"invalid message id {quote(id)}",
            rule="DU-5",
            hint="give its 32 hexadecimal digits, or the first of them",
        )


def wish(directory: Path, wish: Wish, seconds: float = 10.0) -> str | None:
    """Let the node of a store do something; returns what it says, or None if it does not run."""
    with _reading(directory, writing=True) as db:
        added = db.execute(
            "insert into commands (command) values (?)", (msgspec.json.encode(wish).decode(),)
        ).lastrowid
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and _is_in_use(directory):
            row = db.execute("select result from commands where id = ?", (added,)).fetchone()
            if row is not None and row[0] is not None:
                return str(row[0])
            time.sleep(0.05)
    return None


@contextlib.contextmanager
def _reading(directory: Path, *, writing: bool = False) -> Iterator[sqlite3.Connection]:
    path = directory / DATABASE
    if not path.exists():
        raise LocalError(
            f"{directory} is not a store: it has no {DATABASE}",
            rule="DU-5",
            hint='give the directory that the node has as its store: [node] store = "DIR"',
        )
    try:
        uri = f"{path.absolute().as_uri()}?mode={'rw' if writing else 'ro'}"
        with contextlib.closing(sqlite3.connect(uri, uri=True, isolation_level=None)) as db:
            db.row_factory = sqlite3.Row
            db.execute("pragma busy_timeout = 5000")
            yield db
    except sqlite3.Error as error:
        raise LocalError(
            f"cannot read the store {directory}: {error}",
            rule="DU-5",
            hint="check that this user may read and write the directory",
        ) from error


def _is_in_use(directory: Path) -> bool:
    """Whether a node has the store."""
    descriptor = os.open(directory / "lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _described(row: sqlite3.Row) -> Described:
    letter = _letter(row["body"])
    message = None if letter is None else letter.message
    return Described(
        row["message_id"],
        row["sender"],
        row["receiver"].partition("\n")[0],
        row["reason"] or None,
        row["detail"],
        row["queued_at"],
        row["ended_at"],
        None if row["expiry"] is None else row["expiry"] * 1000,
        row["size"],
        row["attempt"],
        "" if message is None else str(message.onward_route),
        "" if message is None else str(message.return_route),
        b"" if message is None else message.payload,
    )


def _letter(body: bytes) -> Letter | None:
    try:
        return wire.letter_of(body, STANDARD_TYPES)
    except DecodeError:
        return None
