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


Numbers = float | Mapping[str, float] | Mapping[tuple[str, str], float]
"""One number, or a number for each value of a label, or of two labels."""


def counter(name: str, help_text: str, numbers: Numbers, *labels: str) -> Family:
    """A number that only grows, or one for each value of these labels.

    >>> print(exposition("shop", [counter("sales", "What was sold.", {"tea": 2}, "kind")]), end="")
    # HELP shop_sales_total What was sold.
    # TYPE shop_sales_total counter
    shop_sales_total{kind="tea"} 2
    """
    return _family(f"{name}_total", "counter", help_text, numbers, labels)


def gauge(name: str, help_text: str, numbers: Numbers, *labels: str) -> Family:
    """A number that is measured now, or one for each value of these labels."""
    return _family(name, "gauge", help_text, numbers, labels)


def exposition(prefix: str, families: Iterable[Family]) -> str:
    """The text that Prometheus scrapes."""
    return "".join(line + "\n" for family in families for line in _lines(prefix, family))


def _family(
    name: str, kind: str, help_text: str, numbers: Numbers, labels: tuple[str, ...]
) -> Family:
    if not isinstance(numbers, Mapping):
        return Family(name, kind, help_text, [((), numbers)])
    samples = []
    for key, number in sorted(numbers.items()):
        values = (key,) if isinstance(key, str) else key
        samples.append((tuple(zip(labels, values, strict=True)), number))
    return Family(name, kind, help_text, samples)


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
