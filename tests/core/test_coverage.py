"""What the journal of a node can tell."""

from __future__ import annotations

import pytest

from waystation.core.coverage import (
    MARGIN,
    Gap,
    Life,
    NodeRow,
    covers,
    damages,
    is_sampled,
    lives_of,
)

ID = "4bf92f3577b34da6a3ce929d0e0e4736"
BEGIN = 1_000_000_000


def test_a_node_covers_what_its_record_reaches_beyond() -> None:
    lives = [Life(1, BEGIN, BEGIN + 2 * MARGIN)]
    assert covers(lives, BEGIN, ID)
    assert covers(lives, BEGIN + MARGIN, ID)
    assert not covers(lives, BEGIN + MARGIN + 1, ID)
    assert not covers(lives, BEGIN - 1, ID)
    assert not covers([], BEGIN, ID)


def test_a_later_incarnation_shows_that_nothing_is_missing() -> None:
    lives = [Life(1, BEGIN, BEGIN + 10, BEGIN + 20), Life(2, BEGIN + 20, BEGIN + 9 * MARGIN)]
    assert covers(lives, BEGIN + 15, ID)


def test_nothing_is_covered_where_records_were_lost() -> None:
    lives = [Life(1, BEGIN, BEGIN + 9 * MARGIN, gaps=((BEGIN + 5, BEGIN + 9),))]
    covered = [covers(lives, BEGIN + at, ID) for at in (4, 5, 9, 10)]
    assert covered == [True, False, False, True]


def test_only_what_a_node_keeps_is_covered() -> None:
    kept = [share for share in (0.0, 0.25, 0.5, 0.75, 1.0) if is_sampled(ID, share)]
    assert kept[-1] == 1.0
    assert 0.0 not in kept
    for share in (0.0, 0.5, 1.0):
        lives = [Life(1, BEGIN, BEGIN + 9 * MARGIN, sample=share)]
        assert covers(lives, BEGIN, ID) is (share in kept)


def told(records: dict[int, Gap], *rows: NodeRow) -> list[Life]:
    return lives_of(records, rows, lambda incarnation, seq: 1_000 * incarnation + seq)


def test_an_incarnation_begins_at_its_start_and_ends_at_its_stop_or_the_next() -> None:
    rows = (
        NodeRow(1, 0, 5, "start", "waystation 0.2.0 sample=0.5"),
        NodeRow(2, 0, 90, "start"),
        NodeRow(2, 9, 95, "stop"),
        NodeRow(2, 10, 96, "clock"),
    )
    assert told({2: (91, 96), 1: (7, 9), 3: (100, 101)}, *rows) == [
        Life(1, 5, 9, 90, 0.5),
        Life(2, 90, 96, 95, stopped=True),
        Life(3, 100, 101),
    ]


@pytest.mark.parametrize(
    ("row", "incarnation", "gap"),
    [
        (NodeRow(1, 7, 50, "lost", "overloaded"), 1, (1_006, 50)),
        (NodeRow(2, 1, 120, "lost", "incarnation 1: torn"), 1, (60 - MARGIN, 120)),
        (NodeRow(2, 1, 120, "lost", "incarnation 9: torn"), 2, (2_000, 120)),
        (NodeRow(2, 1, 120, "corrupt", "incarnation 1: messages"), 1, (10, 120)),
        (NodeRow(2, 1, 120, "corrupt"), 2, (100, 120)),
    ],
)
def test_a_loss_spans_the_time_in_which_it_may_have_been(
    row: NodeRow, incarnation: int, gap: Gap
) -> None:
    lives = lives_of({1: (10, 60), 2: (100, 200)}, [row], lambda n, seq: 1_000 * n + seq - 1)
    assert {life.incarnation: life.gaps for life in lives if life.gaps} == {incarnation: (gap,)}


def test_a_node_without_a_record_has_no_lives() -> None:
    assert lives_of({}, [], lambda *_: 0) == []


@pytest.mark.rule("OB-9")
def test_nothing_is_certain_of_an_incarnation_with_damage_that_is_not_sealed_yet() -> None:
    records = {3: (0, 100), 4: (200, 300)}
    told = damages(records, [3, 9])
    first, second = lives_of(records, told, lambda _incarnation, _seq: 0)
    assert (first.gaps, second.gaps) == (((0, 100),), ())
