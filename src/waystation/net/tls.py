"""TLS: our own certificate, and whose certificates we trust. The only file that makes contexts."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from msgspec import Struct

from waystation.errors import LocalError


class Secured(Struct, frozen=True):
    """What TLS tells of a connection: which certificate the listener has, and who the peer is."""

    certificate: bytes  # SHA-256 of the listener's, as this side knows it
    names: tuple[str, ...]  # in the peer's certificate, which was checked; none if it brought none


class Tls(Struct, frozen=True, kw_only=True):
    """The PEM files of a node's TLS: everything over this transport is then encrypted, or refused.

    `certificate` and `key` say who this node is: a listener needs them, and so does a dialler whose
    listener asks for them. `authorities` are the certificates to trust; without them, a dialler
    trusts those of the system. With `mutual` a listener refuses peers without a certificate that
    one of those authorities signed. `name` is the one that the peer's certificate must have, by
    default the host that was dialled.
    """

    certificate: str | Path | None = None
    key: str | Path | None = None
    authorities: str | Path | None = None
    mutual: bool = False
    name: str | None = None

    def for_listener(self) -> ssl.SSLContext:
        """The context of a listener."""
        if self.certificate is None:
            raise LocalError(
                "a TLS listener has no certificate", rule="WK-8", hint="give certificate and key"
            )
        if self.mutual and self.authorities is None:
            raise LocalError(
                "mutual TLS has no authorities to check peers against",
                rule="WK-8",
                hint="give the certificates to trust (authorities)",
            )
        context = _ListenerContext(ssl.PROTOCOL_TLS_SERVER)
        self._load(context)
        if self.mutual:
            context.verify_mode = ssl.CERT_REQUIRED
        # A ticket would let a client in again whose authority is no longer trusted.
        context.num_tickets = 0
        context.options |= ssl.OP_NO_TICKET
        return context

    def renew(self, context: ssl.SSLContext) -> None:
        """Read the files again, for the connections to come; a mistake in them changes nothing.

        A context never forgets an authority. So each handshake goes on with a new one.
        """
        fresh = self.for_listener()

        def use_fresh(connection: ssl.SSLObject, name: str | None, _: ssl.SSLContext) -> None:
            del name
            connection.context = fresh

        context.sni_callback = use_fresh

    def own_hash(self) -> bytes:
        """SHA-256 of the certificate of a listener, as its peers see it."""
        assert self.certificate is not None
        pem = Path(self.certificate).read_text("ascii", errors="replace")
        begin = pem.index(ssl.PEM_HEADER)
        end = pem.index(ssl.PEM_FOOTER, begin) + len(ssl.PEM_FOOTER)
        return sha256(ssl.PEM_cert_to_DER_cert(pem[begin:end])).digest()

    def for_dialler(self) -> ssl.SSLContext:
        """The context of a dialler."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        if self.authorities is None:
            context.load_default_certs(ssl.Purpose.SERVER_AUTH)
        self._load(context)
        return context

    def _load(self, context: ssl.SSLContext) -> None:
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            if self.certificate is not None:
                context.load_cert_chain(self.certificate, self.key)
            if self.authorities is not None:
                context.load_verify_locations(self.authorities)
        except (OSError, ssl.SSLError) as error:
            files = ", ".join(str(f) for f in (self.certificate, self.key, self.authorities) if f)
            raise LocalError(
                f"the TLS files {files} cannot be used ({error})",
                rule="WK-8",
                hint="give PEM files that this process may read, the key fitting the certificate",
            ) from error


class _ListenerContext(ssl.SSLContext):
    """A context whose connections can still be decrypted when their socket is lost.

    See last_words.py.
    """

    def wrap_bio(self, incoming: ssl.MemoryBIO, *others: Any, **named: Any) -> ssl.SSLObject:
        """As the parent does; and remember where to put what is read from the socket."""
        made = super().wrap_bio(incoming, *others, **named)
        made.incoming = incoming  # type: ignore[attr-defined]
        return made


def secured(transport: asyncio.BaseTransport, own_hash: bytes | None) -> Secured | None:
    """What is known of a connection over TLS, None if it is none.

    `own_hash` is given by a listener: its own certificate is not told by a connection.
    """
    connection: ssl.SSLObject | None = transport.get_extra_info("ssl_object")
    if connection is None:
        return None
    if own_hash is None:
        own_hash = sha256(connection.getpeercert(binary_form=True) or b"").digest()
    return Secured(own_hash, tuple(sorted(names_of(connection.getpeercert()))))


def names_of(certificate: Mapping[str, Any] | None) -> frozenset[str]:
    """The names in a certificate, as Python's ssl module tells it: the common and the DNS names.

    >>> names_of({"subject": ((("commonName", "truck-7"),),), "subjectAltName": (("DNS", "t7"),)})
    frozenset({...})
    """
    if not certificate:
        return frozenset()
    common = (
        value
        for part in certificate.get("subject", ())
        for name, value in part
        if name == "commonName"
    )
    others = (value for kind, value in certificate.get("subjectAltName", ()) if kind == "DNS")
    return frozenset((*common, *others))
