"""The kinds of changes that are tried: what is different in the second run, and how a file says it.

For each kind there is a control as well, a change of that kind that must alter nothing.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from waystation.core.multicast import pattern_of
from waystation.testing.simulation.process import EPOCH
from waystation.testing.twins.guarding import told_grants
from waystation.testing.twins.running import Run
from waystation.testing.twins.script import (
    FROM,
    TOP,
    TOPICS,
    UNTIL,
    Feed,
    Letter,
    Script,
    Trouble,
    worker_of,
)

Told: TypeAlias = dict[str, Any]
"""A change as a change file has it."""


class Twins(Struct, frozen=True):
    """Two scripts, and the change between them as the journal of the first run lets one say it."""

    without: Script
    changed: Script
    told: Callable[[Run], Told]


Kind: TypeAlias = Callable[[Script, random.Random], Twins]


# Routes and messages that live longer


def _longer_routes(script: Script, chance: random.Random) -> Twins:
    factor = chance.choice((2.0, 4.0))
    feeds = tuple(replace(feed, ttl=(feed.ttl or 0) * factor) for feed in script.feeds)
    one = {"routes": True, "node": TOP, "participant": "goods-*", "factor": factor}
    return _twins(script, {"ttl": [one]}, feeds=feeds)


def _longer_routes_of_workers(script: Script, chance: random.Random) -> Twins:
    factor = chance.choice((2.0, 4.0))
    return _twins(script, {"ttl": [{"routes": True, "participant": "work-*", "factor": factor}]})


def _longer_messages(script: Script, chance: random.Random) -> Twins:
    lower = [hub for hub, parents in script.hubs.items() if parents]
    nodes = [*lower, *lower, *chance.sample([*script.leaves], 2)]
    clogs = [_trouble(chance, "clog", node, 2.4) for node in nodes]  # too short to end a session
    letters = tuple(
        replace(letter, ttl=0.4) if letter.number % 2 else letter for letter in script.letters
    )
    script = replace(script, troubles=(*script.troubles, *clogs), letters=letters)
    factor = chance.choice((2.0, 4.0))
    return _twins(
        script, {"ttl": [{"messages": True, "factor": factor}]}, letters=_lives(script, factor)
    )


def _longer_messages_in_time(script: Script, chance: random.Random) -> Twins:
    script = replace(script, troubles=())
    factor = chance.choice((2.0, 4.0))
    return _twins(
        script, {"ttl": [{"messages": True, "factor": factor}]}, letters=_lives(script, factor)
    )


def _lives(script: Script, factor: float) -> tuple[Letter, ...]:
    return tuple(
        letter if letter.ttl is None else replace(letter, ttl=letter.ttl * factor)
        for letter in script.letters
    )


def _sticky(script: Script, chance: random.Random) -> Twins:
    del chance
    feeds = tuple(replace(feed, sticky=True) for feed in script.feeds)
    return _twins(script, {"sticky": [{"node": TOP, "participant": "goods-*"}]}, feeds=feeds)


def _sticky_workers(script: Script, chance: random.Random) -> Twins:
    del chance
    return _twins(script, {"sticky": [{"participant": "work-*"}]})


# Routes and subscriptions that there were not


def _put(script: Script, chance: random.Random) -> Twins:
    depot, at = chance.choice(script.depots), _instant(chance)
    kept = tuple(
        feed for feed in script.feeds if feed.participant != worker_of(depot) or feed.at < at
    )
    script = replace(script, feeds=kept)
    return _with_feed(script, worker_of(depot), depot, at, chance.uniform(5.0, 15.0))


def _put_for_nobody(script: Script, chance: random.Random) -> Twins:
    return _with_feed(script, "goods-nobody", script.depots[0], _instant(chance), 10.0)


def _with_feed(script: Script, participant: str, depot: str, at: float, ttl: float) -> Twins:
    feed = Feed(at=at, node=TOP, participant=participant, session=f"to-{depot}", ttl=ttl)
    told = {
        "at": when(at),
        "node": TOP,
        "participant": participant,
        "address": f"0#to-{depot}",
        "local": True,
        "expiry": when(at + ttl),
    }
    return _twins(script, {"put": [told]}, feeds=(*script.feeds, feed))


def _remove(script: Script, chance: random.Random) -> Twins:
    depot = chance.choice(script.depots)
    own = [
        feed
        for feed in script.feeds
        if feed.participant == worker_of(depot) and FROM < feed.at < UNTIL
    ]
    at = round(chance.choice(own).at + 0.3, 3)
    return _without_feed(script, worker_of(depot), at)


def _remove_nobody(script: Script, chance: random.Random) -> Twins:
    return _without_feed(script, "goods-nobody", _instant(chance))


def _without_feed(script: Script, participant: str, at: float) -> Twins:
    feed = Feed(at=at, node=TOP, participant=participant, session=None)
    told = {"at": when(at), "node": TOP, "participant": participant}
    return _twins(script, {"remove": [told]}, feeds=(*script.feeds, feed))


def _subscribe(script: Script, chance: random.Random) -> Twins:
    hearing = chance.choice(script.hearings)
    other = next(topic for topic in TOPICS if topic != hearing.pattern[1])
    return _also(script, hearing.node, ("+", other, "*"), _instant(chance))


def _subscribe_to_silence(script: Script, chance: random.Random) -> Twins:
    node = chance.choice(script.hearings).node
    return _also(script, node, ("+", "silence", "*"), _instant(chance))


def _also(script: Script, leaf: str, pattern: tuple[str, str, str], at: float) -> Twins:
    hearings = tuple(
        replace(one, also=pattern, also_from=at) if one.node == leaf else one
        for one in script.hearings
    )
    [label] = [one.label for one in script.hearings if one.node == leaf]

    def told(run: Run) -> Told:
        receiver = _receiver(run, label)
        nodes = (leaf, script.leaves[leaf], TOP)
        return {
            "put": [
                {
                    "at": when(at + hop * 0.002),
                    "node": node,
                    "pattern": pattern_of(*pattern),
                    "receiver": receiver,
                }
                for hop, node in enumerate(nodes)
            ]
        }

    return Twins(script, replace(script, hearings=hearings), told)


# What happened and is left out


def _unsubscribe(script: Script, chance: random.Random) -> Twins:
    return _heard_on(script, chance.choice(script.hearings).node, _instant(chance))


def _unsubscribe_from_silence(script: Script, chance: random.Random) -> Twins:
    leaf = chance.choice(script.hearings).node
    silent = tuple(
        replace(one, pattern=("+", "silence", "*")) if one.node == leaf else one
        for one in script.hearings
    )
    return _heard_on(replace(script, hearings=silent), leaf, _instant(chance))


def _heard_on(script: Script, leaf: str, at: float) -> Twins:
    [label] = [one.label for one in script.hearings if one.node == leaf]
    ended = tuple(replace(one, until=at) if one.label == label else one for one in script.hearings)

    def told(run: Run) -> Told:
        span = {"participant": _receiver(run, label), "since": when(at - 0.1)}
        return {"without": [{"kind": kind, **span} for kind in ("unsubscribe", "remove")]}

    return Twins(replace(script, hearings=ended), script, told)


def _crash(script: Script, chance: random.Random) -> Twins:
    return _without(script, _trouble(chance, "crash", _victim(script, chance)), "crash")


def _crash_unnoticed(script: Script, chance: random.Random) -> Twins:
    depot = chance.choice(script.depots)
    return _without(_avoiding(script, depot), _trouble(chance, "crash", depot), "crash")


def _stop(script: Script, chance: random.Random) -> Twins:
    return _without(script, _trouble(chance, "stop", _victim(script, chance)), "stop")


def _stop_unnoticed(script: Script, chance: random.Random) -> Twins:
    depot = chance.choice(script.depots)
    return _without(_avoiding(script, depot), _trouble(chance, "stop", depot), "stop")


def _close(script: Script, chance: random.Random) -> Twins:
    kind = chance.choice(("hang up", "cut"))
    leaf = chance.choice([*script.leaves])
    return _without(script, _trouble(chance, kind, leaf), "close")


def _close_unnoticed(script: Script, chance: random.Random) -> Twins:
    leaf = chance.choice([*script.leaves])
    return _without(_avoiding(script, leaf), _trouble(chance, "hang up", leaf), "close")


def _without(script: Script, trouble: Trouble, kind: str) -> Twins:
    others = tuple(one for one in script.troubles if one.node != trouble.node)
    script = replace(script, troubles=others)
    broken = replace(script, troubles=(*others, trouble))
    told = {"kind": kind, "since": when(trouble.at - 1.5), "until": when(trouble.until)}
    ends = [{"node": trouble.node}]
    if kind == "close":
        above = script.leaves[trouble.node]
        ends = [
            {"node": trouble.node, "participant": above},
            {"node": above, "participant": trouble.node},
        ]
    return Twins(broken, script, lambda _: {"without": [{**told, **end} for end in ends]})


def _avoiding(script: Script, node: str) -> Script:
    """A script in which a node has nothing to do."""
    worker = worker_of(node)
    return replace(
        script,
        letters=tuple(
            letter
            for letter in script.letters
            if letter.sender != node and not letter.to.endswith(worker)
        ),
        hearings=tuple(one for one in script.hearings if one.node != node),
        feeds=tuple(feed for feed in script.feeds if feed.participant != worker),
        troubles=tuple(one for one in script.troubles if one.node != node),
    )


# Limits


def _hop_limit(script: Script, chance: random.Random) -> Twins:
    limit = chance.choice((2, 3, 4))
    return _twins(script, {"limits": {"hop_limit": limit}}, hop_limit=limit)


def _hop_limit_beyond(script: Script, chance: random.Random) -> Twins:
    limit = chance.choice((64, 200))
    return _twins(script, {"limits": {"hop_limit": limit}}, hop_limit=limit)


def _room(script: Script, chance: random.Random) -> Twins:
    leaf = chance.choice([*script.leaves])
    slow, room = chance.choice((0.8, 1.5)), chance.choice((6, 1_000))
    numbers = range(len(script.letters), len(script.letters) + 60)
    more = (
        Letter(
            number=number,
            at=round(chance.uniform(FROM, UNTIL), 6),
            sender=leaf,
            kind="send",
            to=worker_of(leaf),
        )
        for number in numbers
    )
    letters = tuple(sorted((*script.letters, *more), key=lambda letter: letter.at))
    script = replace(script, slow={leaf: slow}, inbox={leaf: 2}, letters=letters)
    return _with_room(script, leaf, room)


def _room_to_spare(script: Script, chance: random.Random) -> Twins:
    return _with_room(script, chance.choice([*script.leaves]), 2_000)


def _with_room(script: Script, leaf: str, room: int) -> Twins:
    [label] = [one.label for one in script.hearings if one.node == leaf]

    def told(run: Run) -> Told:
        names = (worker_of(leaf), *(_receivers(run, label)))
        return {"room": [{"participant": name, "messages": room} for name in names]}

    return Twins(script, replace(script, inbox={leaf: room}), told)


def _grant(script: Script, chance: random.Random) -> Twins:
    some = (chance.choice([*script.leaves]), chance.choice(script.depots))
    guarded = replace(script, is_guarded=True, refused=some)
    return _granted(guarded, replace(guarded, refused=some[1:]))


def _refuse(script: Script, chance: random.Random) -> Twins:
    guarded = replace(script, is_guarded=True)
    return _granted(guarded, replace(guarded, refused=(chance.choice([*script.leaves]),)))


def _grant_the_same(script: Script, chance: random.Random) -> Twins:
    guarded = replace(script, is_guarded=True, refused=(chance.choice([*script.leaves]),))
    return _granted(guarded, guarded)


def _granted(without: Script, changed: Script) -> Twins:
    lower = [hub for hub, parents in changed.hubs.items() if parents]
    grants = [{"node": hub, **grant} for hub in lower for grant in told_grants(changed)]
    return Twins(without, changed, lambda _: {"grant": grants})


KINDS: Final[Mapping[str, Kind]] = {
    "ttl of routes": _longer_routes,
    "ttl of messages": _longer_messages,
    "sticky": _sticky,
    "put a route": _put,
    "remove a route": _remove,
    "put a subscription": _subscribe,
    "without unsubscribe": _unsubscribe,
    "without crash": _crash,
    "without stop": _stop,
    "without close": _close,
    "hop limit": _hop_limit,
    "room": _room,
    "grant": _grant,
    "grant less": _refuse,
}

CONTROLS: Final[Mapping[str, Kind]] = {
    "ttl of routes": _longer_routes_of_workers,
    "ttl of messages": _longer_messages_in_time,
    "sticky": _sticky_workers,
    "put a route": _put_for_nobody,
    "remove a route": _remove_nobody,
    "put a subscription": _subscribe_to_silence,
    "without unsubscribe": _unsubscribe_from_silence,
    "without crash": _crash_unnoticed,
    "without stop": _stop_unnoticed,
    "without close": _close_unnoticed,
    "hop limit": _hop_limit_beyond,
    "room": _room_to_spare,
    "grant": _grant_the_same,
}


def when(seconds: float) -> str:
    """A virtual instant as a change file has it."""
    return datetime.fromtimestamp(EPOCH / 1e9 + seconds, UTC).isoformat()


def with_trouble(script: Script, chance: random.Random) -> Script:
    """A script in which something breaks that has nothing to do with the change."""
    if chance.random() < 0.4:
        return script
    kind = chance.choice(("crash", "stop", "hang up", "clog"))
    return replace(script, troubles=(_trouble(chance, kind, _victim(script, chance)),))


def _trouble(chance: random.Random, kind: str, node: str, seconds: float | None = None) -> Trouble:
    at = _instant(chance)
    if kind == "hang up" and node.startswith("depot"):
        kind = "crash"
    return Trouble(kind=kind, node=node, at=at, until=at + (seconds or chance.uniform(4.0, 9.0)))


def _victim(script: Script, chance: random.Random) -> str:
    lower = [hub for hub, parents in script.hubs.items() if parents]
    return chance.choice([*lower, *script.leaves, *script.depots])


def _instant(chance: random.Random) -> float:
    return round(chance.uniform(FROM, UNTIL - 5.0), 3)


def _receiver(run: Run, label: str) -> str:
    """The name that the receiver of a subscription had in the first life of its node."""
    return _receivers(run, label)[0]


def _receivers(run: Run, label: str) -> list[str]:
    """The names that it had."""
    return [name for name, known in run.labels.items() if known == label]


def _twins(script: Script, told: Told, **changed: Any) -> Twins:
    return Twins(script, replace(script, **changed), lambda _: told)
