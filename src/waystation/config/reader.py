"""From a TOML file to settings, or to a list of all of its problems.

Only syntax and types are checked here: whether an address can be used or a worker be imported is
checked in plan.py.
"""

from __future__ import annotations

import re
import tomllib
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any, Final, TypeVar, get_args, get_origin

import msgspec
from msgspec import Struct, structs

from waystation.config.problem import Problem, Problems
from waystation.config.settings import Settings
from waystation.config.toml_lines import KeyPath, key_lines
from waystation.config.type_texts import key_description, type_text
from waystation.errors import quote

T = TypeVar("T", bound=Struct)

_fields: Final = cache(structs.fields)

_SECRETS: Final = ("token", "password")
_at_line: Final = re.compile(r" \(at (?:line (\d+), column \d+|end of document)\)$").search
_msgspec_path: Final = re.compile(r" - at `\$((?:\[\d+\])*)[^`]*`$").search


def read_settings(file: Path) -> tuple[Settings | None, Problems]:
    """The settings of a file and its problems; settings are None only if there are problems."""
    return read_table(Settings, file)


def read_table(kind: type[T], file: Path) -> tuple[T | None, Problems]:
    """A file as one table, and its problems; None only if there are problems."""
    problems = Problems(file, {})
    try:
        text = file.read_text("utf-8")
        found = tomllib.loads(text)
    except OSError as error:
        problems.add((), error.strerror or str(error), "give a readable file")
        return None, problems
    except UnicodeDecodeError:
        problems.add((), "not valid UTF-8", "save it as UTF-8")
        return None, problems
    except tomllib.TOMLDecodeError as error:
        problems.found.append(_invalid_toml(file, text, str(error)))
        return None, problems
    problems.lines = key_lines(text)
    return convert_table(kind, found, (), problems), problems


def _invalid_toml(file: Path, text: str, said: str) -> Problem:
    where = _at_line(said)
    end = text.count("\n") + 1
    line = int(where[1] or end) if where else 0
    what = said[: where.start()] if where else said
    return Problem(str(file), line, "", f"invalid TOML: {what}", "see toml.io for the syntax")


def convert_table(kind: type[T], found: Any, path: KeyPath, problems: Problems) -> T | None:
    """Convert a table to the settings type `kind`; None if there is a problem."""
    if not isinstance(found, dict):
        problems.add(path, f"expected a table, found {_kind_text(found)}", _write_table(path))
        return None
    before = len(problems.found)
    known = {field.name: field for field in _fields(kind)}
    for key in found:
        if key not in known:
            _unknown(key, (*path, key), list(known), problems)
    values = {}
    for name, field in known.items():
        if name in found:
            values[name] = _value(field.type, found[name], (*path, name), problems)
        elif field.required:
            problems.add((*path, name), "missing", f"add {_example(name, field.type)}")
    return kind(**values) if len(problems.found) == before else None


def _unknown(key: str, path: KeyPath, known: list[str], problems: Problems) -> None:
    near = get_close_matches(key, known, n=1, cutoff=0.6)
    hint = f"did you mean `{near[0]}`?" if near else f"known keys: {', '.join(known)}"
    problems.add(path, "unknown key", hint)


def _value(kind: Any, found: Any, path: KeyPath, problems: Problems) -> Any:
    """Convert a value of any type; None if there is a problem."""
    table = _table_in(kind)
    if get_origin(kind) is tuple and table is not None:
        return _tables(table, found, path, problems)
    if table is not None and (isinstance(found, dict) or kind is table or bool not in _types(kind)):
        return convert_table(table, found, path, problems)
    try:
        return msgspec.convert(found, kind)
    except msgspec.ValidationError as error:
        _wrong(kind, found, str(error), path, problems)
        return None


def _tables(
    kind: type[Struct], found: Any, path: KeyPath, problems: Problems
) -> tuple[Struct | None, ...]:
    if not isinstance(found, list):
        problems.add(
            path,
            f"expected a list of tables, found {_kind_text(found)}",
            f"write [[{path[-1]}]] for each",
        )
        return ()
    return tuple(
        convert_table(kind, inner, (*path, position), problems)
        for position, inner in enumerate(found)
    )


def _wrong(kind: Any, found: Any, said: str, path: KeyPath, problems: Problems) -> None:
    where = _msgspec_path(said)
    inside = tuple(int(step) for step in re.findall(r"\d+", where[1])) if where else ()
    secret = path[-1] in _SECRETS
    what = f"expected {type_text(kind)}, found {'another type' if secret else _value_text(found)}"
    meaning = key_description(kind)
    problems.add((*path, *inside), what, f"meaning: {meaning}" if meaning else "change the value")


def _value_text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else quote(value)


def _kind_text(value: Any) -> str:
    if isinstance(value, dict):
        return "a table"
    return "a list" if isinstance(value, list) else _value_text(value)


def _types(kind: Any) -> tuple[Any, ...]:
    """The members of a union type, without annotations."""
    if hasattr(kind, "__metadata__"):
        return _types(get_args(kind)[0])
    arguments = get_args(kind)
    return tuple(inner for part in arguments for inner in _types(part)) if arguments else (kind,)


def _table_in(kind: Any) -> type[Struct] | None:
    for inner in _types(kind):
        if isinstance(inner, type) and issubclass(inner, Struct):
            return inner
    return None


def _write_table(path: KeyPath) -> str:
    names = ".".join(step for step in path if isinstance(step, str))
    return f"write [{names}] and its keys below it"


def _example(name: str, kind: Any) -> str:
    return f"[{name}]" if _table_in(kind) else f'{name} = "…"'
