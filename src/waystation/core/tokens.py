"""Tokens: secrets that peers prove to know, one for all of them or one for each pattern of names.

A peer that proves a token of its own has proven that it may have a name of that pattern (ID-2). So
where a name has a token of its own, the one for everybody is not enough. A pattern may have several
tokens, so that a new one can be introduced before the old one is taken away (ID-5).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from msgspec import Struct

from waystation.core.access import matches

EVERYBODY: Final = ""
"""The pattern of a token that proves nothing about the name of whoever knows it."""


class Token(Struct, frozen=True):
    """A secret, and the names of those who have it; it is not shown.

    >>> Token(b"swordfish", "truck-*")
    <token of truck-*>
    """

    secret: bytes
    names: str = EVERYBODY

    def __repr__(self) -> str:
        return f"<token of {self.names or 'everybody'}>"


class Tokens:
    """The tokens of a listener.

    >>> tokens = Tokens([Token(b"swordfish"), Token(b"marlin", "truck-*")])
    >>> tokens.of("truck-7"), tokens.of("garage")
    ((<token of truck-*>,), (<token of everybody>,))
    """

    __slots__ = ("_own", "_shared")

    def __init__(self, tokens: Iterable[Token]) -> None:
        every = tuple(tokens)
        self._own = tuple(token for token in every if token.names)
        self._shared = tuple(token for token in every if not token.names)

    def __repr__(self) -> str:
        return f"<{len(self._own) + len(self._shared)} tokens>"

    @classmethod
    def shared(cls, secret: bytes | None) -> Tokens | None:
        """One token for everybody; None for none."""
        return None if secret is None else cls([Token(secret)])

    def of(self, name: str) -> tuple[Token, ...]:
        """The tokens that a peer of this name may prove."""
        own = tuple(token for token in self._own if matches(token.names, name))
        return own or self._shared

    def has(self, token: Token) -> bool:
        """Whether a token is among them."""
        return token in self._own or token in self._shared
