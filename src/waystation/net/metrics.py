"""What Prometheus reads: families of counters and gauges, and their text format. No sockets here.

What is counted, and under which name, is the business of whoever counts it: see `metrics.py` of the
node, the gossip router and the broker.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


Numbers = float | Mapping[str, float] | Mapping[tuple[str, str], float]
"""One number, or a number for each value of a label, or of two labels."""


class Family(NamedTuple):
    """All samples of one metric."""

    name: str
    kind: str
    help_text: str
    numbers: Numbers
    labels: tuple[str, ...]


def counter(name: str, help_text: str, numbers: Numbers, *labels: str) -> Family:
    """A number that only grows, or one for each value of these labels.

    >>> print(exposition("shop", [counter("sales", "What was sold.", {"tea": 2}, "kind")]), end="")
    # HELP shop_sales_total What was sold.
    # TYPE shop_sales_total counter
    shop_sales_total{kind="tea"} 2
    """
    return Family(f"{name}_total", "counter", help_text, numbers, labels)


def gauge(name: str, help_text: str, numbers: Numbers, *labels: str) -> Family:
    """A number that is measured now, or one for each value of these labels."""
    return Family(name, "gauge", help_text, numbers, labels)


def exposition(prefix: str, families: Iterable[Family]) -> str:
    """The text that Prometheus scrapes."""
    return "".join(line + "\n" for family in families for line in _lines(prefix, family))


def _lines(prefix: str, family: Family) -> Iterator[str]:
    name = f"{prefix}_{family.name}"
    yield f"# HELP {name} {_escape(family.help_text)}"
    yield f"# TYPE {name} {family.kind}"
    if not isinstance(family.numbers, Mapping):
        yield f"{name} {family.numbers}"
        return
    for key, number in sorted(family.numbers.items()):
        pairs = zip(family.labels, (key,) if isinstance(key, str) else key, strict=True)
        quoted = [(label, _escape(value).replace('"', '\\"')) for label, value in pairs]
        inside = ",".join(f'{label}="{value}"' for label, value in quoted)
        yield f"{name}{{{inside}}} {number}"


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")
