"""Names and addresses of hosts: which kind they are, whose they are, and how others are reached."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable

from waystation.net.place import parse_place


def is_ipv4(host: str) -> bool:
    """Whether a host is written as an IPv4 address.

    >>> is_ipv4("10.0.0.1"), is_ipv4("hub"), is_ipv4("::1")
    (True, False, False)
    """
    try:
        ipaddress.IPv4Address(host)
    except ValueError:
        return False
    return True


def is_multicast(host: str) -> bool:
    """Whether a host is an IPv4 multicast address.

    >>> is_multicast("239.1.2.3"), is_multicast("10.0.0.1")
    (True, False)
    """
    return is_ipv4(host) and ipaddress.IPv4Address(host).is_multicast


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches a host.

    >>> is_loopback("127.0.0.1"), is_loopback("::1"), is_loopback("localhost"), is_loopback("::")
    (True, True, True, False)
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


class HostNames:
    """The names under which a web server at `host` may be asked, and no others.

    A browser sends the name in a page's address as the header Host. A page of another site can
    have its own name point to this machine, but it can never have an IP address for a name: those
    are always good. Where only this machine can connect, only addresses of this machine are.

    >>> names = HostNames("127.0.0.1", ["ops.example"])
    >>> [host in names for host in ("localhost:80", "ops.example", "10.0.0.1", "evil.test")]
    [True, True, False, False]
    """

    def __init__(self, host: str, allowed: Iterable[str] = ()) -> None:
        self.is_local = is_loopback(host)
        self._names = {host.lower(), *(name.lower() for name in allowed)}
        if self.is_local:
            self._names.add("localhost")

    def __contains__(self, header: str) -> bool:
        if header.startswith("["):
            name = header[1:].partition("]")[0].lower()
        else:
            name = header.partition(":")[0].lower()
        if name in self._names:
            return True
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return False
        return address.is_loopback or not self.is_local


def own_host_towards(place: str) -> str:
    """The address of this machine from which a place is reached; nothing is sent there.

    >>> own_host_towards("127.0.0.1:4000")
    '127.0.0.1'
    """
    host, port = parse_place(place)
    family, _, _, _, address = socket.getaddrinfo(host, port or 1, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(address)
        return str(probe.getsockname()[0])


def host_name() -> str:
    """The name that this machine gives itself."""
    return socket.gethostname()


def reach(host: str, port: int, seconds: float) -> str:
    """Connect to a listener and hang up; the address of this machine from which it was reached.

    An OSError says why nobody answers. Blocks for as long as that takes.
    """
    with socket.create_connection((host, port), timeout=seconds) as connection:
        return str(connection.getsockname()[0])
