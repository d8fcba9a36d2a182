"""Read the configuration file of a running node again (ID-5).

Identity, grants, tokens, certificates, limits and whom secure listeners trust are taken over at
once. A file with a problem changes nothing. What else has changed in it needs a restart, and is
named.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from msgspec import Struct, structs

from waystation.config.plan import Endpoint, Plan, check_file
from waystation.config.problem import Problem
from waystation.config.running import Running
from waystation.config.settings import LimitsTable, SecureTable, Settings, TokenTable
from waystation.errors import LocalError
from waystation.node import Listening, Session
from waystation.transports.schemes import SCHEMES

_TAKEN_OVER: Final = frozenset({"grant", "token"})
_SECRETS: Final = ("token", "token_file", "token_env")


class Reloaded(Struct, frozen=True):
    """What came of it: the plan that holds now, problems, and what needs a restart."""

    plan: Plan
    problems: list[Problem]
    restart: list[str]


def reload(live: Running, former: Plan, file: Path) -> Reloaded:
    """Take over what a file says now, as far as a running node can."""
    plan, problems = check_file(file)
    if plan is None:
        return Reloaded(former, problems, [])
    node = live.node
    try:
        node.renew_certificates()
    except LocalError as error:  # the files have changed since they were checked
        return Reloaded(former, [Problem(str(file), 0, "tls", error.problem, error.hint)], [])
    node.change_identity(plan.identity)
    node.change_limits(plan.limits)
    node.change_tokens(plan.token, plan.tokens)
    _change_tokens(live, live.listening, former.listeners, plan.listeners)
    _change_tokens(
        live,
        live.sessions,
        former.connections + former.parents,
        plan.connections + plan.parents,
    )
    node.change_grants(plan.grants)
    trusted = {one.name: one.trust for one in plan.secure}
    for listener in live.secure:
        name = listener.address.name
        if name in trusted:
            listener.change_trust(trusted[name])
    changed = _needs_restart(former.settings, plan.settings)
    secrets = {name for name in plan.services if plan.services[name] != former.services.get(name)}
    return Reloaded(plan, [], [*changed, *sorted(secrets - set(changed))])


def _change_tokens(
    live: Running,
    running: Sequence[Listening | Session],
    before: Sequence[Endpoint],
    after: Sequence[Endpoint],
) -> None:
    """Change the tokens of what is still in the file, by its table and URLs."""
    tokens = {(one.path[0], one.urls): one.token for one in after}
    for one, endpoint in zip(running, before, strict=False):  # beyond are those of other tables
        key = endpoint.path[0], endpoint.urls
        if key in tokens and tokens[key] != endpoint.token:
            live.node.change_token_of(one, tokens[key])


def _needs_restart(before: Settings, after: Settings) -> list[str]:
    """The tables that differ in what is not taken over."""
    changed = []
    for field in structs.fields(Settings):
        old, new = getattr(before, field.name), getattr(after, field.name)
        if field.name == "limits":
            changed += [f"limits.{name}" for name in SCHEMES if _differ(old, new, name)]
        elif field.name not in _TAKEN_OVER and _lasting(old) != _lasting(new):
            changed.append(field.name)
    return changed


def _differ(old: LimitsTable, new: LimitsTable, scheme: str) -> bool:
    return bool(getattr(old, scheme) != getattr(new, scheme))


def _lasting(value: object) -> object:
    """A table, or several, without what is taken over."""
    if isinstance(value, tuple):
        return [_lasting(each) for each in value]
    if isinstance(value, TokenTable):
        names = [*_SECRETS, *(["identity"] if "identity" in value.__struct_fields__ else [])]
        return structs.replace(value, **dict.fromkeys(names))
    if isinstance(value, SecureTable):
        return structs.replace(value, trust=None, anyone=False)
    return value
