"""Network namespaces with a bridge between them, and what can be wrong there: ip and nftables.

A node may be behind a router of its own that translates its address, as at home or in a train: the
others then see the router. Everything has a name of its own in this process, so that labs do not
meet. It needs root.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Collection
from itertools import cycle
from pathlib import Path
from typing import Final, Self

TABLE: Final = "lab"
_RULES: Final = """
table inet lab {
  set silent_in { type ipv4_addr; }
  set silent_out { type ipv4_addr; }
  chain input { type filter hook input priority 0; ip saddr @silent_in drop; }
  chain output { type filter hook output priority 0; ip daddr @silent_out drop; }
  chain loss { type filter hook prerouting priority 0; }
}
"""
_TRANSLATION: Final = """
table ip nat {
  chain out { type nat hook postrouting priority 100; oifname "eth0" masquerade; }
}
"""


def missing(mosquitto: Path | None) -> str:
    """What the live lab needs and does not find here; empty if it can run."""
    for program in ("ip", "nft"):
        if shutil.which(program) is None:
            return f"{program} is not installed (Debian: apt-get install nftables iproute2)"
    if mosquitto is None or not mosquitto.exists():
        return "Mosquitto is not installed (Debian: apt-get install mosquitto)"
    if os.geteuid() != 0:
        return "only root may make network namespaces"
    name = f"wsprobe{os.getpid()}"
    try:
        made = _run("ip", "netns", "add", name, check=False)
        if made.returncode:
            return f"network namespaces cannot be made here: {made.stderr.strip()}"
        ruled = _run("ip", "netns", "exec", name, "nft", "add", "table", "inet", "x", check=False)
        return f"nftables does not work here: {ruled.stderr.strip()}" if ruled.returncode else ""
    finally:
        _run("ip", "netns", "del", name, check=False)


class Network:
    """A namespace for each name, all on one bridge; some behind a router that translates."""

    def __init__(self, names: list[str], behind_routers: Collection[str] = ()) -> None:
        self._prefix = f"ws{os.getpid() % 10_000}"
        self._switch = f"{self._prefix}-switch"
        self.addresses = {name: f"10.78.0.{n}" for n, name in enumerate(names, 1)}
        """How each is seen by the others."""
        self._numbers = {name: n for n, name in enumerate(names, 1)}
        self._routers = {name: f"{self._prefix}-{name}-nat" for name in behind_routers}
        self._spare = cycle([f"10.78.0.{n}" for n in range(100, 250)])

    def __enter__(self) -> Self:
        _run("ip", "netns", "add", self._switch)
        self._in(self._switch, "ip", "link", "add", "bridge", "type", "bridge")
        self._in(self._switch, "ip", "link", "set", "bridge", "up")
        for name in self._numbers:
            self._connect(name)
        return self

    def __exit__(self, *error: object) -> None:
        for space in (*map(self.space, self._numbers), *self._routers.values(), self._switch):
            _run("ip", "netns", "del", space, check=False)

    def _connect(self, name: str) -> None:
        space, router = self.space(name), self._routers.get(name)
        _run("ip", "netns", "add", space)
        self._in(space, "ip", "link", "set", "lo", "up")
        if router is None:
            self._plug_in(space, name)
        else:
            self._put_behind(space, router, name)
        self._in(space, "nft", "-f", "-", text=_RULES)

    def _plug_in(self, space: str, name: str) -> None:
        """Give a namespace an interface on the bridge, with the address of a name."""
        port = f"{self._prefix}p{self._numbers[name]}"
        there = ("peer", "name", port, "netns", self._switch)
        _run("ip", "link", "add", "eth0", "netns", space, "type", "veth", *there)
        self._in(self._switch, "ip", "link", "set", port, "master", "bridge", "up")
        self._in(space, "ip", "addr", "add", f"{self.addresses[name]}/24", "dev", "eth0")
        self._in(space, "ip", "link", "set", "eth0", "up")

    def _put_behind(self, space: str, router: str, name: str) -> None:
        """Put a router between a namespace and the bridge, and let that translate."""
        _run("ip", "netns", "add", router)
        self._plug_in(router, name)
        inside = f"10.79.{self._numbers[name]}"
        there = ("peer", "name", "inside", "netns", router)
        _run("ip", "link", "add", "eth0", "netns", space, "type", "veth", *there)
        self._in(router, "ip", "addr", "add", f"{inside}.1/24", "dev", "inside")
        self._in(router, "ip", "link", "set", "inside", "up")
        self._in(router, "sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward")
        self._in(router, "nft", "-f", "-", text=_TRANSLATION)
        self._in(space, "ip", "addr", "add", f"{inside}.2/24", "dev", "eth0")
        self._in(space, "ip", "link", "set", "eth0", "up")
        self._in(space, "ip", "route", "add", "default", "via", f"{inside}.1")

    def space(self, name: str) -> str:
        """The namespace of a node."""
        return f"{self._prefix}-{name}"

    def command(self, name: str, *words: str) -> list[str]:
        """A command that runs in the namespace of a node."""
        return ["ip", "netns", "exec", self.space(name), *words]

    # What can be wrong

    def cut(self, name: str, others: list[str], *, ways: tuple[str, ...] = ("in", "out")) -> None:
        """Let nothing through between a node and others, in one direction or both."""
        for way in ways:
            self._set("add", name, way, others)

    def mend(self, name: str, others: list[str], *, ways: tuple[str, ...] = ("in", "out")) -> None:
        """Let everything through again."""
        for way in ways:
            self._set("delete", name, way, others)

    def _set(self, act: str, name: str, way: str, others: list[str]) -> None:
        known = ", ".join(self.addresses[other] for other in others)
        where = (act, "element", "inet", TABLE, f"silent_{way}", f"{{ {known} }}")
        self._in(self.space(name), "nft", *where)

    def lose(self, name: str, percent: int) -> None:
        """Lose this share of the packets that arrive at a node; 0 ends that."""
        space = self.space(name)
        self._in(space, "nft", "flush", "chain", "inet", TABLE, "loss")
        if percent:
            rule = ("numgen", "random", "mod", "100", "<", str(percent), "drop")
            self._in(space, "nft", "add", "rule", "inet", TABLE, "loss", *rule)

    def move(self, name: str) -> None:
        """Give a node another address, as after a change of networks.

        One behind a router keeps its own, and the router forgets what it has translated so far.
        """
        space, former = self._routers.get(name, self.space(name)), self.addresses[name]
        taken = set(self.addresses.values())
        self.addresses[name] = next(one for one in self._spare if one not in taken)
        self._in(space, "ip", "addr", "del", f"{former}/24", "dev", "eth0")
        self._in(space, "ip", "addr", "add", f"{self.addresses[name]}/24", "dev", "eth0")

    def _in(self, space: str, *words: str, text: str | None = None) -> None:
        _run("ip", "netns", "exec", space, *words, text=text)


class SmallDisk:
    """A tmpfs of a few megabytes, which can be filled."""

    def __init__(self, path: Path, megabytes: int) -> None:
        self._path = path
        path.mkdir(parents=True, exist_ok=True)
        _run("mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "waystation-lab", str(path))
        self._size = megabytes * 2**20

    def fill(self) -> None:
        """Leave no room."""
        ballast = self._path / "ballast"
        with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(2**16))

    def clear(self) -> None:
        """Make room again."""
        (self._path / "ballast").unlink(missing_ok=True)

    def unmount(self) -> None:
        """Remove it, with what is on it."""
        _run("umount", "--lazy", str(self._path), check=False)


def _run(
    *words: str, check: bool = True, text: str | None = None
) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(  # noqa: S603 - what is written here
        words, input=text, capture_output=True, text=True, check=False
    )
    if check and done.returncode:
        raise OSError(f"{' '.join(words)}: {done.stderr.strip()}")
    return done
