"""Multicast matching against paho-mqtt's MQTTMatcher on the same patterns.

The patterns: 70 % exact, 20 % with a `+`, 10 % with a last `*`, two to six segments. "repeated": a
thousand ids again and again, as a fleet publishes; what they matched is remembered. "new": every id
once, so that each is a walk through the trie.
"""

from __future__ import annotations

import random

from paho.mqtt.matcher import MQTTMatcher

from benchmarks.harness import Report, resident_bytes
from waystation.core.multicast import Subscriptions, mqtt_filter

PACKAGES = ("paho-mqtt",)
IDS = 1_000


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
    ids, few_ids = published(many, IDS, rng), published(few, IDS, rng)
    for id in ids:
        if set(large.match(id)) != set(paho.iter_match(id)):
            raise AssertionError(id)

    def matching(subscriptions: Subscriptions, which: list[str]) -> int:
        match = subscriptions.match
        for _ in range(20):
            for id in which:
                match(id)
        return 20 * len(which)

    def paho_matching(matcher: MQTTMatcher, which: list[str]) -> int:
        match = matcher.iter_match
        for _ in range(20):
            for id in which:
                tuple(match(id))
        return 20 * len(which)

    repeated = report.compare(
        "repeated ids",
        {
            "100 k patterns": lambda: matching(large, ids),
            "1 k patterns": lambda: matching(small, few_ids),
            "paho, 100 k patterns": lambda: paho_matching(paho, ids),
            "paho, 1 k patterns": lambda: paho_matching(paho_small, few_ids),
        },
        unit="matches/s",
    )
    walked = report.compare(
        "new ids",
        {
            "100 k patterns": lambda: matching(large_walk, ids),
            "1 k patterns": lambda: matching(small_walk, few_ids),
            "paho, 100 k patterns": lambda: paho_matching(paho, ids),
            "paho, 1 k patterns": lambda: paho_matching(paho_small, few_ids),
        },
        unit="matches/s",
    )
    for case, rates in (("repeated ids", repeated), ("new ids", walked)):
        ratio = rates["1 k patterns"] / rates["100 k patterns"]
        report.add(case, "cost at 100 k / at 1 k patterns", ratio, "ratio")
