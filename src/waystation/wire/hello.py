"""The hello of a session (AD-3), and the proof that both sides know the same token.

Both sides send a Hello at once, without waiting, so a session costs no round trip. With a shared
token each side then proves that it knows the token, by an HMAC of both nonces. The token itself is
never sent, and neither side trusts the other before its proof. An implementation that does not know
these payloads treats them as heartbeats and sends no Hello: it is admitted only where no token is
required.

Nodes of different versions meet here. Whatever a version adds is optional and has a default, so
that a fleet can be upgraded node by node, and back (UP-4).

Pure: nonces and tokens are arguments. The payloads are JSON objects.
"""

from __future__ import annotations

import hmac
from hashlib import sha256
from typing import Final, TypeAlias

import msgspec

from waystation.errors import RemoteError, quote

PAYLOAD_LIMIT: Final = 64 * 1024
"""Maximum size of a payload for the session itself, in bytes."""

NAME_LIMIT: Final = 255
"""Maximum length of a node's name, in characters."""

NUMBER_LIMIT: Final = 2**63
"""What the number of a session, and so of a claim, is below."""

PROOF_PURPOSE: Final = b"waystation session 1 "

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


class Proof(msgspec.Struct, frozen=True, tag="proof", tag_field="waystation"):
    """Proof that a peer knows the token."""

    proof: str


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

    __slots__ = ("_initiator", "_ours", "_token", "admitted", "peer")

    def __init__(self, ours: Hello, token: bytes | None, *, initiator: bool) -> None:
        self._ours = ours
        self._token = token
        self._initiator = initiator
        self.peer: Hello | None = None
        self.admitted = token is None

    def first(self) -> bytes:
        """The first payload, to be sent as soon as there is a link."""
        return _encode(self._ours)

    def hear(self, payload: bytes) -> bytes | None:
        """Handle a payload from the peer and return the answer; a RemoteError must end the link."""
        found = _read(payload)
        if isinstance(found, Hello):
            return self._hear_hello(found)
        if isinstance(found, Proof) and self.peer is not None and not self.admitted:
            self._hear_proof(found.proof, self.peer)
        return None

    def _hear_hello(self, hello: Hello) -> bytes | None:
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
        if hello.token and self._token is None:
            raise RemoteError(f"node {quote(hello.node)} requires a token, but none is set here")
        self.peer = _within_limits(hello)
        if self._token is None:
            return None
        if not hello.token:
            raise RemoteError(f"node {quote(hello.node)} has no token")
        return _encode(Proof(self._proof(self._ours, hello, initiator=self._initiator)))

    def _hear_proof(self, proof: str, peer: Hello) -> None:
        expected = self._proof(peer, self._ours, initiator=not self._initiator)
        if not hmac.compare_digest(expected.encode(), proof.encode(errors="replace")):
            raise RemoteError(f"node {quote(peer.node)} has a different token")
        self.admitted = True

    def _proof(self, prover: Hello, verifier: Hello, *, initiator: bool) -> str:
        assert self._token is not None
        role = b"opener " if initiator else b"listener "
        text = PROOF_PURPOSE + role + f"{prover.nonce} {verifier.nonce}".encode(errors="replace")
        return hmac.digest(self._token, text, "sha256").hex()


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
    return msgspec.structs.replace(hello, version=hello.version[:VERSION_LIMIT], can=can)
