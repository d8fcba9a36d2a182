"""What a program of the lab needs of the fleet around it, simulated or real."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from waystation.core.record import Record
from waystation.node import StoreSettings
from waystation.testing.lab.history import History, Sent


class Around(ABC):
    """The fleet, as one life of a program sees it."""

    history: History
    rate: float
    """Messages that each sends in a second."""
    sizes: tuple[int, ...]
    """Of payloads."""
    slow: dict[str, float]
    """Seconds that a receiver takes for each message."""

    @abstractmethod
    def now(self) -> float:
        """The time of the fleet."""

    @abstractmethod
    def node_at(self, place: str) -> str | None:
        """The node on whose machine a place is: `tcp#10.77.0.3:4000`, or `tcp#hub-a:4000`."""

    @abstractmethod
    def host_of(self, name: str) -> str:
        """The host of a node."""

    @abstractmethod
    def store_of(self, name: str) -> StoreSettings:
        """Where a node keeps durable messages."""

    @abstractmethod
    def journals_of(self, name: str) -> list[Callable[[Record], None]]:
        """What takes the records of a new life of a node."""

    @abstractmethod
    def give_up(self, why: str) -> None:
        """End it all: it will never settle."""

    @abstractmethod
    def told(self, sent: Sent) -> None:
        """Note what is known of something that was sent: in the end, what became of it."""
