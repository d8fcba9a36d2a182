"""Every rule has a proof, or stands in the list of what is not built yet."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from scripts.prove_rules import collect_places, collect_proofs
from waystation.rules import Rule, all_rules

ROOT = Path(__file__).resolve().parents[2]
RULES = all_rules()


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_a_rule_has_a_test_or_is_pending_and_never_both(rule: Rule) -> None:
    if rule.pending:
        assert not rule.tests, f"{rule.id} has tests: take it off the list `pending`"
    else:
        assert rule.tests, f"{rule.id} has no test: mark one with @pytest.mark.rule('{rule.id}')"


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_a_rule_that_is_built_names_the_code_that_does_it(rule: Rule) -> None:
    if not rule.pending:
        assert rule.places, (
            f"{rule.id}: cite it in the docstring or comment of the code that does it"
        )


def test_code_cites_a_rule_by_a_docstring_a_comment_a_range_or_an_error(tmp_path: Path) -> None:
    source = tmp_path / "src" / "waystation" / "module.py"
    source.parent.mkdir(parents=True)
    source.write_text(
        '''"""Of workers (WK-1 .. WK-3)."""

class Outer:
    """Nothing."""

    def inner(self):
        # as RE-9 says, and RE-9 again; XX-1 is no rule
        text = "AD-4 in a text is no citation"
        raise LocalError(text, rule="RE-6")
''',
        "utf-8",
    )
    file, inner = "src/waystation/module.py", "src/waystation/module.py::Outer.inner"
    assert collect_places([rule.id for rule in RULES], tmp_path) == {
        "RE-6": [inner],
        "RE-9": [inner],
        "WK-1": [file],
        "WK-2": [file],
        "WK-3": [file],
    }


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
