"""Every rule of Waystation, what it means, the code that cites it and the tests that prove it.

The texts stand in `rules.toml`. `scripts/prove_rules.py` writes `proofs.json` from the marks in the
test suite and `places.json` from the source, so that an installed Waystation can show both.
"""

from __future__ import annotations

import json
import tomllib
from importlib import resources

from msgspec import Struct


class Rule(Struct, frozen=True):
    """One rule: its id, chapter and meaning, the tests that prove it, the code that cites it."""

    id: str
    chapter: str
    meaning: str
    tests: tuple[str, ...]
    pending: bool = False
    places: tuple[str, ...] = ()


def all_rules() -> list[Rule]:
    """Every rule in the order of its chapters.

    >>> [rule.meaning for rule in all_rules() if rule.id == "RE-3"]
    ['A local entry is replaced by a local one.']
    """
    here = resources.files(__name__)
    texts = tomllib.loads(here.joinpath("rules.toml").read_text("utf-8"))
    proofs = json.loads(here.joinpath("proofs.json").read_text("utf-8"))
    places = json.loads(here.joinpath("places.json").read_text("utf-8"))
    pending = set(texts.pop("pending"))
    return [
        Rule(
            id,
            chapter["title"],
            meaning,
            tuple(proofs.get(id, ())),
            id in pending,
            tuple(places.get(id, ())),
        )
        for chapter in texts.values()
        for id, meaning in chapter.items()
        if id != "title"
    ]
