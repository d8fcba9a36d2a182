"""Ockam's identities: its own vectors, chains of keys, and what is no identity."""

from __future__ import annotations

import copy
import json
import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waystation.errors import LocalError, RemoteError
from waystation.wire import cbor
from waystation.wire.identity import (
    CHANGES_LIMIT,
    HISTORY_LIMIT,
    P256,
    Identity,
    PrivateIdentity,
    PublicKey,
    check_identifier,
    is_identifier,
)

VECTORS = json.loads((Path(__file__).parent / "vectors" / "ockam-identities.json").read_text())
NOW = 1_700_000_000
ONE = PrivateIdentity.create(b"\x01" * 32, NOW)
TWO = ONE.rotated(b"\x02" * 32, NOW + 10)
OTHER = PrivateIdentity.create(b"\x03" * 32, NOW)


def changes_of(identity: PrivateIdentity) -> list[Any]:
    changes = cbor.decode(identity.public.history)
    assert isinstance(changes, list)
    return changes


@pytest.mark.rule("ID-1")
@pytest.mark.parametrize("vector", VECTORS["upstream"], ids=lambda vector: vector["id"])
def test_identifiers_and_signatures_are_those_of_ockam(vector: dict[str, str]) -> None:
    identity = Identity.read(bytes.fromhex(vector["hex"]))
    assert identity.identifier == vector["identifier"]
    if "secret_hex" in vector:
        private = PrivateIdentity(identity.history, bytes.fromhex(vector["secret_hex"]))
        assert identity.verifies(private.sign(b"a text"), b"a text")


@pytest.mark.rule("ID-1")
@pytest.mark.parametrize("vector", VECTORS["computed"], ids=lambda vector: vector["id"])
def test_a_created_identity_has_the_bytes_that_ockam_makes(vector: dict[str, Any]) -> None:
    begin, end = vector["valid"]
    made = PrivateIdentity.create(bytes.fromhex(vector["seed_hex"]), begin, lifetime=end - begin)
    assert made.identifier == vector["identifier"]
    assert vector["payload"].startswith("83" + made.public.history.hex())


def test_a_signature_is_of_one_text_and_one_key() -> None:
    signature = ONE.sign(b"a text")
    assert ONE.public.verifies(signature, b"a text")
    assert not ONE.public.verifies(signature, b"another")
    assert not OTHER.public.verifies(signature, b"a text")
    assert not ONE.public.verifies(signature[:-1], b"a text")


def test_a_p256_key_verifies_only_what_it_signed() -> None:
    vector = next(each for each in VECTORS["upstream"] if each["id"] == "id-p256")
    identity = Identity.read(bytes.fromhex(vector["hex"]))
    assert identity.key.kind == P256
    assert not identity.verifies(bytes(64), b"a text")
    assert not PublicKey(P256, b"\x04" + bytes(64)).verifies(bytes(64), b"no point of the curve")


@pytest.mark.rule("ID-5")
def test_a_new_key_keeps_the_identifier_and_the_old_key_signs_no_more() -> None:
    assert TWO.identifier == ONE.identifier
    assert TWO.public.verifies(TWO.sign(b"a text"), b"a text")
    assert not TWO.public.verifies(ONE.sign(b"a text"), b"a text")
    assert TWO.public.follows(ONE.public)
    assert TWO.public.follows(TWO.public)
    assert not ONE.public.follows(TWO.public)
    assert not OTHER.public.follows(ONE.public)


@pytest.mark.rule("ID-5")
def test_a_key_changes_a_limited_number_of_times() -> None:
    identity = ONE
    for _ in range(CHANGES_LIMIT - 1):
        identity = identity.rotated(b"\x04" * 32, NOW)
    assert len(identity.public.history) <= HISTORY_LIMIT
    with pytest.raises(LocalError, match="has had 16 keys"):
        identity.rotated(b"\x05" * 32, NOW)


def test_a_key_is_valid_until_its_end() -> None:
    short = PrivateIdentity.create(b"\x06" * 32, NOW, lifetime=60).public
    assert short.is_valid(NOW + 59)
    assert not short.is_valid(NOW + 60)


@pytest.mark.rule("ID-1")
def test_a_private_key_is_in_no_text_and_no_copy() -> None:
    seed = bytes(range(32))
    identity = PrivateIdentity.create(seed, NOW)
    assert seed.hex() not in repr(identity) + str(identity)
    assert repr(identity) == f"<identity {identity.identifier}>"
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(identity)
    with pytest.raises(TypeError, match="cannot be pickled"):
        copy.copy(identity)


def test_a_key_has_32_bytes_and_belongs_to_its_history() -> None:
    with pytest.raises(LocalError, match="a private key of 31 bytes"):
        PrivateIdentity.create(bytes(31), NOW)
    with pytest.raises(RemoteError, match="is not that of identity"):
        PrivateIdentity(ONE.public.history, b"\x02" * 32)


def _with_other_end(changes: list[Any]) -> list[Any]:
    """The same change under another validity, with the old signature."""
    data = cbor.decode(changes[0][0])
    assert isinstance(data, list)
    assert isinstance(data[2], bytes)
    inner = cbor.decode(data[2])
    assert isinstance(inner, list)
    inner[4] = 2**63
    return [[cbor.encode([1, 1, cbor.encode(inner)]), changes[0][1]]]


ATTACKS: dict[str, tuple[list[Any], str]] = {
    "nothing": ([], "1 to 16 changes"),
    "too many": (changes_of(ONE) * (CHANGES_LIMIT + 1), "1 to 16 changes"),
    "the second alone": (changes_of(TWO)[1:], "cannot follow another"),
    "the first twice": (changes_of(ONE) * 2, "does not follow"),
    "another's second": ([changes_of(OTHER)[0], changes_of(TWO)[1]], "does not follow"),
    "without the former key": ([changes_of(TWO)[0], changes_of(TWO)[1][:2]], "key before"),
    "the former key by itself": (
        [changes_of(TWO)[0], [*changes_of(TWO)[1][:2], changes_of(TWO)[1][1]]],
        "key before",
    ),
    "a validity that nobody signed": (_with_other_end(changes_of(ONE)), "its own key"),
    "a first with a former signature": (
        [[*changes_of(ONE)[0], changes_of(ONE)[0][1]]],
        "cannot follow another",
    ),
    "no change": ([0], "malformed"),
    "no data": ([[0, 0]], "malformed"),
    "an attestation": (
        [[cbor.encode([1, 2, b""]), changes_of(ONE)[0][1]]],
        "malformed",
    ),
    "no content": ([[cbor.encode([1, 1, cbor.encode([])]), changes_of(ONE)[0][1]]], "malformed"),
    "no key": (
        [[cbor.encode([1, 1, cbor.encode([None, [0, [b""]], False, 1, 2])]), [0, [b""]]]],
        "malformed",
    ),
    "no signature": ([[changes_of(ONE)[0][0], 0]], "malformed"),
}


@pytest.mark.rule("ID-1")
@pytest.mark.parametrize("name", ATTACKS)
def test_no_other_chain_is_an_identity(name: str) -> None:
    changes, why = ATTACKS[name]
    with pytest.raises(RemoteError, match=why):
        Identity.read(cbor.encode(changes))


def test_a_history_without_end_is_refused_before_it_is_read() -> None:
    with pytest.raises(RemoteError, match="too long"):
        Identity.read(bytes(HISTORY_LIMIT + 1))
    with pytest.raises(RemoteError, match="1 to 16 changes"):
        Identity.read(cbor.encode(0))


def test_times_go_on() -> None:
    with pytest.raises(RemoteError, match="valid for no time"):
        PrivateIdentity.create(b"\x01" * 32, NOW, lifetime=0)
    later = ONE.rotated(b"\x02" * 32, NOW - 100)
    assert later.public.valid_from == ONE.public.valid_from


def test_a_change_that_is_older_than_the_one_before_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from waystation.wire import identity as module  # noqa: PLC0415

    make = module._change_data
    monkeypatch.setattr(
        module,
        "_change_data",
        lambda previous, key, begin, end: make(previous, key, begin - 1, end),
    )
    with pytest.raises(RemoteError, match="older than the one before"):
        ONE.rotated(b"\x02" * 32, NOW)


@given(st.binary(max_size=200))
def test_hostile_histories_raise_nothing_else(data: bytes) -> None:
    with pytest.raises(RemoteError):
        Identity.read(data)


@given(st.integers(0, len(TWO.public.history) - 1), st.integers(1, 255))
def test_no_changed_byte_leaves_the_identity_valid_and_the_same(at: int, change: int) -> None:
    data = bytearray(TWO.public.history)
    data[at] ^= change
    try:
        found = Identity.read(bytes(data))
    except RemoteError:
        return
    # Only what tells the kind of a signature is not signed; Ockam does not look at it either.
    assert (found.identifier, found.key) == (TWO.identifier, TWO.public.key)


def test_identifiers_have_one_form() -> None:
    assert is_identifier(ONE.identifier)
    assert check_identifier(ONE.identifier) == ONE.identifier
    for text in ("", "truck-7", ONE.identifier[:-1], ONE.identifier.upper(), ONE.identifier + "\n"):
        assert not is_identifier(text)
        with pytest.raises(LocalError, match="is no identifier"):
            check_identifier(text)
