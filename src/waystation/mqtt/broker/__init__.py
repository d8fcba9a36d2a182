"""A small MQTT 5 broker in the process: for tests, demonstrations and small fleets.

In production the broker is Mosquitto, EMQX, HiveMQ or another of that weight.
"""

from waystation.mqtt.broker.access import Passwords, password_line
from waystation.mqtt.broker.metrics import BrokerMetrics
from waystation.mqtt.broker.server import Broker
from waystation.mqtt.broker.settings import Settings

__all__ = ["Broker", "BrokerMetrics", "Passwords", "Settings", "password_line"]
