"""Addresses of hosts: of which kind they are, and which of this machine leads to another."""

from __future__ import annotations

import ipaddress
import socket

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
