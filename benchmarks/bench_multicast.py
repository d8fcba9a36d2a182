"""Multicast matching against paho-mqtt's MQTTMatcher on the same patterns.

The patterns: 70 % exact, 20 % with a `+`, 10 % with a last `*`, two to six segments. "repeated": a
thousand ids again and again, as a fleet publishes; what they matched is remembered. "new": twenty
thousand other ids, and nothing is remembered, so that each is a walk through the trie.
"""

from __future__ import annotations

import random
from functools import partial

from paho.mqtt.matcher import MQTTMatcher

from benchmarks.harness import Report, resident_bytes
from waystation.core.multicast import Subscriptions, mqtt_filter

PACKAGES = ("paho-mqtt",)
IDS = 1_000
ROUNDS = 20


def patterns(count: int, rng: random.Random) -> list[str]:
    made: dict[str, None] = {}
    while len(made) < count:
        depth = rng.randint(1, 4)
        segments = [f"provider{rng.randrange(count // 20)}", f"broadcast{rng.randrange(4)}"]
        segments += [f"s{rng.randrange(30)}" for _ in range(depth)]
        kind = rng.random()
        if 0.7 < kind <= 0.9:
            segments[rng.randrange(2, len(segments))] = "+"
        elif kind > 0.9:
            segments[-1] = "*"
        made["/".join(segments)] = None
    return list(made)


def published(known: list[str], count: int, rng: random.Random) -> list[str]:
    """Ids that match at least the pattern they are made from."""
    ids = []
    for pattern in rng.choices(known, k=count):
        segments = [
            f"s{rng.randrange(30)}" if part in "+*" else part for part in pattern.split("/")
        ]
        ids.append("/".join(segments))
    return ids


def ours(known: list[str], remember: int) -> Subscriptions:
    subscriptions = Subscriptions(remember=remember)
    for number, pattern in enumerate(known):
        subscriptions.subscribe(pattern, f"receiver-{number}")
    return subscriptions


def theirs(known: list[str]) -> MQTTMatcher:
    matcher = MQTTMatcher()
    for number, pattern in enumerate(known):
        matcher[mqtt_filter(pattern)] = f"receiver-{number}"
    return matcher


def run(report: Report) -> None:
    rng = random.Random(7)
    many = patterns(100_000, rng)
    before = resident_bytes()
    large = ours(many, 1_000_000)
    report.add(
        "memory", "Subscriptions", (resident_bytes() - before) / len(many), "bytes/subscription"
    )
    before = resident_bytes()
    paho = theirs(many)
    report.add(
        "memory", "paho MQTTMatcher", (resident_bytes() - before) / len(many), "bytes/subscription"
    )
    few = patterns(1_000, rng)
    small, small_walk = ours(few, 1_000_000), ours(few, 0)
    large_walk = ours(many, 0)
    paho_small = theirs(few)
    repeated = {
        "100 k": published(many, IDS, rng) * ROUNDS,
        "1 k": published(few, IDS, rng) * ROUNDS,
    }
    new = {
        size: published(known, IDS * ROUNDS, rng) for size, known in (("100 k", many), ("1 k", few))
    }
    for id in repeated["100 k"][:IDS]:
        if set(large.match(id)) != set(paho.iter_match(id)):
            raise AssertionError(id)
    cases = (("repeated ids", repeated, (large, small)), ("new ids", new, (large_walk, small_walk)))
    for case, ids, (big, little) in cases:
        rates = report.compare(
            f"{case}, 100 k patterns",
            {
                "Subscriptions": partial(matching, big, ids["100 k"]),
                "paho MQTTMatcher": partial(paho_matching, paho, ids["100 k"]),
            },
            unit="matches/s",
        )
        at_small = report.compare(
            f"{case}, 1 k patterns",
            {
                "Subscriptions": partial(matching, little, ids["1 k"]),
                "paho MQTTMatcher": partial(paho_matching, paho_small, ids["1 k"]),
            },
            unit="matches/s",
        )
        ratio = at_small["Subscriptions"] / rates["Subscriptions"]
        report.add(case, "cost at 100 k / at 1 k patterns", ratio, "ratio")


def matching(subscriptions: Subscriptions, ids: list[str]) -> int:
    match = subscriptions.match
    for id in ids:
        match(id)
    return len(ids)


def paho_matching(matcher: MQTTMatcher, ids: list[str]) -> int:
    match = matcher.iter_match
    for id in ids:
        tuple(match(id))
    return len(ids)
