"""Every command, as a newcomer meets it: its help, its variables, completion, missing extras."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from waystation.cli import main, waystation
from waystation.cli.broker import broker
from waystation.cli.completion import SHELLS, completion
from waystation.mqtt.broker import Settings
from waystation.node import Node

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
ID = "4bf92f3577b34da6a3ce929d0e0e4736"
EXTRAS = (
    *("mqtt5", "opentelemetry", "pandas", "py4j", "pyarrow", "pyspark", "starlette", "uvicorn"),
    "websockets",
)
PROGRAM = f"""
import sys
sys.modules.update(dict.fromkeys({EXTRAS}))
from waystation.cli import main
main()
"""


def walk(
    command: click.Command, parent: click.Context | None = None, name: str = "waystation"
) -> Iterator[click.Context]:
    """A command and all that are below it."""
    context = click.Context(command, info_name=name, parent=parent, **command.context_settings)
    yield context
    if isinstance(command, click.Group):
        for each in command.list_commands(context):
            found = command.get_command(context, each)
            assert found is not None
            yield from walk(found, context, each)


COMMANDS = list(walk(waystation))


def path_of(context: click.Context) -> str:
    return context.command_path.removeprefix("waystation ")


@pytest.mark.parametrize("context", COMMANDS, ids=path_of)
def test_every_command_says_what_it_does_and_shows_an_example(context: click.Context) -> None:
    text = context.get_help()
    assert context.command.get_short_help_str(), "no word of what it does"
    _, mark, rest = text.partition("Examples:\n")
    assert mark, "no examples"
    shown = [line for line in rest.split("\n\n")[0].split("\n") if "waystation " in line]
    assert shown, "no examples below `Examples:`"
    assert all(context.command_path in line for line in shown)


@pytest.mark.parametrize("context", COMMANDS, ids=path_of)
def test_help_fits_a_terminal_of_80_columns(context: click.Context) -> None:
    narrow = click.Context(context.command, info_name=context.command_path, terminal_width=80)
    before, _, after = context.command.get_help(narrow).partition("Examples:\n")
    rest = after.partition("\n\n")[2]  # commands to copy are one line each, however long
    wide = [line for line in f"{before}{rest}".split("\n") if len(line) > 80 or "…" in line]
    assert wide == []


@pytest.mark.parametrize("context", COMMANDS, ids=path_of)
def test_every_option_says_what_it_is_for(context: click.Context) -> None:
    silent = [
        parameter.opts
        for parameter in context.command.params
        if isinstance(parameter, click.Option) and not parameter.help
    ]
    assert silent == []


FOR_PROGRAMS = [
    context
    for context in COMMANDS
    if not isinstance(context.command, click.Group) and context.command is not completion
]
"""All commands but the one that prints a script."""


@pytest.mark.parametrize("context", FOR_PROGRAMS, ids=path_of)
def test_every_command_tells_programs_in_json_what_is_wrong(
    context: click.Context, capsys: pytest.CaptureFixture[str]
) -> None:
    assert any("--json" in parameter.opts for parameter in context.command.params)
    with pytest.raises(SystemExit) as ended:
        main([*path_of(context).split(), "--no-such-option", "--json"])
    said = capsys.readouterr()
    told = json.loads(said.out)
    assert (ended.value.code, told["exit_code"], said.err.count("\n")) == (2, 2, 1)
    assert "no-such-option" in told["error"]
    assert "--help" in told["advice"]


def variable_of(option: click.Parameter, context: click.Context) -> str | None:
    """The environment variable that a parameter reads."""
    if option.envvar is not None:
        return str(option.envvar)
    prefix = context.auto_envvar_prefix
    return None if prefix is None or option.name is None else f"{prefix}_{option.name.upper()}"


@pytest.mark.parametrize("context", COMMANDS, ids=path_of)
def test_every_option_reads_the_variable_of_its_name(context: click.Context) -> None:
    for parameter in context.command.params:
        if not isinstance(parameter, click.Option) or parameter.is_eager:  # as --version
            continue
        long = max(parameter.opts, key=len)
        wanted = f"WAYSTATION_{long[2:].replace('-', '_').upper()}"
        assert variable_of(parameter, context) == wanted, long


BLOCK = re.compile(r"^```(?:text|console[^\n]*)?\n(.*?)^```", re.DOTALL | re.MULTILINE)


def command_lines(path: Path) -> Iterator[list[str]]:
    """The words behind `waystation`, for each line of a block that begins with it."""
    for block in BLOCK.findall(path.read_text("utf-8").replace("\\\n", " ")):
        for line in block.split("\n"):
            words = line.removeprefix("$ ").split()
            if words[:1] == ["waystation"] and words[1:2] != ["[OPTIONS]"]:
                yield words[1:]


def command_of(words: list[str]) -> click.Context:
    """The command that the words name; what is left of them are its arguments."""
    context = next(walk(waystation))
    while isinstance(context.command, click.Group) and words and words[0][0] not in "-[":
        found = context.command.get_command(context, words[0])
        assert found is not None, f"{context.command_path} has no command {words[0]}"
        context = click.Context(found, info_name=words.pop(0), parent=context)
    return context


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_every_command_in_a_page_is_one_that_there_is(path: Path) -> None:
    for words in command_lines(path):
        context = command_of(words)
        known = {*context.help_option_names, "--version"}
        for parameter in context.command.params:
            known.update(parameter.opts, parameter.secondary_opts)
        used = {word for word in words if re.fullmatch("--?[a-z][a-z-]*", word)}
        assert used <= known, f"{context.command_path} has no {used - known}"


def test_the_defaults_of_the_broker_are_those_of_its_settings() -> None:
    settings: dict[str, Any] = {
        parameter.name.removeprefix("max_"): parameter.default
        for parameter in broker.params
        if parameter.name and hasattr(Settings, parameter.name.removeprefix("max_"))
    }
    assert len(settings) == 9
    assert Settings(**settings) == Settings()


@pytest.mark.parametrize("shell", SHELLS)
def test_every_shell_gets_a_script_that_asks_waystation(shell: str) -> None:
    result = CliRunner().invoke(completion, [shell])
    assert result.exit_code == 0
    assert f"_WAYSTATION_COMPLETE={shell}_complete" in result.output


def without_extras(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | variables,
    )


def test_a_shell_is_told_how_a_word_goes_on() -> None:
    """Without any extra: completion looks at every command."""
    variables = {"_WAYSTATION_COMPLETE": "bash_complete", "COMP_CWORD": "1"}
    result = without_extras(**variables, COMP_WORDS="waystation jou")
    assert result.stdout == "plain,journal\n"


def test_help_needs_no_extra() -> None:
    result = without_extras("--help")
    assert (result.returncode, result.stderr) == (0, "")
    assert "broker" in result.stdout


NODE = '[node]\nname = "n"\n'


@pytest.mark.parametrize(
    ("arguments", "extra"),
    [
        ("broker --listen 127.0.0.1:0", "mqtt"),
        ("journal cat .", "journal"),
        ("pipeline build --journal . --out T", "spark"),
        ("simulate --nodes 2 --participants 1 --messages 1 --out T", "spark"),
        ("router --listen 127.0.0.1:0 --journal J", "journal"),
        ("send x --via ws://127.0.0.1:1", "ws"),
        ("listen x --at http://127.0.0.1:0", "http"),
        (f"why {ID} --journal .", "journal"),
        (f"why {ID} --tables .", "journal"),
        ("lost --journal .", "journal"),
        ("node --config journal.toml", "journal"),
        ("node --config mqtt.toml", "mqtt"),
        ("node --config ws.toml --check", "ws"),
    ],
)
def test_what_is_missing_is_one_line_with_the_way_to_get_it(
    arguments: str, extra: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "journal.toml").write_text(f'{NODE}[journal]\ndirectory = "J"\n')
    (tmp_path / "mqtt.toml").write_text(f'{NODE}[mqtt]\nurl = "mqtt://a:1"\ntopic = "a"\n')
    (tmp_path / "ws.toml").write_text(f'{NODE}[[listen]]\nurl = "ws://127.0.0.1:0"\n')
    monkeypatch.chdir(tmp_path)
    result = without_extras(*arguments.split())
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.count("\n") == 1, result.stderr
    assert f"pip install 'waystation[{extra}]'" in result.stderr


def packages_beyond(extra: str) -> set[str]:
    """What others than these extra's packages import: modules by the names of requirements."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"][extra]]
    named = {re.split(r"[<>=\[; ]", requirement)[0] for requirement in wanted}
    # The commands hide pandas by themselves; pyarrow fails if it is hidden in this way.
    return {*EXTRAS, "jinja2", "numpy", "xxhash"} - named - {"pandas"}


def test_the_extra_for_journals_is_enough_to_find_and_explain_what_was_lost(tmp_path: Path) -> None:
    async def lose() -> None:
        async with Node("hub", journal=tmp_path) as node:
            await node.send("truck-7", b"?")

    asyncio.run(lose())
    hidden = ", ".join(map(repr, sorted(packages_beyond("journal"))))
    program = PROGRAM.replace(str(EXTRAS), f"({hidden})")
    for words in (["lost", "--journal"], ["why", "--last-loss", "--journal"]):
        done = subprocess.run(
            [sys.executable, "-c", program, *words, str(tmp_path)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert "truck-7 was never known" in done.stdout
