"""The hello of a session (AD-3), and the proofs of who is at its ends (ID-2).

Both sides send a Hello at once, without waiting, so a session costs no round trip. With a shared
token each side then proves that it knows the token, by an HMAC of both nonces. The token itself is
never sent, and neither side trusts the other before its proof. An implementation that does not know
these payloads treats them as heartbeats and sends no Hello: it is admitted only where no token is
required.

A side that has an identity proves it in the same payload: it signs both hellos, which have the
nonces in them, and over TLS the hash of the listener's certificate. So a proof holds for this
session, this role and this connection, and nowhere else. Whoever sits between two ends of TLS has
another certificate; without TLS the proof tells who opened the session and protects nothing after.

Nodes of different versions meet here. Whatever a version adds is optional and has a default, so
that a fleet can be upgraded node by node, and back (UP-4).

Pure: nonces and tokens are arguments. The payloads are JSON objects.
"""

from __future__ import annotations

import hmac
from hashlib import sha256
from typing import Final, TypeAlias

import msgspec

from waystation.core.tokens import Token, Tokens
from waystation.errors import RemoteError, quote
from waystation.wire.identity import Identity, PrivateIdentity

PAYLOAD_LIMIT: Final = 64 * 1024
"""Maximum size of a payload for the session itself, in bytes."""

NAME_LIMIT: Final = 255
"""Maximum length of a node's name, in characters."""

NUMBER_LIMIT: Final = 2**63
"""What the number of a session, and so of a claim, and an incarnation are below."""

CAPABILITY: Final = "identity"
"""What a node that can check the proof of an identity says in its hello."""

PROOF_PURPOSE: Final = b"waystation session 1 "

IDENTITY_PURPOSE: Final = b"waystation identity 1 "

NONCE_LIMIT: Final = 1_024
"""Maximum length of a nonce, in characters."""

TYPES_LIMIT: Final = 256
"""Maximum number of address types: a number has eight bits."""

FIRST_VERSION: Final = "0.1"
"""The version of nodes whose hello does not tell it."""

VERSION_LIMIT: Final = 64
"""Characters of a peer's version that are kept; it is shown and decides nothing (UP-1)."""

CAN_LIMIT: Final = 32
"""Maximum number of things that a peer can tell it understands; further ones are ignored."""

CAPABILITY_LIMIT: Final = 32
"""Maximum length of the name of one of them, in characters; longer ones are ignored."""


class Hello(msgspec.Struct, frozen=True, tag="hello", tag_field="waystation"):
    """A peer's name, its address types, the interval of its heartbeats, and what it understands.

    What is not in a peer's `can` is not used with it (UP-1).
    """

    node: str
    types: dict[str, int]
    beat: float = 0.0  # seconds; 0 for never
    nonce: str = ""
    token: bool = False  # whether it requires a proof
    version: str = FIRST_VERSION
    can: tuple[str, ...] = ()
    time: int = 0  # microseconds since the epoch, on the clock of its node; 0: not told
    clock_off: int = 0  # microseconds that its wall clock is off, if too far to follow (TM-1)
    secret: str = ""  # to a parent: what its claims are recognised by (CL-1)
    session: int = 0  # to a parent: the number of this session among those of the sender
    proves: bool = False  # whether it proves an identity, to whoever can check that
    incarnation: int = 0  # of its journal, if it keeps one (OB-10)


class Proof(msgspec.Struct, frozen=True, tag="proof", tag_field="waystation", omit_defaults=True):
    """Proof that a peer knows the token, or has an identity, or both."""

    proof: str = ""  # of the token
    history: bytes = b""  # of the identity
    signature: bytes = b""


Payload: TypeAlias = Hello | Proof

_decoder: Final[msgspec.json.Decoder[Payload]] = msgspec.json.Decoder(Payload)
_encode: Final = msgspec.json.Encoder().encode


class Greeting:
    """The greeting of one session, from one side.

    `admitted` says that the peer has proven all that is required, and `peer` is its Hello. Whatever
    else the two sides agree on before the session opens belongs here.

    >>> a, b = (Hello(name, {"tcp": 1}, nonce=f"nonce {name}", token=True) for name in "ab")
    >>> here = Greeting(a, b"secret", initiator=True)
    >>> there = Greeting(b, b"secret", initiator=False)
    >>> proof = here.hear(there.first())
    >>> there.hear(here.first()) is not None, there.admitted
    (True, False)
    >>> there.hear(proof)
    >>> there.admitted, there.peer.node
    (True, 'a')
    """

    __slots__ = (
        *("_candidates", "_certificate", "_first", "_initiator", "_ours", "_own_identity"),
        *("_peer_hash", "_proof_came", "_tokens", "admitted", "identity", "peer", "token"),
    )

    def __init__(
        self,
        ours: Hello,
        tokens: Tokens | bytes | None,
        *,
        initiator: bool,
        identity: PrivateIdentity | None = None,
        certificate: bytes = b"",
    ) -> None:
        self._ours = ours
        self._first = _encode(ours)
        self._tokens = Tokens.shared(tokens) if isinstance(tokens, bytes) else tokens
        self._candidates: tuple[Token, ...] = ()
        self._initiator = initiator
        self._own_identity = identity
        self._certificate = certificate  # the hash of the listener's, as this side knows it
        self._peer_hash = b""
        self._proof_came = False
        self.peer: Hello | None = None
        self.token: Token | None = None  # that the peer has proven
        self.identity: Identity | None = None  # that the peer has proven
        self.admitted = tokens is None

    @property
    def proves(self) -> bool:
        """Whether this side has an identity, which it proves as soon as it knows the peer."""
        return self._own_identity is not None

    @property
    def is_complete(self) -> bool:
        """Whether the peer has told its name, and has proven what it is going to prove."""
        peer = self.peer
        return peer is not None and (self._proof_came or not peer.proves) and self.admitted

    def first(self) -> bytes:
        """The first payload, to be sent as soon as there is a link."""
        return self._first

    def hear(self, payload: bytes) -> bytes | None:
        """Handle a payload from the peer and return the answer; a RemoteError must end the link."""
        found = _read(payload)
        if isinstance(found, Hello):
            return self._hear_hello(found, payload)
        if isinstance(found, Proof) and self.peer is not None and not self._proof_came:
            self._proof_came = True
            return self._hear_proof(found, self.peer)
        return None

    def _hear_hello(self, hello: Hello, payload: bytes) -> bytes | None:
        self._check_hello(hello)
        self.peer = _within_limits(hello)
        self._peer_hash = sha256(payload).digest()
        if self._tokens is not None:
            self._candidates = self._tokens.of(hello.node)
            if not hello.token:
                raise RemoteError(f"node {quote(hello.node)} has no token")
            if not self._candidates:
                raise RemoteError(f"there is no token for a node {quote(hello.node)} here")
            if len(self._candidates) > 1:
                return None  # until the peer has shown which of them it has
        return self._own_proof(hello)

    def _check_hello(self, hello: Hello) -> None:
        if len(hello.node) > NAME_LIMIT:
            raise RemoteError(f"node {quote(hello.node)} has too long a name")
        if len(hello.secret) > NAME_LIMIT or not 0 <= hello.session < NUMBER_LIMIT:
            raise RemoteError(f"node {quote(hello.node)} numbers its sessions in an invalid way")
        if self.peer is not None:
            raise RemoteError(f"node {quote(hello.node)} sent a second hello")
        if len(hello.nonce) > NONCE_LIMIT:
            raise RemoteError(f"node {quote(hello.node)} sent too long a nonce")
        if len(hello.types) > TYPES_LIMIT:
            raise RemoteError(f"node {quote(hello.node)} sent too many address types")
        if hello.token and self._tokens is None:
            raise RemoteError(f"node {quote(hello.node)} requires a token, but none is set here")

    def _own_proof(self, peer: Hello) -> bytes | None:
        """What this side proves to the peer; None if there is nothing that the peer can check."""
        proof, history, signature = "", b"", b""
        token = self.token or (self._candidates[0] if self._candidates else None)
        if token is not None:
            proof = _token_proof(token, self._ours, peer, initiator=self._initiator)
        identity = self._own_identity
        if identity is not None and CAPABILITY in peer.can:
            history = identity.public.history
            signature = identity.sign(self._identity_text(initiator=self._initiator))
        return _encode(Proof(proof, history, signature)) if proof or signature else None

    def _hear_proof(self, told: Proof, peer: Hello) -> bytes | None:
        if told.signature:
            self.identity = self._proven_identity(told, peer)
        if self.admitted:
            return None
        self.token = self._proven_token(told.proof, peer)
        self.admitted = True
        return self._own_proof(peer) if len(self._candidates) > 1 else None

    def _proven_token(self, proof: str, peer: Hello) -> Token:
        given, found = proof.encode(errors="replace"), None
        for token in self._candidates:  # all of them, so that the time tells nothing
            expected = _token_proof(token, peer, self._ours, initiator=not self._initiator)
            if hmac.compare_digest(expected.encode(), given):
                found = token
        if found is None:
            raise RemoteError(f"node {quote(peer.node)} has a different token")
        return found

    def _proven_identity(self, told: Proof, peer: Hello) -> Identity:
        try:
            identity = Identity.read(told.history)
        except RemoteError as error:
            raise RemoteError(f"node {quote(peer.node)} has no valid identity: {error}") from error
        if not identity.verifies(
            told.signature, self._identity_text(initiator=not self._initiator)
        ):
            raise RemoteError(
                f"node {quote(peer.node)} did not prove that it is {identity.identifier}: "
                "its proof is for another session, or for another certificate than the listener's"
            )
        return identity

    def _identity_text(self, *, initiator: bool) -> bytes:
        """What is signed by the side that opened the session, or by the other one."""
        ours, theirs = sha256(self._first).digest(), self._peer_hash
        hellos = ours + theirs if self._initiator else theirs + ours
        role = b"opener " if initiator else b"listener "
        return IDENTITY_PURPOSE + role + hellos + self._certificate


def _token_proof(token: Token, prover: Hello, verifier: Hello, *, initiator: bool) -> str:
    role = b"opener " if initiator else b"listener "
    text = PROOF_PURPOSE + role + f"{prover.nonce} {verifier.nonce}".encode(errors="replace")
    return hmac.digest(token.secret, text, "sha256").hex()


def owner_of(secret: str) -> str:
    """What the claims of a node are recognised by: everybody may know it, and not its secret.

    >>> owner_of("swordfish")
    'b9f195c5cc7ef6afadbfbc42892ad47d'
    """
    return sha256(secret.encode(errors="replace")).hexdigest()[:32]


def _read(payload: bytes) -> Payload | None:
    """Decode a payload; None if it is of an unknown kind."""
    if len(payload) > PAYLOAD_LIMIT:
        raise RemoteError(f"a greeting of {len(payload)} bytes is too long")
    try:
        return _decoder.decode(payload)
    except (
        msgspec.DecodeError,
        UnicodeDecodeError,
        RecursionError,
    ):  # not UTF-8; nested too deeply
        return None


def _within_limits(hello: Hello) -> Hello:
    """A peer's hello without what is too long: it is kept and shown while the session lasts."""
    can = tuple(word for word in hello.can[:CAN_LIMIT] if len(word) <= CAPABILITY_LIMIT)
    incarnation = hello.incarnation if 0 <= hello.incarnation < NUMBER_LIMIT else 0
    return msgspec.structs.replace(
        hello, version=hello.version[:VERSION_LIMIT], can=can, incarnation=incarnation
    )
