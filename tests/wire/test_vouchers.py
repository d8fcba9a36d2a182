from __future__ import annotations

import msgspec
import pytest

from waystation.errors import RemoteError
from waystation.wire.identity import PrivateIdentity
from waystation.wire.vouchers import NAMES, Voucher, vouch

ALICE = PrivateIdentity.create(b"\x01" * 32, 1_700_000_000)
BOB = PrivateIdentity.create(b"\x02" * 32, 1_700_000_000)
WORD = vouch(ALICE, 7, 3, [f"truck-{number}" for number in range(NAMES)])


@pytest.mark.rule("ID-2")
def test_a_voucher_tells_who_signed_which_names() -> None:
    assert WORD.owner() == ALICE.public
    assert (WORD.number, WORD.lowest) == (7, 3)
    assert all(WORD.names_it(f"truck-{number}") for number in range(NAMES))
    assert not WORD.names_it("truck-256")
    assert not WORD.names_it("")
    assert msgspec.json.decode(msgspec.json.encode(WORD), type=Voucher) == WORD


@pytest.mark.rule("ID-2")
@pytest.mark.parametrize(
    "changes",
    [
        {"number": 8},
        {"lowest": 4},
        {"names": WORD.names[16:]},
        {"names": b""},
        {"history": BOB.public.history},
        {"signature": bytes(64)},
    ],
)
def test_nothing_in_it_can_be_changed(changes: dict[str, object]) -> None:
    with pytest.raises(RemoteError, match="did not sign"):
        msgspec.structs.replace(WORD, **changes).owner()


def test_a_voucher_has_a_limited_number_of_names() -> None:
    with pytest.raises(RemoteError, match="too many names"):
        vouch(ALICE, 1, 0, ["a"] * (NAMES + 1)).owner()


def test_names_are_found_where_they_begin_and_not_between_two() -> None:
    one, other = vouch(ALICE, 1, 0, ["a"]).names, vouch(ALICE, 1, 0, ["b"]).names
    between = msgspec.structs.replace(WORD, names=other[8:] + one + other[:8])
    assert not between.names_it("a")
    twice = msgspec.structs.replace(WORD, names=bytes(8) + one + bytes(8) + one)
    assert twice.names_it("a")
