from __future__ import annotations

from waystation.errors import DecodeError, LocalError, RemoteError, WaystationError, quote


def test_a_local_error_is_a_value_error_with_problem_rule_and_hint() -> None:
    error = LocalError("type 256 is out of range", rule="AD-1", hint="give 0 to 255")
    assert str(error) == "type 256 is out of range; give 0 to 255"
    assert (error.problem, error.rule, error.hint) == (
        "type 256 is out of range",
        "AD-1",
        "give 0 to 255",
    )
    assert isinstance(error, ValueError)
    assert isinstance(error, WaystationError)


def test_a_decode_error_says_format_and_place() -> None:
    error = DecodeError("a tag", format="ockam", offset=7)
    assert str(error) == "ockam: a tag (at byte 7)"
    assert not error.too_large
    assert isinstance(error, RemoteError)
    nowhere = DecodeError("17 MiB", format="ockam", too_large=True)
    assert str(nowhere) == "ockam: 17 MiB"
    assert nowhere.too_large


def test_values_are_shown_on_one_short_line() -> None:
    assert quote("a\nb") == r"'a\nb'"
    assert len(quote("x" * 10_000_000)) == 61
    assert len(quote(b"\xff" * 10_000_000)) == 61
    assert quote(256) == "256"
    assert quote(10**5000) == "<int>"
    assert len(quote(list(range(100)))) == 61
