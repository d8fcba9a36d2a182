from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waystation.errors import DecodeError
from waystation.wire import cbor

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(0, 2**64 - 1) | st.binary(max_size=300),
    lambda inner: st.lists(inner, max_size=30),
    max_leaves=20,
)


@given(VALUES)
def test_what_is_written_is_read_again(value: cbor.Value) -> None:
    if _depth(value) <= cbor.DEPTH:
        assert cbor.decode(cbor.encode(value)) == value


def test_numbers_are_written_as_short_as_they_can_be() -> None:
    written = [cbor.encode(number).hex() for number in (0, 23, 24, 255, 256, 65_536, 2**32)]
    assert written == ["00", "17", "1818", "18ff", "190100", "1a00010000", "1b0000000100000000"]


def test_a_number_that_has_no_form_is_an_error() -> None:
    with pytest.raises(OverflowError):
        cbor.encode(2**64)


@pytest.mark.parametrize(
    "data",
    [
        "",  # nothing
        "0000",  # two values
        "4261",  # bytes that end too soon
        "8200",  # an array that ends too soon
        "9b7fffffffffffffff",  # an array longer than anything
        "1900",  # half a number
        "1f",  # a reserved form
        "9f00ff",  # an indefinite length
        "5f4100ff",
        "a10000",  # a map
        "6161",  # text
        "20",  # a negative number
        "f7",  # undefined
        "81" * 9 + "00",  # too deep
    ],
)
def test_anything_else_is_refused(data: str) -> None:
    with pytest.raises(DecodeError):
        cbor.decode(bytes.fromhex(data))


@given(st.binary(max_size=60))
def test_hostile_bytes_raise_nothing_else(data: bytes) -> None:
    try:
        value = cbor.decode(data)
    except DecodeError:
        return
    assert cbor.decode(cbor.encode(value)) == value


def _depth(value: cbor.Value) -> int:
    return 1 + max(map(_depth, value), default=0) if isinstance(value, list) else 0
