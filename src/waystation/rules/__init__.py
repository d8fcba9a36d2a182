"""The rules of Waystation: their meaning, the code that cites them, the tests that prove them.

The texts are in `rules.toml`. The names of the tests are in `proofs.json` and the places in the
source in `places.json`; `scripts/prove_rules.py` generates both, so that an installed Waystation
can show them without the tests.
"""

from __future__ import annotations

import json
import tomllib
from importlib import resources

from msgspec import Struct


class Rule(Struct, frozen=True):
    """A rule: its id, chapter and meaning, the tests that prove it, the code that cites it."""

    id: str
    chapter: str
    meaning: str
    tests: tuple[str, ...]
    pending: bool = False
    places: tuple[str, ...] = ()


def all_rules() -> list[Rule]:
    """All rules in the order of their chapters.

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
