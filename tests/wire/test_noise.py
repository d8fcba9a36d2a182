"""Noise XX, against a transcript under Ockam's name, and against a peer that lies."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from waystation.errors import RemoteError
from waystation.wire.noise import KEY_SIZE, MESSAGE_LIMIT, Handshake, public_key

VECTORS = Path(__file__).parent / "vectors"
TRANSCRIPT: dict[str, Any] = json.loads((VECTORS / "ockam-secure-channel.json").read_text())


def secret(name: str) -> bytes:
    """A key of the transcript: one byte, 32 times."""
    return bytes.fromhex(TRANSCRIPT["secrets"][name].removesuffix("*32")) * KEY_SIZE


def data(name: str) -> bytes:
    return bytes.fromhex(TRANSCRIPT[name])


def initiator() -> Handshake:
    return Handshake(secret("initiator_static_x25519"), secret("initiator_ephemeral"))


def responder() -> Handshake:
    return Handshake(secret("responder_static_x25519"), secret("responder_ephemeral"))


@pytest.mark.rule("ID-4")
def test_a_handshake_is_that_of_the_transcript() -> None:
    alice, bob = initiator(), responder()
    first = alice.write_first()
    assert first == data("message1")
    assert bob.read_first(first) == b""
    second = bob.write_second(data("responder_payload"))
    assert second == data("message2")
    assert alice.read_second(second) == data("responder_payload")
    third = alice.write_third(data("initiator_payload"))
    assert third == data("message3")
    assert bob.read_third(third) == data("initiator_payload")
    assert alice.hash == bob.hash == data("final_h")
    assert alice.keys() == bob.keys()
    assert alice.keys() == (data("initiator_decrypts_with"), data("initiator_encrypts_with"))
    assert bob.peer_static == public_key(secret("initiator_static_x25519"))
    assert alice.peer_static == public_key(secret("responder_static_x25519"))


NOISE: list[dict[str, Any]] = json.loads((VECTORS / "noise-xx.json").read_text())


@pytest.mark.rule("ID-4")
@pytest.mark.parametrize("vector", NOISE)
def test_a_handshake_is_that_of_noises_own_vectors(vector: dict[str, Any]) -> None:
    name = vector["protocol_name"].encode()
    prologue = bytes.fromhex(vector["init_prologue"])
    alice = Handshake(
        bytes.fromhex(vector["init_static"]),
        bytes.fromhex(vector["init_ephemeral"]),
        name=name,
        prologue=prologue,
    )
    bob = Handshake(
        bytes.fromhex(vector["resp_static"]),
        bytes.fromhex(vector["resp_ephemeral"]),
        name=name,
        prologue=prologue,
    )
    payloads = [bytes.fromhex(message["payload"]) for message in vector["messages"]]
    sealed = [bytes.fromhex(message["ciphertext"]) for message in vector["messages"]]
    assert alice.write_first(payloads[0]) == sealed[0]
    assert bob.read_first(sealed[0]) == payloads[0]
    assert bob.write_second(payloads[1]) == sealed[1]
    assert alice.read_second(sealed[1]) == payloads[1]
    assert alice.write_third(payloads[2]) == sealed[2]
    assert bob.read_third(sealed[2]) == payloads[2]
    assert alice.keys() == bob.keys()
    if vector.get("handshake_hash"):
        assert alice.hash == bob.hash == bytes.fromhex(vector["handshake_hash"])


@pytest.mark.parametrize("size", [0, KEY_SIZE - 1, MESSAGE_LIMIT + 1])
def test_a_first_message_of_another_size_is_refused(size: int) -> None:
    with pytest.raises(RemoteError, match=f"a message of {size} bytes"):
        responder().read_first(bytes(size))


@pytest.mark.parametrize("size", [0, 47, MESSAGE_LIMIT + 1])
def test_a_third_message_of_another_size_is_refused(size: int) -> None:
    bob = responder()
    bob.read_first(data("message1"))
    bob.write_second(b"")
    with pytest.raises(RemoteError, match=f"a message of {size} bytes"):
        bob.read_third(bytes(size))


@pytest.mark.rule("ID-4")
@pytest.mark.parametrize("place", [0, 40, 100, 418])
def test_a_changed_byte_anywhere_is_refused(place: int) -> None:
    alice = initiator()
    alice.write_first()
    changed = bytearray(data("message2"))
    changed[place] ^= 1
    with pytest.raises(RemoteError, match="was not sealed with the key"):
        alice.read_second(bytes(changed))


def test_a_key_that_makes_the_secret_known_to_all_is_refused() -> None:
    alice = initiator()
    alice.write_first()
    with pytest.raises(RemoteError, match="none that can be used"):
        alice.read_second(bytes(KEY_SIZE) + bytes(100))


def test_a_message_cut_short_is_refused() -> None:
    alice = initiator()
    alice.write_first()
    with pytest.raises(RemoteError):
        alice.read_second(data("message2")[:90])


def test_a_long_name_is_hashed() -> None:
    handshake = Handshake(bytes(32), bytes(range(32)), name=b"a name of more than thirty-two bytes")
    assert len(handshake.hash) == KEY_SIZE
