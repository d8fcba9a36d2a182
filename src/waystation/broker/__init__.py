"""A small MQTT 5 broker in the process: for tests, demonstrations and small fleets.

In production the broker is Mosquitto, EMQX, HiveMQ or another of that weight. It needs
`pip install 'waystation[mqtt]'`.
"""

from importlib.util import find_spec

from waystation.errors import LocalError

if find_spec("mqtt5") is None:
    raise LocalError(
        "the broker needs the package mqtt5, which is not installed",
        rule="MC-12",
        hint="pip install 'waystation[mqtt]'",
    )

from waystation.broker.access import Passwords, password_line
from waystation.broker.server import Broker
from waystation.broker.settings import Settings

__all__ = ["Broker", "Passwords", "Settings", "password_line"]
