"""What a configuration file may say: every table and key, its type, its default, its meaning.

Only descriptions live here; docs/reference/config.md is written from them. What the values lead to
is in plan.py. File names are relative to the directory of the configuration file.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, TypeAlias

from msgspec import Meta, Struct

from waystation.core.message import HOP_LIMIT
from waystation.node import Limits
from waystation.node.node import INBOX

_LIMITS: Final = Limits()

Text: TypeAlias = Annotated[str, Meta(min_length=1)]
Texts: TypeAlias = Text | Annotated[tuple[Text, ...], Meta(min_length=1)]
Count: TypeAlias = Annotated[int, Meta(ge=1)]
Seconds: TypeAlias = Annotated[float, Meta(ge=0, lt=10**9)]
SomeSeconds: TypeAlias = Annotated[float, Meta(gt=0, lt=10**9)]
TransportLimits: TypeAlias = dict[str, Any]
"""Checked against the limits of the transport itself, which is loaded only when it is used."""


class Table(Struct, frozen=True, kw_only=True):
    """A table of the file."""


class TlsTable(Table, frozen=True, kw_only=True):
    """Certificates of tcp, ws and http, as PEM files; see `waystation.net.tls.Tls`."""

    certificate: Annotated[Text | None, Meta(description="who this node is")] = None
    key: Annotated[Text | None, Meta(description="the key of the certificate")] = None
    authorities: Annotated[
        Text | None, Meta(description="whom to believe; without it, whom the system believes")
    ] = None
    mutual: Annotated[
        bool, Meta(description="listeners turn away who brings no certificate of the authorities")
    ] = False
    name: Annotated[
        Text | None,
        Meta(description="the name in the peer's certificate; else the host that is dialled"),
    ] = None


class Secretive(Table, frozen=True, kw_only=True):
    """A table with a shared secret; at most one of the three is given."""

    token: Annotated[Text | None, Meta(description="the shared secret of its sessions")] = None
    token_file: Annotated[
        Text | None, Meta(description="the file whose first line is the token")
    ] = None
    token_env: Annotated[
        Text | None, Meta(description="the environment variable that holds the token")
    ] = None


class NodeTable(Secretive, frozen=True, kw_only=True):
    """The node itself."""

    name: Annotated[Text, Meta(description="what it calls itself in sessions and in the journal")]
    hub: Annotated[
        bool, Meta(description="peers may announce participants, and messages find them")
    ] = False
    hop_limit: Annotated[
        Count, Meta(description="a message with so many addresses in its return route is dropped")
    ] = HOP_LIMIT
    dial_for_peers: Annotated[
        bool, Meta(description="messages of peers may open sessions to places that they name")
    ] = False
    drain: Annotated[
        Seconds,
        Meta(description="seconds that workers have to finish when the node is told to end"),
    ] = 5.0
    metrics: Annotated[
        Text | None,
        Meta(description="`host:port` of GET /metrics (Prometheus) and GET /health over HTTP"),
    ] = None
    path: Annotated[
        Texts | None, Meta(description="directories to import workers from, beside the usual ones")
    ] = None


class ListenTable(Secretive, frozen=True, kw_only=True):
    """Where peers connect; `[[listen]]` may come several times."""

    url: Annotated[
        Text,
        Meta(description="`tcp://host:port`, or ws, udp, http, gossip; port 0 takes a free one"),
    ]
    outside: Annotated[
        bool, Meta(description="what comes in here counts as coming from the outside world")
    ] = False
    tls: Annotated[
        TlsTable | bool | None,
        Meta(description="a table like `[tls]`, instead of it; false for no TLS here"),
    ] = None


class ConnectTable(Secretive, frozen=True, kw_only=True):
    """A peer to connect to, and to connect to again; may come several times."""

    url: Annotated[
        Texts, Meta(description="one place, or several of the same peer: the first that answers")
    ]
    name: Annotated[
        Text | None, Meta(description="what stands for the peer in routes of this node")
    ] = None
    wait: Annotated[
        SomeSeconds | None,
        Meta(
            description="seconds to wait for the session, or the node ends; else it starts at once"
        ),
    ] = None
    tls: Annotated[
        TlsTable | bool | None,
        Meta(description="a table like `[tls]`, instead of it; false for no TLS here"),
    ] = None


class WorkerTable(Table, frozen=True, kw_only=True):
    """A worker; `[[worker]]` may come several times."""

    names: Annotated[Texts, Meta(description="its addresses")]
    handler: Annotated[
        Text,
        Meta(description="`package.module:name` of a function `(message, context)` or a class"),
    ]
    inbox: Annotated[
        Count, Meta(description="so many messages wait for it before senders have to")
    ] = INBOX
    visible: Annotated[bool, Meta(description="what it publishes leaves its hub")] = False
    passing: Annotated[
        bool, Meta(description="it also sees messages that only pass through it")
    ] = False
    options: Annotated[
        dict[str, Any], Meta(description="arguments by name for the class, or for each call")
    ] = {}


class LimitsTable(Table, frozen=True, kw_only=True):
    """How much the node takes from its peers; see `waystation.node.Limits`."""

    sessions: Annotated[Count, Meta(description="sessions at a time")] = _LIMITS.sessions
    greeting: Annotated[
        SomeSeconds, Meta(description="seconds that a peer has to prove the token")
    ] = _LIMITS.greeting
    heartbeat: Annotated[
        Seconds, Meta(description="seconds between heartbeats of an idle session; 0: never")
    ] = _LIMITS.heartbeat
    stall: Annotated[
        Seconds, Meta(description="seconds that a peer's message waits for room here")
    ] = _LIMITS.stall
    appear: Annotated[
        Seconds, Meta(description="seconds that a peer's message waits for a name that nobody has")
    ] = _LIMITS.appear
    participants: Annotated[Count, Meta(description="participants that one leaf may announce")] = (
        _LIMITS.participants
    )
    tcp: Annotated[TransportLimits, Meta(description="of TCP links, below")] = {}
    ws: Annotated[TransportLimits, Meta(description="of WebSocket links, below")] = {}
    udp: Annotated[TransportLimits, Meta(description="of UDP links, below")] = {}
    http: Annotated[TransportLimits, Meta(description="of HTTP channels, below")] = {}


class JournalTable(Table, frozen=True, kw_only=True):
    """A journal; needs `pip install 'waystation[journal]'`. See `waystation.journal.Journal`."""

    directory: Annotated[Text, Meta(description="where to write it")]
    sample: Annotated[
        float, Meta(ge=0, le=1, description="the share of messages to keep; drops are always kept")
    ] = 1.0
    keep_age: Annotated[
        SomeSeconds | None, Meta(description="seconds after which sealed files go")
    ] = None
    keep_bytes: Annotated[
        Count | None, Meta(description="bytes of sealed files; then the oldest go")
    ] = None
    fsync: Annotated[
        Literal["never", "seal", "flush"],
        Meta(description="what the disk must have taken before the journal goes on"),
    ] = "seal"
    flush_seconds: Annotated[
        SomeSeconds, Meta(description="at most so much is lost in a crash")
    ] = 1.0
    flush_records: Annotated[Count, Meta(description="so many records are flushed earlier")] = 4_096
    seal_bytes: Annotated[Count, Meta(description="a tail of this size becomes Parquet")] = (
        64 * 2**20
    )
    seal_seconds: Annotated[SomeSeconds, Meta(description="so does one of this age")] = 60.0


class AccessTable(Table, frozen=True, kw_only=True):
    """One access rule; the first that fits decides. `*` stands for any characters."""

    allow: Annotated[Texts | None, Meta(description="senders that may, by the name they give")] = (
        None
    )
    deny: Annotated[
        Texts | None, Meta(description="senders that may not; either this or allow")
    ] = None
    to: Annotated[Texts, Meta(description="addresses, or multicast ids")]


class DirectoryTable(Table, frozen=True, kw_only=True):
    """Finding participants by what they offer."""

    host: Annotated[bool, Meta(description="this node keeps the directory")] = False
    ask: Annotated[Text | None, Meta(description="the route to the node that keeps it")] = None


class StatusTable(Table, frozen=True, kw_only=True):
    """What `waystation top` asks for."""

    enabled: Annotated[
        bool, Meta(description="start the worker `waystation.status`; access rules hold for it")
    ] = False


class MqttTable(Table, frozen=True, kw_only=True):
    """A broker; needs `pip install 'waystation[mqtt]'`. With it, `mqtt://topic` is a peer's URL."""

    url: Annotated[Text, Meta(description="`mqtt://host:port`")]
    topic: Annotated[Text, Meta(description="the topic on which this node is reached")]
    qos: Annotated[int, Meta(ge=0, le=1, description="0: at most once, 1: at least once")] = 1
    username: Annotated[Text | None, Meta(description="for the broker")] = None
    password: Annotated[Text | None, Meta(description="for the broker")] = None
    password_file: Annotated[
        Text | None, Meta(description="the file whose first line is the password")
    ] = None
    password_env: Annotated[
        Text | None, Meta(description="the environment variable that holds the password")
    ] = None
    listen: Annotated[
        bool, Meta(description="take links on the topic; what comes in counts as from outside")
    ] = True
    prefix: Annotated[str, Meta(description="what stands before the topics of broadcasts")] = ""
    format: Annotated[
        Literal["ockam", "joynr"], Meta(description="what messages look like on the broker")
    ] = "ockam"
    client_id: Annotated[
        Text | None, Meta(description="what the broker knows this node by; else a fresh one")
    ] = None
    away: Annotated[
        int, Meta(ge=0, description="seconds that the broker keeps messages for it when it is gone")
    ] = 0
    tls: Annotated[
        TlsTable | bool | None,
        Meta(description="for `mqtts://`: a table like `[tls]`, instead of it"),
    ] = None


class GroupsTable(Secretive, frozen=True, kw_only=True):
    """Ways to groups: with them, `gossip://group/member` is a URL, and `gossip#…` an address."""

    via: Annotated[Texts, Meta(description="`gossip://host:port` of a router, or several")]
    name: Annotated[
        Text | None, Meta(description="this node's name in groups where it does not listen")
    ] = None
    dialect: Annotated[
        Literal["jgroups5", "jgroups2"], Meta(description="which routers understand")
    ] = "jgroups5"
    tls: Annotated[
        TlsTable | bool | None,
        Meta(description="true for `[tls]`, or a table like it; without it, no TLS to routers"),
    ] = None


class Settings(Table, frozen=True, kw_only=True):
    """A whole file."""

    node: Annotated[NodeTable, Meta(description="required")]
    listen: tuple[ListenTable, ...] = ()
    connect: tuple[ConnectTable, ...] = ()
    parent: tuple[ConnectTable, ...] = ()
    worker: tuple[WorkerTable, ...] = ()
    access: tuple[AccessTable, ...] = ()
    limits: LimitsTable = LimitsTable()
    tls: TlsTable | None = None
    journal: JournalTable | None = None
    mqtt: MqttTable | None = None
    groups: GroupsTable | None = None
    directory: DirectoryTable = DirectoryTable()
    status: StatusTable = StatusTable()
