"""The text that Prometheus reads."""

from __future__ import annotations

from collections import Counter

from waystation.net.metrics import counter, exposition, gauge


def test_a_family_has_its_help_its_type_and_its_samples_in_order() -> None:
    drops = Counter({"NO_ROUTE": 2, "EXPIRED": 1})
    text = exposition("x", [gauge("size", "Size.", 1.5), counter("drops", "Drops.", drops, "why")])
    assert text == (
        "# HELP x_size Size.\n# TYPE x_size gauge\nx_size 1.5\n"
        "# HELP x_drops_total Drops.\n# TYPE x_drops_total counter\n"
        'x_drops_total{why="EXPIRED"} 1\nx_drops_total{why="NO_ROUTE"} 2\n'
    )


def test_a_family_without_samples_is_still_announced() -> None:
    assert exposition("x", [gauge("size", "Size.", {}, "of")]).count("\n") == 2


def test_texts_are_escaped() -> None:
    text = exposition("x", [gauge("y", 'a"b\\c\nd', {'a"b\\c\nd': 1}, "l")])
    assert text.splitlines() == [
        '# HELP x_y a"b\\\\c\\nd',
        "# TYPE x_y gauge",
        'x_y{l="a\\"b\\\\c\\nd"} 1',
    ]
