"""Generate reference pages from the code: the API, the commands, the reasons, the sizes.

    python scripts/write_reference.py            write the pages
    python scripts/write_reference.py --check    report outdated pages, and exit with 1

reference/api.md and the pages in reference/api come from the docstrings, reference/cli.md from the
commands, reference/config.md from the settings. Three pages are written by hand, except for what is
between pairs of marks: reference/reasons.md, from the code, reference/tables.md, from the registry
of tables, and how-to/size-a-fleet.md, from the results of the benchmarks:

    <!-- code: NO_ROUTE -->      <!-- tables: overview -->      <!-- figures: sizes -->
    <!-- end of code -->         <!-- end of tables -->         <!-- end of figures -->
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from inspect import cleandoc
from pathlib import Path
from typing import Any

import click
import generated  # type: ignore[import-not-found] # it is beside this file
import griffe

from waystation.config.reference import reference as config_page

SOURCE = generated.ROOT / "src"
REFERENCE = generated.ROOT / "docs/reference"
API = REFERENCE / "api"
SIZES = generated.ROOT / "docs/how-to/size-a-fleet.md"
RESULTS = generated.ROOT / "benchmarks/results"
WIDTH = 96

MODULES = (
    "waystation.node",
    "waystation.transports",
    "waystation.transports.websocket",
    "waystation.transports.mqtt",
    "waystation.transports.gossip",
    "waystation.groups",
    "waystation.gossip_router",
    "waystation.mqtt.broker",
    "waystation.journal",
    "waystation.journal.read",
    "waystation.journal.otel",
    "waystation.pipeline",
    "waystation.why",
    "waystation.config",
    "waystation.testing",
    "waystation.core.address",
    "waystation.core.message",
    "waystation.core.routing",
    "waystation.core.router",
    "waystation.core.multicast",
    "waystation.core.outcome",
    "waystation.core.expiry",
    "waystation.core.access",
    "waystation.core.directory",
    "waystation.core.identity",
    "waystation.core.record",
    "waystation.errors",
)
"""The modules on the page, in this order. Each name is listed once: where it is defined, if that
module is here, otherwise where it is exported first."""

CHOSEN = {
    "waystation.transports.websocket": ("WebSocket", "WebSocketLimits"),
    "waystation.transports.mqtt": ("Mqtt",),
    "waystation.transports.gossip": ("Gossip",),
    "waystation.journal.read": ("JournalReader", "RowFilter", "Entry"),
    "waystation.journal.otel": ("Spans",),
    "waystation.core.address": ("Address", "Route"),
    "waystation.core.message": ("Message", "Arrival"),
    "waystation.core.expiry": ("NEVER", "Expiry", "expiry_after"),
    "waystation.core.access": ("Access", "AccessRule"),
    "waystation.core.multicast": ("MulticastId", "Subscriptions", "SubscriptionChange"),
    "waystation.core.identity": (
        *("LogicalAddress", "Mapping", "Selection", "First", "RoundRobin", "Failover"),
        "AddressCache",
    ),
}
"""The public names of modules without `__all__`."""

INNER = {
    *("A broadcaster", "A receiver of messages", "A transport", "Connections"),
    *("Greeting", "How it works", "Inside", "Messages", "Messages from the peer", "Subscriptions"),
    *("The owner of a link", "What connections tell", "What is to be done", "What links ask for"),
    "What the node asks for",
    *("What readers ask for", "What the client tells", "What the exchange tells"),
}
"""Comments in classes, over what is there for other parts of Waystation and not for its users."""

INNER_NAMES = {
    *("Broker.flush", "Changes.end", "Changes.put", "GossipServer.now", "Group.is_full"),
    *("Group.post", "Session.has_link", "Session.move_to", "Settings.of_format"),
    *("Settings.of_members", "Subscription.read_by", "Subscription.stop", "TcpPath.serve"),
}

GIVEN = ("Context", "Link", "Listener", "Listening", "Session", "Subscription")
"""Classes that users do not instantiate, so their constructors are left out."""

COSTS = (
    (
        "a message over one hop of TCP, 100 B",
        "live",
        "TCP, 1 hop, 100 B, one way",
        "waystation, TCP",
    ),
    (
        "the same, with both nodes keeping a journal",
        "live",
        "TCP, 1 hop, 100 B, one way",
        "waystation, TCP, both nodes journalling",
    ),
    (
        "a message over two hops of TCP, 100 B",
        "live",
        "TCP, 2 hops, 100 B, one way",
        "waystation, TCP",
    ),
    (
        "a message over one hop of WebSocket, 100 B",
        "websocket",
        "100 B, one way",
        "waystation, WebSocket",
    ),
    (
        "a copy of a broadcast, to 1,000 subscribers in the node",
        "publish",
        "publish to 1,000 local receivers",
        "waystation, delivered",
    ),
    ("a leaf at its hub", "websocket", "10,000 leaves on one hub", "memory for each, at the hub"),
    (
        "10,000 leaves come back after the hub was killed",
        "websocket",
        "10,000 leaves on one hub",
        "until all have again, hub killed",
    ),
    ("an entry of the routing table", "routing", "memory", "RoutingTable"),
    ("a subscription", "multicast", "memory", "Subscriptions"),
    (
        "a message between members, through a router, 100 B",
        "groups",
        "member to member, 100 B",
        "waystation, tunnel",
    ),
    (
        "a group of 100 members starts",
        "groups",
        "cold start to a full view, 100 members",
        "waystation, tunnel",
    ),
    ("a record of the journal, on disk", "journal", "on disk", "waystation"),
    ("a record of the journal, written and sealed", "journal", "note to sealed file", "waystation"),
    (
        "the pipeline: routing histories, a million rows",
        "pipeline",
        "route_history, 1 M rows, cold",
        "waystation",
    ),
    ("the pipeline: traces, a million rows", "pipeline", "traces, 1 M rows, cold", "waystation"),
)
"""What a fleet is sized by: in words, and where it stands in the results of the benchmarks."""

API_HEAD = """\
# The API

Generated by `scripts/write_reference.py` from the docstrings; every example is run by the tests. A
name that is not here, or starts with `_`, may change at any time. To learn by doing, start with
[a first node](../tutorial/first-node.md); tables of what matters most are in
[the node](node.md) and [the group](group.md).

"""

CLI_HEAD = """\
# The command line

Generated by `scripts/write_reference.py` from the commands; `--help` prints the same. Every option
can also be given as an environment variable: the option wins over the variable. Exit codes are 0
for success, 2 for wrong usage and 1 for anything else, with one line on stderr. `--json` prints
JSON on stdout and nothing else.

"""


# The API


class Api:
    """The page of the API, from the sources: nothing is imported or run."""

    def __init__(self) -> None:
        loaded = griffe.load("waystation", search_paths=[SOURCE], resolve_aliases=True)
        assert isinstance(loaded, griffe.Module)
        self._package = loaded
        self._homes: dict[str, str] = {}
        for module in MODULES:
            for _, member in self._exported(module):
                defined = member.canonical_path.rpartition(".")[0]
                home = defined if defined in MODULES else module
                self._homes.setdefault(member.canonical_path, home)

    def pages(self) -> dict[Path, str]:
        """The contents, and a page for each module."""
        found = {REFERENCE / "api.md": API_HEAD + "\n".join(self._contents())}
        for module in MODULES:
            found[API / f"{module}.md"] = "\n".join(self._of_module(module))
        return found

    def _contents(self) -> Iterator[str]:
        yield "| `from waystation import` | |"
        yield "|---|---|"
        for name in self._package.exports or ():
            if name == "__version__":
                continue
            member = self._package[str(name)]
            target = member.final_target if isinstance(member, griffe.Alias) else member
            page = f"api/{self._homes[target.canonical_path]}.md"
            yield f"| [`{name}`]({page}#{_anchor(str(name))}) | {_summary(member)} |"
        yield ""
        yield "| module | |"
        yield "|---|---|"
        for module in MODULES:
            yield f"| [`{module}`](api/{module}.md) | {_summary(self._module(module))} |"
        yield ""

    def _of_module(self, module: str) -> Iterator[str]:
        yield f"# {module}\n"
        yield "Part of [the API](../api.md).\n"
        yield from _prose(self._module(module))
        for name, member in self._exported(module):
            if self._homes[member.canonical_path] == module:
                yield from _told(name, member)

    def _module(self, path: str) -> griffe.Module:
        found = self._package[path.partition(".")[2]]
        assert isinstance(found, griffe.Module)
        return found

    def _found(self, module: griffe.Module, name: str) -> Any:
        """What a module means by a name, also where a module below it is called the same."""
        member = module[name]
        if member.is_module:
            member = self._package[module.imports[name].partition(".")[2]]
        return member.final_target if isinstance(member, griffe.Alias) else member

    def _exported(self, path: str) -> Iterator[tuple[str, Any]]:
        """The names that a module exports; without a list, all public ones that it defines."""
        module = self._module(path)
        chosen = CHOSEN.get(path, module.exports)
        if chosen is not None:
            for name in chosen:
                yield str(name), self._found(module, str(name))
            return
        for name, member in module.members.items():
            if not (name.startswith("_") or member.is_alias or member.is_module):
                if member.is_attribute and member.docstring is None:
                    continue
                yield name, member


def _told(name: str, member: Any) -> Iterator[str]:
    yield f"## {name}\n"
    if member.is_class:
        yield _block(_class_line(name, member))
        yield from _prose(member)
        yield from _members(member)
    elif member.is_function:
        yield _block(_signature(name, member))
        yield from _prose(member)
    else:
        yield _block(_assignment(name, member))
        yield from _prose(member)


def _sections_of(member: Any) -> dict[int, str]:
    """The comments that divide a class, by line."""
    lines = member.filepath.read_text("utf-8").split("\n")
    inside = range(member.lineno, member.endlineno + 1)
    return {number: lines[number - 1][6:] for number in inside if lines[number - 1][:6] == "    # "}


def _is_inner(name: str, part: Any, sections: dict[int, str]) -> bool:
    """Whether a member is there for other parts of Waystation."""
    titles = [title for line, title in sections.items() if line < part.lineno]
    return name in INNER_NAMES or (bool(titles) and titles[-1] in INNER)


def _members(member: Any) -> Iterator[str]:
    sections = _sections_of(member)
    for name, part in member.members.items():
        if name.startswith("_") or part.is_alias or part.docstring is None or part.is_class:
            continue
        if _is_inner(f"{member.name}.{name}", part, sections):
            continue
        if part.is_function and "property" not in part.labels:
            yield f"### {member.name}.{name}\n"
            yield _block(_signature(name, part))
        elif "property" in part.labels:
            yield f"### {member.name}.{name}\n"
            yield _block(f"{name}: {part.returns if part.is_function else part.annotation}")
        else:
            yield f"### {member.name}.{name}\n"
            yield _block(_assignment(name, part))
        yield from _prose(part)


def _class_line(name: str, member: Any) -> str:
    bases = [str(base) for base in member.bases]
    made = member.members.get("__init__")
    if any(base.rpartition(".")[2] == "Struct" for base in bases):
        return f"class {name}{_fields(member)}"
    if "StrEnum" in bases:
        return f"class {name}(StrEnum): {', '.join(_public_attributes(member))}"
    if "Protocol" in bases:
        return f"class {name}(Protocol)"
    if name in GIVEN:
        return f"class {name}"
    if made is not None and made.is_function:
        return f"class {_signature(name, made, of_class=True)}"
    return f"class {name}({', '.join(bases)})" if bases else f"class {name}"


def _public_attributes(member: Any) -> Iterator[str]:
    for name, part in member.members.items():
        if part.is_attribute and not name.startswith("_") and "property" not in part.labels:
            yield name


def _fields(member: Any) -> str:
    """The fields of a Struct, as the arguments that they are."""
    fields = ["*"] if str(member.keywords.get("kw_only")) == "True" else []
    for name in _public_attributes(member):
        part = member.members[name]
        if part.annotation is None or "ClassVar" in str(part.annotation):
            continue
        default = "" if part.value is None else f" = {part.value}"
        fields.append(f"{name}: {part.annotation}{default}")
    return _wrapped("", fields, "")


def _signature(name: str, function: Any, *, of_class: bool = False) -> str:
    marks = [mark for mark in ("classmethod", "staticmethod", "async") if mark in function.labels]
    head = "".join(f"{mark} " for mark in marks)
    returns = "" if of_class or function.returns is None else f" -> {function.returns}"
    return _wrapped(f"{head}{name}", list(_parameters(function)), returns)


def _parameters(function: Any) -> Iterator[str]:
    seen_star = False
    parameters = [each for each in function.parameters if each.name not in ("self", "cls")]
    for number, parameter in enumerate(parameters):
        kind = parameter.kind
        if kind is griffe.ParameterKind.keyword_only and not seen_star:
            yield "*"
            seen_star = True
        mark = {
            griffe.ParameterKind.var_positional: "*",
            griffe.ParameterKind.var_keyword: "**",
        }.get(kind, "")
        seen_star = seen_star or mark == "*"
        note = "" if parameter.annotation is None else f": {parameter.annotation}"
        value = "" if mark or parameter.default is None else f" = {parameter.default}"
        yield f"{mark}{parameter.name}{note}{value if note else value.replace(' ', '')}"
        following = parameters[number + 1 :]
        if kind is griffe.ParameterKind.positional_only and not any(
            each.kind is griffe.ParameterKind.positional_only for each in following
        ):
            yield "/"


def _wrapped(head: str, parts: list[str], tail: str) -> str:
    """A call on one line if it fits, else with one argument on each."""
    line = f"{head}({', '.join(parts)}){tail}"
    if len(line) <= WIDTH:
        return line
    return "\n".join([f"{head}(", *(f"    {part}," for part in parts), f"){tail}"])


def _assignment(name: str, member: Any) -> str:
    value = "" if member.value is None else f" = {member.value}"
    note = str(member.annotation) if member.annotation is not None else ""
    if note in ("", "Final", "TypeAlias"):
        return f"{name}{value}"
    if note.startswith("Final["):
        note = note.removeprefix("Final[").removesuffix("]")
    return f"{name}: {note}{value}"


def _prose(member: Any) -> Iterator[str]:
    """A docstring as Markdown: examples become blocks of their own."""
    if member.docstring is None:
        return
    example: list[str] = []
    in_block = False
    for line in [*cleandoc(member.docstring.value).split("\n"), ""]:
        if example or line.startswith(">>>"):
            if line.strip():
                example.append(line)
                continue
            yield "\n".join(["```pycon", *example, "```"])
            example = []
        in_block ^= line.startswith("```")
        yield line if in_block or line.startswith("    ") else _plain(line)


def _plain(text: str) -> str:
    """A text in which nothing is taken for HTML; what stands in backticks never is."""
    return re.sub(r"`[^`]*`|<", lambda found: "&lt;" if found[0] == "<" else found[0], text)


def _summary(member: Any) -> str:
    """The first sentence of a docstring."""
    if member.docstring is None:
        return ""
    first = " ".join(cleandoc(member.docstring.value).split("\n\n")[0].split())
    return _plain(first.replace("|", r"\|"))


def _block(text: str) -> str:
    return f"```text\n{text}\n```\n"


def _anchor(title: str) -> str:
    """The anchor of a heading, as readers of Markdown make it."""
    return re.sub(r"[^\w-]", "", title.lower().replace(" ", "-"))


# The commands


def cli_page() -> str:
    """Every command with its options, from the commands themselves."""
    from waystation.cli import waystation  # noqa: PLC0415 - the API page needs none of it

    return CLI_HEAD + "\n".join(_commands(waystation, None, "waystation"))


def _commands(command: click.Command, parent: click.Context | None, name: str) -> Iterator[str]:
    context = click.Context(command, info_name=name, parent=parent, **command.context_settings)
    yield f"## {context.command_path}\n"
    usage = " ".join(command.collect_usage_pieces(context))
    yield _block(f"{context.command_path} {usage}")
    yield from _help(command)
    yield from _options(command, context)
    if isinstance(command, click.Group):
        for each in command.list_commands(context):
            found = command.get_command(context, each)
            assert found is not None
            if not found.hidden:
                yield from _commands(found, context, each)


def _help(command: click.Command) -> Iterator[str]:
    """The help of a command; what is not to be wrapped there is a block here."""
    for paragraph in cleandoc(command.help or "").split("\n\n"):
        if paragraph.startswith("\b\n"):
            title, *lines = paragraph[2:].split("\n")
            yield f"{title}\n"
            yield _block(cleandoc("\n".join(["", *lines])))
        else:
            yield f"{_plain(' '.join(paragraph.split()))}\n"
    if command.epilog:
        yield f"{_plain(' '.join(command.epilog.split()))}\n"


def _options(command: click.Command, context: click.Context) -> Iterator[str]:
    options = [each for each in command.params if isinstance(each, click.Option)]
    if not options:
        return
    yield "| option | default | meaning | variable |"
    yield "|---|---|---|---|"
    for option in options:
        names = ", ".join(f"`{name}`" for name in [*option.opts, *option.secondary_opts])
        kind = "" if option.is_flag else f" {_takes(option, context)}"
        default = _default(option)
        meaning = option.help or ""
        if option.multiple and "repeatable" not in meaning:
            meaning += " May be repeated."
        variable = variable_of(option, context)
        cells = [f"{names}{kind}", default, _plain(meaning.strip())]
        cells.append(f"`{variable}`" if variable else "")
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
    yield ""


def _takes(option: click.Option, context: click.Context) -> str:
    if isinstance(option.type, click.Choice):
        return ", ".join(f"`{choice}`" for choice in option.type.choices)
    return option.make_metavar(context).removesuffix(" RANGE")


def _default(option: click.Option) -> str:
    if option.required:
        return "*required*"
    value = option.to_info_dict()["default"]
    if value is None or value is False or value == () or callable(value) or option.is_flag:
        return ""
    return f"`{value}`"


def variable_of(option: click.Option, context: click.Context) -> str | None:
    """The environment variable that an option reads, if it reads one."""
    if isinstance(option.envvar, str):
        return option.envvar
    if option.is_eager or context.auto_envvar_prefix is None or option.name is None:
        return None
    return f"{context.auto_envvar_prefix}_{option.name.upper()}"


# The reasons


def reasons_page(page: str) -> str:
    """The page with what the code says between its marks."""
    from waystation.core.outcome import Reason  # noqa: PLC0415
    from waystation.why.story import REASONS  # noqa: PLC0415

    named = _modules_naming()
    marks = re.compile(r"(<!-- code: (\w+) -->\n).*?(<!-- end of code -->)", re.DOTALL)
    told = [match[2] for match in marks.finditer(page)]
    if told != [str(reason) for reason in Reason]:
        missing = [str(reason) for reason in Reason if str(reason) not in told]
        raise SystemExit(f"reasons.md must describe every reason, in order; missing: {missing}")

    def section(match: re.Match[str]) -> str:
        name = match[2]
        lines = []
        if name in REASONS:
            lines.append(f"- `waystation why` says: {REASONS[name]}")
        lines.append(f"- named in {', '.join(f'`{path}`' for path in named[name])}")
        return match[1] + "\n" + "\n".join(lines) + "\n\n" + match[3]

    return marks.sub(section, page)


def _modules_naming() -> dict[str, list[str]]:
    """For each reason the modules of the live side that name it."""
    found: dict[str, list[str]] = {}
    for package in ("core", "node", "transports", "groups"):
        for path in sorted((SOURCE / "waystation" / package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "Reason":
                    modules = found.setdefault(node.attr, [])
                    name = path.relative_to(SOURCE / "waystation").as_posix()
                    if name not in modules:
                        modules.append(name)
    return found


# The tables of the pipeline


def tables_page(page: str) -> str:
    """The page with what the registry says between its marks."""
    from waystation.pipeline.tables import REGISTRY  # noqa: PLC0415

    said = {
        "overview": [*_tables_overview(REGISTRY)],
        "columns": [line for table in REGISTRY for line in _table_columns(table)],
    }
    marks = re.compile(r"(<!-- tables: (\w+) -->\n).*?(<!-- end of tables -->)", re.DOTALL)
    return marks.sub(lambda match: "\n".join([match[1], *said[match[2]], "", match[3]]), page)


def _tables_overview(tables: tuple[Any, ...]) -> Iterator[str]:
    yield "| table | function | a row is | key | day of | columns |"
    yield "|---|---|---|---|---|---|"
    for table in tables:
        call = table.call or f'built(journal, "{table.name}")'
        key = ", ".join(f"`{name}`" for name in table.key)
        day = "" if table.day == "day" else f"`{table.day}`"
        columns = ", ".join(_column_names(table))
        row = (f"`{table.name}`", f"`{call}`", table.text.rstrip("."), key, day, columns)
        yield f"| {' | '.join(row)} |"


def _column_names(table: Any) -> Iterator[str]:
    for name, column in table.columns.items():
        inner = getattr(column.type, "value_type", None)
        fields = inner if inner is not None and inner.num_fields else ()
        parts = ", ".join(f"`{field.name}`" for field in fields)
        yield f"`{name}` (of {parts})" if parts else f"`{name}`"


def _table_columns(table: Any) -> Iterator[str]:
    made = ", ".join(f"`{name}`" for name in table.of or table.inputs)
    how = "after an exchange" if table.exchange else "node by node"
    kept = "" if table.watched else " `watch` does not keep it."
    yield f"### `{table.name}`"
    yield ""
    yield f"{table.text} Made {how} from {made}.{kept}"
    yield ""
    for name, column in table.columns.items():
        yield f"- `{name}` ({_type_text(column.type)}): {column.text}"
    yield ""


def _type_text(type: Any) -> str:
    """An Arrow type, as Spark calls it."""
    words = {"string": "string", "int64": "long", "int32": "int", "bool": "boolean"}
    text = str(type)
    if text.startswith("timestamp"):
        return "timestamp"
    return "array" if text.startswith("list") else words.get(text, text)


# The sizes


def sizes_page(page: str) -> str:
    """The page with what was measured last."""
    rows = ["", "| what | measured |", "|---|---:|"]
    for words, name, case, subject in COSTS:
        results = json.loads((RESULTS / f"{name}.json").read_text("utf-8"))
        value, unit = next(
            (row["value"], row["unit"])
            for row in results
            if (row["case"], row["subject"]) == (case, subject)
        )
        rows.append(f"| {words} | {_readable(value)} {unit} |")
    marks = re.compile(r"(<!-- figures: sizes -->\n).*?(<!-- end of figures -->)", re.DOTALL)
    return marks.sub(lambda match: match[1] + "\n".join([*rows, "", ""]) + match[2], page)


def _readable(value: float) -> str:
    """Three digits, as people write them."""
    digits = float(f"{value:.3g}")
    return f"{digits:,.0f}" if digits >= 100 else f"{digits:g}"


def pages() -> dict[Path, str]:
    """Each page as it should be."""
    reasons, tables = REFERENCE / "reasons.md", REFERENCE / "tables.md"
    return {
        **{path: tidy(text) for path, text in Api().pages().items()},
        REFERENCE / "cli.md": tidy(cli_page()),
        REFERENCE / "config.md": config_page(),
        reasons: tidy(reasons_page(reasons.read_text("utf-8"))),
        tables: tidy(tables_page(tables.read_text("utf-8"))),
        SIZES: sizes_page(SIZES.read_text("utf-8")),
    }


def tidy(text: str) -> str:
    """One empty line where there are several, and one newline at the end."""
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


if __name__ == "__main__":
    generated.main(pages())
