"""Ockam's own node in Rust, doing the same work: see tests/peers/ockam for the program.

Two styles: `--threads 1` runs a whole node on one thread, which is how it is fastest with small
messages and how it compares with one process of ours per core; the default is a thread per core.
The driver is a Rust node as well. Its messages carry no id. The middle of two hops is a node whose
worker forwards into a second connection.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from benchmarks.live.measure import LiveError
from tests.peers import ockam_peer

VERSIONS = {
    "ockam_node": "0.130.0",
    "ockam_transport_tcp": "0.128.0",
    "ockam_identity": "0.125.0",
}


class OckamSubject:
    """The Rust node with so many threads; None for its default."""

    def __init__(self, name: str, threads: int | None) -> None:
        self.name = name
        self._options = () if threads is None else ("--threads", threads)

    def one_way(self, hops: int, size: int, count: int) -> float:
        """Messages per second."""
        with self._staged(hops) as port:
            return float(self._run("bench-oneway", port, self._route(hops, "sink"), size, count))

    def round_trip(self, hops: int, size: int, count: int) -> tuple[float, float]:
        """The median and the 99th percentile in microseconds."""
        with self._staged(hops) as port:
            said = self._run("bench-roundtrip", port, self._route(hops, "raw_echo"), size, count)
        p50, p99 = said.split()
        return float(p50), float(p99)

    def local(self, count: int, size: int) -> tuple[float, float]:
        """Messages and requests per second within one node."""
        one_way, requests = ockam_peer.run("bench-local", count, size, *self._options).split()
        return float(one_way), float(requests)

    def handshakes(self, count: int) -> float:
        """Secure channels per second, opened one after the other."""
        with self._staged_securely() as port:
            return float(self._run("bench-handshakes", port, "secure", count))

    def sealed(self, size: int, count: int) -> float:
        """Messages per second through a secure channel."""
        with self._staged_securely() as port:
            return float(self._run("bench-oneway", port, "sink", size, count, "--secure", "secure"))

    def sealed_round_trip(self, size: int, count: int) -> tuple[float, float]:
        """The median and the 99th percentile in microseconds through a secure channel."""
        with self._staged_securely() as port:
            work = ("raw_echo", size, count, "--secure", "secure")
            p50, p99 = self._run("bench-roundtrip", port, *work).split()
        return float(p50), float(p99)

    def _run(self, mode: str, port: int, *arguments: str | int) -> str:
        try:
            return ockam_peer.run(mode, f"127.0.0.1:{port}", *arguments, *self._options)
        except ockam_peer.PeerFailed as failed:
            raise LiveError(f"{self.name}: {failed}") from failed

    @contextmanager
    def _staged_securely(self) -> Iterator[int]:
        with ockam_peer.serving("--secure", "secure", *self._options) as peer:
            yield peer.port

    @staticmethod
    def _route(hops: int, worker: str) -> str:
        return worker if hops == 1 else f"onward=>{worker}"

    @contextmanager
    def _staged(self, hops: int) -> Iterator[int]:
        with ExitStack() as stack:
            peer = stack.enter_context(ockam_peer.serving(*self._options))
            if hops == 2:
                far = ("--connect", f"127.0.0.1:{peer.port}", "--name", "onward")
                peer = stack.enter_context(ockam_peer.serving(*far, *self._options))
            yield peer.port


ONE_THREAD = OckamSubject("Ockam in Rust, one thread", 1)
DEFAULT = OckamSubject("Ockam in Rust, a thread per core", None)
