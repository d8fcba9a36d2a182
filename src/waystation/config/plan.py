"""From settings to a plan: everything that a node consists of, checked, without running it.

Every problem that can be found before a node runs is reported here, all at once: addresses, files,
imports, secrets, rules. No listener is opened and no worker is created.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from msgspec import Struct, structs

from waystation.config.problem import RULE, Problem, Problems
from waystation.config.reader import convert_table, read_settings, read_table
from waystation.config.settings import (
    AccessTable,
    ConnectTable,
    GrantFile,
    GrantTable,
    ListenTable,
    MqttTable,
    NodeTable,
    Settings,
    StoreTable,
    Texts,
    TlsTable,
    TokenTable,
)
from waystation.config.toml_lines import KeyPath
from waystation.config.workers import check_options, find_handler
from waystation.core.access import Access, AccessRule
from waystation.core.address import Address, Route
from waystation.core.grants import Grant, Grants
from waystation.core.router import Router
from waystation.core.tokens import Token
from waystation.errors import LocalError, quote
from waystation.locations import is_route, local_directory, located, scheme_of
from waystation.net.place import parse_place
from waystation.net.tls import Tls
from waystation.node import Limits, StoreSettings, keyfile
from waystation.node.channels import ANYONE, Trust, check_trust
from waystation.transports.schemes import GOSSIP, MQTT, SCHEMES, SERVICES, by_place, split_url
from waystation.transports.transport import Transport
from waystation.wire.identity import PrivateIdentity, check_identifier


class Endpoint(Struct, frozen=True):
    """A planned listener or connection, with its token."""

    path: KeyPath
    token: str | None
    urls: tuple[str, ...]
    table: ListenTable | ConnectTable


class PlannedWorker(Struct, frozen=True):
    """A planned worker."""

    path: KeyPath
    names: tuple[str, ...]
    handler: Callable[..., Any]
    options: dict[str, Any]
    inbox: int
    visible: bool
    passing: bool


class PlannedSecure(Struct, frozen=True):
    """A planned listener for secure channels."""

    path: KeyPath
    name: str
    trust: Trust


class Plan(Struct, frozen=True):
    """A checked configuration; pass it to `running` to run the node."""

    settings: Settings
    problems: Problems
    token: str | None
    tokens: tuple[Token, ...]
    identity: PrivateIdentity | None
    limits: Limits
    transports: tuple[Transport, ...]
    listeners: tuple[Endpoint, ...]
    connections: tuple[Endpoint, ...]
    parents: tuple[Endpoint, ...]
    workers: tuple[PlannedWorker, ...]
    secure: tuple[PlannedSecure, ...]
    access: Access | None
    grants: Grants | None
    journal: dict[str, Any] | None
    ship: str | None
    archive: Path | None
    store: StoreSettings | None
    metrics: str | None
    services: dict[str, bytes]  # hashes of the secrets for brokers and routers, by table


def check_file(file: Path) -> tuple[Plan | None, list[Problem]]:
    """The plan of a file, or its problems in the order of its lines."""
    settings, problems = read_settings(file)
    plan = None if settings is None else _Planner(settings, problems).plan()
    return (None if problems.found else plan), problems.in_order()


def read_grants(file: Path, *, users: bool = False) -> tuple[Grants, tuple[Token, ...]]:
    """The grants and tokens of a file that has nothing else; a LocalError lists its problems.

    With `users`, the tokens of grants are names of users, whose passwords are kept elsewhere.
    """
    table, problems = read_table(GrantFile, file)
    if table is not None:
        settings = Settings(node=NodeTable(name="grants"), grant=table.grant, token=table.token)
        planner = _Planner(settings, problems)
        tokens, grants = planner.tokens(), planner.grants(users=users)
        if not problems.found and grants is None:
            problems.add((), "has no [[grant]]", "add one: without it everything is refused")
        if not problems.found and grants is not None:
            return grants, tokens
    raise LocalError(" | ".join(map(str, problems.in_order())), rule=RULE, hint="correct the file")


def plan_from(file: Path) -> Plan:
    """The plan of a file; raises a LocalError that lists all of its problems."""
    plan, problems = check_file(file)
    if plan is None:
        raise LocalError(
            " | ".join(map(str, problems)), rule=RULE, hint="correct the file and check it again"
        )
    return plan


class _Planner:
    """Builds the plan of one file; collects its problems and goes on."""

    def __init__(self, settings: Settings, problems: Problems) -> None:
        self._settings = settings
        self._problems = problems
        self._directory = problems.file.parent
        self._special: dict[str, dict[str, Transport]] = {}  # by scheme and place
        self._schemes = {"tcp"}
        self._transport_limits: dict[str, Any] = {}
        self._services: dict[str, bytes] = {}

    def plan(self) -> Plan:
        settings = self._settings
        wanted = [str(self._file(place)) for place in _several(settings.node.path)]
        sys.path += [place for place in wanted if place not in sys.path]
        listeners = self._endpoints("listen", settings.listen)
        connections = self._endpoints("connect", settings.connect)
        parents = self._endpoints("parent", settings.parent)
        workers, secure = self._workers(), self._secure()
        self._check_names(connections + parents, workers, secure)
        self._check_directory()
        transports = self._transports()
        return Plan(
            settings=settings,
            problems=self._problems,
            token=self._secret(settings.node, ("node",), "token"),
            tokens=self.tokens(),
            identity=self._identity(),
            limits=self._limits(),
            transports=transports,
            listeners=listeners,
            connections=connections,
            parents=parents,
            workers=workers,
            secure=secure,
            access=self._access(transports),
            grants=self.grants(),
            journal=self._journal(),
            ship=self._ship(),
            archive=self._archive(),
            store=self._store(),
            metrics=self._metrics(),
            services=self._services,
        )

    # Addresses

    def _endpoints(
        self, kind: str, tables: Sequence[ListenTable | ConnectTable]
    ) -> tuple[Endpoint, ...]:
        endpoints = []
        for position, table in enumerate(tables):
            path = (kind, position)
            urls = _several(table.url)
            token = self._secret(table, path, "token")
            with self._problems.collecting((*path, "url")):
                self._use(urls, table, path)
                endpoints.append(Endpoint(path, token, urls, table))
        return tuple(endpoints)

    def _use(self, urls: Sequence[str], table: ListenTable | ConnectTable, path: KeyPath) -> None:
        """Check these URLs, and keep a transport with the right TLS settings for them."""
        services = {url.partition("://")[0] for url in urls} & SERVICES.keys()
        if services:
            self._check_services(services, table)
            return
        places = [split_url(url) for url in urls]
        schemes = {scheme for scheme, _ in places}
        if len(schemes) > 1:
            raise LocalError(
                f"{quote(urls)} have different schemes",
                rule="WK-8",
                hint="give URLs with the same scheme",
            )
        [scheme] = schemes
        if scheme == "joynr" and isinstance(table, ListenTable):
            self._check_joynr(table)
        tls = self._tls_of(table.tls, scheme)
        transport = self._transport(scheme, tls)
        self._schemes.add(scheme)
        with self._problems.collecting((*path, "tls") if table.tls else ("tls",)):
            if tls is not None:
                (tls.for_listener if isinstance(table, ListenTable) else tls.for_dialler)()
        if table.tls is not None:
            special = self._special.setdefault(scheme, {})
            for _, place in places:
                if place in special:
                    raise LocalError(
                        f"conflicting TLS settings for {place}",
                        rule="WK-8",
                        hint="keep one of them",
                    )
                special[place] = transport

    def _check_joynr(self, table: ListenTable) -> None:
        """Check that joynr's applications can be taken: they are leaves, and know no token."""
        node = self._settings.node
        if not node.hub:
            raise LocalError(
                "joynr's applications connect to a hub", rule="RE-12", hint="set hub = true"
            )
        secrets = [
            each for each in (node, table) if each.token or each.token_file or each.token_env
        ]
        if secrets:
            raise LocalError(
                "joynr's applications know no token",
                rule="WK-8",
                hint="take them at a node without one, or let TLS check their certificates",
            )

    def _check_services(self, services: Iterable[str], table: ListenTable | ConnectTable) -> None:
        """Check that the table exists which configures the access to these URLs."""
        for service in services:
            name = SERVICES[service]
            if getattr(self._settings, name) is None:
                raise LocalError(
                    f"{service}:// needs a table [{name}]", rule="AD-2", hint="add the table"
                )
            if table.tls is not None:
                raise LocalError(
                    f"the TLS settings of {service}:// belong in [{name}]",
                    rule="WK-8",
                    hint="move them there",
                )

    def _tls_of(self, own: TlsTable | bool | None, scheme: str) -> Tls | None:
        if own is False:
            return None
        table = own if isinstance(own, TlsTable) else self._settings.tls
        if table is None:
            if own is True:
                raise LocalError(
                    "tls is true, but there is no [tls]", rule="WK-8", hint="add the table"
                )
            return None
        if not SCHEMES[scheme].has_tls:
            raise LocalError(
                f"{scheme} does not support TLS",
                rule="WK-8",
                hint="set tls = false to use it without",
            )
        return self._tls(table)

    def _tls(self, table: TlsTable) -> Tls:
        names = ("certificate", "key", "authorities")
        files = {name: getattr(table, name) for name in names}
        found = {name: file and self._file(file) for name, file in files.items()}
        return Tls(**found, mutual=table.mutual, name=table.name)

    def _transport(self, scheme: str, tls: Tls | None) -> Transport:
        kind = SCHEMES[scheme]
        options: dict[str, Any] = {"tls": tls} if kind.has_tls else {}
        if scheme == "joynr":
            mqtt = self._settings.mqtt
            is_joynr = mqtt is not None and mqtt.format == "joynr"
            options["channel"] = mqtt.topic if mqtt and is_joynr else self._settings.node.name
        limits = self._limits_of(scheme)
        if limits is not None:
            options["limits"] = limits
        made: Transport = kind.load_transport()(**options)
        return made

    def _limits_of(self, scheme: str) -> Any:
        given = getattr(self._settings.limits, scheme)
        if given and scheme not in self._transport_limits:
            kind = SCHEMES[scheme].load_limits()
            limits = convert_table(kind, given, ("limits", scheme), self._problems)
            self._transport_limits[scheme] = limits
        return self._transport_limits.get(scheme)

    def _transports(self) -> tuple[Transport, ...]:
        made = []
        for scheme in sorted(self._schemes):
            with self._problems.collecting(("limits", scheme)):
                tls = self._tls_of(None, scheme) if SCHEMES[scheme].has_tls else None
                usual = self._transport(scheme, tls)
                made.append(by_place(usual, self._special.get(scheme, {})))
        for scheme in SCHEMES:  # also check the limits of unused transports
            with self._problems.collecting(("limits", scheme)):
                self._limits_of(scheme)
        for path, make in ((("mqtt",), self._mqtt), (("groups",), self._gossip)):
            with self._problems.collecting(path):
                made.extend(make())
        return tuple(made)

    def _mqtt(self) -> list[Transport]:
        table = self._settings.mqtt
        if table is None:
            return []
        own = False if table.tls is None and not table.url.startswith("mqtts://") else table.tls
        transport = MQTT.load_transport()(
            table.url,
            topic=table.topic,
            qos=table.qos,
            prefix=table.prefix,
            format=table.format,
            client_id=table.client_id,
            away=table.away,
            username=table.username,
            password=self._service_secret(table, "mqtt", "password"),
            tls=self._tls_of(own, "tcp"),
        )
        return [transport]

    def _gossip(self) -> list[Transport]:
        table = self._settings.groups
        if table is None:
            return []
        token = self._service_secret(table, "groups", "token")
        own = False if table.tls is None else table.tls
        transport = GOSSIP.load_transport()(
            _several(table.via),
            name=table.name or self._settings.node.name,
            dialect=table.dialect,
            tls=self._tls_of(own, "tcp"),
            **({} if token is None else {"token": token}),
        )
        return [transport]

    # Other settings

    def _limits(self) -> Limits:
        given = structs.asdict(self._settings.limits)
        return Limits(**{name: value for name, value in given.items() if name not in SCHEMES})

    def _workers(self) -> tuple[PlannedWorker, ...]:
        found = []
        for position, table in enumerate(self._settings.worker):
            path = ("worker", position)
            with self._problems.collecting((*path, "handler")):
                handler = find_handler(table.handler)
                with self._problems.collecting((*path, "options")):
                    check_options(handler, table.options)
                found.append(
                    PlannedWorker(
                        path,
                        _several(table.names),
                        handler,
                        table.options,
                        table.inbox,
                        table.visible,
                        table.passing,
                    )
                )
        return tuple(found)

    def _secure(self) -> tuple[PlannedSecure, ...]:
        found = []
        for position, table in enumerate(self._settings.secure):
            path = ("secure", position)
            if self._settings.node.identity is None:
                what = "the node has no identity that others could trust"
                self._problems.add(path, what, 'create one, and set [node] identity = "FILE"')
            if table.anyone is (table.trust is not None):
                self._problems.add(path, "needs either trust or anyone = true", "give one of them")
                continue
            with self._problems.collecting((*path, "trust")):
                trust = ANYONE if table.anyone else check_trust(_several(table.trust))
                found.append(PlannedSecure(path, table.name, trust))
        return tuple(found)

    def _check_names(
        self,
        endpoints: Sequence[Endpoint],
        workers: Sequence[PlannedWorker],
        secure: Sequence[PlannedSecure],
    ) -> None:
        """Check that no two workers, listeners or sessions have the same name."""
        taken: dict[str, KeyPath] = {}
        named = [((*worker.path, "names"), name) for worker in workers for name in worker.names]
        named += [((*one.path, "name"), one.name) for one in secure]
        named += [
            ((*endpoint.path, "name"), endpoint.table.name)
            for endpoint in endpoints
            if isinstance(endpoint.table, ConnectTable) and endpoint.table.name
        ]
        for path, name in named:
            with self._problems.collecting(path):
                Address.parse(name)
            if name in taken:
                self._problems.add(path, f"{quote(name)} is already in use", "choose another name")
            taken[name] = path

    def _check_directory(self) -> None:
        table, mqtt = self._settings.directory, self._settings.mqtt
        if self._settings.node.joynr_directory and (mqtt is None or mqtt.format != "joynr"):
            self._problems.add(
                ("node", "joynr_directory"),
                "there is no broker where joynr's nodes could ask",
                'add [mqtt] with format = "joynr"',
            )
        if table.host and table.ask:
            self._problems.add(
                ("directory", "ask"),
                "this node hosts the directory itself",
                "set either ask or host",
            )

    def _access(self, transports: Sequence[Transport]) -> Access | None:
        rules = [
            rule
            for position, table in enumerate(self._settings.access)
            if (rule := self._rule(table, ("access", position)))
        ]
        types = Router().types
        for transport in transports:
            types.register(transport.type_name)  # in the node's order, to get the same numbers
        return Access(rules, types.numbers) if rules else None

    def _rule(self, table: AccessTable, path: KeyPath) -> AccessRule | None:
        senders = table.deny if table.allow is None else table.allow
        if senders is None or (table.allow is not None and table.deny is not None):
            self._problems.add(path, "needs either allow or deny", "give one of them")
            return None
        return AccessRule(table.allow is not None, _several(senders), _several(table.to))

    def grants(self, *, users: bool = False) -> Grants | None:
        found = []
        tokens = {table.names for table in self._settings.token}
        for position, table in enumerate(self._settings.grant):
            path = ("grant", position)
            with self._problems.collecting(path):
                found.append(_grant(table))
            for name in _several(table.identity):
                with self._problems.collecting((*path, "identity")):
                    check_identifier(name)
            for name in _several(table.token):
                if name not in tokens and not users:
                    what = f"there is no [[token]] with names = {quote(name)}"
                    self._problems.add((*path, "token"), what, "add one, or correct the name")
        return Grants(found) if found else None

    def _journal(self) -> dict[str, Any] | None:
        table = self._settings.journal
        if table is None:
            return None
        with self._problems.collecting(("journal",)):
            from waystation.journal.layout import check_node  # noqa: PLC0415 - an extra

            with self._problems.collecting(("node", "name")):
                check_node(self._settings.node.name)
        options = structs.asdict(table)
        del options["ship"], options["ship_seconds"]  # of the node, not of its journal
        with self._problems.collecting(("journal", "directory")):
            options["directory"] = self._file(str(local_directory(table.directory, "the journal")))
        return options

    def _ship(self) -> str | None:
        """Where the journal is shipped to: a route, the URI of a store, or an absolute path."""
        table = self._settings.journal
        if table is None or table.ship is None:
            return None
        target = table.ship
        with self._problems.collecting(("journal", "ship")):
            if is_route(target):
                return str(Route.parse(target))
            from waystation.journal.filesystems import file_system  # noqa: PLC0415 - an extra

            target = located(target) if scheme_of(target) else str(self._file(target))
            file_system(target)  # what it needs is installed
        return target

    def _archive(self) -> Path | None:
        table = self._settings.archive
        if table is None:
            return None
        place = table.directory
        with self._problems.collecting(("archive", "directory")):
            place = str(local_directory(place, "an archive"))
        return self._file(place)

    def tokens(self) -> tuple[Token, ...]:
        found = []
        for position, table in enumerate(self._settings.token):
            path = ("token", position)
            secret = self._secret(table, path, "token")
            if secret is not None:
                found.append(Token(secret.encode(), table.names))
            elif not any((table.token, table.token_file, table.token_env)):
                self._problems.add(path, "has no token", "give token_file or token_env")
        return tuple(found)

    def _identity(self) -> PrivateIdentity | None:
        name = self._settings.node.identity
        if name is not None:
            with self._problems.collecting(("node", "identity")):
                return keyfile.load(self._file(name))
        return None

    def _store(self) -> StoreSettings | None:
        directory, table = self._settings.node.store, self._settings.store
        if directory is None:
            if table is not None:
                self._problems.add(
                    ("store",), "needs a directory", 'give it as [node] store = "DIR"'
                )
            return None
        options = structs.asdict(table or StoreTable())
        return StoreSettings(directory=self._file(directory), **options)

    def _metrics(self) -> str | None:
        place = self._settings.node.metrics
        with self._problems.collecting(("node", "metrics")):
            if place is not None:
                parse_place(place)
        return place

    def _service_secret(self, table: TokenTable | MqttTable, where: str, name: str) -> str | None:
        """A secret for somebody else's service, which is remembered by its hash."""
        secret = self._secret(table, (where,), name)
        if secret is not None:
            self._services[where] = sha256(secret.encode()).digest()
        return secret

    def _secret(self, table: TokenTable | MqttTable, path: KeyPath, name: str) -> str | None:
        given = {
            kind: value
            for kind in ("", "_file", "_env")
            if (value := getattr(table, f"{name}{kind}")) is not None
        }
        if len(given) > 1:
            keys = " and ".join(f"{name}{kind}" for kind in given)
            self._problems.add(path, f"has both {keys}", "give only one of them")
            return None
        for kind, value in given.items():
            with self._problems.collecting((*path, f"{name}{kind}")):
                return self._secret_from(kind, value)
        return None

    def _secret_from(self, kind: str, value: str) -> str:
        if kind == "_file":
            secret, where = self._first_line(value), f"the first line of {value}"
        elif kind == "_env":
            secret, where = os.environ.get(value, ""), f"the environment variable {value}"
        else:
            return value
        if not secret:
            raise LocalError(f"{where} is empty", rule="WK-8", hint="put the secret there")
        return secret

    def _first_line(self, name: str) -> str:
        try:
            lines = self._file(name).read_text("utf-8").splitlines()
        except ValueError as error:  # not UTF-8, or an invalid file name
            raise LocalError(
                f"{quote(name)} cannot be read ({error})", rule="WK-8", hint="give a text file"
            ) from error
        return lines[0].strip() if lines else ""

    def _file(self, name: str) -> Path:
        return self._directory / Path(name).expanduser()


def _grant(table: GrantTable) -> Grant:
    given = structs.asdict(table)
    anyone = given.pop("anyone")
    return Grant(anyone=anyone, **{name: _several(texts) for name, texts in given.items()})


def _several(texts: Texts | None) -> tuple[str, ...]:
    if texts is None:
        return ()
    return (texts,) if isinstance(texts, str) else texts
