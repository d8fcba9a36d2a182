from __future__ import annotations

import contextlib
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from waystation.core.tokens import Token, Tokens
from waystation.errors import RemoteError
from waystation.wire.hello import (
    CAN_LIMIT,
    CAPABILITY,
    CAPABILITY_LIMIT,
    FIRST_VERSION,
    NAME_LIMIT,
    PAYLOAD_LIMIT,
    VERSION_LIMIT,
    Greeting,
    Hello,
    Proof,
    owner_of,
)
from waystation.wire.identity import HISTORY_LIMIT, PrivateIdentity

TYPES = {"local": 0, "tcp": 1}


def side(name: str, token: bytes | None = None, *, initiator: bool = False) -> Greeting:
    hello = Hello(name, TYPES, 15.0, f"nonce of {name}", token is not None)
    return Greeting(hello, token, initiator=initiator)


def pair(here: bytes | None, there: bytes | None) -> tuple[Greeting, Greeting]:
    return side("a", here, initiator=True), side("b", there)


@pytest.mark.rule("AD-3")
def test_both_sides_learn_who_the_other_is_and_how_it_numbers_types() -> None:
    a, b = pair(None, None)
    assert a.admitted
    assert b.admitted
    assert a.hear(b.first()) is None
    assert b.hear(a.first()) is None
    assert a.peer == Hello("b", TYPES, 15.0, "nonce of b")
    assert b.peer is not None
    assert (b.peer.node, b.peer.types, b.peer.beat) == ("a", TYPES, 15.0)


def test_with_the_same_token_each_side_admits_the_other_after_its_proof() -> None:
    a, b = pair(b"swordfish", b"swordfish")
    of_a, of_b = a.hear(b.first()), b.hear(a.first())
    assert of_a is not None
    assert of_b is not None
    before = (a.admitted, b.admitted)
    assert b"swordfish" not in a.first() + b.first() + of_a + of_b
    assert a.hear(of_b) is None
    assert b.hear(of_a) is None
    assert (before, a.admitted, b.admitted) == ((False, False), True, True)


def test_another_token_is_refused() -> None:
    a, b = pair(b"secret", b"other")
    proof = b.hear(a.first())
    a.hear(b.first())
    assert proof is not None
    with pytest.raises(RemoteError, match="node 'b' has a different token"):
        a.hear(proof)
    assert not a.admitted


def test_a_token_on_one_side_only_is_refused_on_both() -> None:
    a, b = pair(b"secret", None)
    with pytest.raises(RemoteError, match="node 'b' has no token"):
        a.hear(b.first())
    with pytest.raises(RemoteError, match="node 'a' requires a token, but none is set here"):
        b.hear(a.first())
    assert not a.admitted


def test_a_proof_is_good_for_its_session_and_its_role_only() -> None:
    a, b = pair(b"secret", b"secret")
    proof_of_a = a.hear(b.first())
    assert proof_of_a is not None
    later = Greeting(
        Hello("b", TYPES, nonce="another nonce", token=True), b"secret", initiator=False
    )
    later.hear(a.first())
    with pytest.raises(RemoteError, match="a different token"):
        later.hear(proof_of_a)
    mirror = side("b", b"secret")
    own = mirror.hear(
        Greeting(Hello("x", {}, nonce="nonce of b", token=True), b"", initiator=True).first()
    )
    assert own is not None
    with pytest.raises(RemoteError, match="a different token"):
        mirror.hear(own)


def test_a_proof_before_a_hello_or_after_admission_counts_for_nothing() -> None:
    a, b = pair(b"secret", b"secret")
    assert a.hear(b'{"waystation":"proof","proof":"00"}') is None
    assert not a.admitted
    proof = b.hear(a.first())
    a.hear(b.first())
    assert proof is not None
    a.hear(proof)
    assert a.hear(b'{"waystation":"proof","proof":"00"}') is None
    assert a.admitted


def test_a_second_hello_is_refused() -> None:
    a, b = pair(None, None)
    a.hear(b.first())
    with pytest.raises(RemoteError, match="node 'b' sent a second hello"):
        a.hear(b.first())


def test_a_long_name_is_refused() -> None:
    a, _ = pair(None, None)
    with pytest.raises(RemoteError, match="too long a name"):
        a.hear(side("x" * (NAME_LIMIT + 1)).first())
    a.hear(side("x" * NAME_LIMIT).first())
    assert a.peer is not None


def test_a_payload_over_the_limit_is_refused() -> None:
    a, _ = pair(None, None)
    assert a.hear(bytes(PAYLOAD_LIMIT)) is None
    with pytest.raises(RemoteError, match="is too long"):
        a.hear(bytes(PAYLOAD_LIMIT + 1))


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xff",
        b"null",
        b'{"waystation":"later","x":1}',
        b'{"waystation":"hello","node":"\xff","types":{}}',
        b'{"waystation":"hello","node":"x","types":{},"more":' + b"[" * 60_000,
        b'{"waystation":"hello","node":"x","types":{"tcp":"1"}}',
        b'{"waystation":"hello","node":"x"}',
    ],
)
def test_what_is_none_of_these_is_passed_over(payload: bytes) -> None:
    a, b = pair(None, None)
    assert a.hear(payload) is None
    assert a.peer is None
    a.hear(b.first())
    assert a.peer is not None


def test_a_hello_of_a_later_make_may_say_more() -> None:
    a, b = pair(None, None)
    said = json.loads(b.first()) | {"colour": {"sky": ["blue"]}}
    assert a.hear(json.dumps(said).encode()) is None
    assert a.peer is not None


@given(st.binary(max_size=200))
def test_no_bytes_raise_anything_but_a_remote_error(payload: bytes) -> None:
    a, _ = pair(b"secret", None)
    with contextlib.suppress(RemoteError):
        a.hear(payload)
    assert not a.admitted


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
_fields = ("node", "types", "beat", "nonce", "token", "proof")


@given(
    st.sampled_from(["hello", "proof", "x"]),
    st.fixed_dictionaries({}, optional=dict.fromkeys(_fields, _json)),
)
def test_no_object_gets_in_without_the_token(kind: str, fields: dict[str, Any]) -> None:
    _, b = pair(None, b"secret")
    a = side("a", b"secret", initiator=True)
    a.hear(b.first())
    with contextlib.suppress(RemoteError):
        a.hear(json.dumps({"waystation": kind, **fields}).encode())
    assert not a.admitted


def test_a_nonce_and_a_proof_may_be_any_text() -> None:
    a = side("a", b"secret", initiator=True)
    a.hear(
        json.dumps(
            {
                "waystation": "hello",
                "node": "b",
                "types": {},
                "nonce": "\U0001f600 é",
                "token": True,
            }
        ).encode()
    )
    with pytest.raises(RemoteError, match="a different token"):
        a.hear(json.dumps({"waystation": "proof", "proof": "\U0001f600"}).encode())
    assert Proof("x").proof == "x"


@pytest.mark.rule("CL-1")
@pytest.mark.parametrize("told", [{"session": -1}, {"session": 2**63}, {"secret": "s" * 256}])
def test_a_session_that_is_numbered_in_an_invalid_way_ends(told: dict[str, Any]) -> None:
    a, _ = pair(None, None)
    leaf = Greeting(Hello("leaf", TYPES, **told), None, initiator=True)
    with pytest.raises(RemoteError, match="node 'leaf' numbers its sessions in an invalid way"):
        a.hear(leaf.first())
    assert a.peer is None


@pytest.mark.rule("CL-1")
def test_an_owner_follows_from_its_secret_and_not_the_other_way_round() -> None:
    assert owner_of("one") == owner_of("one") != owner_of("two")
    assert len(owner_of("one")) == 32
    assert owner_of("\ud800")  # also of what is no text


@pytest.mark.rule("UP-1")
def test_a_hello_of_the_first_version_tells_no_version_and_understands_nothing_new() -> None:
    here = side("a")
    here.hear(b'{"waystation":"hello","node":"b","types":{"tcp":1},"beat":15.0}')
    assert here.peer == Hello("b", {"tcp": 1}, 15.0, "", False, FIRST_VERSION, ())


@pytest.mark.rule("UP-1")
def test_a_hello_of_a_later_version_may_say_more() -> None:
    here = side("a")
    said: dict[str, Any] = {"waystation": "hello", "node": "b", "types": {}, "version": "9.9"}
    here.hear(json.dumps(said | {"can": ["hold", "fly"], "moon": [{}, None]}).encode())
    assert here.peer == Hello("b", {}, version="9.9", can=("hold", "fly"))


@pytest.mark.rule("OB-10")
@pytest.mark.parametrize(
    ("told", "kept"), [(1_700_000_000_000, 1_700_000_000_000), (0, 0), (-1, 0), (2**63, 0)]
)
def test_an_incarnation_that_no_journal_can_have_is_not_kept(told: int, kept: int) -> None:
    here = side("a")
    here.hear(Greeting(Hello("b", TYPES, incarnation=told), None, initiator=False).first())
    assert here.peer is not None
    assert here.peer.incarnation == kept


@pytest.mark.rule("UP-1")
def test_of_what_a_peer_says_that_it_understands_only_so_much_is_kept() -> None:
    here = side("a")
    can = ["x" * (CAPABILITY_LIMIT + 1), "hold", *(str(number) for number in range(10_000))]
    said: dict[str, Any] = {"waystation": "hello", "node": "b", "types": {}, "can": can}
    said["version"] = "9" * 1_000
    payload = json.dumps(said, separators=(",", ":")).encode()
    assert len(payload) > PAYLOAD_LIMIT  # ten thousand do not even fit
    with pytest.raises(RemoteError, match="too long"):
        here.hear(payload)
    said["can"] = can[:5_000]
    here.hear(json.dumps(said).encode())
    assert here.peer is not None
    assert here.peer.can == tuple(can[1:CAN_LIMIT])
    assert here.peer.version == "9" * VERSION_LIMIT


@pytest.mark.rule("FL-2")
@pytest.mark.parametrize(
    ("said", "problem"),
    [
        ({"nonce": "x" * 60_000}, "too long a nonce"),
        ({"types": {str(number): number for number in range(4_000)}}, "too many address types"),
    ],
    ids=["nonce", "types"],
)
def test_a_hello_that_would_have_to_be_kept_for_long_is_refused(
    said: dict[str, Any], problem: str
) -> None:
    payload = json.dumps({"waystation": "hello", "node": "b", "types": {}} | said).encode()
    assert len(payload) < PAYLOAD_LIMIT
    with pytest.raises(RemoteError, match=f"node 'b' sent {problem}"):
        side("a").hear(payload)


# --- Identities -----------------------------------------------------------------------------------

ALICE = PrivateIdentity.create(b"\x01" * 32, 1_700_000_000)
BOB = PrivateIdentity.create(b"\x02" * 32, 1_700_000_000)
MALLORY = PrivateIdentity.create(b"\x03" * 32, 1_700_000_000)


def prover(
    name: str,
    identity: PrivateIdentity | None,
    *,
    initiator: bool = False,
    token: Tokens | bytes | None = None,
    certificate: bytes = b"",
    nonce: str = "",
    can: tuple[str, ...] = (CAPABILITY,),
) -> Greeting:
    hello = Hello(
        name,
        TYPES,
        nonce=nonce or f"nonce of {name}",
        token=token is not None,
        can=can,
        proves=identity is not None,
    )
    return Greeting(hello, token, initiator=initiator, identity=identity, certificate=certificate)


def proof_of(payload: bytes | None) -> Proof:
    assert payload is not None
    return msgspec.json.decode(payload, type=Proof)


def greet(a: Greeting, b: Greeting) -> None:
    of_a, of_b = a.hear(b.first()), b.hear(a.first())
    for side, proof in ((b, of_a), (a, of_b)):
        if proof is not None:
            assert side.hear(proof) is None


@pytest.mark.rule("ID-2")
def test_each_side_proves_its_identity_with_the_answer_to_the_hello() -> None:
    a, b = prover("a", ALICE, initiator=True), prover("b", BOB)
    assert (a.proves, a.is_complete) == (True, False)
    greet(a, b)
    assert a.identity == BOB.public
    assert b.identity == ALICE.public
    assert a.is_complete
    assert b.is_complete


@pytest.mark.rule("ID-2", "UP-1")
def test_a_peer_that_cannot_check_an_identity_is_sent_none() -> None:
    a, old = prover("a", ALICE, initiator=True), prover("b", None, can=())
    assert a.hear(old.first()) is None
    assert old.hear(a.first()) is None
    assert a.is_complete
    assert a.identity is None


@pytest.mark.rule("ID-2")
def test_token_and_identity_are_proven_together() -> None:
    a, b = prover("a", ALICE, initiator=True, token=b"s"), prover("b", BOB, token=b"s")
    greet(a, b)
    assert a.admitted
    assert b.admitted
    assert (a.identity, b.identity) == (BOB.public, ALICE.public)


@pytest.mark.rule("ID-2")
def test_an_identity_opens_nothing_that_a_token_is_asked_for() -> None:
    a, b = prover("a", ALICE, initiator=True, token=b"x"), prover("b", BOB, token=b"y")
    with pytest.raises(RemoteError, match="different token"):
        greet(a, b)
    assert not b.admitted


@pytest.mark.rule("ID-2")
def test_a_replayed_proof_is_refused() -> None:
    a, b = prover("a", ALICE, initiator=True), prover("b", BOB)
    proof = a.hear(b.first())
    assert proof is not None
    later = prover("b", BOB, nonce="another nonce")
    later.hear(a.first())
    with pytest.raises(RemoteError, match="another session"):
        later.hear(proof)
    assert later.identity is None


@pytest.mark.rule("ID-2")
def test_a_proof_is_of_one_role_and_cannot_be_sent_back() -> None:
    a, b = prover("a", ALICE, initiator=True), prover("b", BOB)
    proof = a.hear(b.first())
    assert proof is not None
    with pytest.raises(RemoteError, match="another session"):
        a.hear(proof)


@pytest.mark.rule("ID-2")
def test_swapped_hellos_are_another_session() -> None:
    """Somebody between the two shows each of them a hello of its own."""
    a, b = prover("a", ALICE, initiator=True), prover("b", BOB)
    between = prover("b", None, nonce="mallory's")
    proof = a.hear(between.first())
    assert proof is not None
    b.hear(a.first())
    with pytest.raises(RemoteError, match="another session"):
        b.hear(proof)


@pytest.mark.rule("ID-2")
def test_another_name_in_the_hello_is_another_session() -> None:
    a, b = prover("a", ALICE, initiator=True), prover("b", BOB)
    proof = a.hear(b.first())
    assert proof is not None
    b.hear(prover("c", ALICE, initiator=True, nonce="nonce of a").first())
    with pytest.raises(RemoteError, match="another session"):
        b.hear(proof)


@pytest.mark.rule("ID-2")
@pytest.mark.parametrize("seen", [b"", b"\x02" * 32])
def test_over_tls_both_have_to_know_the_same_certificate(seen: bytes) -> None:
    own = b"\x01" * 32
    greet(prover("a", ALICE, initiator=True, certificate=own), prover("b", BOB, certificate=own))
    a, b = prover("a", ALICE, initiator=True, certificate=seen), prover("b", BOB, certificate=own)
    with pytest.raises(RemoteError, match="another certificate"):
        greet(a, b)
    a, b = prover("a", None, initiator=True, certificate=seen), prover("b", BOB, certificate=own)
    a.hear(b.first())
    of_b = b.hear(a.first())
    assert of_b is not None
    with pytest.raises(RemoteError, match="another certificate"):
        a.hear(of_b)


@pytest.mark.rule("ID-2")
def test_nobody_proves_the_identity_of_another() -> None:
    a, b = prover("a", MALLORY, initiator=True), prover("b", BOB)
    proof = proof_of(a.hear(b.first()))
    b.hear(a.first())
    stolen = Proof("", ALICE.public.history, proof.signature)
    with pytest.raises(RemoteError, match=f"did not prove that it is {ALICE.identifier}"):
        b.hear(msgspec.json.encode(stolen))


@pytest.mark.rule("ID-2")
@pytest.mark.parametrize("history", [b"", b"\x81", bytes(HISTORY_LIMIT + 1)])
def test_no_history_or_one_without_end_is_refused(history: bytes) -> None:
    b = prover("b", BOB)
    b.hear(prover("a", ALICE, initiator=True).first())
    with pytest.raises(RemoteError, match="has no valid identity"):
        b.hear(msgspec.json.encode(Proof("", history, bytes(64))))


def test_only_the_first_proof_counts() -> None:
    a, b = prover("a", ALICE, initiator=True), prover("b", BOB)
    proof = a.hear(b.first())
    assert proof is not None
    b.hear(a.first())
    b.hear(proof)
    assert b.hear(msgspec.json.encode(Proof("", b"nonsense", bytes(64)))) is None
    assert b.identity == ALICE.public


@pytest.mark.rule("ID-2")
def test_a_name_with_a_token_of_its_own_proves_that_one() -> None:
    asked = Tokens([Token(b"everybody's"), Token(b"trucks'", "truck-*")])
    for name, secret, proven in (("truck-7", b"trucks'", "truck-*"), ("car", b"everybody's", "")):
        a, b = prover(name, None, initiator=True, token=secret), prover("b", None, token=asked)
        greet(a, b)
        assert b.token == Token(secret, proven)
    a, b = (
        prover("truck-7", None, initiator=True, token=b"everybody's"),
        prover("b", None, token=asked),
    )
    with pytest.raises(RemoteError, match="different token"):
        greet(a, b)


def test_a_name_without_any_token_is_refused() -> None:
    a = prover("car", None, initiator=True, token=b"x")
    b = prover("b", None, token=Tokens([Token(b"trucks'", "truck-*")]))
    with pytest.raises(RemoteError, match="no token for a node 'car'"):
        b.hear(a.first())


@pytest.mark.rule("ID-2")
@pytest.mark.parametrize("secret", [b"old", b"new"])
def test_of_two_tokens_the_listener_shows_the_one_that_the_peer_has(secret: bytes) -> None:
    a = prover("truck-7", ALICE, initiator=True, token=secret)
    b = prover("b", BOB, token=Tokens([Token(b"old", "truck-*"), Token(b"new", "truck-*")]))
    assert b.hear(a.first()) is None
    of_a = a.hear(b.first())
    assert of_a is not None
    of_b = b.hear(of_a)
    assert of_b is not None
    assert a.hear(of_b) is None
    assert (a.admitted, b.admitted, b.token) == (True, True, Token(secret, "truck-*"))
    assert (a.identity, b.identity) == (BOB.public, ALICE.public)
