"""MQTT: messages and broadcasts over a broker, in Ockam's frames or in joynr's."""

from waystation.transports.mqtt.transport import Mqtt, MqttListener

__all__ = ["Mqtt", "MqttListener"]
