"""Every rule of Waystation, what it means, and the tests that prove it.

The texts stand in `rules.toml`. The proofs stand in `proofs.json`, which `scripts/prove_rules.py`
writes from the marks in the test suite; an installed Waystation can show them without the tests.
"""

from __future__ import annotations

import json
import tomllib
from importlib import resources

from msgspec import Struct


class Rule(Struct, frozen=True):
    """One rule: its id, the chapter it stands in, its meaning, and the tests that prove it."""

    id: str
    chapter: str
    meaning: str
    tests: tuple[str, ...]
    pending: bool = False


def all_rules() -> list[Rule]:
    """Every rule in the order of its chapters.

    >>> [rule.meaning for rule in all_rules() if rule.id == "RE-3"]
    ['A local entry is replaced by a local one.']
    """
    here = resources.files(__name__)
    texts = tomllib.loads(here.joinpath("rules.toml").read_text("utf-8"))
    proofs = json.loads(here.joinpath("proofs.json").read_text("utf-8"))
    pending = set(texts.pop("pending"))
    return [
        Rule(id, chapter["title"], meaning, tuple(proofs.get(id, ())), id in pending)
        for chapter in texts.values()
        for id, meaning in chapter.items()
        if id != "title"
    ]
