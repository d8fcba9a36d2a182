"""What `waystation parked` and `waystation dead` have in common: list, show, retry, drop (DU-5)."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, TypeVar

import click
import msgspec

from waystation.cli.lazy import HelpfulGroup
from waystation.cli.options import DIRECTORY, SETTINGS, Instant, choice, json_option, print_json
from waystation.core.outcome import Reason
from waystation.core.spoken import plural
from waystation.errors import LocalError
from waystation.node.letters import (
    LATER,
    Described,
    Kind,
    Selection,
    Wish,
    find,
    select_ids,
    wish,
)

Command = TypeVar("Command", bound=Callable[..., Any])

_SHOWN: Final = 1_000  # bytes of a payload
_ID: Final = "4bf92f3577b34da6a3ce929d0e0e4736"  # for examples

_store = click.option(
    "--store",
    metavar="DIR",
    required=True,
    envvar="WAYSTATION_STORE",
    type=DIRECTORY,
    help="Store of the node.",
)


def _selecting(kind: Kind) -> Callable[[Command], Command]:
    """The options that say which messages are meant."""

    def add(command: Command) -> Command:
        options = [
            click.argument("ids", metavar="[ID]...", nargs=-1),
            click.option("--participant", metavar="NAME", help="Only messages to this receiver."),
            click.option(
                "--older",
                "before",
                metavar="TIME",
                envvar="WAYSTATION_OLDER",
                type=Instant(),
                help="Only messages queued before this time, or longer ago than this, such as 2h.",
            ),
        ]
        if kind == "dead":
            options.append(
                click.option(
                    "--reason",
                    metavar="REASON",
                    type=choice(Reason),
                    help="Only what ended for this reason, such as EXPIRED.",
                )
            )
        for option in reversed(options):
            command = option(command)
        return command

    return add


def letters_group(kind: Kind, help: str) -> click.Group:
    """The command `waystation parked` or `waystation dead`."""
    group = HelpfulGroup(name=kind, help=help)

    def command(name: str, text: str, which: str) -> Callable[[Any], click.Command]:
        example = f"\b\nExamples:\n  waystation {kind} {name} {which} --store STORE"
        return group.command(name, help=f"{text}\n\n{example}", context_settings=SETTINGS)

    @command("list", "List the messages, the oldest first.", "--participant truck-7")
    @_selecting(kind)
    @_store
    @json_option
    def list_(store: Path, as_json: bool, **which: Any) -> None:
        count = 0
        for one in find(store, kind, Selection(**which)):
            count += 1
            click.echo(_json(one) if as_json else _line(one))
        if not as_json:
            click.echo(plural(count, "message"))

    @command("show", "Show messages with their routes and payloads.", _ID)
    @_selecting(kind)
    @_store
    @json_option
    def show(store: Path, as_json: bool, **which: Any) -> None:
        selection = Selection(**which)
        _check_some(store, kind, selection)
        for one in find(store, kind, selection):
            click.echo(_json(one) if as_json else "\n".join(_description(one)))

    @command("retry", "Deliver messages now, without waiting; dead letters are sent again.", _ID)
    @_selecting(kind)
    @_store
    @json_option
    def retry(store: Path, as_json: bool, **which: Any) -> None:
        _wish(store, "retry", kind, Selection(**which), as_json=as_json)

    give_up, remove = "Give messages up: they become dead letters.", "Remove dead letters for good."

    @command("drop", give_up if kind == "parked" else remove, "--older 2d")
    @_selecting(kind)
    @_store
    @json_option
    def drop(store: Path, as_json: bool, **which: Any) -> None:
        _wish(store, "drop", kind, Selection(**which), as_json=as_json)

    return group


def _check_some(store: Path, kind: Kind, selection: Selection) -> list[str]:
    """The ids of the messages that are meant; it must be said which, and there must be some."""
    if selection == Selection():
        also = ", --reason" if kind == "dead" else ""
        raise click.UsageError(f"give the ID of a message, or --participant{also}, --older")
    found = select_ids(store, kind, selection)
    if not found:
        raise LocalError(
            "no message in the store matches",
            rule="DU-5",
            hint=f"see `waystation {kind} list --store {store}`",
        )
    return found


def _wish(store: Path, do: Any, kind: Kind, selection: Selection, *, as_json: bool) -> None:
    ids = _check_some(store, kind, selection)
    told = wish(store, Wish(do, kind, ids))
    if as_json:
        print_json({"messages": ids, "done": told is not None, "result": told or LATER})
    else:
        click.echo(told or LATER)


def _instant(microseconds: int) -> str:
    return f"{datetime.fromtimestamp(microseconds / 1e6, UTC):%Y-%m-%d %H:%M:%S}Z"


def _line(one: Described) -> str:
    why = f"  {one.reason}" if one.reason else ""
    detail = f"  {one.detail.splitlines()[0][:60]}" if one.detail else ""
    attempts = f"  {plural(one.attempts, 'attempt')}" if one.attempts else ""
    return f"{one.id}  {_instant(one.queued_at)}  {one.participant}{why}{attempts}{detail}"


def _description(one: Described) -> list[str]:
    lines = [
        f"message {one.id}",
        f"  from      {one.sender}",
        f"  to        {one.participant} ({one.route})",
        f"  queued    {_instant(one.queued_at)}",
    ]
    if one.ended_at is not None:
        lines.append(f"  ended     {_instant(one.ended_at)}, {one.reason}")
    if one.expiry is not None:
        lines.append(f"  expires   {_instant(one.expiry)}")
    if one.attempts:
        lines.append(f"  attempts  {one.attempts}")
    if one.detail:
        lines.append(f"  detail    {one.detail}")
    payload = one.payload[:_SHOWN]
    more = f" and {len(one.payload) - _SHOWN} more" if len(one.payload) > _SHOWN else ""
    return [*lines, f"  payload   {plural(len(one.payload), 'byte')}: {payload!r}{more}"]


def _json(one: Described) -> str:
    return msgspec.json.encode(one).decode()
