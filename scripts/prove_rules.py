"""Write which tests prove which rule, and which code cites it.

    python scripts/prove_rules.py            write proofs.json, places.json, docs/reference/rules.md
    python scripts/prove_rules.py --check    report outdated files, and exit with 1

Nothing is run, only read. A rule's proof is a test function under `@pytest.mark.rule("ID")`. Its
places are the modules, classes and functions whose docstring or comments name it, alone or in a
range ("WK-1 .. WK-5"), or that raise an error with `rule="ID"`.
"""

from __future__ import annotations

import ast
import io
import json
import re
import sys
import tokenize
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROOFS = ROOT / "src/waystation/rules/proofs.json"
PLACES = ROOT / "src/waystation/rules/places.json"
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
    paths = sorted((root / "tests").rglob("test_*.py"))
    return grouped(pair for path in paths for pair in proofs_in(path, root))


NAMED = re.compile(r"\b([A-Z]{2})-(\d+)(?: \.\. \1-(\d+))?")
Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def rules_named(text: str) -> Iterator[str]:
    """The rules that a text names, with those inside a range.

    >>> list(rules_named("Workers (WK-1 .. WK-3), see AD-5"))
    ['WK-1', 'WK-2', 'WK-3', 'AD-5']
    """
    for chapter, first, last in NAMED.findall(text):
        yield from (f"{chapter}-{n}" for n in range(int(first), int(last or first) + 1))


def definitions_in(node: ast.AST, outer: str = "") -> Iterator[tuple[Definition, str]]:
    """Every class and function below a node, with its qualified name; inner after outer ones."""
    for child in ast.iter_child_nodes(node):
        name = outer
        if isinstance(child, Definition):
            name = f"{outer}.{child.name}" if outer else child.name
            yield child, name
        yield from definitions_in(child, name)


def texts_in(source: str) -> Iterator[tuple[int, str]]:
    """Docstrings, comments and the rules of errors, each with its line."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            yield node.lineno, str(node.value.value)
        elif isinstance(node, ast.keyword) and node.arg == "rule":
            yield node.value.lineno, ast.unparse(node.value)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def places_in(path: Path, root: Path) -> Iterator[tuple[str, str]]:
    """Pairs of a rule and the place that cites it, from one file, in the order of its lines."""
    source = path.read_text("utf-8")
    definitions = list(definitions_in(ast.parse(source)))
    file = path.relative_to(root).as_posix()
    for line, text in sorted(texts_in(source)):
        around = [name for node, name in definitions if node.lineno <= line <= last_line(node)]
        place = f"{file}::{around[-1]}" if around else file
        yield from ((rule, place) for rule in rules_named(text))


def last_line(node: Definition) -> int:
    """Where a definition ends."""
    return node.end_lineno or node.lineno


def collect_places(known: Iterable[str], root: Path = ROOT) -> dict[str, list[str]]:
    """The places in the source that cite each known rule."""
    apart = {root / "src/waystation/rules", root / "src/waystation/cli/rules.py"}  # of all rules
    paths = (
        path for path in sorted((root / "src").rglob("*.py")) if not apart & {path, path.parent}
    )
    places = grouped(pair for path in paths for pair in places_in(path, root))
    return {rule: places[rule] for rule in places if rule in set(known)}


def grouped(pairs: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """What belongs to each rule, each once, in the order in which it came."""
    found: dict[str, dict[str, None]] = {}
    for rule, one in pairs:
        found.setdefault(rule, {})[one] = None
    return {rule: list(found[rule]) for rule in sorted(found, key=rule_order)}


def rule_order(rule: str) -> tuple[str, int]:
    """Sorts RE-9 before RE-10."""
    chapter, _, number = rule.partition("-")
    return chapter, int(number)


def page() -> str:
    """The reference page, from the texts, the proofs and the places that were just written."""
    from waystation.rules import all_rules  # noqa: PLC0415 - reads what this script writes

    lines = [
        "# The rules, the code that cites them, and the tests that prove them",
        "",
        "Written by `scripts/prove_rules.py` from `src/waystation/rules/rules.toml`, the source",
        "and the marks in the test suite. `waystation rules` shows the same.",
    ]
    for title, chapter in groupby(all_rules(), key=lambda rule: rule.chapter):
        lines += ["", f"## {title}"]
        for rule in chapter:
            lines += ["", f"**{rule.id}** {rule.meaning}"]
            if rule.pending:
                lines += ["", "- not implemented yet"]
                continue
            lines += ["", "Code: " + ", ".join(f"`{place}`" for place in rule.places), ""]
            lines += [f"- `{test}`" for test in rule.tests]
    return "\n".join(lines) + "\n"


def written() -> dict[Path, str]:
    """What proofs.json and places.json should say."""
    from waystation.rules import all_rules  # noqa: PLC0415 - reads what this script writes

    ids = [rule.id for rule in all_rules()]
    found = {PROOFS: collect_proofs(), PLACES: collect_places(ids)}
    return {path: json.dumps(value, indent=1) + "\n" for path, value in found.items()}


def main(arguments: list[str]) -> int:
    """Write the files, or check them."""
    files = written()
    if arguments == ["--check"]:
        now = {path: path.read_text("utf-8") for path in files}
        if now == files and PAGE.read_text("utf-8") == page():
            return 0
        print("what is said of the rules is out of date: run `make rules`", file=sys.stderr)
        return 1
    for path, text in files.items():
        path.write_text(text, "utf-8")
    PAGE.write_text(page(), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
