"""What Prometheus reads: families of counters and gauges, and their text format. No sockets here.

What is counted, and under which name, is the business of whoever counts it: see `metrics.py` of the
node, the gossip router and the broker.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


class Family(NamedTuple):
    """All samples of one metric: their labels, as pairs of name and value, and their numbers."""

    name: str
    kind: str
    help_text: str
    samples: list[tuple[tuple[tuple[str, str], ...], float]]


Numbers = float | Mapping[str, float]
"""One number, or a number for each value of a label."""


def counter(name: str, help_text: str, numbers: Numbers, label: str = "") -> Family:
    """A number that only grows, or one for each value of a label.

    >>> print(exposition("shop", [counter("sales", "What was sold.", {"tea": 2}, "kind")]), end="")
    # HELP shop_sales_total What was sold.
    # TYPE shop_sales_total counter
    shop_sales_total{kind="tea"} 2
    """
    return Family(f"{name}_total", "counter", help_text, _samples(numbers, label))


def gauge(name: str, help_text: str, numbers: Numbers, label: str = "") -> Family:
    """A number that is measured now, or one for each value of a label."""
    return Family(name, "gauge", help_text, _samples(numbers, label))


def exposition(prefix: str, families: Iterable[Family]) -> str:
    """The text that Prometheus scrapes."""
    return "".join(line + "\n" for family in families for line in _lines(prefix, family))


def _samples(numbers: Numbers, label: str) -> list[tuple[tuple[tuple[str, str], ...], float]]:
    if not isinstance(numbers, Mapping):
        return [((), numbers)]
    return [(((label, value),), numbers[value]) for value in sorted(numbers)]


def _lines(prefix: str, family: Family) -> Iterator[str]:
    name = f"{prefix}_{family.name}"
    yield f"# HELP {name} {_escape(family.help_text)}"
    yield f"# TYPE {name} {family.kind}"
    for labels, number in family.samples:
        inside = ",".join(f'{label}="{_escape_quoted(value)}"' for label, value in labels)
        yield f"{name}{{{inside}}} {number}" if inside else f"{name} {number}"


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def _escape_quoted(text: str) -> str:
    return _escape(text).replace('"', '\\"')
