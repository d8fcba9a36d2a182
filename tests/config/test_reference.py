from __future__ import annotations

from pathlib import Path
from typing import get_args

from msgspec import Struct, structs

from waystation.config.reference import _TABLES
from waystation.config.settings import Settings

ROOT = Path(__file__).resolve().parents[2]


def test_every_table_of_a_file_is_on_the_page() -> None:
    tables: set[type[Struct]] = set()
    for field in structs.fields(Settings):
        kinds = [field.type, *get_args(field.type)]
        tables |= {kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Struct)}
    assert tables <= {table for _, table in _TABLES} | set()
    titles = " ".join(title for title, _ in _TABLES)
    assert [field.name for field in structs.fields(Settings) if field.name not in titles] == []
