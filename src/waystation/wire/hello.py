"""What two of our nodes tell each other when a session opens (AD-3), and how they prove a token.

Both sides send a Hello at once and wait for nothing, so a session costs no round trip. With a
shared token each side then proves that it knows it: the HMAC of both nonces. The token itself never
travels, and neither side believes the other before its proof. A peer of another make takes these
payloads for heartbeats, says no Hello, and so gets in where no token is asked for, and only there.

Pure: nonces and tokens come in as arguments. The payloads are JSON objects.
"""

from __future__ import annotations

import hmac
from typing import Final, TypeAlias

import msgspec

from waystation.errors import RemoteError, quote

PAYLOAD_LIMIT: Final = 64 * 1024
"""No payload for the session itself is longer."""

NAME_LIMIT: Final = 255
"""No node has a longer name."""

PROOF_PURPOSE: Final = b"waystation session 1 "


class Hello(msgspec.Struct, frozen=True, tag="hello", tag_field="waystation"):
    """Who a peer is: its name, its address types, and how often it sends a heartbeat when idle."""

    node: str
    types: dict[str, int]
    beat: float = 0.0  # seconds; 0 for never
    nonce: str = ""
    token: bool = False  # whether it asks for a proof


class Proof(msgspec.Struct, frozen=True, tag="proof", tag_field="waystation"):
    """That a peer knows the token."""

    proof: str


Said: TypeAlias = Hello | Proof

_decoder: Final[msgspec.json.Decoder[Said]] = msgspec.json.Decoder(Said)
_encode: Final = msgspec.json.Encoder().encode


class Greeting:
    """The opening of one session, as one side sees it.

    >>> a, b = (Hello(name, {"tcp": 1}, nonce=f"nonce {name}", token=True) for name in "ab")
    >>> here = Greeting(a, b"secret", opened_here=True)
    >>> there = Greeting(b, b"secret", opened_here=False)
    >>> proof = here.hear(there.first())
    >>> there.hear(here.first()) is not None, there.admitted
    (True, False)
    >>> there.hear(proof)
    >>> there.admitted, there.peer.node
    (True, 'a')
    """

    __slots__ = ("_opened_here", "_ours", "_token", "admitted", "peer")

    def __init__(self, ours: Hello, token: bytes | None, *, opened_here: bool) -> None:
        self._ours = ours
        self._token = token
        self._opened_here = opened_here
        self.peer: Hello | None = None
        self.admitted = token is None

    def first(self) -> bytes:
        """What to send as soon as there is a connection."""
        return _encode(self._ours)

    def hear(self, payload: bytes) -> bytes | None:
        """Take what the peer said; returns what to answer. Raises a RemoteError to end it."""
        said = _read(payload)
        if isinstance(said, Hello):
            return self._hear_hello(said)
        if isinstance(said, Proof) and self.peer is not None and not self.admitted:
            self._hear_proof(said.proof, self.peer)
        return None

    def _hear_hello(self, hello: Hello) -> bytes | None:
        if len(hello.node) > NAME_LIMIT:
            raise RemoteError(f"node {quote(hello.node)} has too long a name")
        if self.peer is not None:
            raise RemoteError(f"node {quote(hello.node)} says hello a second time")
        if hello.token and self._token is None:
            raise RemoteError(f"node {quote(hello.node)} asks for a token, and none is set here")
        self.peer = hello
        if self._token is None:
            return None
        if not hello.token:
            raise RemoteError(f"node {quote(hello.node)} has no token")
        return _encode(Proof(self._proof(self._ours, hello, opener=self._opened_here)))

    def _hear_proof(self, proof: str, peer: Hello) -> None:
        expected = self._proof(peer, self._ours, opener=not self._opened_here)
        if not hmac.compare_digest(expected.encode(), proof.encode(errors="replace")):
            raise RemoteError(f"node {quote(peer.node)} has another token")
        self.admitted = True

    def _proof(self, prover: Hello, judge: Hello, *, opener: bool) -> str:
        assert self._token is not None
        role = b"opener " if opener else b"listener "
        text = PROOF_PURPOSE + role + f"{prover.nonce} {judge.nonce}".encode(errors="replace")
        return hmac.digest(self._token, text, "sha256").hex()


def _read(payload: bytes) -> Said | None:
    """What the peer said, or None when it is nothing that we know."""
    if len(payload) > PAYLOAD_LIMIT:
        raise RemoteError(f"a greeting of {len(payload)} bytes is too long")
    try:
        return _decoder.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):  # no UTF-8; too deep
        return None
