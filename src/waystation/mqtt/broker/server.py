"""The broker as a server: who is let in, with which session, and who has left (MC-12).

Connections bring packets (connection.py); who gets a message is decided in dispatch.py.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import OrderedDict
from collections.abc import Container
from functools import partial
from typing import Any, Final

from mqtt5 import (
    ConnAckPacket,
    ConnAckReasonCode,
    ConnectPacket,
    DisconnectPacket,
    DisconnectReasonCode,
    QoS,
)

from waystation.core.grants import Action, Grants
from waystation.core.outcome import Reason
from waystation.core.who import Who
from waystation.mqtt.broker.access import Authenticate
from waystation.mqtt.broker.checking import PasswordChecks
from waystation.mqtt.broker.connection import Admission, ClientConnection
from waystation.mqtt.broker.counts import Counts
from waystation.mqtt.broker.dispatch import Dispatcher
from waystation.mqtt.broker.publication import Publication, size_of
from waystation.mqtt.broker.session import NEVER, Session, SessionKey
from waystation.mqtt.broker.settings import Settings
from waystation.mqtt.broker.topics import as_pattern, is_topic
from waystation.net.held import FREE
from waystation.net.server import Server
from waystation.net.tls import Tls

_log: Final = logging.getLogger("waystation.broker")
_ORDERLY: Final = frozenset({"goodbye", "lost", "session_taken_over"})
"""Causes of a connection's end that need no line in the log."""

_Code = ConnAckReasonCode


class Broker:
    """A broker that listens, from `start` to `drain`.

    >>> async def main():
    ...     broker = Broker()
    ...     await broker.start("127.0.0.1:0")
    ...     await broker.drain()
    ...     return broker.counts.opened
    >>> asyncio.run(main())
    0

    `authenticate` says who may connect, by client id, user name and password; without it everybody
    may. It is called in a thread, so it may take its time. A session belongs to the user that it
    accepted: the same client id of another user is another session. With `grants` a client may
    publish and subscribe to what is granted to its user (as a token), to a name in its certificate,
    or to anyone.
    """

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        tls: Tls | None = None,
        authenticate: Authenticate | None = None,
        grants: Grants | None = None,
    ) -> None:
        self.settings = settings or Settings()
        self.connection_limits = self.settings.of_connections()
        self._server = Server(
            lambda: ClientConnection(self), limits=self.settings.of_server(), tls=tls, log=_log
        )
        self.counts = Counts(refused=self._server.refused)  # who counts there as well
        self.dispatcher = Dispatcher(
            self.settings, self.counts, self._server.complain, self._give_up
        )
        self._sessions: dict[SessionKey, Session] = {}
        self._authenticate = authenticate
        self.grants = grants
        self._checks = PasswordChecks(self.settings.checks, self.settings.penalty)
        self._unflushed: list[ClientConnection] = []  # connections with something to write
        self.is_reading = False  # and what that brings is written at its end

    # From start to drain

    @property
    def place(self) -> str:
        """Where it listens, with the port that was chosen if any would do."""
        return self._server.place

    @property
    def draining(self) -> bool:
        """Whether it is ending."""
        return self._server.draining

    async def start(self, place: str) -> None:
        """Listen; port 0 takes a free one, and `place` says which."""
        await self._server.start(place)

    async def drain(self) -> None:
        """Accept no more clients, write what waits, and end all connections without wills."""
        for session in self._sessions.values():
            session.stop_timers()
        code = DisconnectReasonCode.SERVER_SHUTTING_DOWN
        goodbye = DisconnectPacket(reason_code=code, reason_str="the broker is ending").write()
        for connection in list(self._server.connections):
            assert isinstance(connection, ClientConnection)
            connection.dismiss(goodbye if connection.admission is Admission.ADMITTED else b"")
        await self._server.drain(self.settings.linger + 1)
        self._checks.close()

    def flush_later(self, connection: ClientConnection) -> None:
        """Write what a connection has at the end of this turn, or of what is being read."""
        if not self._unflushed and not self.is_reading:
            asyncio.get_running_loop().call_soon(self.flush)
        self._unflushed.append(connection)

    def flush(self) -> None:
        """Write what all connections have."""
        unflushed, self._unflushed = self._unflushed, []
        for connection in unflushed:
            connection.flush()

    # What is read again (ID-5)

    def renew_certificate(self) -> None:
        """Use the certificate that is in its file now, for the clients to come."""
        self._server.renew_certificate()

    def change_users(self, authenticate: Authenticate | None, gone: Container[str | None]) -> None:
        """Ask another function who may connect; the clients of users that are `gone` have to go."""
        self._authenticate = authenticate
        for session in list(self._sessions.values()):
            if session.key.user in gone:
                self._dismiss(session, "its user may not connect any more")
                if self._sessions.get(session.key) is session:
                    self._end(session)

    def change_grants(self, grants: Grants | None) -> None:
        """Judge by other grants, and take back at once what they do not give."""
        self.grants = grants
        for session in list(self._sessions.values()):
            if session.will is not None and not self.may(
                session.who, Action.PUBLISH, session.will.topic
            ):
                session.will = None
            taken = [
                filter
                for filter, subscription in session.subscriptions.items()
                if not self.may(session.who, Action.SUBSCRIBE, subscription.pattern)
            ]
            for filter in taken:
                self.dispatcher.unsubscribe(session, filter)
            if taken:
                self._dismiss(session, f"{taken[0]} is no longer granted")

    def may(self, who: Who, action: Action, topic: str) -> bool:
        """Whether somebody may publish under a topic, or subscribe to a filter (ID-3)."""
        return self.grants is None or self.grants.allows(who, action, as_pattern(topic))

    @staticmethod
    def _dismiss(session: Session, detail: str) -> None:
        """Let a client go: it has no other way to learn what it may not do any more."""
        if session.connection is not None:
            session.connection.expel(DisconnectReasonCode.NOT_AUTHORIZED, detail)

    # Who is let in

    def connect(self, connection: ClientConnection, packet: Any) -> None:
        """Let a client in, or say why not."""
        refusal = _refusal(packet, self.settings.queue_bytes)
        if refusal is not None:
            self._refuse(connection, *refusal)
        elif self._authenticate is None:
            self._admit(connection, packet, None)
        else:
            credentials = packet.client_id, packet.username, packet.password
            address = connection.place.rpartition(":")[0]
            check = partial(self._authenticate, *credentials)
            answer = self._checks.ask(address, packet.username, check)
            if answer is None:
                self._refuse(connection, _Code.SERVER_BUSY, "too many passwords to check")
            else:
                connection.authenticate(packet, answer)

    def authenticated(
        self, connection: ClientConnection, packet: ConnectPacket, check: asyncio.Future[bool]
    ) -> None:
        """Let a client in whose password was checked, or say why not."""
        if (error := check.exception()) is not None:
            _log.error("%s: checking the password failed", connection.place, exc_info=error)
            self._refuse(connection, _Code.SERVER_UNAVAILABLE, "passwords cannot be checked now")
        elif check.result():
            self._admit(connection, packet, packet.username)
        else:
            code = _Code.BAD_USER_NAME_OR_PASSWORD
            self._refuse(connection, code, "wrong user name or password")

    def _admit(self, connection: ClientConnection, packet: ConnectPacket, user: str | None) -> None:
        connection.who = Who(certificate=connection.names(), token=user)
        if packet.will is not None and not connection.may(Action.PUBLISH, packet.will.topic):
            self._refuse(connection, _Code.NOT_AUTHORIZED, "its will may not be published")
            return
        client_id = packet.client_id or f"waystation-{secrets.token_hex(12)}"
        key = SessionKey(connection.who.text if user is None else user, client_id)
        found = self._sessions.get(key)
        if found is None and len(self._sessions) >= self.settings.sessions:
            self._refuse(connection, _Code.QUOTA_EXCEEDED, "too many sessions")
            return
        if found is not None and found.connection is not None:
            found.connection.expel(
                DisconnectReasonCode.SESSION_TAKEN_OVER, "another client has the same id"
            )
        session, present = self._session(key, clean=packet.clean_start)
        session.connection = connection
        session.who = connection.who
        asked = packet.session_expiry_interval
        session.expiry = self.bounded_expiry(asked)
        session.will = packet.will
        connection.admit(session, packet)
        if session.will_size > FREE:
            self.dispatcher.held.count_soon(session)
        connection.say(
            ConnAckPacket(
                session_present=present,
                session_expiry_interval=None if asked == session.expiry else session.expiry,
                assigned_client_id=None if packet.client_id else client_id,
                receive_max=self.settings.receive_maximum,
                topic_alias_max=self.settings.aliases,
                max_qos=QoS.AT_LEAST_ONCE,
                max_packet_size=self.settings.packet,
            ).write()
        )
        _log.debug("%s: client %r is connected", connection.place, client_id)
        session.unrepeated = OrderedDict.fromkeys(session.inflight)
        self.dispatcher.send_waiting(session)

    def _session(self, key: SessionKey, *, clean: bool) -> tuple[Session, bool]:
        """The session of a client that connects, and whether it existed before."""
        session = self._sessions.get(key)
        if session is not None and not clean:
            session.stop_timers()
            return session, True
        if session is not None:
            self._end(session)
        session = self._sessions[key] = Session(key)
        return session, False

    def _refuse(self, connection: ClientConnection, code: ConnAckReasonCode, detail: str) -> None:
        self.refused(connection, code, detail)
        connection.dismiss(ConnAckPacket(reason_code=code, reason_str=detail).write())

    # What connections tell

    def left(
        self, connection: ClientConnection, cause: str, detail: str, session: Session | None
    ) -> None:
        """Note that a client is gone: its will may be due, and its session may end."""
        self.counts.disconnected[cause] += 1
        _log.debug("%s: %s %s", connection.place, cause, detail)
        if cause not in _ORDERLY:
            self._server.complain(f"disconnected: {cause}", connection.place, detail)
        if session is not None:
            self._leave(session)

    def refused(self, connection: ClientConnection, code: Any, detail: str) -> None:
        """Count and log that a client was refused something."""
        self._server.refuse(code.name.lower(), connection.place, detail)

    def bounded_expiry(self, seconds: int) -> int:
        """For how long a session may outlive its connection, of what the client asks for."""
        return min(seconds, self.settings.session_expiry)

    # Clients that are away

    def _leave(self, session: Session) -> None:
        """Note that a client is away, and what has to happen if it stays away."""
        session.connection = None
        loop = asyncio.get_running_loop()
        delay = 0 if session.will is None else min(session.will.will_delay_interval, session.expiry)
        if delay:
            session.will_timer = loop.call_later(delay, self._publish_will, session)
        else:
            self._publish_will(session)
        if not session.expiry:
            self._end(session)
        elif session.expiry != NEVER:
            session.expiry_timer = loop.call_later(session.expiry, self._end, session)

    def _publish_will(self, session: Session) -> None:
        will, session.will, session.will_timer = session.will, None, None
        if will is not None:
            self.counts.wills += 1
            self.dispatcher.now = now = asyncio.get_running_loop().time()
            self.dispatcher.publish(Publication(will, will.topic, now), None)

    def _end(self, session: Session, reason: Reason = Reason.TRANSPORT_DOWN) -> None:
        session.stop_timers()
        self._publish_will(session)
        del self._sessions[session.key]
        self.dispatcher.forget(session, reason)

    def _give_up(self, session: Session) -> None:
        """End the session that holds most, when all together hold too much (FL-1)."""
        detail = "it holds most of what waits for slow clients, and that is too much"
        self._server.complain("over the budget", session.key.client_id, detail)
        self.counts.disconnected["over_budget"] += session.connection is None  # else told below
        if session.connection is not None:
            session.connection.give_up("over_budget", detail)
        if self._sessions.get(session.key) is session:
            self._end(session, Reason.QUEUE_FULL)

    # What is told to people

    def connected(self) -> int:
        """How many clients are connected now."""
        return sum(s.connection is not None for s in self._sessions.values())

    def sessions(self) -> int:
        """How many sessions there are, those of clients that are away included."""
        return len(self._sessions)

    def filters(self) -> list[str]:
        """What clients have subscribed to, those that are away included."""
        return [filter for s in self._sessions.values() for filter in s.subscriptions]

    def retained(self) -> int:
        """How many messages are retained."""
        return self.dispatcher.retained


def _refusal(packet: ConnectPacket, room: int) -> tuple[ConnAckReasonCode, str] | None:
    """What is wrong with a CONNECT, whoever sent it; a will has `room` bytes."""
    if packet.authentication_method is not None:
        return _Code.BAD_AUTHENTICATION_METHOD, "extended authentication is not supported"
    if not packet.client_id and not packet.clean_start:
        return _Code.CLIENT_ID_NOT_VALID, "a session that continues needs a client id"
    will = packet.will
    if will is not None and int(will.qos) > 1:
        return _Code.QUALITY_NOT_SUPPORTED, "QoS 2 is not supported"
    if will is not None and not all(map(is_topic, (will.topic, will.response_topic or "-"))):
        return _Code.TOPIC_NAME_INVALID, "invalid topic in the will"
    if will is not None and size_of(will, will.payload or b"", will.topic) > room:
        return _Code.QUOTA_EXCEEDED, "the will is too large"
    return None
