"""`waystation rules`: list the rules that Waystation follows, their code and their tests."""

from __future__ import annotations

from itertools import groupby

import click
import msgspec

from waystation.cli.options import json_option
from waystation.rules import Rule, all_rules

_HELP = """List the rules, their meaning, the code that cites them and the tests that prove them.

\b
Examples:
  waystation rules              # all rules, with the number of tests of each
  waystation rules RE-6 MC-4    # only these rules, with their code and their tests
  waystation rules --json       # for programs
"""


@click.command(help=_HELP)
@click.argument("ids", nargs=-1, metavar="[RULE]...")
@json_option
def rules(ids: tuple[str, ...], *, as_json: bool) -> None:
    """Print all rules, or those with the given ids."""
    chosen = all_rules()
    if ids:
        chosen = [_find(chosen, id) for id in ids]
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(chosen), indent=1))
        return
    for chapter, members in groupby(chosen, key=lambda rule: rule.chapter):
        click.secho(chapter, bold=True)
        for rule in members:
            click.echo(_line(rule))
            if ids:
                for name in (*rule.places, *rule.tests):
                    click.echo(f"         {name}")


def _find(known: list[Rule], id: str) -> Rule:
    for rule in known:
        if rule.id == id.upper():
            return rule
    raise click.BadParameter(f"unknown rule {id!r}; rules run from {known[0].id} to {known[-1].id}")


def _line(rule: Rule) -> str:
    proof = "not implemented yet" if rule.pending else f"{len(rule.tests)} tests"
    return f"  {rule.id:<6} {rule.meaning} ({proof})"
