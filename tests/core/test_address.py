from __future__ import annotations

from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.rule_errors import breaks
from waystation.core.address import MAX_ROUTE_LENGTH, Address, Route, check_node_name
from waystation.errors import LocalError

ADDRESSES = st.builds(Address, st.integers(0, 255), st.binary(max_size=40))
TEXTS = st.builds(
    Address, st.integers(0, 255), st.text(max_size=20).map(lambda text: text.encode())
)


@pytest.mark.rule("AD-1")
@pytest.mark.parametrize(
    ("text", "address", "printed"),
    [
        ("echo", Address(0, b"echo"), "0#echo"),
        ("0#echo", Address(0, b"echo"), "0#echo"),
        ("1#10.0.0.2:4000", Address(1, b"10.0.0.2:4000"), "1#10.0.0.2:4000"),
        ("tcp#10.0.0.2:4000", Address(1, b"10.0.0.2:4000"), "1#10.0.0.2:4000"),
        ("255#x", Address(255, b"x"), "255#x"),
        ("0#a#b", Address(0, b"a#b"), "0#a#b"),
        ("0x00ff", Address(0, b"\x00\xff"), "0#0x00ff"),
        ("7#0x6869", Address(7, b"hi"), "7#hi"),
        ("0#", Address(0, b""), "0#"),
        ("0#größe", Address(0, "größe".encode()), "0#größe"),
    ],
)
def test_an_address_is_written_and_read(text: str, address: Address, printed: str) -> None:
    assert Address.parse(text) == address
    assert str(address) == printed
    assert Address.parse(printed) == address


@pytest.mark.rule("AD-1")
@pytest.mark.parametrize("data", [b"\x00", b"a b", b"\xff\xfe", b"a=>b", b"0xzz", b"\n", b"\x7f"])
def test_bytes_that_would_not_read_back_are_printed_as_digits(data: bytes) -> None:
    assert str(Address(0, data)) == f"0#0x{data.hex()}"
    assert Address.parse(str(Address(0, data))) == Address(0, data)


@pytest.mark.rule("AD-1")
@given(ADDRESSES | TEXTS)
def test_every_address_reads_back_as_itself(address: Address) -> None:
    assert Address.parse(str(address)) == address
    assert Address.parse(f"{address.type}#{address.name}") == address


@pytest.mark.rule("AD-1")
@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "invalid address ''"),
        ("a b", "invalid address 'a b'"),
        (None, "invalid address None"),
        (b"echo", "invalid address b'echo'"),
        ("a\ud800", "characters that UTF-8 cannot encode"),
        ("256#x", "address type 256 is out of range"),
        ("-1#x", "unknown type '-1'"),
        ("1000#x", "unknown type '1000'"),
        ("carrier#x", "unknown type 'carrier'"),
        ("#x", "unknown type ''"),
        ("0#0xf", "bytes that are not hexadecimal"),
        ("0#0xgg", "bytes that are not hexadecimal"),
    ],
)
def test_bad_text_is_refused_by_name_and_rule(text: str, problem: str) -> None:
    with pytest.raises(LocalError, check=breaks("AD-1")) as caught:
        Address.parse(text)
    assert problem in str(caught.value)


@pytest.mark.rule("AD-1")
def test_unchecked_values_are_refused_by_name_and_rule() -> None:
    assert Address.of(255, b"x") == Address(255, b"x")
    for bad_type in (-1, 256, "1", True, 10**5000):
        with pytest.raises(
            LocalError, match=r"address type .* is out of range", check=breaks("AD-1")
        ):
            Address.of(bad_type, b"")  # type: ignore[arg-type]
    with pytest.raises(LocalError, match=r"address data 'text' is not bytes", check=breaks("AD-1")):
        Address.of(0, "text")  # type: ignore[arg-type]


def test_names_of_types_can_be_given() -> None:
    assert Address.parse("mqtt#a/b", {"mqtt": 7}) == Address(7, b"a/b")
    with pytest.raises(LocalError, match="one of mqtt"):
        Address.parse("tcp#x", {"mqtt": 7})


def test_a_route_is_written_and_read() -> None:
    route = Route.parse("tcp#10.0.0.2:4000 => hop=>echo")
    assert str(route) == "1#10.0.0.2:4000 => 0#hop => 0#echo"
    assert repr(route) == f"Route({str(route)!r})"
    assert Route.parse(str(route)) == route
    assert list(route) == [Address(1, b"10.0.0.2:4000"), Address(0, b"hop"), Address(0, b"echo")]
    assert Route.parse("  ") == Route() == Route.of([])
    assert str(Route()) == ""


@given(st.lists(ADDRESSES | TEXTS, max_size=6))
def test_every_route_reads_back_as_itself(addresses: list[Address]) -> None:
    route = Route.of(addresses)
    assert Route.parse(str(route)) == route


def test_the_operations_of_a_route_return_new_routes() -> None:
    route = Route.parse("a => b")
    assert route.first == Address(0, b"a")
    assert route.rest() == Route.parse("b")
    assert route.pushed(Address(0, b"c")) == Route.parse("c => a => b")
    assert route == Route.parse("a => b")
    assert len(route) == 2
    assert Route().first is None
    assert Route().rest() == Route()


@pytest.mark.parametrize("text", ["a =>", "=> a", "a => => b"])
def test_a_route_with_a_gap_is_refused(text: str) -> None:
    with pytest.raises(LocalError, match="invalid address ''"):
        Route.parse(text)


def test_a_route_of_a_million_hops_is_refused_before_it_is_built() -> None:
    longest = Route.of([Address(0, b"a")] * MAX_ROUTE_LENGTH)
    assert Route.parse(str(longest)) == longest
    with pytest.raises(
        LocalError, match=r"a route of 1000000 addresses is too long", check=breaks("WK-11")
    ):
        Route.parse("=>".join(["a"] * 1_000_000))
    with pytest.raises(LocalError, match=r"a route of more than 255 addresses is too long"):
        Route.of([Address(0, b"a")] * (MAX_ROUTE_LENGTH + 1))
    with pytest.raises(LocalError, match=r"a route of more than 255 addresses is too long"):
        Route.of(Address(0, b"a") for _ in count())


def test_what_is_no_route_is_refused_by_name_and_rule() -> None:
    with pytest.raises(LocalError, match=r"'e' is not an Address", check=breaks("AD-1")):
        Route.of("echo")  # type: ignore[arg-type]
    with pytest.raises(LocalError, match=r"route None is not a str", check=breaks("AD-1")):
        Route.parse(None)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["", "a b", "a/b", "a#b", "*", "a\n", 7, None])
def test_what_cannot_be_the_name_of_a_node(name: str) -> None:
    with pytest.raises(LocalError, match="invalid node name"):
        check_node_name(name)


@pytest.mark.parametrize("name", ["hub-7", "hub.eu_1", "Größe"])
def test_what_can_be_the_name_of_a_node(name: str) -> None:
    assert check_node_name(name) == name
