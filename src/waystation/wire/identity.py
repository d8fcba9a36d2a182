"""Identities in Ockam's form: a change history, the identifier that follows from it, signatures.

A change history is a chain: the first change names a key, each further one a new key, signed by
itself and by the one before. The identifier is the SHA-256 of the first change, so it stays the
same however often the key changes (ID-1, ID-5). Whoever shows a history and signs a fresh text with
its latest key is the owner of the identifier.

Pure: keys and times are arguments; times are seconds since the epoch. The `cryptography` package is
imported when the first key is used, since most commands need none.
"""

from __future__ import annotations

import re
from hashlib import sha256
from typing import Any, Final, Never

from msgspec import Struct

from waystation.errors import LocalError, RemoteError, quote
from waystation.wire import cbor
from waystation.wire.cbor import Value

HISTORY_LIMIT: Final = 8 * 1024
"""Maximum size of a change history, in bytes."""

CHANGES_LIMIT: Final = 16
"""Maximum number of changes in a history: each costs two signatures to check."""

LIFETIME: Final = 10 * 365 * 24 * 3600
"""Seconds for which a key is valid, as Ockam has it."""

CLOCK_TOLERANCE: Final = 60
"""By how many seconds an attestation may be from the future, since clocks differ."""

SEED_SIZE: Final = 32
"""Size of a private key, in bytes."""

ED25519: Final = 0
P256: Final = 1

_VERSION: Final = 1
_CHANGE: Final = 1
_ATTESTATION: Final = 2
_HANDSHAKE_KEY: Final = 0  # of what is attested, the key of a secure channel
_SIGNATURE_SIZE: Final = 64
_KEY_SIZES: Final = {ED25519: 32, P256: 65}
_IDENTIFIER_SIZE: Final = 65
_IDENTIFIER: Final = re.compile(r"I[0-9a-f]{64}")


def is_identifier(text: str) -> bool:
    """Whether a text has the form of an identifier.

    >>> is_identifier("I" + "0" * 64), is_identifier("truck-7")
    (True, False)
    """
    return len(text) == _IDENTIFIER_SIZE and _IDENTIFIER.fullmatch(text) is not None


class PublicKey(Struct, frozen=True):
    """A key that signatures are checked with: Ed25519, or P-256 as some Ockam identities have."""

    kind: int
    data: bytes

    def verifies(self, signature: bytes, text: bytes) -> bool:
        """Whether the owner of this key signed a text."""
        from cryptography.exceptions import InvalidSignature  # noqa: PLC0415 - see above

        if len(signature) != _SIGNATURE_SIZE:
            return False
        try:
            if self.kind == ED25519:
                _verify_ed25519(self.data, signature, text)
            else:
                _verify_p256(self.data, signature, text)
        except (InvalidSignature, ValueError):  # the latter for bytes that are no point of a curve
            return False
        return True


class Identity(Struct, frozen=True):
    """An identity as everybody may know it: its identifier, history and present key."""

    identifier: str
    history: bytes
    hashes: tuple[bytes, ...]  # of its changes
    key: PublicKey
    valid_from: int
    valid_until: int

    @classmethod
    def read(cls, history: bytes) -> Identity:
        """Check a change history, every signature in it; a RemoteError says what is wrong.

        Whether its key is still valid is left to `is_valid`.
        """
        if len(history) > HISTORY_LIMIT:
            raise RemoteError(f"a change history of {len(history)} bytes is too long")
        changes = cbor.decode(history)
        if not isinstance(changes, list) or not 0 < len(changes) <= CHANGES_LIMIT:
            raise RemoteError(f"a change history has 1 to {CHANGES_LIMIT} changes")
        hashes: list[bytes] = []
        former: _Change | None = None
        for item in changes:
            change = _read_change(item)
            _check_change(change, former, hashes)
            hashes.append(change.hash)
            former = change
        assert former is not None
        return cls(
            f"I{hashes[0].hex()}",
            history,
            tuple(hashes),
            former.key,
            former.valid_from,
            former.valid_until,
        )

    def is_valid(self, now: int) -> bool:
        """Whether its key has not expired."""
        return now < self.valid_until

    def follows(self, other: Identity) -> bool:
        """Whether it is the other one, or the other one with further changes."""
        return self.hashes[: len(other.hashes)] == other.hashes

    def verifies(self, signature: bytes, text: bytes) -> bool:
        """Whether its owner signed a text, with the present key."""
        return self.key.verifies(signature, text)

    def check_attestation(self, attestation: bytes, key: bytes, now: int) -> None:
        """Check that its owner says that a key of a handshake is its own (ID-4)."""
        match cbor.decode(attestation):
            case [bytes(data), signature]:
                signed = _read_signature(signature)
            case _:
                raise RemoteError("an attestation is malformed")
        match cbor.decode(data):
            case [int(version), int(kind), bytes(inner)] if (version, kind) == (
                _VERSION,
                _ATTESTATION,
            ):
                pass
            case _:
                raise RemoteError("an attestation is malformed")
        match cbor.decode(inner):
            case [bytes(subject), bytes(latest), [int(use), [bytes(named)]], int(begin), int(end)]:
                pass
            case _:
                raise RemoteError("an attestation is malformed")
        if (subject, latest) != (self.hashes[0], self.hashes[-1]):
            raise RemoteError("the attestation is of another identity, or of an older key of it")
        if (use, named) != (_HANDSHAKE_KEY, key):
            raise RemoteError("the attestation is of another key")
        if not begin - CLOCK_TOLERANCE <= now < end or not self.is_valid(now):
            raise RemoteError("the attestation, or the key that signed it, is not valid now")
        if begin < self.valid_from or end > self.valid_until:
            raise RemoteError("the attestation is valid for longer than the key that signed it")
        if not self.verifies(signed, sha256(data).digest()):
            raise RemoteError("the attestation is not signed by the identity")


class PrivateIdentity:
    """An identity and its private key, which is never shown, copied or written by this class.

    >>> identity = PrivateIdentity.create(bytes(32), now=1_700_000_000)
    >>> identity
    <identity I3e551d04816d24b4bcb8ab9979d3768d49da4594d4f75cab2c5ab2083628d852>
    >>> identity.public.verifies(identity.sign(b"a text"), b"a text")
    True
    """

    __slots__ = ("_key", "public")

    def __init__(self, history: bytes, seed: bytes) -> None:
        self._key = _signing_key(seed)
        self.public = Identity.read(history)
        if self.public.key != _public_key(self._key):
            raise RemoteError(f"the key is not that of identity {self.identifier}")

    def __repr__(self) -> str:
        return f"<identity {self.identifier}>"

    def __reduce__(self) -> Never:
        raise TypeError("a private identity cannot be pickled or copied")

    @property
    def identifier(self) -> str:
        """The identifier."""
        return self.public.identifier

    @classmethod
    def create(cls, seed: bytes, now: int, *, lifetime: int = LIFETIME) -> PrivateIdentity:
        """A new identity from 32 random bytes."""
        key = _signing_key(seed)
        data = _change_data(None, key, now, now + lifetime)
        return cls(cbor.encode([[data, _signed(key, data)]]), seed)

    def rotated(self, seed: bytes, now: int, *, lifetime: int = LIFETIME) -> PrivateIdentity:
        """The same identity with a new key, from 32 random bytes (ID-5)."""
        if len(self.public.hashes) >= CHANGES_LIMIT:
            raise LocalError(
                f"identity {self.identifier} has had {CHANGES_LIMIT} keys",
                rule="ID-1",
                hint="create a new one",
            )
        key = _signing_key(seed)
        begin = max(now, self.public.valid_from)
        data = _change_data(self.public.hashes[-1], key, begin, begin + lifetime)
        changes = cbor.decode(self.public.history)
        assert isinstance(changes, list)
        change: list[Value] = [data, _signed(key, data), _signed(self._key, data)]
        return PrivateIdentity(cbor.encode([*changes, change]), seed)

    def attested(self, key: bytes, now: int, *, lifetime: int = LIFETIME) -> bytes:
        """Say that a key of a handshake is its own, as `Identity.check_attestation` checks it."""
        public = self.public
        begin = max(now, public.valid_from)
        end = min(begin + lifetime, public.valid_until)
        subject, latest = public.hashes[0], public.hashes[-1]
        inner: Value = [subject, latest, [_HANDSHAKE_KEY, [key]], begin, end]
        data = cbor.encode([_VERSION, _ATTESTATION, cbor.encode(inner)])
        return cbor.encode([data, _signed(self._key, data)])

    def sign(self, text: bytes) -> bytes:
        """Sign a text; it says what it is for, so that it is no signature of anything else.

        Texts of 32 bytes are what Ockam's own signatures are made over.
        """
        assert len(text) != sha256().digest_size
        signature: bytes = self._key.sign(text)
        return signature


class _Change(Struct, frozen=True):
    data: bytes
    hash: bytes
    previous: bytes | None
    key: PublicKey
    valid_from: int
    valid_until: int
    signature: bytes
    former_signature: bytes | None


def _read_change(item: Value) -> _Change:
    match item:
        case [bytes(data), signature]:
            former = None
        case [bytes(data), signature, former]:
            pass
        case _:
            raise _malformed()
    match cbor.decode(data):
        case [int(version), int(kind), bytes(inner)] if (version, kind) == (_VERSION, _CHANGE):
            pass
        case _:
            raise _malformed()
    match cbor.decode(inner):
        case [None | bytes() as previous, key, bool(), int(begin), int(end)]:
            return _Change(
                data,
                sha256(data).digest(),
                previous,
                _read_key(key),
                begin,
                end,
                _read_signature(signature),
                None if former is None else _read_signature(former),
            )
        case _:
            raise _malformed()


def _read_key(item: Value) -> PublicKey:
    match item:
        case [int(kind), [bytes(data)]] if _KEY_SIZES.get(kind) == len(data):
            return PublicKey(int(kind), data)
        case _:
            raise _malformed()


def _read_signature(item: Value) -> bytes:
    match item:
        case [int(), [bytes(data)]]:
            return data
        case _:
            raise _malformed()


def _check_change(change: _Change, former: _Change | None, hashes: list[bytes]) -> None:
    """Check that a change follows from the one before."""
    place = f"change {len(hashes) + 1} of the history"
    if change.valid_until <= change.valid_from:
        raise RemoteError(f"{place} is valid for no time")
    if not change.key.verifies(change.signature, change.hash):
        raise RemoteError(f"{place} is not signed by its own key")
    if former is None:
        if change.previous is not None or change.former_signature is not None:
            raise RemoteError("the first change of a history cannot follow another")
        return
    if change.previous != hashes[-1]:
        raise RemoteError(f"{place} does not follow the one before")
    if change.valid_from < former.valid_from:
        raise RemoteError(f"{place} is older than the one before")
    signature = change.former_signature
    if signature is None or not former.key.verifies(signature, change.hash):
        raise RemoteError(f"{place} is not signed by the key before")


def _change_data(previous: bytes | None, key: Any, begin: int, end: int) -> bytes:
    public = _public_key(key)
    inner: Value = [previous, [public.kind, [public.data]], False, begin, end]
    return cbor.encode([_VERSION, _CHANGE, cbor.encode(inner)])


def _signed(key: Any, data: bytes) -> Value:
    return [ED25519, [key.sign(sha256(data).digest())]]


def _signing_key(seed: bytes) -> Any:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (  # noqa: PLC0415 - see above
        Ed25519PrivateKey,
    )

    if len(seed) != SEED_SIZE:
        raise LocalError(
            f"a private key of {len(seed)} bytes", rule="ID-1", hint=f"give {SEED_SIZE} bytes"
        )
    return Ed25519PrivateKey.from_private_bytes(seed)


def _public_key(key: Any) -> PublicKey:
    return PublicKey(ED25519, key.public_key().public_bytes_raw())


def _verify_ed25519(key: bytes, signature: bytes, text: bytes) -> None:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (  # noqa: PLC0415 - see above
        Ed25519PublicKey,
    )

    Ed25519PublicKey.from_public_bytes(key).verify(signature, text)


def _verify_p256(key: bytes, signature: bytes, text: bytes) -> None:
    from cryptography.hazmat.primitives.asymmetric import ec, utils  # noqa: PLC0415 - see above
    from cryptography.hazmat.primitives.hashes import SHA256  # noqa: PLC0415

    public = ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), key)
    r, s = (int.from_bytes(half, "big") for half in (signature[:32], signature[32:]))
    public.verify(utils.encode_dss_signature(r, s), text, ec.ECDSA(SHA256()))


def _malformed() -> RemoteError:
    return RemoteError("a change of the history is malformed")


def check_identifier(text: str) -> str:
    """The text, if it is an identifier; else a LocalError."""
    if not is_identifier(text):
        raise LocalError(
            f"{quote(text)} is no identifier",
            rule="ID-1",
            hint="give I and 64 hexadecimal digits, as `waystation identity show` prints it",
        )
    return text
