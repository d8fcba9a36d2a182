"""Write the proofs of the rules: which tests name which rule.

    python scripts/prove_rules.py            write proofs.json and docs/reference/rules.md
    python scripts/prove_rules.py --check    report outdated files, and exit with 1

The tests are read, not run: a rule's proof is a test function under `@pytest.mark.rule("ID")`.
"""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROOFS = ROOT / "src/waystation/rules/proofs.json"
PAGE = ROOT / "docs/reference/rules.md"


def marked_rules(node: ast.AST) -> Iterator[str]:
    """The rules that the marks on a function or class name."""
    for decorator in getattr(node, "decorator_list", ()):
        if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "pytest.mark.rule":
            yield from (str(ast.literal_eval(argument)) for argument in decorator.args)


def proofs_in(path: Path, root: Path) -> Iterator[tuple[str, str]]:
    """Pairs of a rule and the test that proves it, from one file."""
    name = path.relative_to(root).as_posix()
    for node in ast.parse(path.read_text("utf-8")).body:
        function = str(getattr(node, "name", ""))
        if function.startswith("test_"):
            yield from ((rule, f"{name}::{function}") for rule in marked_rules(node))


def collect_proofs(root: Path = ROOT) -> dict[str, list[str]]:
    """The tests of each rule."""
    proofs: dict[str, list[str]] = {}
    for path in sorted((root / "tests").rglob("test_*.py")):
        for rule, test in proofs_in(path, root):
            proofs.setdefault(rule, []).append(test)
    return {rule: proofs[rule] for rule in sorted(proofs, key=rule_order)}


def rule_order(rule: str) -> tuple[str, int]:
    """Sorts RE-9 before RE-10."""
    chapter, _, number = rule.partition("-")
    return chapter, int(number)


def page() -> str:
    """The reference page, from the texts and the proofs that were just written."""
    from waystation.rules import all_rules  # noqa: PLC0415 - reads what this script writes

    lines = [
        "# The rules, and the tests that prove them",
        "",
        "Written by `scripts/prove_rules.py` from `src/waystation/rules/rules.toml` and the marks",
        "in the test suite. `waystation rules` shows the same.",
    ]
    for title, chapter in groupby(all_rules(), key=lambda rule: rule.chapter):
        lines += ["", f"## {title}"]
        for rule in chapter:
            lines += ["", f"**{rule.id}** {rule.meaning}", ""]
            lines += [f"- `{test}`" for test in rule.tests]
            if rule.pending:
                lines.append("- not implemented yet")
    return "\n".join(lines) + "\n"


def main(arguments: list[str]) -> int:
    """Write both files, or check them."""
    proofs = json.dumps(collect_proofs(), indent=1) + "\n"
    if arguments == ["--check"]:
        if PROOFS.read_text("utf-8") == proofs and PAGE.read_text("utf-8") == page():
            return 0
        print("the proofs of the rules are out of date: run `make rules`", file=sys.stderr)
        return 1
    PROOFS.write_text(proofs, "utf-8")
    PAGE.write_text(page(), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
