"""What a broker does, told by an independent client (paho): the same tests for ours and for others.

A module with a fixture `place` inherits from `BrokerBehaviour`, and the tests run against whatever
listens there.
"""

from __future__ import annotations

import queue
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode
from paho.mqtt.subscribeoptions import SubscribeOptions

from waystation.net.place import parse_place

PATIENCE = 20.0


def properties(kind: int, **values: Any) -> Any:
    made: Any = Properties(kind)  # type: ignore[no-untyped-call]
    for name, value in values.items():
        setattr(made, name, value)
    return made


def publishing(**values: Any) -> Any:
    return properties(PacketTypes.PUBLISH, **values)


class Client:
    """paho, with plain calls that wait."""

    def __init__(self, place: str, client_id: str = "") -> None:
        self.place = place
        self.paho = paho.Client(
            CallbackAPIVersion.VERSION2, client_id=client_id, protocol=paho.MQTTv5
        )
        self.messages: queue.Queue[Any] = queue.Queue()
        self.connack: queue.Queue[tuple[Any, ReasonCode, Any]] = queue.Queue()
        self.ended: queue.Queue[ReasonCode] = queue.Queue()
        self._answers: dict[int, tuple[threading.Event, list[Any]]] = {}
        self._lock = threading.Lock()
        self.paho.on_message = lambda _c, _u, message: self.messages.put(message)
        self.paho.on_connect = lambda _c, _u, flags, code, props: self.connack.put(
            (flags, code, props)
        )
        self.paho.on_disconnect = lambda _c, _u, _f, code, _p: self.ended.put(code)
        self.paho.on_subscribe = lambda _c, _u, mid, codes, _p: self._answer(mid, codes)
        self.paho.on_unsubscribe = lambda _c, _u, mid, codes, _p: self._answer(mid, codes)
        self.paho.on_publish = lambda _c, _u, mid, code, _p: self._answer(mid, [code])

    def _answer(self, mid: int, codes: list[Any]) -> None:
        event, found = self._slot(mid)
        found.extend(codes)
        event.set()

    def _slot(self, mid: int) -> tuple[threading.Event, list[Any]]:
        with self._lock:
            return self._answers.setdefault(mid, (threading.Event(), []))

    def _wait_for(self, mid: int) -> list[int]:
        event, found = self._slot(mid)
        assert event.wait(PATIENCE), "the broker does not answer"
        with self._lock:
            del self._answers[mid]
        return [code.value for code in found]

    def connect(
        self, *, clean: bool = True, keep_alive: int = 60, **values: Any
    ) -> tuple[Any, int, Any]:
        """Connect; gives the flags, the code and the properties of the answer."""
        host, port = parse_place(self.place)
        self.paho.connect(
            host,
            port,
            keepalive=keep_alive,
            clean_start=clean,
            properties=properties(PacketTypes.CONNECT, **values),
        )
        self.paho.loop_start()
        flags, code, props = self.connack.get(timeout=PATIENCE)
        return flags, code.value, props

    def publish(self, topic: str, payload: bytes, qos: int = 0, **options: Any) -> list[int]:
        """Publish, and give the broker's answer."""
        return self._wait_for(self.paho.publish(topic, payload, qos, **options).mid)

    def subscribe(self, *filters: str, qos: int = 1, id: int = 0, **options: Any) -> list[int]:
        """Subscribe, and give the broker's answers."""
        asked = [(filter, SubscribeOptions(qos=qos, **options)) for filter in filters]
        props = properties(PacketTypes.SUBSCRIBE)
        if id:
            props.SubscriptionIdentifier = id
        _, mid = self.paho.subscribe(asked, properties=props)
        assert mid is not None
        return self._wait_for(mid)

    def unsubscribe(self, *filters: str) -> list[int]:
        """Unsubscribe, and give the broker's answers."""
        _, mid = self.paho.unsubscribe(list(filters))
        assert mid is not None
        return self._wait_for(mid)

    def next(self) -> Any:
        """The next message."""
        return self.messages.get(timeout=PATIENCE)

    def got(self, sender: Client) -> list[bytes]:
        """All that came so far; `sender` publishes a last one to know the end."""
        mark = secrets.token_hex(8).encode()
        self.subscribe("mark/" + mark.decode())
        sender.publish("mark/" + mark.decode(), mark, 1)
        found: list[bytes] = []
        while (payload := self.next().payload) != mark:
            found.append(payload)
        return found

    def drop(self) -> None:
        """Lose the connection without a goodbye."""
        found: Any = self.paho.socket()
        assert found is not None
        with suppress(OSError):
            found.shutdown(socket.SHUT_RDWR)
        self.paho.loop_stop()

    def close(self) -> None:
        """Say goodbye."""
        self.paho.disconnect()
        self.paho.loop_stop()
        self.paho._reset_sockets()  # it leaves a pair of them to the garbage collector


Maker = Callable[..., Client]


class BrokerBehaviour:
    """The tests. Topics and client ids are fresh in each, so that one broker does for all."""

    @pytest.fixture
    def make(self, place: str) -> Iterator[Maker]:
        made: list[Client] = []

        def make(client_id: str = "", *, connected: bool = True, **options: Any) -> Client:
            client = Client(place, client_id)
            made.append(client)
            if connected:
                assert client.connect(**options)[1] == 0
            return client

        yield make
        for client in made:
            with suppress(Exception):
                client.close()

    @pytest.fixture
    def topic(self) -> str:
        return f"test/{secrets.token_hex(6)}"

    @pytest.mark.parametrize("qos", [0, 1])
    def test_a_message_reaches_who_subscribed(self, make: Maker, topic: str, qos: int) -> None:
        sender, receiver = make(), make()
        assert receiver.subscribe(topic, qos=1) == [1]
        assert sender.publish(topic, b"hello", qos) == [0]
        message = receiver.next()
        assert (message.topic, message.payload, message.qos) == (topic, b"hello", qos)
        assert not message.retain

    def test_nobody_subscribed_is_told_to_the_sender(self, make: Maker, topic: str) -> None:
        assert make().publish(topic, b"hello", 1) == [0x10]

    def test_filters_match_as_the_standard_says(self, make: Maker, topic: str) -> None:
        sender, receiver = make(), make()
        filters = {"+/b": 1, "a/#": 2, "a/+/c": 3, "#": 4, "a": 5, "/+": 6}
        for filter, number in filters.items():
            receiver.subscribe(f"{topic}/{filter}", id=number)
        expected = {
            "a": {2, 4, 5}, "a/b": {1, 2, 4}, "a/b/c": {2, 3, 4}, "x/b": {1, 4}, "": {4},
            "/x": {4, 6}, "A": {4},
        }  # fmt: skip
        for end, numbers in expected.items():
            sender.publish(f"{topic}/{end}", end.encode() or b"-", 1)
            found: set[int] = set()
            while found != numbers:  # one message with all ids, or one for each: both are right
                message = receiver.next()
                assert message.topic == f"{topic}/{end}"
                found |= set(message.properties.SubscriptionIdentifier)

    def test_a_subscription_ends(self, make: Maker, topic: str) -> None:
        sender, receiver = make(), make()
        receiver.subscribe(topic)
        assert receiver.unsubscribe(topic, topic + "/never") == [0, 0x11]
        assert sender.publish(topic, b"hello", 1) == [0x10]

    def test_the_properties_of_a_message_are_passed_on(self, make: Maker, topic: str) -> None:
        sender, receiver = make(), make()
        receiver.subscribe(topic)
        props = publishing(
            ResponseTopic="answers/1",
            CorrelationData=b"\0\1",
            ContentType="text/plain",
            PayloadFormatIndicator=1,
            MessageExpiryInterval=100,
            UserProperty=[("a", "1"), ("a", "2"), ("b", "\u00e9")],
        )
        sender.publish(topic, b"hello", 1, properties=props)
        found = receiver.next().properties
        assert found.ResponseTopic == "answers/1"
        assert found.CorrelationData == b"\0\1"
        assert found.ContentType == "text/plain"
        assert found.PayloadFormatIndicator == 1
        assert 0 < found.MessageExpiryInterval <= 100
        assert found.UserProperty == [("a", "1"), ("a", "2"), ("b", "\u00e9")]

    def test_order_is_kept_for_many_messages(self, make: Maker, topic: str) -> None:
        sender, receiver = make(), make()
        receiver.subscribe(topic)
        numbers = [b"%d" % number for number in range(300)]
        for number in numbers:
            sender.paho.publish(topic, number, 1)
        assert [receiver.next().payload for _ in numbers] == numbers

    def test_what_is_retained_comes_with_the_subscription(self, make: Maker, topic: str) -> None:
        sender, receiver = make(), make()
        sender.publish(topic, b"old", 1, retain=True)
        sender.publish(topic, b"kept", 1, retain=True)
        receiver.subscribe(topic)
        message = receiver.next()
        assert (message.payload, message.retain) == (b"kept", True)
        sender.publish(topic, b"", 1, retain=True)
        late = make()
        late.subscribe(topic)
        assert late.got(sender) == []

    def test_retain_handling_is_as_asked_for(self, make: Maker, topic: str) -> None:
        sender, receiver = make(), make()
        sender.publish(topic, b"kept", 1, retain=True)
        receiver.subscribe(topic, retainHandling=SubscribeOptions.RETAIN_DO_NOT_SEND)
        assert receiver.got(sender) == []
        receiver.subscribe(topic, retainHandling=SubscribeOptions.RETAIN_SEND_IF_NEW_SUB)
        assert receiver.got(sender) == []
        receiver.subscribe(topic, retainHandling=SubscribeOptions.RETAIN_SEND_ON_SUBSCRIBE)
        assert receiver.next().payload == b"kept"
        sender.publish(topic, b"", 1, retain=True)

    def test_retain_as_published_and_no_local(self, make: Maker, topic: str) -> None:
        sender, receiver = make(), make()
        receiver.subscribe(topic, retainAsPublished=True)
        sender.subscribe(topic, noLocal=True)
        sender.publish(topic, b"x", 1, retain=True)
        assert receiver.next().retain
        assert sender.got(receiver) == []
        sender.publish(topic, b"", 1, retain=True)

    def test_a_will_is_done_without_a_goodbye_only(self, make: Maker, topic: str) -> None:
        watcher = make()
        watcher.subscribe(topic)
        for ends, told in (("close", []), ("drop", [b"gone"])):
            dying = make(connected=False)
            dying.paho.will_set(topic, b"gone", qos=1)
            assert dying.connect()[1] == 0
            getattr(dying, ends)()
            if told:
                assert watcher.next().payload == b"gone"
            else:
                assert watcher.got(watcher) == []

    def test_a_will_with_a_delay_is_not_done_when_the_client_is_back(
        self, make: Maker, topic: str
    ) -> None:
        watcher = make()
        watcher.subscribe(topic)
        name = secrets.token_hex(8)
        for attempt in range(2):
            dying = make(name, connected=False)
            if not attempt:
                props = properties(PacketTypes.WILLMESSAGE, WillDelayInterval=60)
                dying.paho.will_set(topic, b"gone", qos=1, properties=props)
            assert dying.connect(clean=False, SessionExpiryInterval=120)[1] == 0
            if not attempt:
                dying.drop()
        dying.close()
        assert watcher.got(watcher) == []

    def test_a_session_keeps_what_came_while_the_client_was_away(
        self, make: Maker, topic: str
    ) -> None:
        name = secrets.token_hex(8)
        sender, first = make(), make(name, clean=False, SessionExpiryInterval=120)
        first.subscribe(topic)
        first.close()
        for number in range(5):
            assert sender.publish(topic, b"%d" % number, 1) == [0]
        again = make(name, connected=False)
        flags, code, _ = again.connect(clean=False, SessionExpiryInterval=120)
        assert (flags.session_present, code) == (True, 0)
        assert [again.next().payload for _ in range(5)] == [b"%d" % n for n in range(5)]
        again.close()
        fresh = make(name, connected=False)
        flags, _, _ = fresh.connect(clean=True)
        assert not flags.session_present
        assert sender.publish(topic, b"nobody", 1) == [0x10]

    def test_what_has_expired_does_not_come(self, make: Maker, topic: str) -> None:
        name = secrets.token_hex(8)
        sender, first = make(), make(name, clean=False, SessionExpiryInterval=120)
        first.subscribe(topic)
        first.close()
        sender.publish(topic, b"short", 1, properties=publishing(MessageExpiryInterval=1))
        sender.publish(topic, b"long", 1, properties=publishing(MessageExpiryInterval=500))
        time.sleep(2.1)  # MQTT counts whole seconds
        again = make(name, clean=False, SessionExpiryInterval=120)
        message = again.next()
        assert message.payload == b"long"
        assert message.properties.MessageExpiryInterval <= 499

    def test_the_newest_of_two_with_one_id_stays(self, make: Maker, topic: str) -> None:
        name = secrets.token_hex(8)
        old = make(name)
        old.paho.reconnect_delay_set(60, 60)
        new = make(name)
        code = old.ended.get(timeout=PATIENCE).value
        assert code in (0x8E, 0x80), code  # taken over; or paho saw nothing but the end
        new.subscribe(topic)
        assert make().publish(topic, b"x", 1) == [0]
        assert new.next().payload == b"x"

    def test_a_client_without_an_id_gets_one(self, make: Maker) -> None:
        _, code, props = make(connected=False).connect()
        assert code == 0
        assert props.AssignedClientIdentifier

    def test_no_more_are_on_their_way_than_the_client_allows(self, place: str, topic: str) -> None:
        with raw(place, receive_maximum=2) as (stream, read):
            stream.sendall(subscribe_packet(topic))
            assert read()[0] == 0x90
            sender = Client(place)
            assert sender.connect()[1] == 0
            for number in range(5):
                sender.publish(topic, b"%d" % number, 1)
            first, second = read(), read()
            stream.settimeout(0.3)
            with pytest.raises(TimeoutError):
                read()
            stream.settimeout(PATIENCE)
            for packet in (first, second):
                at = 2 + 2 + len(topic)
                stream.sendall(b"\x40\x02" + packet[at : at + 2])
            assert [read()[-1:] for _ in range(2)] == [b"2", b"3"]
            sender.close()

    def test_topics_have_aliases(self, place: str, make: Maker, topic: str) -> None:
        receiver = make()
        receiver.subscribe(topic)
        with raw(place) as (stream, _):
            name = topic.encode()
            length = len(name).to_bytes(2, "big")
            body = length + name + b"\x03\x23\x00\x01" + b"one"
            stream.sendall(b"\x30" + bytes((len(body),)) + body)
            body = b"\x00\x00" + b"\x03\x23\x00\x01" + b"two"
            stream.sendall(b"\x30" + bytes((len(body),)) + body)
            assert [receiver.next().payload for _ in range(2)] == [b"one", b"two"]

    def test_each_message_goes_to_one_of_those_who_share(self, make: Maker, topic: str) -> None:
        sender, one, two, alone = (make() for _ in range(4))
        for member in (one, two):
            assert member.subscribe(f"$share/workers/{topic}/#") == [1]
        assert alone.subscribe(f"$share/others/{topic}/+") == [1]
        numbers = [b"%d" % number for number in range(10)]
        for number in numbers:
            assert sender.publish(f"{topic}/jobs", number, 1) == [0]
        shared = [member.got(sender) for member in (one, two)]
        assert all(shared)
        assert sorted(shared[0] + shared[1]) == numbers
        assert alone.got(sender) == numbers
        assert one.unsubscribe(f"$share/workers/{topic}/#") == [0]
        for number in numbers:
            sender.publish(f"{topic}/jobs", number, 1)
        assert (one.got(sender), two.got(sender)) == ([], numbers)

    def test_a_silent_client_is_given_up(self, place: str) -> None:
        with raw(place, keep_alive=1) as (_, read):
            last = b""
            with suppress(EOFError, ConnectionError):
                while True:
                    last = read()
            assert last[:1] in (b"\xe0", b"")

    @pytest.mark.parametrize(
        "garbage",
        [b"\0" * 64, b"GET / HTTP/1.1\r\n\r\n", b"\x10\xff\xff\xff\xff\xff", b"\x30\x02\x00\x00"],
        ids=["zeros", "http", "length", "no connect"],
    )
    def test_garbage_ends_its_own_connection_and_no_other(
        self, place: str, make: Maker, topic: str, garbage: bytes
    ) -> None:
        receiver = make()
        receiver.subscribe(topic)
        with socket.create_connection(parse_place(place), PATIENCE) as stream:
            stream.sendall(garbage)
            with suppress(ConnectionError):
                while stream.recv(1000):
                    pass
        assert make().publish(topic, b"fine", 1) == [0]
        assert receiver.next().payload == b"fine"

    def test_ten_thousand_subscriptions_of_one_client(self, make: Maker, topic: str) -> None:
        sender, receiver = make(), make()
        filters = [f"{topic}/{number}/+" for number in range(10_000)]
        for start in range(0, len(filters), 500):
            assert receiver.subscribe(*filters[start : start + 500]) == [1] * 500
        for number in (0, 4_999, 9_999):
            sender.publish(f"{topic}/{number}/x", b"%d" % number, 1)
            assert receiver.next().payload == b"%d" % number


def connect_packet(*, keep_alive: int = 60, receive_maximum: int = 100) -> bytes:
    """A CONNECT without a client id, by hand."""
    props = b"\x21" + receive_maximum.to_bytes(2, "big")
    body = b"\x00\x04MQTT\x05\x02" + keep_alive.to_bytes(2, "big") + bytes((len(props),)) + props
    body += b"\x00\x00"
    return b"\x10" + bytes((len(body),)) + body


def subscribe_packet(topic: str) -> bytes:
    """A SUBSCRIBE with QoS 1, by hand."""
    body = b"\x00\x01\x00" + len(topic).to_bytes(2, "big") + topic.encode() + b"\x01"
    return b"\x82" + bytes((len(body),)) + body


@contextmanager
def raw(place: str, **options: int) -> Iterator[tuple[socket.socket, Callable[[], bytes]]]:
    """A connected client whose bytes the test chooses, and a function that reads a short packet."""
    with socket.create_connection(parse_place(place), PATIENCE) as stream:
        stream.sendall(connect_packet(**options))

        def exactly(size: int) -> bytes:
            data = b""
            while len(data) < size:
                more = stream.recv(size - len(data))
                if not more:
                    raise EOFError
                data += more
            return data

        def read() -> bytes:
            head = exactly(2)
            return head + exactly(head[1])

        assert read()[:1] == b"\x20"
        yield stream, read
