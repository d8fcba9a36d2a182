"""The options of a write, checked on the driver before any task runs.

The tasks read the files of TLS and tokens, since they must exist there.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from msgspec import Struct

from waystation.errors import LocalError, quote
from waystation.net.place import parse_place
from waystation.net.tls import Tls
from waystation.pipeline.source.options import flag, known_options, number, seconds, size

SCHEMES: Final = ("tcp", "ws")
WINDOW: Final = 4_096
"""Number of messages per confirmation."""

KEEP: Final = 64 * 2**20
"""Bytes of confirmed messages that a task keeps, to send them again if necessary."""

_NAMES: Final = (
    "via",
    "campaign",
    "durable",
    "key",
    "name",
    "token",
    "tokenFile",
    "tls",
    "tlsAuthorities",
    "tlsCertificate",
    "tlsKey",
    "tlsName",
    "timeout",
    "window",
    "keep",
    "summary",
)


class Sending(Struct, frozen=True, kw_only=True):
    """How to send: the destination, the sender's name, the campaign, and the time limits."""

    via: tuple[str, ...]
    campaign: str
    durable: bool = False
    key: tuple[str, ...] = ()
    name: str = "spark"
    token: str | None = None
    token_file: str | None = None
    tls: Tls | None = None
    timeout: float = 60.0
    window: int = WINDOW
    keep: int = KEEP
    summary: str | None = None

    @classmethod
    def of(cls, options: Mapping[str, str], *, streaming: bool) -> Sending:
        """The options of a write.

        >>> Sending.of({"via": "127.0.0.1:4000"}, streaming=False)
        Traceback (most recent call last):
        waystation.errors.LocalError: invalid via '127.0.0.1:4000'; write ...
        """
        given = known_options(options, _NAMES)
        campaign = given.get("campaign", "")
        if streaming and not campaign:
            raise LocalError(
                "a streaming write needs a campaign",
                rule="AD-7",
                hint="set the option campaign, so that a restart repeats the ids",
            )
        if "token" in given and "tokenFile" in given:
            raise LocalError(
                "both token and tokenFile are given", rule="WK-8", hint="give one of them"
            )
        return cls(
            via=_places(given.get("via", "")),
            campaign=campaign or secrets.token_hex(16),
            durable=flag(given, "durable", default=False),
            key=_names(given.get("key", "")),
            name=given.get("name", "spark"),
            token=given.get("token"),
            token_file=given.get("tokenFile"),
            tls=_tls(given),
            timeout=seconds(given, "timeout", 60.0),
            window=number(given, "window") or WINDOW,
            keep=size(given, "keep") or KEEP,
            summary=given.get("summary"),
        )

    @property
    def scheme(self) -> str:
        """The transport for the destination."""
        return self.via[0].partition("://")[0]

    def secret(self) -> str | None:
        """The token, read from its file if it is in one."""
        if self.token_file is None:
            return self.token
        lines = Path(self.token_file).read_text("utf-8").splitlines()
        if not lines or not lines[0].strip():
            raise LocalError(
                f"the first line of {quote(self.token_file)} is empty",
                rule="WK-8",
                hint="put the token there",
            )
        return lines[0].strip()


def _places(text: str) -> tuple[str, ...]:
    """One or more addresses of one node: `tcp://host:port`."""
    places = _names(text)
    if not places:
        raise LocalError(
            "the option via is missing",
            rule="WK-8",
            hint="set it, for instance to tcp://hub.example:4000",
        )
    for place in places:
        scheme, _, rest = place.partition("://")
        if scheme not in SCHEMES or scheme != places[0].partition("://")[0]:
            raise LocalError(
                f"invalid via {quote(place)}",
                rule="WK-8",
                hint="write tcp://host:port or ws://host:port, or several of one scheme",
            )
        parse_place(rest.partition("/")[0])
    return places


def _names(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _tls(options: Mapping[str, str]) -> Tls | None:
    tls = Tls(
        certificate=options.get("tlsCertificate"),
        key=options.get("tlsKey"),
        authorities=options.get("tlsAuthorities"),
        name=options.get("tlsName"),
    )
    wanted = flag(options, "tls", default=False) or tls != Tls()
    return tls if wanted else None
