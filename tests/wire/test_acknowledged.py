"""What sessions say to each other over a link that loses it: all of it comes, in order and once."""

from __future__ import annotations

import json
import random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from waystation.wire.acknowledged import CAPABILITY, WINDOW, ControlStream, is_hello
from waystation.wire.hello import Hello

encode = msgspec.json.encode


def hello(name: str, *, can: tuple[str, ...] = (CAPABILITY,), nonce: str | None = None) -> bytes:
    return encode(
        Hello(name, {"tcp": 1}, nonce=f"link of {name}" if nonce is None else nonce, can=can)
    )


def news(number: int) -> bytes:
    return b'{"waystation":"news","number":%d}' % number


def kinds(payloads: list[bytes]) -> list[object]:
    return [json.loads(payload)["waystation"] for payload in payloads]


def sent(payload: bytes | None) -> bytes:
    assert payload is not None
    return payload


def pair() -> tuple[ControlStream, ControlStream]:
    """Two ends that have heard each other's hello, and its acknowledgement."""
    a, b = ControlStream(), ControlStream()
    of_a, of_b = sent(a.say(hello("a"))), sent(b.say(hello("b")))
    assert a.hear(of_b)[0] == of_b
    heard, acks = b.hear(of_a)
    assert heard == of_a
    a.hear(acks[0])
    assert not a.waits
    return a, b


def test_what_is_lost_is_due_until_it_is_acknowledged() -> None:
    a, b = pair()
    first, second = sent(a.say(news(1))), sent(a.say(news(2)))
    assert b.hear(second) == (None, [])  # it waits for the first
    assert a.waits
    assert a.due() == [first, second] == a.due()
    heard, acks = b.hear(first)
    assert heard == news(1)
    assert a.hear(acks[0]) == (None, [])
    assert a.due() == [second]
    heard, acks = b.hear(second)
    assert heard == news(2)
    a.hear(acks[0])
    assert (a.due(), a.waits, a.unacknowledged_size) == ([], False, 0)


def test_a_repetition_is_acknowledged_again_and_not_taken_again() -> None:
    a, b = pair()
    first = sent(a.say(news(1)))
    _, acks = b.hear(first)
    assert b.hear(first) == (None, acks)
    a.hear(acks[0])
    assert a.hear(acks[0]) == (None, [])  # an old one


def test_the_hello_is_repeated_as_it_was_and_taken_once() -> None:
    a, b = ControlStream(), ControlStream()
    of_a = sent(a.say(hello("a")))
    assert not a.waits  # nobody knows yet whether the peer acknowledges
    assert a.due() == []
    a.hear(sent(b.say(hello("b"))))
    assert a.due() == [of_a]
    known = [b.knows_peer]
    assert b.hear(of_a)[0] == of_a
    assert [*known, b.knows_peer] == [False, True]
    heard, acks = b.hear(of_a)
    assert heard is None
    assert kinds(acks) == ["ack"]


def test_another_hello_is_for_the_session_to_judge() -> None:
    a, _ = pair()
    another = hello("b", nonce="started anew")
    assert a.hear(another) == (another, [])


def test_what_was_said_before_the_peers_hello_came_is_repeated_as_well() -> None:
    a, b = ControlStream(), ControlStream()
    assert a.say(hello("a")) == hello("a")
    assert a.say(news(1)) == news(1)
    a.hear(sent(b.say(hello("b"))))
    again = a.due()
    assert kinds(again) == ["hello", "numbered"]
    heard = [b.hear(payload)[0] for payload in again]
    assert heard == [hello("a"), news(1)]


@pytest.mark.parametrize(
    "theirs",
    [hello("b", can=()), hello("b", can=("hold",)), hello("b", nonce="")],
    ids=["the first version", "another", "a link without a name"],
)
def test_a_peer_that_does_not_acknowledge_gets_everything_once_and_as_it_is(theirs: bytes) -> None:
    a = ControlStream()
    a.say(hello("a"))
    a.say(news(1))
    assert a.hear(theirs) == (theirs, [])
    assert a.say(news(2)) == news(2)
    assert (a.due(), a.waits, a.unacknowledged_size) == ([], False, 0)


@pytest.mark.parametrize("ours", [hello("a", can=()), hello("a", nonce=""), b"no hello", b"{}"])
def test_who_says_nothing_of_it_repeats_nothing_and_acknowledges_all_the_same(ours: bytes) -> None:
    a, b = ControlStream(), ControlStream()
    assert a.say(ours) == ours
    heard, acks = a.hear(sent(b.say(hello("b"))))
    assert heard == hello("b")
    assert kinds(acks) == ["ack"]
    assert a.say(news(1)) == news(1)
    assert not a.waits


def test_a_heartbeat_is_never_numbered() -> None:
    a, b = pair()
    assert a.say(b"") == b""
    assert b.hear(b"") == (b"", [])
    assert not a.waits


def test_only_some_are_on_their_way_at_a_time() -> None:
    a, b = pair()
    said = [a.say(news(number)) for number in range(2 * WINDOW)]
    assert None not in said[:WINDOW]
    assert said[WINDOW:] == [None] * WINDOW
    assert len(a.due()) == WINDOW
    heard = []
    under_way = said[:WINDOW]
    while under_way:
        payload, answers = b.hear(sent(under_way.pop(0)))
        heard.append(payload)
        for answer in answers:
            under_way += a.hear(answer)[1]
    assert heard == [news(number) for number in range(2 * WINDOW)]
    assert not a.waits


def test_what_the_link_stops_repeating_is_forgotten() -> None:
    a, _ = pair()
    a.say(news(1))
    assert a.unacknowledged_size == len(news(1))
    a.forget()
    assert (a.due(), a.waits, a.unacknowledged_size) == ([], False, 0)
    assert a.say(news(2)) == news(2)
    late = ControlStream()
    late.say(hello("a"))
    late.forget()
    assert late.hear(hello("b"))[0] == hello("b")
    assert late.say(news(1)) == news(1)


@pytest.mark.parametrize(
    "wrong",
    [
        b'{"waystation":"ack","link":"link of b","next":2}',
        b'{"waystation":"ack","link":"link of a","next":-1}',
        b'{"waystation":"ack","link":"link of a","next":99999999999}',
        b'{"waystation":"numbered","link":"link of a","number":1,"payload":{}}',
        b'{"waystation":"numbered","link":"of an earlier one","number":1,"payload":{}}',
        b'{"waystation":"numbered","link":"link of b","number":7,"payload":{}}',
    ],
)
def test_what_is_of_another_link_or_makes_no_sense_is_passed_over(wrong: bytes) -> None:
    a, b = pair()
    first = sent(a.say(news(1)))
    assert a.hear(wrong) == (None, [])
    assert a.due() == [first]
    assert b.hear(first)[0] == news(1)


@pytest.mark.parametrize(
    "other", [news(1), b"\xff", b"[" * 5000, b'{"waystation":"numbered"}', b'{"waystation":"ack"}']
)
def test_what_is_none_of_these_is_for_the_session(other: bytes) -> None:
    a, _ = pair()
    assert a.hear(other) == (other, [])
    assert not is_hello(other)


def test_a_hello_is_told_from_the_rest() -> None:
    assert is_hello(hello("a"))


class Network:
    """Two ends, and a network between them that loses, doubles and reorders."""

    def __init__(self, seed: int, loss: float) -> None:
        self._chance = random.Random(seed)
        self._loss = loss
        self.ends = {"a": ControlStream(), "b": ControlStream()}
        self.heard: dict[str, list[bytes]] = {"a": [], "b": []}
        self._under_way: list[tuple[str, bytes]] = []

    def send(self, name: str, payloads: list[bytes]) -> None:
        other = "b" if name == "a" else "a"
        for payload in payloads:
            copies = 0 if self._chance.random() < self._loss else self._chance.choice((1, 1, 2))
            self._under_way.extend([(other, payload)] * copies)

    def say(self, name: str, payload: bytes) -> None:
        now = self.ends[name].say(payload)
        self.send(name, [] if now is None else [now])
        if self._chance.random() < 0.2:
            self.deliver()

    def deliver(self) -> None:
        while self._under_way:
            to, payload = self._under_way.pop(self._chance.randrange(len(self._under_way)))
            found, answers = self.ends[to].hear(payload)
            self.heard[to] += [] if found is None else [found]
            self.send(to, answers)

    def open(self) -> None:
        for name in self.ends:
            self.say(name, hello(name))
        while not all(end.knows_peer for end in self.ends.values()):
            for name in self.ends:
                self.send(name, [hello(name)])  # the link repeats its opening
            self.deliver()

    def repeat_until_all_came(self) -> None:
        while any(end.waits for end in self.ends.values()):
            for name, end in self.ends.items():
                self.send(name, end.due())
            self.deliver()


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**32), st.floats(0.0, 0.8), st.integers(0, 60))
def test_whatever_is_lost_or_comes_twice_or_out_of_order_all_is_heard_in_order_and_once(
    seed: int, loss: float, count: int
) -> None:
    network = Network(seed, loss)
    network.open()
    for number in range(count):
        for name in network.ends:
            network.say(name, news(number))
    network.repeat_until_all_came()
    said = {name: [hello(name), *map(news, range(count))] for name in network.ends}
    assert network.heard == {"a": said["b"], "b": said["a"]}
