"""Our SMRF codec and joynr's own one in JavaScript (npm `smrf`): each reads what the other wrote.

Where the package is kept stands in kept.py.
"""

from __future__ import annotations

import base64
import json
import random
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from tests.peers.kept import from_npm, needed, tool
from waystation.core.expiry import NEVER
from waystation.wire.smrf import LAST_TTL, SmrfMessage, decode, encode

pytestmark = pytest.mark.peer

PROGRAM = Path(__file__).parent / "smrf"
VECTORS: list[dict[str, Any]] = json.loads(
    (Path(__file__).parents[1] / "wire" / "vectors" / "joynr-smrf.json").read_text("utf-8")
)["vectors"]
INSTALL_SECONDS = 90


def build() -> Path:
    """The directory with the pinned packages."""
    return from_npm("smrf", PROGRAM, INSTALL_SECONDS)


def installed() -> Path:
    return needed("the npm peer `smrf`", build)


class Peer:
    """The program, answering questions."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def ask(self, question: dict[str, Any]) -> dict[str, Any]:
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(json.dumps(question) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, "the peer has ended; its last words are on stderr"
        answer: dict[str, Any] = json.loads(line)
        return answer

    def decode(self, frame: bytes) -> dict[str, Any]:
        return self.ask({"decode": base64.b64encode(frame).decode()})

    def encode(self, message: SmrfMessage, ttl: int) -> bytes:
        answer = self.ask(
            {
                "encode": {
                    "recipient": message.recipient,
                    "sender": message.sender,
                    "ttl": str(ttl),
                    "ttlAbsolute": message.ttl_absolute,
                    "isCompressed": message.is_compressed,
                    "headers": list(message.headers.items()),
                    "body": base64.b64encode(message.body).decode(),
                    "signature": base64.b64encode(message.signature).decode(),
                }
            }
        )
        return base64.b64decode(answer["frame"])


@pytest.fixture(scope="module")
def peer() -> Iterator[Peer]:
    node = needed("the npm peer `smrf`", lambda: tool("node"))
    home = installed()
    process = subprocess.Popen(
        [node, str(PROGRAM / "peer.js"), str(home)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        encoding="utf-8",
    )
    with process:
        try:
            yield Peer(process)
        finally:
            process.kill()


def as_read_there(message: SmrfMessage) -> dict[str, Any]:
    """What the peer says of a message that it has read."""
    return {
        "recipient": message.recipient,
        "sender": message.sender,
        "ttl": str(LAST_TTL if message.ttl == NEVER else message.ttl),
        "ttlAbsolute": message.ttl_absolute,
        "isCompressed": message.is_compressed,
        "headers": sorted(message.headers.items()),
        "body": base64.b64encode(message.body).decode(),
        "signature": base64.b64encode(message.signature).decode(),
    }


def assert_read_there(peer: Peer, message: SmrfMessage) -> None:
    unsigned = structs.replace(message, signature=b"", is_custom_signed=False)
    sign = (lambda _: message.signature) if message.signature else None
    answer = peer.decode(encode(unsigned, sign))
    there = answer["message"]
    there["headers"] = sorted(tuple(pair) for pair in there["headers"])
    assert there == as_read_there(message)


def random_text(source: random.Random, most: int) -> str:
    alphabet = 'abcXYZ019-_/ ."\\{}\n\u00e9\u00df\u0416\u65e5\uffff\U0001f600\U0010ffff\0'
    return "".join(source.choices(alphabet, k=source.randint(0, most)))


def random_message(source: random.Random) -> SmrfMessage:
    signature = source.randbytes(source.choice([0, 0, 0, 1, 64, 300]))
    return SmrfMessage(
        random_text(source, 40),
        random_text(source, 40),
        source.choice([NEVER, 0, 1, source.randrange(LAST_TTL)]),
        {
            f"c-{random_text(source, 12)}": random_text(source, 60)
            for _ in range(source.randint(0, 8))
        },
        source.randbytes(source.choice([0, 1, 2, 3, 4, source.randint(0, 3_000)])),
        source.random() < 0.9,
        is_compressed=source.random() < 0.3,
        is_custom_signed=bool(signature),
        signature=signature,
    )


MESSAGES = [random_message(random.Random(seed)) for seed in range(400)]
ENCODINGS = {
    f"{vector['name']}-{maker}": bytes.fromhex(data)
    for vector in VECTORS
    if vector.get("fields") is not None
    for maker, data in vector.get("encodings", {}).items()
}


@pytest.mark.parametrize("name", ENCODINGS)
def test_the_vectors_written_by_us_are_read_there(peer: Peer, name: str) -> None:
    assert_read_there(peer, decode(ENCODINGS[name]))


@pytest.mark.parametrize(
    "vector", [vector for vector in VECTORS if "npmSmrf" in vector.get("encodings", {})]
)
def test_the_vectors_written_there_are_the_bytes_that_we_know(
    peer: Peer, vector: dict[str, Any]
) -> None:
    """The peer that runs here is the one that the vectors came from."""
    data = bytes.fromhex(vector["encodings"]["npmSmrf"])
    message = decode(data)
    if vector["fields"] is None:
        assert message.ttl == 0  # it was asked for the greatest number, and wrote the smallest
        return
    again = peer.encode(message, int(vector["fields"]["ttlMs"]))
    assert decode(again) == message
    if not message.is_compressed:  # another zlib may find other words for the same
        assert again == data


def test_random_messages_written_by_us_are_read_there(peer: Peer) -> None:
    for message in MESSAGES:
        assert_read_there(peer, message)


@pytest.mark.ci
def test_random_messages_written_there_are_read_by_us(peer: Peer) -> None:
    for message in MESSAGES:
        ttl = 2**53 - 1 if message.ttl == NEVER else int(message.ttl)
        assert decode(peer.encode(message, ttl)) == message


def test_what_is_refused_here_and_what_there(peer: Peer) -> None:
    """The two readers differ in what they let pass; that is why we let neither pass."""
    known = {
        vector["name"]: vector["npmSmrf"].partition(":")[0]
        for vector in VECTORS
        if vector["kind"] == "negative"
    }
    for vector in VECTORS:
        if vector["kind"] == "negative":
            answer = peer.decode(bytes.fromhex(vector["hex"]))
            assert ("message" in answer) == (known[vector["name"]] == "accepted")
