"""Durable messages in stores, and dead letters: listed, shown, retried and dropped (DU-5).

The console reads and changes only stores whose directories were named when it was started: it may
do with them what its user may do with `waystation parked` and `waystation dead`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, TypeAlias

from msgspec.structs import replace

from waystation.core.outcome import Reason
from waystation.errors import LocalError
from waystation.node.letters import (
    LATER,
    Described,
    Kind,
    Selection,
    Wish,
    find,
    select,
    select_ids,
    wish,
)

PAGE: Final = 50
"""Messages on a page."""

SHOWN_BYTES: Final = 4_096
"""Bytes that are shown of a payload."""

AGES: Final = {"": 0, "1m": 60, "10m": 600, "1h": 3_600, "6h": 21_600, "1d": 86_400, "7d": 604_800}
"""What "older than" offers, in seconds."""

Query: TypeAlias = Mapping[str, str]
Values: TypeAlias = dict[str, Any]


class Letters:
    """The page of letters."""

    def __init__(self, stores: tuple[Path, ...]) -> None:
        self._stores = {str(path): path for path in stores}

    async def view(self, query: Query, result: str = "") -> Values:
        """The messages of one store that fit, or one of them with all that is known."""
        values: Values = {
            "stores": list(self._stores),
            "store": self._chosen(query),
            "kind": _kind(query),
            "participant": query.get("participant", "").strip(),
            "reason": query.get("reason", ""),
            "reasons": [reason.value for reason in Reason],
            "older": query.get("older", ""),
            "ages": list(AGES),
            "id": query.get("id", "").strip().lower(),
            "page": max(
                1, int(query.get("page", "1")) if query.get("page", "1").isdecimal() else 1
            ),
            "now": int(time.time() * 1e6),  # as the ages of a list are meant
            "result": result,
            "problem": "",
            "rows": [],
            "total": 0,
            "pages": 1,
            "shown": None,
        }
        if values["store"]:
            try:
                values.update(await asyncio.to_thread(self._found, query, values["page"]))
            except LocalError as error:
                values["problem"] = f"{error.problem}; {error.hint}"
        return values

    async def act(self, form: Query) -> Values:
        """Retry or drop what fits, and show what is left."""
        do = form.get("do", "")
        try:
            result = await asyncio.to_thread(self._wish, form, do)
        except LocalError as error:
            return {**await self.view(form), "problem": f"{error.problem}; {error.hint}"}
        rest = {name: value for name, value in form.items() if name != "id"}
        return await self.view(rest, result)

    def _found(self, query: Query, page: int) -> Values:
        store, kind, selection = self._stores[self._chosen(query)], _kind(query), _selection(query)
        if query.get("id", "").strip():
            one = next(find(store, kind, selection, most=1), None)
            return {"shown": _cut(one), "size": 0 if one is None else len(one.payload)}
        total = len(select_ids(store, kind, selection))
        rows = select(store, kind, selection, most=PAGE, skip=(page - 1) * PAGE)
        return {"rows": rows, "total": total, "pages": max(1, -(-total // PAGE))}

    def _wish(self, form: Query, do: str) -> str:
        chosen = self._chosen(form)
        if do not in {"retry", "drop"} or not chosen:
            raise LocalError("nothing to do", rule="DU-5", hint="press a button of this page")
        store, kind = self._stores[chosen], _kind(form)
        ids = select_ids(store, kind, _selection(form))
        if not ids:
            raise LocalError("no message in the store matches", rule="DU-5", hint="look again")
        told = wish(store, Wish("retry" if do == "retry" else "drop", kind, ids))
        return told or LATER

    def _chosen(self, query: Query) -> str:
        """The store that is meant: one that was named at the start, else the first of them."""
        asked = query.get("store", "")
        return asked if asked in self._stores else next(iter(self._stores), "")


def _kind(query: Query) -> Kind:
    return "dead" if query.get("kind") == "dead" else "parked"


def _selection(query: Query) -> Selection:
    id = query.get("id", "").strip().lower()
    age = AGES.get(query.get("older", ""), 0)
    reason = query.get("reason", "")
    return Selection(
        ids=(id,) if id else (),
        participant=query.get("participant", "").strip() or None,
        reason=reason if reason and _kind(query) == "dead" else None,
        before=int((time.time() - age) * 1e6) if age else None,
    )


def _cut(one: Described | None) -> Described | None:
    return None if one is None else replace(one, payload=one.payload[:SHOWN_BYTES])
