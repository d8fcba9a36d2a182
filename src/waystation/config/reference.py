"""Generates docs/reference/config.md from the settings.

`make docs` generates the page, `make check` compares it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgspec
from msgspec import NODEFAULT, Struct, structs

from waystation.config import settings
from waystation.config.type_texts import key_description, type_text
from waystation.transports.schemes import SCHEMES

_TABLES: Final[tuple[tuple[str, type[Struct]], ...]] = (
    ("[node]", settings.NodeTable),
    ("[[listen]]", settings.ListenTable),
    ("[[token]]", settings.NamedTokenTable),
    ("[[connect]] and [[parent]]", settings.ConnectTable),
    ("[[worker]]", settings.WorkerTable),
    ("[[secure]]", settings.SecureTable),
    ("[[access]]", settings.AccessTable),
    ("[[grant]]", settings.GrantTable),
    ("[limits]", settings.LimitsTable),
    ("[tls]", settings.TlsTable),
    ("[journal]", settings.JournalTable),
    ("[archive]", settings.ArchiveTable),
    ("[store]", settings.StoreTable),
    ("[mqtt]", settings.MqttTable),
    ("[groups]", settings.GroupsTable),
    ("[directory]", settings.DirectoryTable),
    ("[status]", settings.StatusTable),
)
_SECRETS: Final = ("token", "password")  # listed last, since they are the same in every table
_HEAD: Final = """\
# The configuration file

For `waystation node --config FILE`; [how to write one](../how-to/configure-a-node.md). TOML, in
UTF-8. File names are relative to the directory of the file. Unknown keys are errors. `[[…]]` tables
may be repeated, `[…]` tables may not.
"""


def reference() -> str:
    """The text of the page."""
    return "\n".join([_HEAD, *_sections()])


def _sections() -> Iterator[str]:
    for title, table in _TABLES:
        yield f"## {title}\n\n{table.__doc__}\n"
        yield from _rows(table)
        yield ""
    for name, scheme in SCHEMES.items():
        limits = scheme.load_limits()
        first, *rest = (limits.__doc__ or "").strip().split("\n\n")
        text = " ".join(" ".join(rest).split())
        yield f"## [limits.{name}]\n\n{first}\n\n{text}\n"
        yield from _rows(limits)
        yield ""


def _rows(table: type[Struct]) -> Iterator[str]:
    fields = sorted(structs.fields(table), key=lambda field: field.name.startswith(_SECRETS))
    meanings = [key_description(field.type) for field in fields]
    yield f"| key | takes | default |{' meaning |' if any(meanings) else ''}"
    yield f"|---|---|---|{'---|' if any(meanings) else ''}"
    for field, meaning in zip(fields, meanings, strict=True):
        cells = [f"`{field.name}`", type_text(field.type), _default(field)]
        yield f"| {' | '.join([*cells, meaning] if meaning else cells)} |"


def _default(field: structs.FieldInfo) -> str:
    if field.required:
        return "*required*"
    value: Any = field.default
    if value is NODEFAULT:
        value = field.default_factory()
    if value is None or value == {}:
        return ""
    return f"`{msgspec.json.encode(value).decode()}`"
