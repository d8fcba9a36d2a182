"""The tables and keys of a configuration file: types, defaults and descriptions.

Only declarations live here; docs/reference/config.md is generated from them. plan.py applies the
values. File names are relative to the directory of the configuration file.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, TypeAlias

from msgspec import Meta, Struct

from waystation.core.message import HOP_LIMIT
from waystation.node import Limits, StoreSettings
from waystation.node.node import INBOX

_LIMITS: Final = Limits()
_STORE: Final = StoreSettings(directory="")

Text: TypeAlias = Annotated[str, Meta(min_length=1)]
Texts: TypeAlias = Text | Annotated[tuple[Text, ...], Meta(min_length=1)]
Count: TypeAlias = Annotated[int, Meta(ge=1)]
Seconds: TypeAlias = Annotated[float, Meta(ge=0, lt=10**9)]
PositiveSeconds: TypeAlias = Annotated[float, Meta(gt=0, lt=10**9)]
TransportLimits: TypeAlias = dict[str, Any]
"""Checked against the limits of the transport, which is imported only when it is used."""


class Table(Struct, frozen=True, kw_only=True):
    """Base class of all tables."""


class TlsTable(Table, frozen=True, kw_only=True):
    """Certificates for tcp, ws and http, as PEM files; see `waystation.net.tls.Tls`."""

    certificate: Annotated[Text | None, Meta(description="certificate of this node")] = None
    key: Annotated[Text | None, Meta(description="private key of the certificate")] = None
    authorities: Annotated[
        Text | None, Meta(description="CA certificates to trust; by default those of the system")
    ] = None
    mutual: Annotated[
        bool,
        Meta(description="listeners require a client certificate signed by one of the authorities"),
    ] = False
    name: Annotated[
        Text | None,
        Meta(description="name expected in the peer's certificate; by default the dialed host"),
    ] = None


class TokenTable(Table, frozen=True, kw_only=True):
    """A table with a shared secret; at most one of the three keys may be given."""

    token: Annotated[Text | None, Meta(description="shared secret of its sessions")] = None
    token_file: Annotated[Text | None, Meta(description="file whose first line is the token")] = (
        None
    )
    token_env: Annotated[
        Text | None, Meta(description="environment variable that holds the token")
    ] = None


class NodeTable(TokenTable, frozen=True, kw_only=True):
    """The node itself."""

    name: Annotated[Text, Meta(description="name of the node in sessions and in the journal")]
    hub: Annotated[
        bool,
        Meta(description="accept participants that peers announce, and route messages to them"),
    ] = False
    hop_limit: Annotated[
        Count, Meta(description="drop messages whose return route has this many addresses")
    ] = HOP_LIMIT
    dial_for_peers: Annotated[
        bool, Meta(description="messages from peers may open sessions to addresses in their route")
    ] = False
    drain: Annotated[
        Seconds,
        Meta(description="seconds that workers have to finish when the node is stopped"),
    ] = 5.0
    metrics: Annotated[
        Text | None,
        Meta(description="`host:port` of GET /metrics (Prometheus) and GET /health over HTTP"),
    ] = None
    identity: Annotated[
        Text | None,
        Meta(description="key file of the identity that it proves (`waystation identity create`)"),
    ] = None
    store: Annotated[
        Text | None,
        Meta(description="directory to keep durable messages in; only this node may use it"),
    ] = None
    path: Annotated[
        Texts | None, Meta(description="additional directories to import workers from")
    ] = None
    joynr_directory: Annotated[
        bool,
        Meta(description="be the global directory of joynr's nodes at the broker of `[mqtt]`"),
    ] = False


class NamedTokenTable(TokenTable, frozen=True, kw_only=True):
    """A token for peers with certain names, who need it to connect here; may be repeated.

    Several tables with the same names allow any of their tokens.
    """

    names: Annotated[Text, Meta(description="the names; `*` stands for any characters")]


class ListenTable(TokenTable, frozen=True, kw_only=True):
    """Where peers connect; `[[listen]]` may be repeated."""

    url: Annotated[
        Text,
        Meta(description="`tcp://host:port`, or ws, udp, http, gossip; port 0 picks a free one"),
    ]
    outside: Annotated[
        bool, Meta(description="treat what arrives here as coming from a global transport")
    ] = False
    tls: Annotated[
        TlsTable | bool | None,
        Meta(description="a table like `[tls]` that replaces it here; false for no TLS"),
    ] = None


class ConnectTable(TokenTable, frozen=True, kw_only=True):
    """A peer to connect to, and to reconnect to; may be repeated."""

    url: Annotated[
        Texts,
        Meta(description="one URL, or several of one peer; the first that answers is used"),
    ]
    name: Annotated[Text | None, Meta(description="name of the peer in routes of this node")] = None
    wait: Annotated[
        PositiveSeconds | None,
        Meta(description="seconds to wait for the session at the start; without it, do not wait"),
    ] = None
    tls: Annotated[
        TlsTable | bool | None,
        Meta(description="a table like `[tls]` that replaces it here; false for no TLS"),
    ] = None


class WorkerTable(Table, frozen=True, kw_only=True):
    """A worker; `[[worker]]` may be repeated."""

    names: Annotated[Texts, Meta(description="names of its addresses")]
    handler: Annotated[
        Text,
        Meta(description="`package.module:name` of a function `(message, context)` or a class"),
    ]
    inbox: Annotated[
        Count, Meta(description="maximum number of queued messages; then senders have to wait")
    ] = INBOX
    visible: Annotated[bool, Meta(description="its broadcasts leave the hub")] = False
    passing: Annotated[
        bool, Meta(description="it also handles messages for which it is not the last address")
    ] = False
    options: Annotated[
        dict[str, Any],
        Meta(description="keyword arguments for the class, or for each call of the function"),
    ] = {}


class SecureTable(Table, frozen=True, kw_only=True):
    """A listener for secure channels: what comes through them only its sender can read.

    `[[secure]]` may be repeated.
    """

    name: Annotated[Text, Meta(description="name of its address, where channels are opened")]
    trust: Annotated[
        Texts | None, Meta(description="identifiers of those who may open a channel")
    ] = None
    anyone: Annotated[
        bool, Meta(description="whoever proves to have some identity may open a channel")
    ] = False


class LimitsTable(Table, frozen=True, kw_only=True):
    """Limits on peers; see `waystation.node.Limits`."""

    sessions: Annotated[Count, Meta(description="maximum number of sessions")] = _LIMITS.sessions
    greeting: Annotated[
        PositiveSeconds,
        Meta(description="seconds that a peer has to prove that it knows the token"),
    ] = _LIMITS.greeting
    heartbeat: Annotated[
        Seconds, Meta(description="seconds between heartbeats of an idle session; 0 for none")
    ] = _LIMITS.heartbeat
    stall: Annotated[
        Seconds, Meta(description="seconds that a peer's message waits for room in a full queue")
    ] = _LIMITS.stall
    appear: Annotated[
        Seconds,
        Meta(description="seconds that a peer's message waits for an unknown name to appear"),
    ] = _LIMITS.appear
    reconnect: Annotated[
        Seconds,
        Meta(description="seconds that a message from here waits for a session without a link"),
    ] = _LIMITS.reconnect
    participants: Annotated[
        Count, Meta(description="maximum number of participants that a leaf may announce")
    ] = _LIMITS.participants
    contest: Annotated[
        PositiveSeconds,
        Meta(description="seconds for a sign of life of who has a name that another claims"),
    ] = _LIMITS.contest
    budget: Annotated[
        Count, Meta(description="bytes that the node holds of what was received and is not settled")
    ] = _LIMITS.budget
    share: Annotated[
        Count,
        Meta(description="bytes that one session may hold: at least the largest frame and 64 KiB"),
    ] = _LIMITS.share
    receiver: Annotated[Count, Meta(description="bytes that may wait for one receiver")] = (
        _LIMITS.receiver
    )
    control: Annotated[
        Count,
        Meta(description="bytes of sessions' own words that may wait for a peer to read them"),
    ] = _LIMITS.control
    tcp: Annotated[TransportLimits, Meta(description="of TCP links, below")] = {}
    ws: Annotated[TransportLimits, Meta(description="of WebSocket links, below")] = {}
    udp: Annotated[TransportLimits, Meta(description="of UDP links, below")] = {}
    http: Annotated[TransportLimits, Meta(description="of HTTP channels, below")] = {}
    joynr: Annotated[
        TransportLimits, Meta(description="of the connections of joynr's applications, below")
    ] = {}


class JournalTable(Table, frozen=True, kw_only=True):
    """The journal; needs `pip install 'waystation[journal]'`. See `waystation.journal.Journal`."""

    directory: Annotated[Text, Meta(description="directory to write it to")]
    ship: Annotated[
        Text | None,
        Meta(description="directory, URI or route of an archive worker that it is copied to"),
    ] = None
    ship_seconds: Annotated[
        PositiveSeconds, Meta(description="seconds between two looks for files to copy")
    ] = 10.0
    sample: Annotated[
        float, Meta(ge=0, le=1, description="fraction of messages to keep; drops are always kept")
    ] = 1.0
    keep_age: Annotated[
        PositiveSeconds | None, Meta(description="seconds after which sealed files are removed")
    ] = None
    keep_bytes: Annotated[
        Count | None,
        Meta(description="maximum size of the sealed files in bytes; the oldest are removed"),
    ] = None
    fsync: Annotated[
        Literal["never", "seal", "flush"],
        Meta(
            description="what is synced to disk: nothing, each sealed file, or each flush as well"
        ),
    ] = "seal"
    flush_seconds: Annotated[
        PositiveSeconds,
        Meta(description="seconds between flushes; a crash loses at most this much"),
    ] = 1.0
    flush_records: Annotated[
        Count, Meta(description="number of records after which it flushes earlier")
    ] = 4_096
    seal_bytes: Annotated[Count, Meta(description="size at which a tail is sealed as Parquet")] = (
        64 * 2**20
    )
    seal_seconds: Annotated[
        PositiveSeconds, Meta(description="age in seconds at which a tail is sealed as Parquet")
    ] = 60.0


class StoreTable(Table, frozen=True, kw_only=True):
    """Durable messages, for a node with a store; see `waystation.node.StoreSettings`."""

    fsync: Annotated[
        Literal["full", "normal", "off"],
        Meta(
            description="full: each commit is on the disk; normal: a crash of the machine may lose "
            "the last ones; off: it may lose more"
        ),
    ] = _STORE.fsync
    messages: Annotated[Count, Meta(description="maximum number of messages")] = _STORE.messages
    bytes: Annotated[Count, Meta(description="bytes of them, with 512 for each")] = _STORE.bytes
    receiver_messages: Annotated[
        Count, Meta(description="maximum number of messages to one receiver")
    ] = _STORE.receiver_messages
    receiver_bytes: Annotated[Count, Meta(description="bytes of those")] = _STORE.receiver_bytes
    ttl: Annotated[
        PositiveSeconds, Meta(description="seconds that a message lives if its sender says nothing")
    ] = _STORE.ttl
    attempts: Annotated[
        Count, Meta(description="how often a handler that raises is called for one message")
    ] = _STORE.attempts
    pause: Annotated[
        PositiveSeconds, Meta(description="seconds before the second attempt; then twice as many")
    ] = _STORE.pause
    answer: Annotated[
        PositiveSeconds,
        Meta(description="seconds for another node to take custody before it is asked again"),
    ] = _STORE.answer
    pairs: Annotated[
        Count, Meta(description="maximum number of pairs of sender and receiver it knows")
    ] = _STORE.pairs
    dead: Annotated[Count, Meta(description="dead letters that are kept: the latest")] = _STORE.dead


class AccessTable(Table, frozen=True, kw_only=True):
    """An access rule; the first one that matches decides. `*` stands for any characters."""

    allow: Annotated[Texts | None, Meta(description="names of senders that are allowed")] = None
    deny: Annotated[
        Texts | None,
        Meta(description="names of senders that are denied; give either this or allow"),
    ] = None
    to: Annotated[Texts, Meta(description="addresses or multicast ids that the rule is about")]


class GrantTable(Table, frozen=True, kw_only=True):
    """What some peers may do; what no grant gives is refused, if there is any. May be repeated.

    Who is meant is said by one or more of `identity`, `certificate`, `token` and `anyone`.
    """

    identity: Annotated[Texts | None, Meta(description="identifiers that peers have proven")] = None
    certificate: Annotated[
        Texts | None, Meta(description="names in the certificates of peers; `*` as a wildcard")
    ] = None
    token: Annotated[
        Texts | None, Meta(description="`names` of the `[[token]]` tables that peers have proven")
    ] = None
    anyone: Annotated[bool, Meta(description="it is for everybody")] = False
    announce: Annotated[Texts | None, Meta(description="names that they may have")] = None
    subscribe: Annotated[
        Texts | None, Meta(description="broadcasts: `+` for a segment, `*` for all that follow")
    ] = None
    publish: Annotated[Texts | None, Meta(description="broadcasts, likewise")] = None
    register: Annotated[
        Texts | None, Meta(description="participants that they may list in the directory")
    ] = None
    send: Annotated[
        Texts | None, Meta(description="names in routes that they may send to; `*` as a wildcard")
    ] = None


class DirectoryTable(Table, frozen=True, kw_only=True):
    """The directory, which finds participants by what they offer."""

    host: Annotated[bool, Meta(description="this node hosts the directory")] = False
    ask: Annotated[Text | None, Meta(description="route to the node that hosts it")] = None


class ArchiveTable(Table, frozen=True, kw_only=True):
    """An archive of the journals that other nodes ship to the worker `waystation.archive`."""

    directory: Annotated[Text, Meta(description="directory to keep them in")]


class StatusTable(Table, frozen=True, kw_only=True):
    """The status that `waystation top` and the console request."""

    enabled: Annotated[
        bool, Meta(description="start the worker `waystation.status`; access rules apply to it")
    ] = False


class MqttTable(Table, frozen=True, kw_only=True):
    """An MQTT broker; needs `pip install 'waystation[mqtt]'`. It enables URLs like `mqtt://topic`."""

    url: Annotated[Text, Meta(description="`mqtt://host:port`")]
    topic: Annotated[Text, Meta(description="topic on which this node receives")]
    qos: Annotated[int, Meta(ge=0, le=1, description="0 for at most once, 1 for at least once")] = 1
    username: Annotated[Text | None, Meta(description="for the broker")] = None
    password: Annotated[Text | None, Meta(description="for the broker")] = None
    password_file: Annotated[
        Text | None, Meta(description="file whose first line is the password")
    ] = None
    password_env: Annotated[
        Text | None, Meta(description="environment variable that holds the password")
    ] = None
    listen: Annotated[
        bool,
        Meta(description="accept links on the topic, as from a global transport"),
    ] = True
    prefix: Annotated[str, Meta(description="prefix of the topics of broadcasts")] = ""
    format: Annotated[
        Literal["ockam", "joynr"], Meta(description="format of messages on the broker")
    ] = "ockam"
    client_id: Annotated[Text | None, Meta(description="MQTT client id; random by default")] = None
    away: Annotated[
        int,
        Meta(
            ge=0,
            description="seconds that the broker keeps the session while this node is disconnected",
        ),
    ] = 0
    tls: Annotated[
        TlsTable | bool | None,
        Meta(description="for `mqtts://`: a table like `[tls]` that replaces it"),
    ] = None


class GroupsTable(TokenTable, frozen=True, kw_only=True):
    """Gossip routers; they enable `gossip://group/member` URLs and `gossip#…` addresses."""

    via: Annotated[Texts, Meta(description="`gossip://host:port` of one or more routers")]
    name: Annotated[
        Text | None, Meta(description="name of this node in groups where it does not listen")
    ] = None
    dialect: Annotated[
        Literal["jgroups5", "jgroups2"], Meta(description="protocol of the routers")
    ] = "jgroups5"
    tls: Annotated[
        TlsTable | bool | None,
        Meta(description="true to use `[tls]`, or a table like it; by default no TLS to routers"),
    ] = None


class GrantFile(Table, frozen=True, kw_only=True):
    """A file of grants for a broker or a gossip router."""

    grant: tuple[GrantTable, ...] = ()
    token: tuple[NamedTokenTable, ...] = ()


class Settings(Table, frozen=True, kw_only=True):
    """The whole file."""

    node: Annotated[NodeTable, Meta(description="required")]
    listen: tuple[ListenTable, ...] = ()
    token: tuple[NamedTokenTable, ...] = ()
    connect: tuple[ConnectTable, ...] = ()
    parent: tuple[ConnectTable, ...] = ()
    worker: tuple[WorkerTable, ...] = ()
    secure: tuple[SecureTable, ...] = ()
    access: tuple[AccessTable, ...] = ()
    grant: tuple[GrantTable, ...] = ()
    limits: LimitsTable = LimitsTable()
    tls: TlsTable | None = None
    journal: JournalTable | None = None
    store: StoreTable | None = None
    mqtt: MqttTable | None = None
    groups: GroupsTable | None = None
    archive: ArchiveTable | None = None
    directory: DirectoryTable = DirectoryTable()
    status: StatusTable = StatusTable()
