"""Inside a secure channel: what is sealed, what is opened, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.wire.test_noise import data, secret
from waystation.core.address import Route
from waystation.core.message import Message
from waystation.errors import RemoteError
from waystation.wire import cbor
from waystation.wire.identity import LIFETIME, PrivateIdentity
from waystation.wire.noise import TAG_SIZE, public_key
from waystation.wire.secure_channel import (
    AHEAD,
    LAST,
    REKEY,
    WINDOW,
    Opener,
    Sealer,
    check_proof,
    decode,
    encode,
    encode_close,
    proof,
)

TRANSCRIPT: dict[str, Any] = json.loads(
    (Path(__file__).parent / "vectors" / "ockam-secure-channel.json").read_text()
)
KEY = bytes.fromhex(TRANSCRIPT["initiator_encrypts_with"])
PLAIN = bytes.fromhex(TRANSCRIPT["plaintext"])
NOW = 1_750_000_000
STATIC = bytes(range(32))


def identity(byte: int = 7, begin: int = NOW) -> PrivateIdentity:
    return PrivateIdentity.create(bytes([byte]) * 32, begin)


@pytest.mark.rule("ID-4")
def test_messages_are_sealed_as_in_the_transcript_also_after_the_key_changed() -> None:
    sealer, opener = Sealer(KEY), Opener(KEY)
    wanted = TRANSCRIPT["initiator_data_messages_by_nonce"]
    for number in range(3 * REKEY):
        sealed = sealer.seal(PLAIN)
        if str(number) in wanted:
            assert sealed.hex() == wanted[str(number)]
        assert opener.open(sealed) == PLAIN
        assert opener.highest == number


def test_a_message_inside_is_that_of_the_transcript() -> None:
    message = decode(PLAIN)
    assert message is not None
    assert str(message.onward_route) == "0#echoer"
    assert str(message.return_route) == "0#app"
    assert encode(message.onward_route, message.return_route, message.payload) == PLAIN


@given(st.binary(max_size=300), st.binary(max_size=3), st.booleans())
def test_padding_is_passed_over_whatever_is_in_it(
    payload: bytes, padding: bytes, cut: bool
) -> None:
    """A message with the usual padding, none at all, is read in a faster way."""
    onward, back = Route.parse("a => b"), Route.parse("c")
    body = encode(onward, back, payload)[:-1]
    data = body if cut else body + bytes([0x40 + len(padding)]) + padding
    assert decode(data) == Message(onward, back, payload)


@given(st.binary(max_size=300), st.lists(st.text(min_size=1, max_size=9), max_size=4))
def test_what_is_encoded_is_decoded(payload: bytes, names: list[str]) -> None:
    plain = [name for name in names if name.isprintable() and not set(name) & set(" #=>")]
    onward = Route.parse(" => ".join(["first", *(f"0#{name}" for name in plain)]))
    assert decode(encode(onward, Route(), payload)) == Message(onward, Route(), payload)


def test_other_messages_of_a_channel() -> None:
    assert decode(encode_close()) is None
    assert decode(bytes.fromhex("82820181828080") + b"\x40") == Message(Route(), Route(), b"")
    with pytest.raises(RemoteError, match="no message of a secure channel"):
        decode(b"anything else")


@pytest.mark.rule("ID-4")
@given(st.permutations(range(2 * WINDOW)))
def test_each_message_is_opened_once_in_any_order_within_the_window(order: list[int]) -> None:
    sealer, opener = Sealer(KEY), Opener(KEY)
    sealed = [sealer.seal(b"%d" % number) for number in range(2 * WINDOW)]
    highest = -1
    opened = set()
    for number in [*order, *order]:
        late = highest - number >= WINDOW
        if late or number in opened:
            with pytest.raises(RemoteError, match="came again, or much too late"):
                opener.open(sealed[number])
        else:
            assert opener.open(sealed[number]) == b"%d" % number
            opened.add(number)
        highest = max(opened)


@pytest.mark.rule("ID-4")
def test_a_gap_is_passed_and_a_very_wide_one_refused() -> None:
    sealer, opener = Sealer(KEY), Opener(KEY)
    sealed = [sealer.seal(b"%d" % number) for number in range(AHEAD + 2)]
    with pytest.raises(RemoteError, match="much too early"):
        opener.open(sealed[AHEAD])
    assert opener.open(sealed[5 * REKEY]) == b"%d" % (5 * REKEY)
    assert opener.open(sealed[5 * REKEY - 1]) == b"%d" % (5 * REKEY - 1)
    with pytest.raises(RemoteError, match="much too late"):
        opener.open(sealed[4 * REKEY])
    assert opener.open(sealed[5 * REKEY + 1]) == b"%d" % (5 * REKEY + 1)


@pytest.mark.rule("ID-4")
@given(st.integers(0, 60), st.integers(0, 255))
def test_a_changed_message_is_refused_and_changes_nothing(place: int, value: int) -> None:
    sealer, opener = Sealer(KEY), Opener(KEY)
    sealed = sealer.seal(b"a message of about forty bytes, in the clear")
    changed = bytearray(sealed)
    changed[place] ^= value or 1
    with pytest.raises(RemoteError):
        opener.open(bytes(changed))
    assert opener.highest == -1
    assert opener.open(sealed).startswith(b"a message")


@pytest.mark.parametrize("size", [0, 7, 8 + TAG_SIZE - 1])
def test_less_than_a_sealed_message_is_refused(size: int) -> None:
    with pytest.raises(RemoteError, match=f"{size} bytes are no sealed message"):
        Opener(KEY).open(bytes(size))


def test_a_sealer_stops_before_a_number_would_come_twice() -> None:
    sealer = Sealer(KEY)
    sealer._number = LAST + 1  # which takes half a million years to reach
    with pytest.raises(RemoteError, match="as many messages as it can"):
        sealer.seal(b"")


def test_the_last_number_of_all_is_refused() -> None:
    opener = Opener(KEY)
    opener._highest = LAST - 1
    with pytest.raises(RemoteError, match="much too early"):
        opener.open((LAST + 1).to_bytes(8, "big") + bytes(TAG_SIZE))


# Who the peer is


@pytest.mark.rule("ID-4")
def test_the_proofs_of_the_transcript_are_valid() -> None:
    for side in ("initiator", "responder"):
        static = public_key(secret(f"{side}_static_x25519"))
        found = check_proof(data(f"{side}_payload"), static, NOW)
        assert found.identifier == TRANSCRIPT[f"{side}_identifier"]


def test_an_identity_proves_its_key() -> None:
    mine = identity()
    assert check_proof(proof(mine, STATIC, NOW), STATIC, NOW) == mine.public


def test_an_identity_with_a_new_key_proves_itself_with_that() -> None:
    mine = identity().rotated(bytes([9]) * 32, NOW + 10)
    assert check_proof(proof(mine, STATIC, NOW + 10), STATIC, NOW + 10) == mine.public


@pytest.mark.rule("ID-4")
@pytest.mark.parametrize(
    ("static", "now", "complaint"),
    [
        (bytes(32), NOW, "of another key"),
        (STATIC, NOW - 61, "not valid now"),
        (STATIC, NOW + LIFETIME, "not valid now"),
    ],
)
def test_a_proof_of_another_key_or_time_is_refused(static: bytes, now: int, complaint: str) -> None:
    with pytest.raises(RemoteError, match=complaint):
        check_proof(proof(identity(), STATIC, NOW), static, now)


def test_a_clock_may_be_off_by_a_minute() -> None:
    assert check_proof(proof(identity(), STATIC, NOW), STATIC, NOW - 60)


def _parts() -> list[Any]:
    decoded = cbor.decode(proof(identity(), STATIC, NOW))
    assert isinstance(decoded, list)
    return decoded


@pytest.mark.rule("ID-4")
def test_the_attestation_of_another_identity_is_refused() -> None:
    mine, theirs = _parts(), cbor.decode(proof(identity(8), STATIC, NOW))
    assert isinstance(theirs, list)
    with pytest.raises(RemoteError, match="of another identity"):
        check_proof(cbor.encode([mine[0], theirs[1], []]), STATIC, NOW)


@pytest.mark.rule("ID-4")
def test_an_attestation_that_is_not_signed_is_refused() -> None:
    history, (data, _), credentials = _parts()
    forged = cbor.encode([history, [data, [0, [bytes(64)]]], credentials])
    with pytest.raises(RemoteError, match="not signed by the identity"):
        check_proof(forged, STATIC, NOW)


def test_an_attestation_that_outlives_its_key_is_refused() -> None:
    mine = identity()
    subject, end = mine.public.hashes[0], mine.public.valid_until
    inner = cbor.encode([subject, subject, [0, [STATIC]], NOW, end + 1])
    data = cbor.encode([1, 2, inner])
    history = cbor.decode(mine.public.history)
    shown = cbor.encode([history, [data, [0, [bytes(64)]]], []])
    with pytest.raises(RemoteError, match="valid for longer"):
        check_proof(shown, STATIC, NOW)


@pytest.mark.parametrize(
    "attestation",
    [
        [],
        [b"no array", [0, [bytes(64)]]],
        [cbor.encode([1, 1, b""]), [0, [bytes(64)]]],
        [cbor.encode([1, 2, cbor.encode([1, 2, 3])]), [0, [bytes(64)]]],
        [cbor.encode([1, 2, b""]), b"no signature"],
    ],
)
def test_a_malformed_attestation_is_refused(attestation: Any) -> None:
    history = _parts()[0]
    with pytest.raises(RemoteError):
        check_proof(cbor.encode([history, attestation, []]), STATIC, NOW)


@pytest.mark.parametrize("shown", [b"", b"\x01", b"\x80", b"\x83\x80\x80\x40"])
def test_whoever_shows_no_identity_is_refused(shown: bytes) -> None:
    with pytest.raises(RemoteError):
        check_proof(shown, STATIC, NOW)
