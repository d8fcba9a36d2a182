"""Under which names Prometheus reads what a broker counts. No sockets here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from waystation.mqtt.broker.server import Broker
from waystation.net.metrics import Family, counter, exposition, gauge
from waystation.net.monitor import Health
from waystation.net.tasks import COUNTS

LARGEST: Final = 10
"""So many clients have a number of their own: those for which most is held."""

LABEL: Final = 100
"""No client's name is longer here; it may choose any."""


class BrokerMetrics:
    """What is monitored of a broker: `Monitor(BrokerMetrics(broker))`."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def metrics(self) -> str:
        """The text for Prometheus."""
        return exposition("waystation_broker", _families(self._broker))

    def health(self) -> Health:
        """Whether it serves clients."""
        return Health(draining=self._broker.draining, listening=self._broker.place)


def _families(broker: Broker) -> Iterator[Family]:
    counts = broker.counts
    yield counter("connections_opened", "Connections accepted so far.", counts.opened)
    yield counter("messages_received", "Messages that clients published.", counts.received)
    yield counter("messages_delivered", "Copies written to subscribers.", counts.delivered)
    yield counter("messages_unmatched", "Messages without a subscriber.", counts.unmatched)
    yield counter("messages_dropped", "Copies dropped, by reason.", counts.dropped, "reason")
    yield counter("wills", "Last wills published.", counts.wills)
    yield counter("received_bytes", "Bytes read from clients.", counts.bytes_received)
    yield counter("sent_bytes", "Bytes written to clients.", counts.bytes_sent)
    yield counter("refusals", "What was refused, by cause.", counts.refused, "cause")
    ended = "Connections that ended, by cause."
    yield counter("disconnections", ended, counts.disconnected, "cause")
    yield gauge("clients", "Clients that are connected.", broker.connected())
    yield gauge("sessions", "Sessions, also of clients that are away.", broker.sessions())
    yield gauge("retained_messages", "Messages that are retained.", broker.retained())
    retained = broker.dispatcher.retained_bytes
    yield gauge("retained_bytes", "Bytes of messages that are retained.", retained)
    held = broker.dispatcher.held
    held.measure_all()
    used = held.shares.total.used
    yield gauge("held_bytes", "Bytes held for clients that are slow or away.", used)
    yield gauge("budget_bytes", "Bytes that may be held for all of them.", broker.settings.budget)
    largest = {
        (session.key.user or "", session.key.client_id[:LABEL]): size
        for session, size in held.shares.largest(LARGEST)
    }
    most = "Bytes held for those clients for which most are held."
    yield gauge("client_held_bytes", most, largest, "user", "client")
    yield counter("tasks_failed", "Tasks of this process that failed.", COUNTS.failed)
    yield gauge("draining", "Whether the broker is ending.", int(broker.draining))
