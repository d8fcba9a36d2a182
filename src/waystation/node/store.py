"""The store of a node: durable messages on disk, in SQLite, behind one thread (DU-1, DU-5).

The event loop never waits for the disk. It hands jobs to the thread, which does all that wait in
one transaction and commits it while the next gather (group commit). Jobs are done in the order in
which they were handed over, and their results are told in that order, after the commit.

A job that brings something new into the store is refused when the disk cannot take it. All others
are tried again until they succeed: they only tell what has happened already.

A program on the same machine may read the store at any time, and leaves wishes in the table
`commands`; only who holds the lock changes anything else.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import secrets
import sqlite3
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Event, Thread
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import msgspec
from msgspec import Struct

from waystation.core.budget import MIB
from waystation.core.custody import WINDOW_BYTES, Handled, Numbers, Pair
from waystation.core.expiry import LAST_INSTANT, NEVER, Expiry
from waystation.core.outcome import Reason
from waystation.errors import LocalError, quote
from waystation.locations import local_directory

FORMAT: Final = 1
"""The version of the tables; a store of a later one is not opened."""

DATABASE: Final = "custody.sqlite"
MARKER: Final = "README"
"""The file that says that there was a store, should its database be gone."""

GROUP: Final = 1_000
"""Jobs in one transaction, at most."""

DAY: Final = 86_400.0

_FIRST_RETRY: Final = 0.1
_LAST_RETRY: Final = 5.0

_TABLES: Final = """
create table meta (key text primary key, value text not null) without rowid;
create table pairs (
    id integer primary key, store text not null, sender text not null, receiver text not null,
    next integer not null default 1, stretches text not null default '[]',
    last integer not null default 0, gaps text not null default '[]',
    started integer not null default 0, unique (store, sender, receiver)
);
create table letters (
    pair integer not null, number integer not null, message_id text not null,
    queued_at integer not null, expiry integer, size integer not null,
    attempt integer not null default 0, failures integer not null default 0,
    detail text not null default '', process text not null, received_at integer not null,
    via text, body blob not null, primary key (pair, number)
);
create index letters_expiry on letters (expiry);
create index letters_message on letters (message_id);
create index letters_age on letters (queued_at);
create table dead (
    id integer primary key, message_id text not null, store text not null, sender text not null,
    receiver text not null, number integer not null, reason text not null, detail text not null,
    queued_at integer not null, ended_at integer not null, size integer not null,
    attempt integer not null, body blob not null
);
create index dead_message on dead (message_id);
create table kept (
    pattern text not null, receiver text not null, keep integer not null, seen integer not null,
    primary key (pattern, receiver)
) without rowid;
create table commands (id integer primary key, command text not null, result text);
"""
_ADDED: Final = """
create table if not exists kept_by (
    pattern text not null, receiver text not null, owner text not null, who text not null,
    primary key (pattern, receiver)
) without rowid;
"""
"""What earlier stores of the same format lack, and earlier versions do not look at."""

_log = logging.getLogger("waystation.node")


class StoreSettings(Struct, frozen=True, kw_only=True):
    """Where a node keeps durable messages, how many of them, and for how long.

    `fsync` is `full` (each commit is on the disk before anybody is told), `normal` (a crash of the
    machine, not of the process, may lose the last commits) or `off`. There are at most `messages`
    of `bytes` in all, and for one receiver `receiver_messages` of `receiver_bytes`; what exceeds
    that is QUEUE_FULL. A message lives `ttl` seconds unless its sender says otherwise. A handler
    that raises is called again after `pause` seconds, then twice as many up to a minute, `attempts`
    times in all. Another node has `answer` seconds to say that it took custody, before it is asked
    again. It knows at most `pairs` of senders and receivers, and keeps the latest `dead` dead
    letters.
    """

    directory: str | os.PathLike[str]
    fsync: Literal["full", "normal", "off"] = "full"
    messages: int = 1_000_000
    bytes: int = 1_024 * MIB
    receiver_messages: int = 100_000
    receiver_bytes: int = 256 * MIB
    ttl: float = 7 * DAY
    attempts: int = 5
    pause: float = 1.0
    answer: float = 5.0
    pairs: int = 1_000_000
    dead: int = 10_000


class KnownPair(Struct, eq=False):
    """A pair as the store knows it, and how much it has of it."""

    id: int
    pair: Pair
    numbers: Numbers
    handled: Handled
    started: int = 0  # up to this number, letters may have been given to their handler
    messages: int = 0
    bytes: int = 0


class LetterRow(NamedTuple):
    """A letter as the store gives it."""

    number: int
    message_id: str
    size: int
    attempt: int
    failures: int
    body: bytes
    received_at: int | None  # None: by an earlier process
    via: str | None


class NewRow(NamedTuple):
    """A letter as it is given to the store."""

    number: int
    message_id: str
    queued_at: int
    expiry: Expiry
    size: int
    received_at: int
    via: str | None
    body: bytes


class ExpiredRow(NamedTuple):
    """A letter whose life is over."""

    pair: int
    number: int
    size: int
    attempt: int
    body: bytes


class DeadRow(NamedTuple):
    """A dead letter."""

    id: int
    message_id: str
    sender: str
    receiver: str
    body: bytes


Job: TypeAlias = Callable[[sqlite3.Connection], Any]
Done: TypeAlias = Callable[[Any], object]


class _Entry(NamedTuple):
    job: Job
    done: Done | None
    refused: Callable[[str], None] | None  # for what is new: it may be refused


class Store:
    """The durable messages of one node on disk."""

    def __init__(self, settings: StoreSettings) -> None:
        self.settings = settings
        self.directory = local_directory(settings.directory, "the store of a node")
        _check(settings)
        self._lock = _lock(self.directory)
        try:
            self._db = _open(self.directory, settings.fsync)
            self.id, self.secret, self.link_base, self.pairs = _read(self._db, self.directory)
            self.kept = self._db.execute(
                "select pattern, receiver, keep, seen, owner, who "
                "from kept left join kept_by using (pattern, receiver)"
            ).fetchall()
            self.dead = _count_dead(self._db)
        except BaseException:
            if hasattr(self, "_db"):
                self._db.close()
            os.close(self._lock)
            raise
        self._process = secrets.token_hex(8)
        self.commits = 0
        self.jobs = 0
        self.trouble = ""  # why nothing new can be written at the moment
        self._waiting: SimpleQueue[_Entry | None] = SimpleQueue()
        self._again: list[_Entry] = []  # of a transaction that failed
        self._pause = 0.0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._crashed = Event()
        self._is_closed = False
        self._thread = Thread(target=self._run, name="custody-writer", daemon=True)
        self._thread.start()

    # What the node asks for

    def add_pair(self, known: KnownPair) -> None:
        """Enter a pair that is new."""
        row = (known.id, *known.pair)
        self.submit(
            lambda db: db.execute(
                "insert into pairs (id, store, sender, receiver) values (?, ?, ?, ?)", row
            )
        )

    def put(
        self,
        known: KnownPair,
        rows: Sequence[NewRow],
        done: Callable[[list[int]], None],
        refused: Callable[[str], None],
        *,
        own: bool,
        started: int = 0,
        also: Job | None = None,
    ) -> None:
        """Write letters, and do `also` something else in the same transaction.

        `done` gets the numbers that were not there before. `own` numbers are kept as drawn.
        """
        pair, numbers = known.id, known.numbers
        state = (numbers.next, _json(numbers.stretches()), pair) if own else None
        values = [
            (pair, self._process, *row._replace(expiry=min(row.expiry, LAST_INSTANT)))
            for row in rows
        ]

        def write(db: sqlite3.Connection) -> list[int]:
            if state is not None:
                db.execute("update pairs set next = ?, stretches = ? where id = ?", state)
            if started:
                _start(db, pair, started)
            if also is not None:
                also(db)
            insert = (
                "insert or ignore into letters "
                "(pair, process, number, message_id, queued_at, expiry, size, received_at, via, "
                "body) values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
            )
            return [row[2] for row in values if db.execute(insert, row).rowcount]

        self._hand_over(_Entry(write, done, refused))

    def start(self, known: KnownPair, number: int, done: Callable[[], object]) -> None:
        """Note that letters up to this number may be given to their handler from now on."""
        pair = known.id
        self.submit(lambda db: _start(db, pair, number), lambda _: done())

    def load(self, known: KnownPair, most: int, done: Callable[[list[LetterRow]], None]) -> None:
        """Read the first letters of a pair, as many as may be in memory."""
        values = (self._process, known.id, most)
        query = (
            "select number, message_id, size, attempt, failures, body, "
            "iif(process = ?, received_at, null), via "
            "from letters where pair = ? order by number limit ?"
        )

        def read(db: sqlite3.Connection) -> list[LetterRow]:
            rows: list[LetterRow] = []
            size = 0
            for row in db.execute(query, values):
                rows.append(LetterRow(*row))
                size += len(rows[-1].body)
                if size >= WINDOW_BYTES:
                    break
            return rows

        self.submit(read, done)

    def forget(self, known: KnownPair, numbers: Iterable[int], done: Callable[[], object]) -> None:
        """Delete letters that another node has in custody now."""
        rows = [(known.id, number) for number in numbers]
        self.submit(lambda db: _delete(db, rows), lambda _: done())

    def handled(self, known: KnownPair, number: int, done: Callable[[], object]) -> None:
        """Record that a letter was handled: it is gone, and its number is known (DU-3)."""
        row, state = (known.id, number), _state(known)

        def write(db: sqlite3.Connection) -> None:
            _delete(db, [row])
            db.execute(_KEEP_HANDLED, state)

        self.submit(write, lambda _: done())

    def failed(
        self,
        known: KnownPair,
        number: int,
        attempt: int,
        failures: int,
        detail: str,
        done: Callable[[], object],
    ) -> None:
        """Record that a handler raised, at this attempt."""
        row = (attempt, failures, detail, known.id, number)
        update = (
            "update letters set attempt = ?, failures = ?, detail = ? where pair = ? and number = ?"
        )
        self.submit(lambda db: db.execute(update, row), lambda _: done())

    def bury(
        self,
        known: KnownPair,
        number: int,
        reason: Reason,
        detail: str,
        at: int,
        attempt: int,
        done: Callable[[], object],
    ) -> None:
        """Move a letter to the dead letters (DU-5)."""
        pair, key, state = known.pair, (known.id, number), _state(known)
        row = (*pair, str(reason), detail, at, attempt, *key)

        def write(db: sqlite3.Connection) -> int:
            db.execute(
                "insert into dead (message_id, store, sender, receiver, number, reason, detail, "
                "queued_at, ended_at, size, attempt, body) select message_id, ?, ?, ?, number, ?, "
                "?, queued_at, ?, size, ?, body from letters where pair = ? and number = ?",
                row,
            )
            _delete(db, [key])
            db.execute(_KEEP_HANDLED, state)
            return _prune_dead(db, self.settings.dead)

        def written(dead: int) -> None:
            self.dead = dead
            done()

        self.submit(write, written)

    def drop_dead(self, message_ids: Iterable[str], done: Callable[[int], object]) -> None:
        """Remove dead letters; `done` gets how many."""
        ids = [(id,) for id in message_ids]

        def write(db: sqlite3.Connection) -> tuple[int, int]:
            gone = db.executemany("delete from dead where message_id = ?", ids).rowcount
            return gone, _count_dead(db)

        def written(counts: tuple[int, int]) -> None:
            gone, self.dead = counts
            done(gone)

        self.submit(write, written)

    def dead_letters(
        self, message_ids: Iterable[str], done: Callable[[list[DeadRow]], object]
    ) -> None:
        """Find dead letters by the ids of their messages."""
        ids = list(message_ids)
        query = "select id, message_id, sender, receiver, body from dead where message_id = ?"

        def read(db: sqlite3.Connection) -> list[DeadRow]:
            return [DeadRow(*row) for id in ids for row in db.execute(query, (id,))]

        self.submit(read, done)

    def count_dead(self) -> None:
        """Count the dead letters anew, after some were sent again."""

        def counted(dead: int) -> None:
            self.dead = dead

        self.submit(_count_dead, counted)

    def expired(self, now: int, most: int, done: Callable[[list[ExpiredRow]], None]) -> None:
        """Find letters whose life is over, at this time in milliseconds."""
        query = (
            "select pair, number, size, attempt, body from letters where expiry <= ? "
            "order by expiry limit ?"
        )
        self.submit(lambda db: [ExpiredRow(*row) for row in db.execute(query, (now, most))], done)

    def oldest(self, done: Callable[[int | None], None]) -> None:
        """Find out since when the oldest letter is queued, in microseconds; None without any."""
        query = "select min(queued_at) from letters"
        self.submit(lambda db: db.execute(query).fetchone()[0], done)

    def submit(self, job: Job, done: Done | None = None) -> None:
        """Have something done that must be done, in the thread."""
        self._hand_over(_Entry(job, done, None))

    @property
    def backlog(self) -> int:
        """How many jobs wait for the thread."""
        return self._waiting.qsize()

    def close(self) -> None:
        """Do what waits, and let the store go. This waits for the disk."""
        if self._is_closed:
            return
        self._is_closed = True
        self._waiting.put(None)
        self._thread.join()
        self._db.close()
        os.close(self._lock)

    def abandon(self) -> None:
        """Let the store go as a process does that is killed: what waits is not written."""
        self._crashed.set()
        self.close()

    # The thread

    def _hand_over(self, entry: _Entry) -> None:
        if self._loop is None:  # before the thread has the job: it tells the loop of it
            self._loop = asyncio.get_running_loop()
        self._waiting.put(entry)

    def _run(self) -> None:
        closing = False
        while not closing and not self._crashed.is_set():
            group, closing = self._gather()
            if group and not self._crashed.is_set():
                self._commit(group, closing=closing)

    def _gather(self) -> tuple[list[_Entry], bool]:
        """All that waits, up to a limit; and whether that is the end."""
        group, self._again = self._again, []
        try:
            entry = self._waiting.get(timeout=self._pause if group else None)
        except Empty:
            return group, False
        while entry is not None:
            group.append(entry)
            if len(group) >= GROUP:
                return group, False
            try:
                entry = self._waiting.get_nowait()
            except Empty:
                return group, False
        return group, True

    def _commit(self, group: list[_Entry], *, closing: bool) -> None:
        db = self._db
        try:
            changes = db.total_changes
            db.execute("begin immediate")
            results = [entry.job(db) for entry in group]
            if self._crashed.is_set():
                db.rollback()
                return
            db.commit()
        except sqlite3.Error as error:
            if db.in_transaction:
                db.rollback()
            self._failed(group, str(error), closing=closing)
            return
        self.commits += db.total_changes > changes
        self.jobs += len(group)
        self._pause = 0.0
        if self.trouble:
            self.trouble = ""
            _log.warning("store %s: writing works again", self.directory)
        told = [(entry.done, result) for entry, result in zip(group, results, strict=True)]
        self._tell([(done, result) for done, result in told if done is not None])

    def _failed(self, group: list[_Entry], why: str, *, closing: bool) -> None:
        """Refuse what is new, and do all else again later."""
        if not self.trouble:
            _log.error(
                "store %s cannot be written: %s; new durable messages are refused until it can, "
                "those in it are kept",
                *(self.directory, why),
            )
        self.trouble = why
        self._tell([(entry.refused, why) for entry in group if entry.refused is not None])
        self._again = [entry for entry in group if entry.refused is None]
        self._pause = min(max(_FIRST_RETRY, 2 * self._pause), _LAST_RETRY)
        if closing and self._again:
            time.sleep(_FIRST_RETRY)
            again, self._again = self._again, []
            try:
                self._db.execute("begin immediate")
                for entry in again:
                    entry.job(self._db)
                self._db.commit()
            except sqlite3.Error as error:
                _log.error(
                    "store %s: closed with %d jobs undone: %s", self.directory, len(again), error
                )

    def _tell(self, told: list[tuple[Done, Any]]) -> None:
        loop = self._loop
        if not told or loop is None or self._crashed.is_set():
            return
        try:
            loop.call_soon_threadsafe(_call_all, told)
        except RuntimeError:
            _log.debug("store %s: the event loop is closed", self.directory)


def _call_all(told: list[tuple[Done, Any]]) -> None:
    for done, result in told:
        try:
            done(result)
        except Exception:  # noqa: BLE001 - the others must be told
            _log.exception("a durable message could not be dealt with")


_KEEP_HANDLED: Final = "update pairs set last = ?, gaps = ? where id = ?"


def _state(known: KnownPair) -> tuple[int, str, int]:
    handled = known.handled
    return handled.last, _json(handled.gaps()), known.id


def _delete(db: sqlite3.Connection, rows: list[tuple[int, int]]) -> None:
    db.executemany("delete from letters where pair = ? and number = ?", rows)


def _start(db: sqlite3.Connection, pair: int, number: int) -> None:
    update = "update pairs set started = max(started, ?) where id = ?"
    db.execute(update, (number, pair))


def _count_dead(db: sqlite3.Connection) -> int:
    return int(db.execute("select count(*) from dead").fetchone()[0])


def _prune_dead(db: sqlite3.Connection, most: int) -> int:
    """Keep the latest dead letters; returns how many there are."""
    count = _count_dead(db)
    if count <= most:
        return count
    db.execute(
        "delete from dead where id in (select id from dead order by id limit ?)", (count - most,)
    )
    return most


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


# Opening


def _check(settings: StoreSettings) -> None:
    counts = (
        "messages",
        "bytes",
        "receiver_messages",
        "receiver_bytes",
        "attempts",
        "ttl",
        "pairs",
    )
    for name in counts:
        if getattr(settings, name) <= 0:
            raise LocalError(
                f"invalid {name} {quote(getattr(settings, name))} of a store",
                rule="DU-5",
                hint="give a number above 0",
            )
    if settings.fsync not in {"full", "normal", "off"}:
        raise LocalError(
            f"invalid fsync {quote(settings.fsync)}",
            rule="DU-1",
            hint="give 'full', 'normal' or 'off'",
        )


def _lock(directory: Path) -> int:
    """Be the only one that writes the store; the lock ends with the process, however it ends."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise LocalError(
            f"cannot use {directory} as a store: {error.strerror}",
            rule="DU-1",
            hint="give a directory that this process may write to",
        ) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise LocalError(
            f"the store {directory} is in use by another node or process",
            rule="DU-1",
            hint="stop that one first, or give each node a directory of its own",
        ) from None
    return descriptor


def _open(directory: Path, fsync: str) -> sqlite3.Connection:
    path, marker = directory / DATABASE, directory / MARKER
    if marker.exists() and not (path.exists() and path.stat().st_size):
        raise _corrupt(directory, f"{MARKER} is there, but {DATABASE} is gone or empty")
    db = None
    try:
        db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        db.execute("pragma busy_timeout = 5000")
        db.execute("pragma journal_mode = wal")
        db.execute(f"pragma synchronous = {fsync}")
        if not db.execute("select count(*) from sqlite_master").fetchone()[0]:
            _create(db)
        _check_pages(db)
        db.executescript(_ADDED)
        if not marker.exists():
            marker.write_text("Here are durable messages of a node. Do not remove single files.\n")
    except (sqlite3.DatabaseError, OSError) as error:
        if db is not None:
            db.close()
        raise _cannot_open(directory, error) from error
    return db


def _check_pages(db: sqlite3.Connection) -> None:
    problem = db.execute("pragma quick_check(1)").fetchone()[0]
    if problem != "ok":
        raise sqlite3.DatabaseError(problem)


def _cannot_open(directory: Path, error: sqlite3.DatabaseError | OSError) -> LocalError:
    if not isinstance(error, sqlite3.OperationalError | OSError):
        return _corrupt(directory, str(error))
    return LocalError(  # the disk, and not what is on it
        f"cannot open the store {directory}: {error}",
        rule="DU-1",
        hint="check that the disk has room and that this process may write there",
    )


def _create(db: sqlite3.Connection) -> None:
    id, secret = secrets.token_hex(16), secrets.token_hex(16)
    db.executescript(f"begin; {_TABLES}")
    meta = [("format", str(FORMAT)), ("store", id), ("secret", secret), ("links", "0")]
    db.executemany("insert into meta values (?, ?)", meta)
    db.execute("commit")


def _corrupt(directory: Path, problem: str) -> LocalError:
    return LocalError(
        f"the store {directory} is damaged: {problem}",
        rule="DU-3",
        hint="restore what can be read with `sqlite3 custody.sqlite .recover`, or move the "
        "directory away to begin with an empty store: what is in it is then not delivered",
    )


_LINKS: Final = 1_000_000  # numbers of links that one process may use up


def _read(db: sqlite3.Connection, directory: Path) -> tuple[str, str, int, dict[Pair, KnownPair]]:
    """What a store tells when it is opened; letters that may have been handled are marked."""
    try:
        meta = dict(db.execute("select key, value from meta").fetchall())
        if int(meta["format"]) > FORMAT:
            raise LocalError(
                f"the store has format {meta['format']}, and this version knows {FORMAT}",
                rule="DU-1",
                hint="upgrade waystation, or give another directory",
            )
        links = int(meta["links"]) + _LINKS
        db.execute("begin immediate")
        db.execute("update meta set value = ? where key = 'links'", (str(links),))
        db.execute(
            "update letters set attempt = attempt + 1 where number <= "
            "(select started from pairs where id = pair)"
        )
        db.execute("update pairs set started = 0 where started > 0")
        db.execute("delete from commands where result is not null")
        db.execute("commit")
        query = (
            "select id, store, sender, receiver, next, stretches, last, gaps, count(number), "
            "coalesce(sum(size), 0) from pairs left join letters on pair = id group by id"
        )
        pairs = {}
        for id, store, sender, receiver, next, stretches, last, gaps, messages, size in db.execute(
            query
        ):
            pair = Pair(store, sender, receiver)
            numbers = Numbers(next, _ends(stretches))
            handled = Handled(last, msgspec.json.decode(gaps))
            pairs[pair] = KnownPair(id, pair, numbers, handled, 0, messages, size)
        return meta["store"], meta["secret"], links, pairs
    except sqlite3.DatabaseError as error:
        raise _cannot_open(directory, error) from error


def _ends(stretches: str) -> list[tuple[int, Expiry]]:
    return [
        (first, NEVER if ends is None else ends) for first, ends in msgspec.json.decode(stretches)
    ]
