from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waystation.errors import LocalError
from waystation.net.place import parse_place, place_of


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("127.0.0.1:4000", ("127.0.0.1", 4000)),
        ("localhost:0", ("localhost", 0)),
        ("[::1]:65535", ("::1", 65535)),
        ("[fe80::1%eth0]:1", ("fe80::1%eth0", 1)),
        ("host.example:007", ("host.example", 7)),
    ],
)
def test_a_place_is_a_host_and_a_port(text: str, place: tuple[str, int]) -> None:
    assert parse_place(text) == place


@pytest.mark.parametrize(
    "text",
    ["", ":", "host", "host:", ":1", "[]:1", "::1:1", "host:65536", "host:-1", "host:+1", "host:1 ",
     "host:²", "host:٣", "a:b:1", "[::1]", "[::1:1"],
)  # fmt: skip
def test_anything_else_is_refused_with_a_hint(text: str) -> None:
    with pytest.raises(LocalError, match="write host:port"):
        parse_place(text)


@given(st.ip_addresses(), st.integers(0, 65535))
def test_the_place_of_a_socket_reads_back(host: object, port: int) -> None:
    assert parse_place(place_of((str(host), port, 0, 0))) == (str(host), port)
