"""What a leaf and its hub tell each other, as bytes: all of it comes back, and nothing raises."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waystation.core.address import Address
from waystation.core.expiry import LAST_INSTANT, NEVER
from waystation.core.routing import RoutingEntry
from waystation.wire.hello import Hello, Proof
from waystation.wire.hierarchy import (
    ITEMS,
    Announce,
    Contested,
    Declined,
    Participant,
    Payload,
    Resolve,
    Resolved,
    Subscribe,
    Unsubscribe,
    Withdraw,
    encode,
    expiry_of,
    in_payloads,
    participant_of,
    read,
)

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
participants = st.tuples(texts, st.booleans(), st.one_of(st.none(), st.integers(0, LAST_INSTANT)))
pairs = st.lists(st.tuples(texts, texts), max_size=5)
said = st.one_of(
    st.builds(
        Announce,
        st.lists(participants, max_size=5),
        st.integers(0, 2**63),
        st.lists(st.tuples(texts, st.integers(0, 2**63)), max_size=3),
        st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2**63), st.lists(texts, max_size=4))),
    ),
    st.builds(Withdraw, st.lists(texts, max_size=5)),
    st.builds(Subscribe, pairs),
    st.builds(Unsubscribe, pairs),
    st.builds(
        Resolve,
        st.integers(0, 2**63),
        texts,
        st.lists(texts, max_size=5),
        st.booleans(),
        st.booleans(),
    ),
    st.builds(Resolved, st.integers(0, 2**63), st.booleans()),
    st.builds(Declined, texts),
    st.builds(Contested, st.lists(st.tuples(texts, texts, st.booleans()), max_size=3)),
)


@given(one=said)
def test_what_is_said_is_read_as_it_was_said(one: Payload) -> None:
    assert read(encode(one)) == one


@pytest.mark.parametrize(
    ("one", "written"),
    [
        (
            Announce([("truck-7", True, None), ("truck-8", False, 5_000)]),
            {
                "waystation": "announce",
                "participants": [["truck-7", True, None], ["truck-8", False, 5_000]],
            },
        ),
        (
            Announce([("truck-7", True, None)], 0, [("owner", 3)], [(0, 4, ["truck", "hub"])]),
            {
                "waystation": "announce",
                "participants": [["truck-7", True, None]],
                "owners": [["owner", 3]],
                "claims": [[0, 4, ["truck", "hub"]]],
            },
        ),
        (Withdraw(["truck-7"]), {"waystation": "withdraw", "participants": ["truck-7"]}),
        (Subscribe([("a/b/*", "x")]), {"waystation": "subscribe", "pairs": [["a/b/*", "x"]]}),
        (Unsubscribe([("a/b", "x")]), {"waystation": "unsubscribe", "pairs": [["a/b", "x"]]}),
        (
            Resolve(7, "truck-7", ["leaf"]),
            {"waystation": "resolve", "number": 7, "participant": "truck-7", "asked": ["leaf"]},
        ),
        (
            Resolve(7, "truck-7", probe=True),
            {"waystation": "resolve", "number": 7, "participant": "truck-7", "probe": True},
        ),
        (Resolved(7, found=True), {"waystation": "resolved", "number": 7, "found": True}),
        (Declined("no hub"), {"waystation": "declined", "why": "no hub"}),
        (
            Contested([("truck-7", "depot", True)]),
            {"waystation": "contested", "contests": [["truck-7", "depot", True]]},
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_the_bytes_are_these(one: Payload, written: dict[str, Any]) -> None:
    assert json.loads(encode(one)) == written


@given(payload=st.binary(max_size=200))
def test_no_bytes_make_the_reader_raise(payload: bytes) -> None:
    read(payload)


BAD = {
    "nothing": b"",
    "no JSON": b"\x00\xff",
    "no object": b"[]",
    "no tag": b"{}",
    "another tag": b'{"waystation": "dance"}',
    "a tag that is no text": b'{"waystation": 1}',
    "a greeting": b'{"waystation": "hello", "node": "a", "types": {}}',
    "participants that are no list": b'{"waystation": "announce", "participants": "a"}',
    "a participant that is a text": b'{"waystation": "announce", "participants": ["a"]}',
    "a participant with too little": b'{"waystation": "announce", "participants": [["a"]]}',
    "a participant with too much": (
        b'{"waystation": "announce", "participants": [["a", true, 1, 2]]}'
    ),
    "an expiry that is no whole number": (
        b'{"waystation": "announce", "participants": [["a", true, 1.5]]}'
    ),
    "an expiry beyond all numbers": (
        b'{"waystation": "announce", "participants": [["a", true, 1e999]]}'
    ),
    "a flag that is a number": b'{"waystation": "announce", "participants": [["a", 1, null]]}',
    "half a character": b'{"waystation": "declined", "why": "\\ud800 is half"}',
    "not UTF-8": b'{"waystation": "declined", "why": "\xff"}',
    "lists within lists": b'{"waystation": "withdraw", "participants": ' + b"[" * 100_000,
    "a question without a number": b'{"waystation": "resolve", "participant": "a"}',
    "something behind it": b'{"waystation": "declined", "why": ""} {}',
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_such_payload_is_nothing(name: str) -> None:
    assert read(BAD[name]) is None


@pytest.mark.parametrize("payload", [Hello("a", {"tcp": 1}), Proof("abc")])
def test_greetings_are_not_taken_for_it(payload: Hello | Proof) -> None:
    assert read(encode(payload)) is None


def test_fields_of_later_versions_are_left_alone() -> None:
    assert read(b'{"waystation": "declined", "why": "so", "since": 3}') == Declined("so")


@pytest.mark.rule("RE-16")
def test_never_is_announced_as_nothing_and_comes_back_as_never() -> None:
    entry = RoutingEntry("truck-7", Address(0, b"truck-7"), local=True, visible=True)
    assert participant_of(entry) == ("truck-7", True, None)
    assert expiry_of(participant_of(entry)) == NEVER


@given(expiry=st.integers(0, LAST_INSTANT), visible=st.booleans())
def test_an_instant_is_announced_as_it_is(expiry: int, *, visible: bool) -> None:
    entry = RoutingEntry(
        "truck-7", Address(0, b"truck-7"), local=True, visible=visible, expiry=expiry
    )
    announced: Participant = participant_of(entry)
    assert announced == ("truck-7", visible, expiry)
    assert expiry_of(announced) == expiry


@pytest.mark.parametrize("count", [0, 1, ITEMS - 1, ITEMS, ITEMS + 1, 3 * ITEMS])
def test_long_lists_go_in_pieces_without_a_gap(count: int) -> None:
    lines = list(range(count))
    pieces = list(in_payloads(lines))
    assert [line for piece in pieces for line in piece] == lines
    assert all(0 < len(piece) <= ITEMS for piece in pieces)
    assert len(pieces) == -(-count // ITEMS)
