"""MQTT 5: packets, a client, and a small broker. They know nothing of Waystation's messages.

It needs `pip install 'waystation[mqtt]'`.
"""

from importlib.util import find_spec

from waystation.errors import LocalError

if find_spec("mqtt5") is None:
    raise LocalError(
        "MQTT needs the package mqtt5, which is not installed",
        rule="MC-12",
        hint="pip install 'waystation[mqtt]'",
    )
