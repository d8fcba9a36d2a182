"""Every rule has a proof, or stands in the list of what is not built yet."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from scripts.prove_rules import collect_proofs
from waystation.rules import Rule, all_rules

ROOT = Path(__file__).resolve().parents[2]
RULES = all_rules()


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_a_rule_has_a_test_or_is_pending_and_never_both(rule: Rule) -> None:
    if rule.pending:
        assert not rule.tests, f"{rule.id} has tests: take it off the list `pending`"
    else:
        assert rule.tests, f"{rule.id} has no test: mark one with @pytest.mark.rule('{rule.id}')"


def test_no_test_names_a_rule_that_does_not_exist() -> None:
    assert set(collect_proofs()) <= {rule.id for rule in RULES}


def test_every_pending_rule_exists() -> None:
    text = (ROOT / "src/waystation/rules/rules.toml").read_text("utf-8")
    listed = text.split("pending = [")[1].split("]")[0].replace('"', "").replace(",", " ").split()
    assert sorted(listed) == sorted(rule.id for rule in RULES if rule.pending)


def test_the_written_proofs_are_those_of_the_tests() -> None:
    result = subprocess.run(
        [sys.executable, ROOT / "scripts/prove_rules.py", "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr


def test_every_rule_is_a_sentence_under_its_own_chapter() -> None:
    assert len({rule.id for rule in RULES}) == len(RULES)
    for rule in RULES:
        assert rule.meaning.endswith(".")
