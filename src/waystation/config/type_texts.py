"""Descriptions of setting types for people who know TOML, but not Python."""

from __future__ import annotations

from typing import Any

from msgspec import inspect


def type_text(kind: Any) -> str:
    """What values a key takes.

    >>> from typing import Literal
    >>> type_text(bool), type_text(str | tuple[str, ...]), type_text(Literal["seal", "flush"])
    ('true or false', 'text or a list of text', '"flush" or "seal"')
    """
    return _text(inspect.type_info(kind))


def key_description(kind: Any) -> str:
    """What a key means, from its annotation."""
    info = inspect.type_info(kind)
    if isinstance(info, inspect.Metadata) and info.extra_json_schema:
        return str(info.extra_json_schema.get("description", ""))
    return ""


def _text(info: inspect.Type) -> str:
    match info:
        case inspect.Metadata(inner):
            return _text(inner)
        case inspect.UnionType(types):
            inner_types = (t for t in types if not isinstance(t, inspect.NoneType))
            return " or ".join(_text(inner) for inner in inner_types)
        case inspect.LiteralType(values):
            return " or ".join(f'"{value}"' for value in values)
        case inspect.VarTupleType(item):
            return f"a list of {_text(item)}".replace("list of a table", "list of tables")
        case inspect.IntType() | inspect.FloatType():
            noun = "a whole number" if isinstance(info, inspect.IntType) else "a number"
            return f"{noun}{_range(info)}"
        case inspect.BoolType():
            return "true or false"
        case inspect.StrType():
            return "text"
        case _:
            return "a table"


def _range(info: inspect.IntType | inspect.FloatType) -> str:
    if info.ge is not None and info.le is not None:
        return f" from {info.ge:g} to {info.le:g}"
    if info.ge is not None:
        return f" from {info.ge:g} on"
    return "" if info.gt is None else f" above {info.gt:g}"
