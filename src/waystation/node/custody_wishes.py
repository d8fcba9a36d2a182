"""What people want done with messages in custody and dead letters: retried, or dropped (DU-5)."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec
from msgspec import structs

from waystation.core.custody import Pair
from waystation.core.expiry import LAST_INSTANT
from waystation.core.outcome import Outcome, Reason, Verdict
from waystation.core.spoken import plural
from waystation.errors import DecodeError
from waystation.node.custody_taking import arrival_of, recipient_of
from waystation.node.letters import Wish
from waystation.node.store import DeadRow, ExpiredRow, Store
from waystation.wire import custody as wire

if TYPE_CHECKING:
    from waystation.node.custody import Custody

BY_HAND = "dropped by hand"

_log = logging.getLogger("waystation.node")


class Wishes:
    """Carries out what was left in the store of one node."""

    def __init__(self, custody: Custody, store: Store) -> None:
        self._custody = custody
        self._store = store
        self._at_work: set[int] = set()  # wishes whose result is not on disk yet
        self._is_looking = False

    def look(self) -> None:
        """Look for wishes, unless the last look waits for a disk that does not work."""
        if not self._is_looking:
            self._is_looking = True
            query = "select id, command from commands where result is null"
            self._store.submit(lambda db: db.execute(query).fetchall(), self._found)

    def _found(self, rows: list[tuple[int, str]]) -> None:
        self._is_looking = False
        for id, command in rows:
            if id in self._at_work:
                continue
            self._at_work.add(id)
            try:
                wish = msgspec.json.decode(command, type=Wish)
            except msgspec.DecodeError as error:
                self._answer(id, f"not understood: {error}")
                continue
            _log.info(
                "store %s: %s %d %s", self._store.directory, wish.do, len(wish.ids), wish.kind
            )
            do = {
                ("parked", "retry"): self._retry_parked,
                ("parked", "drop"): self._drop_parked,
                ("dead", "retry"): self._retry_dead,
                ("dead", "drop"): self._drop_dead,
            }
            do[wish.kind, wish.do](id, wish.ids)

    def _answer(self, id: int, result: str) -> None:
        update = "update commands set result = ? where id = ?"
        self._store.submit(
            lambda db: db.execute(update, (result, id)), lambda _: self._at_work.discard(id)
        )

    def _retry_parked(self, id: int, ids: list[str]) -> None:
        self._custody.hurry_all()
        self._answer(id, plural(len(ids), "message is tried now", "messages are tried now"))

    def _drop_parked(self, id: int, ids: list[str]) -> None:
        fields = "pair, number, size, attempt, body"
        query = f"select {fields} from letters where message_id = ?"  # noqa: S608

        def find(db: sqlite3.Connection) -> list[ExpiredRow]:
            return [ExpiredRow(*row) for one in ids for row in db.execute(query, (one,))]

        def found(rows: list[ExpiredRow]) -> None:
            dropped = self._custody.end_rows(rows, Reason.REFUSED, BY_HAND)
            self._answer(
                id, plural(dropped, "message is a dead letter now", "messages are dead letters now")
            )

        self._store.submit(find, found)

    def _drop_dead(self, id: int, ids: list[str]) -> None:
        self._store.drop_dead(
            ids,
            lambda count: self._answer(
                id, plural(count, "dead letter is gone", "dead letters are gone")
            ),
        )

    def _retry_dead(self, id: int, ids: list[str]) -> None:
        """Send dead letters again, one after the other in the order of their ids."""

        def found(rows: list[DeadRow]) -> None:
            sent, refused = list[str](), list[str]()

            def told(why: str) -> None:
                (refused if why else sent).append(why)
                if len(sent) + len(refused) == len(rows):
                    self._store.count_dead()
                    self._answer(id, _told_again(len(sent), refused))

            for row in rows:
                self._send_again(row, told)
            if not rows:
                self._answer(id, _told_again(0, refused))

        self._store.dead_letters(ids, found)

    def _send_again(self, row: DeadRow, told: Callable[[str], None]) -> None:
        """Send a dead letter as a new message of this store, with its id and its span of life.

        It ceases to be a dead letter in the transaction that makes it a message again.
        """
        custody, kernel, store = self._custody, self._custody.kernel, self._store
        pair = Pair(store.id, row.sender, row.receiver).of_retries()
        try:
            letter = wire.letter_of(row.body, kernel.router.types.numbers)
        except DecodeError as error:
            told(str(error))
            return
        if not (custody.has_room(pair.participant, 1, letter.size) and custody.may_know(pair)):
            told(str(Reason.QUEUE_FULL))
            return
        at = kernel.tick()
        span = int(letter.message.expiry) - letter.queued_at // 1000
        expiry = min(at // 1000 + max(span, 0), LAST_INSTANT)
        known = custody.known(pair)
        message = structs.replace(letter.message, expiry=expiry)
        number = known.numbers.draw(expiry)
        again = structs.replace(
            letter, number=number, message=message, queued_at=at, received_at=at
        )

        def done(_: list[int]) -> None:
            kernel.end(arrival_of(again), Verdict(Outcome.QUEUED, None, recipient_of(pair)))
            custody.enter(known, [again])
            told("")

        def forget(db: sqlite3.Connection) -> None:
            db.execute("delete from dead where id = ?", (row.id,))

        custody.put(known, [again], done, told, own=True, also=forget)


def _told_again(sent: int, refused: list[str]) -> str:
    """What became of dead letters.

    >>> _told_again(2, [])
    '2 messages are sent again'
    >>> _told_again(1, ["QUEUE_FULL", "QUEUE_FULL"])
    '1 message is sent again; 2 stay dead letters: QUEUE_FULL'
    """
    again = plural(sent, "message is sent again", "messages are sent again")
    stay = plural(len(refused), "stays a dead letter", "stay dead letters")
    return f"{again}; {stay}: {refused[0]}" if refused else again
