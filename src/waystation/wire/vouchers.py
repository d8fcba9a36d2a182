"""Signed claims: an identity's own word that it has some names, for hubs that never met it (ID-2).

A node with a key signs the names that it announces, together, with the number of its session. The
hub passes this on with each of them, so that a hub above need not believe the one between. A
voucher says nothing of the way there: whoever carried a claim once can say so again, until a
newer session of its owner is known.

Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256
from typing import Final

import msgspec

from waystation.errors import RemoteError
from waystation.wire.identity import Identity, PrivateIdentity

PURPOSE: Final = b"waystation claims 1 "

NAMES: Final = 256
"""Maximum number of names in a voucher, as in an announcement."""

_HASH: Final = 16  # bytes of the SHA-256 of a name


class Voucher(msgspec.Struct, frozen=True, array_like=True):
    """The word of an identity that it has these names, since its session of this number.

    >>> identity = PrivateIdentity.create(bytes(32), now=0)
    >>> voucher = vouch(identity, 7, 3, ["truck-7"])
    >>> voucher.names_it("truck-7"), voucher.names_it("truck-8"), voucher.owner() == identity.public
    (True, False, True)
    """

    history: bytes
    number: int
    lowest: int  # of the owner's sessions that still live
    names: bytes
    signature: bytes

    def names_it(self, name: str) -> bool:
        """Whether a name is among those that were signed."""
        found = self.names.find(_hashed(name))
        while found % _HASH and found > 0:
            found = self.names.find(_hashed(name), found + 1)
        return found >= 0

    def owner(self) -> Identity:
        """Whose word it is; a RemoteError if nobody signed it."""
        if len(self.names) > NAMES * _HASH:
            raise RemoteError("a voucher has too many names")
        identity = Identity.read(self.history)
        if not identity.verifies(self.signature, _text(self.number, self.lowest, self.names)):
            raise RemoteError(f"{identity.identifier} did not sign these names")
        return identity


def vouch(identity: PrivateIdentity, number: int, lowest: int, names: Iterable[str]) -> Voucher:
    """Sign names of this node, for its session of this number."""
    hashes = b"".join(map(_hashed, names))
    signature = identity.sign(_text(number, lowest, hashes))
    return Voucher(identity.public.history, number, lowest, hashes, signature)


def _hashed(name: str) -> bytes:
    return sha256(name.encode(errors="replace")).digest()[:_HASH]


def _text(number: int, lowest: int, names: bytes) -> bytes:
    return PURPOSE + f"{number} {lowest} ".encode() + names
