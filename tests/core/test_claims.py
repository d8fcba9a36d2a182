"""Who has a name, by the word of the peers: the claims of one node."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from waystation.core import claims as module
from waystation.core.claims import (
    CIRCLE,
    DEAD,
    EXPIRED,
    LONG_PATH,
    NO_PATH,
    PATH_LIMIT,
    RECENT_TIME,
    Claim,
    ClaimChange,
    Claims,
    rank,
)
from waystation.core.expiry import NEVER, Expiry

NAME: Final = "truck-7"
LATE: Final = 100_000  # later than any slot of deadlines that a test uses


def claim(
    session: str,
    owner: str = "red",
    number: int = 1,
    path: str = "leaf",
    *,
    name: str = NAME,
    visible: bool = False,
    expiry: Expiry = NEVER,
) -> Claim:
    """A claim over a session; the path as words, of which the last is the peer."""
    nodes = tuple(path.split())
    peer = nodes[-1] if nodes else ""
    return Claim(name, session.encode(), peer, owner, number, nodes, visible, expiry)


def taken(claims: Claims, word: Claim, now: int = 0) -> ClaimChange:
    change = claims.announce(word, now)
    assert change is not None
    return change


def with_claims(*words: Claim) -> Claims:
    claims = Claims("hub")
    for word in words:
        claims.announce(word, now=0)
    return claims


@pytest.mark.rule("CL-1")
@pytest.mark.parametrize(("path", "is_direct"), [("leaf", True), ("leaf a", False)])
def test_a_claim_tells_where_its_participant_lives(path: str, is_direct: bool) -> None:
    word = claim("s1", path=path)
    assert (word.is_direct, word.origin) == (is_direct, "leaf")


# The order of claims


@pytest.mark.rule("CL-1")
@pytest.mark.parametrize(
    ("better", "worse"),
    [
        # direct before relayed, whatever the number
        (claim("s9", path="leaf", number=1), claim("s1", path="leaf a", number=9)),
        # the shorter path, whatever the number
        (claim("s9", path="leaf b", number=1), claim("s1", path="leaf a a", number=9)),
        # the higher number, whatever the peer
        (claim("s9", path="leaf z", number=2), claim("s1", path="leaf a", number=1)),
        (claim("s9", path="leaf", number=2), claim("s1", path="leaf", number=1)),
        # the smaller name of the peer, whatever the session
        (claim("s9", path="leaf a"), claim("s1", path="leaf b")),
        # the smaller session
        (claim("s1"), claim("s2")),
    ],
)
def test_of_one_owner_the_better_claim_is_the_best_in_whatever_order_they_come(
    better: Claim, worse: Claim
) -> None:
    assert rank(better) < rank(worse)
    for words in ((better, worse), (worse, better)):
        claims = with_claims(*words)
        assert claims.best(NAME, now=0) == better
        assert claims.all(NAME, now=0) == [better, worse]
        assert claims.standbys(NAME, now=0) == []


@pytest.mark.rule("CL-2", "CL-4")
@pytest.mark.parametrize("path", ["leaf", "leaf a"])
@pytest.mark.parametrize("other_path", ["thief", "thief a"])
def test_the_holder_keeps_its_name_against_any_claim_of_another_owner(
    path: str, other_path: str
) -> None:
    holder, other = claim("s1", path=path), claim("s2", "blue", 9, other_path)
    claims = with_claims(holder)
    change = taken(claims, other)
    assert change.before == change.after == holder
    assert change.contest == other  # the holder's session is to be probed
    assert not change.is_move
    assert not change.is_news
    assert claims.standbys(NAME, now=0) == [other]
    assert (claims.count, claims.contested, len(claims)) == (2, 1, 1)


@pytest.mark.rule("CL-1")
def test_when_the_best_goes_the_next_session_of_its_owner_follows_and_then_who_waited_longest() -> (
    None
):
    red, far_red = claim("s1"), claim("s4", number=2, path="leaf a b")
    blue, green = claim("s2", "blue"), claim("s3", "green")
    near_blue = claim("s5", "blue", 2)
    claims = with_claims(red, blue, green, far_red, near_blue)
    change = claims.withdraw(b"s1", NAME, now=0)
    assert change == ClaimChange(NAME, red, far_red, contest=blue, ended=(red,))
    change = claims.withdraw(b"s4", NAME, now=0)
    # The owner that waited longest, and of its claims the best.
    assert change == ClaimChange(NAME, far_red, near_blue, contest=green, ended=(far_red,))
    assert claims.all(NAME, now=0) == [near_blue, blue, green]
    assert claims.session_ended(b"s5", now=0)[0].after == blue
    assert claims.session_ended(b"s2", now=0)[0].after == green
    assert claims.session_ended(b"s3", now=0)[0].after is None
    assert (claims.count, claims.contested, len(claims)) == (0, 0, 0)


@pytest.mark.rule("CL-1", "CL-4")
def test_a_standby_keeps_its_place_when_its_claim_changes_but_not_when_its_owner_does() -> None:
    claims = with_claims(claim("s1"), claim("s2", "blue"), claim("s3", "green"))
    taken(claims, claim("s2", "blue", path="leaf a"))
    assert [c.owner for c in claims.standbys(NAME, now=0)] == ["blue", "green"]
    taken(claims, claim("s2", "black"))
    assert [c.owner for c in claims.standbys(NAME, now=0)] == ["green", "black"]


@pytest.mark.rule("CL-1")
def test_a_session_that_now_tells_of_another_owner_no_longer_tells_of_the_former() -> None:
    red, blue = claim("s1", "red", path="leaf a"), claim("s2", "blue")
    relayed_blue = claim("s1", "blue", path="thief a")
    claims = with_claims(red, blue)
    assert taken(claims, relayed_blue) == ClaimChange(NAME, red, blue, ended=(red,))
    assert claims.all(NAME, now=0) == [blue, relayed_blue]
    assert claims.names_of(b"s1") == (NAME,)


@pytest.mark.rule("CL-2")
def test_taking_back_a_claim_ends_that_claim_only() -> None:
    mine, other = claim("s1"), claim("s2", name="truck-8")
    claims = with_claims(mine, other)
    assert claims.withdraw(b"s2", NAME, now=0) is None
    assert claims.withdraw(b"s1", "truck-9", now=0) is None
    assert claims.get(b"s1", NAME) == mine
    assert claims.withdraw(b"s1", NAME, now=0) == ClaimChange(NAME, mine, None, ended=(mine,))
    assert claims.get(b"s1", NAME) is None
    assert claims.best("truck-8", now=0) == other
    assert list(claims.names_of(b"s1")) == []
    assert claims.session_ended(b"s1", now=0) == []


# What is refused


@pytest.mark.rule("CL-2")
@pytest.mark.parametrize(
    ("path", "refused"),
    [
        ("", NO_PATH),
        ("leaf hub", CIRCLE),
        ("hub a", CIRCLE),
        ("leaf hub a", CIRCLE),
        (" ".join(f"n{number}" for number in range(PATH_LIMIT + 1)), LONG_PATH),
        (" ".join(f"n{number}" for number in range(PATH_LIMIT)), ""),
        ("hub", ""),  # a leaf of the same name: a direct claim cannot have come in a circle
        ("leaf hub-2", ""),
    ],
)
def test_a_claim_that_came_in_a_circle_or_too_far_is_refused(path: str, refused: str) -> None:
    claims = Claims("hub")
    word = claim("s1", path=path)
    assert taken(claims, word) == ClaimChange(NAME, None, None if refused else word, refused)
    assert claims.count == len(claims) == (not refused)


@pytest.mark.rule("CL-2")
@pytest.mark.parametrize(
    "refused",
    [
        claim("s1", path="leaf hub a"),
        claim("s1", path=" ".join("n" * 17)),
        claim("s1", expiry=0),
        claim("s1", "blue", number=1),
    ],
)
def test_a_refused_claim_ends_the_former_one_of_its_session(refused: Claim) -> None:
    former, other = claim("s1", path="leaf a"), claim("s2", path="leaf b")
    claims = with_claims(former, other)
    claims.note_lowest("blue", 2, now=0)
    change = taken(claims, refused)
    assert change.refused
    assert (change.before, change.after, change.ended) == (former, other, (former,))
    assert list(claims.names_of(b"s1")) == []
    assert claims.count == 1


# What is known already, and renewals


@pytest.mark.rule("CL-3")
def test_what_is_known_already_changes_nothing() -> None:
    claims = with_claims(claim("s1", expiry=50), claim("s2", "blue"))
    assert claims.announce(claim("s1", expiry=50), now=49) is None
    assert claims.announce(claim("s2", "blue"), now=49) is None


@pytest.mark.rule("CL-3")
@pytest.mark.parametrize("renewed", [claim("s1", expiry=90), claim("s1", expiry=50, visible=True)])
def test_a_renewal_is_news_for_parents_but_the_best_has_not_moved(renewed: Claim) -> None:
    first = claim("s1", expiry=50)
    change = taken(with_claims(first), renewed)
    assert change == ClaimChange(NAME, first, renewed)
    assert (change.is_news, change.is_move) == (True, False)


@pytest.mark.rule("CL-3", "CL-7")
def test_parents_do_not_care_over_which_session_the_best_comes() -> None:
    first, twin = claim("s1", path="leaf a"), claim("s0", path="leaf a")
    change = taken(with_claims(first), twin)
    assert (change.before, change.after, change.ended) == (first, twin, ())
    assert (change.is_news, change.is_move) == (False, True)


@pytest.mark.rule("CL-3", "CL-7")
@pytest.mark.parametrize(
    "word",
    [
        claim("s1", path="leaf b a"),
        claim("s1", number=2, path="leaf a"),
        claim("s1", "blue", path="leaf a"),  # the leaf has restarted
    ],
)
def test_another_path_number_or_owner_moves_the_best(word: Claim) -> None:
    change = taken(with_claims(claim("s1", path="leaf a")), word)
    assert change.after == word
    assert change.is_news
    assert change.is_move


@pytest.mark.rule("CL-7")
def test_the_first_claim_and_the_end_of_the_last_change_the_best_and_a_standby_does_not() -> None:
    claims = Claims("hub")
    first = taken(claims, claim("s1"))
    assert (first.is_news, first.is_move) == (True, True)
    refused = taken(claims, claim("s2", path="a hub b"))
    assert (refused.is_news, refused.is_move) == (False, False)
    second = taken(claims, claim("s3", "blue"))
    assert (second.is_news, second.is_move) == (False, False)
    claims.withdraw(b"s3", NAME, now=0)
    last = claims.withdraw(b"s1", NAME, now=0)
    assert last is not None
    assert (last.is_news, last.is_move) == (True, True)
    nothing = taken(claims, claim("s1", expiry=0))
    assert (nothing.is_news, nothing.is_move) == (False, False)


# Expiry


@pytest.mark.rule("CL-1")
def test_an_expired_claim_is_no_claim() -> None:
    mine, other = claim("s1", expiry=50), claim("s2", "blue")
    claims = with_claims(mine, other)
    assert claims.best(NAME, now=49) == mine
    assert claims.best(NAME, now=50) == other
    assert claims.standbys(NAME, now=50) == []
    assert claims.get(b"s1", NAME) == mine  # until something ends it
    change = taken(claims, replace(other, visible=True), now=50)
    assert (change.before, change.after) == (mine, replace(other, visible=True))
    assert change.ended == (mine,)


@pytest.mark.rule("CL-1")
def test_an_expired_best_leaves_the_name_to_its_own_owner_if_it_has_another_claim() -> None:
    second = claim("s3", path="leaf a")
    claims = with_claims(claim("s1", expiry=50), claim("s2", "blue"), second)
    assert claims.best(NAME, now=50) == second
    change = claims.expire(NAME, now=50)
    assert change is not None
    assert change.after == second
    assert claims.expire(NAME, now=50) is None


@pytest.mark.rule("CL-1")
def test_a_claim_that_has_expired_on_the_way_is_refused() -> None:
    claims = Claims("hub")
    assert taken(claims, claim("s1", expiry=50), now=50).refused == EXPIRED
    taken(claims, claim("s1", expiry=60), now=50)
    assert taken(claims, claim("s1", expiry=60), now=60).refused == EXPIRED
    assert len(claims) == 0


@pytest.mark.rule("CL-1")
def test_cleaning_up_ends_what_has_expired_and_what_was_renewed_later() -> None:
    mine, renewed = claim("s1", expiry=50), claim("s1", expiry=60_000)
    claims = with_claims(mine, claim("s2", name="truck-8"), claim("s3", name="truck-9", expiry=50))
    taken(claims, renewed)
    taken(claims, claim("s2", name="truck-8", expiry=70))
    taken(claims, claim("s4", expiry=90))
    claims.withdraw(b"s3", "truck-9", now=0)
    assert claims.purge(now=49) == []
    changes = claims.purge(now=20_000)
    assert {change.participant: len(change.ended) for change in changes} == {NAME: 1, "truck-8": 1}
    assert claims.all(NAME, now=20_000) == [renewed]
    assert claims.purge(now=59_000) == []
    assert [change.before for change in claims.purge(now=LATE)] == [renewed]
    assert claims.count == len(claims) == claims._filed == 0


@pytest.mark.rule("CL-1")
def test_what_has_expired_meanwhile_has_ended_even_if_another_session_says_the_same() -> None:
    mine, twin = claim("s1", path="leaf a", expiry=50), claim("s2", path="leaf a", expiry=60)
    assert taken(with_claims(mine), twin, now=50).ended == (mine,)


@pytest.mark.rule("CL-1")
def test_an_expiry_that_came_nearer_holds() -> None:
    claims = with_claims(claim("s1", expiry=90_000))
    taken(claims, claim("s1", expiry=50))
    assert len(claims.purge(now=20_000)) == 1


def test_obsolete_deadlines_do_not_pile_up() -> None:
    claims = with_claims(claim("s0", name="truck-8"))
    for number in range(10_000):
        taken(claims, claim("s1", number=number, expiry=90_000))
        claims.withdraw(b"s1", NAME, now=0)
    taken(claims, claim("s1", expiry=90_000))
    assert claims._filed < 2_000
    assert len(claims.purge(now=LATE)) == 1


# Numbers


@pytest.mark.rule("CL-1", "CL-6")
def test_claims_below_the_lowest_number_of_their_owner_are_dead_wherever_they_stand() -> None:
    old, new = claim("s1", number=2), claim("s2", number=3, path="leaf a")
    older = claim("s3", number=1, path="leaf b")
    claims = with_claims(old, new, older, claim("s4", "blue"), claim("s2", number=3, name="x"))
    (change,) = claims.note_lowest("red", 3, now=0)
    assert (change.before, change.after) == (old, new)
    assert change.dead == change.ended == (old, older)
    assert claims.lowest("red") == 3
    assert claims.note_lowest("red", 2, now=0) == []  # it only ever grows
    assert claims.lowest("red") == 3
    assert claims.best("x", now=0) is not None


@pytest.mark.rule("CL-1", "CL-6")
def test_a_claim_that_is_dead_when_it_arrives_is_refused_and_its_session_probed() -> None:
    claims = with_claims(claim("s1", number=3))
    claims.note_lowest("red", 3, now=0)
    late = claim("s2", number=2, path="leaf a")
    change = taken(claims, late)
    assert (change.refused, change.dead, change.ended) == (DEAD, (late,), ())
    assert change.after == claim("s1", number=3)


@pytest.mark.rule("CL-1")
def test_a_late_claim_does_not_come_back_when_all_others_of_its_owner_have_gone() -> None:
    claims = with_claims(claim("s1", number=2))
    claims.note_lowest("red", 2, now=0)
    claims.session_ended(b"s1", now=0)
    assert claims.lowest("red") == 2
    assert taken(claims, claim("s2", number=1, path="leaf a")).refused == DEAD
    assert not taken(claims, claim("s2", number=2, path="leaf a")).refused
    assert claims.lowest("red") == 2
    assert not taken(claims, claim("s3", "blue", number=1)).refused


@pytest.mark.rule("CL-1")
def test_word_of_an_owner_without_claims_is_remembered_for_ten_minutes() -> None:
    claims = Claims("hub")
    assert claims.note_lowest("red", 3, now=0) == claims.note_lowest("red", 2, now=0) == []
    assert claims.lowest("red") == 3
    assert taken(claims, claim("s1", number=2)).refused == DEAD
    claims.purge(now=RECENT_TIME - 1)
    assert claims.lowest("red") == 3
    claims.purge(now=RECENT_TIME)
    assert claims.lowest("red") == 0


@pytest.mark.rule("CL-1")
def test_parents_are_told_once_of_a_number_that_has_grown_if_its_owner_has_claims_here() -> None:
    claims = with_claims(claim("s1", number=3), claim("s2", "blue"))
    assert claims.take_grown() == []
    claims.note_lowest("red", 1, now=0)  # all sessions live: nobody has to be told
    claims.note_lowest("black", 7, now=0)  # has no claim: in a ring that could go round for ever
    assert claims.take_grown() == []
    claims.note_lowest("red", 2, now=0)
    claims.note_lowest("red", 3, now=0)
    claims.note_lowest("blue", 1, now=0)
    assert claims.has_grown
    assert claims.lowest_numbers() == claims.take_grown() == [("red", 3)]
    assert claims.take_grown() == []
    taken(claims, claim("s3", "black", number=8, name="x"))  # now it has one
    assert claims.take_grown() == [("black", 7)]
    claims.note_lowest("black", 8, now=0)
    claims.session_ended(b"s3", now=0)
    assert claims.take_grown() == []
    assert claims.lowest_numbers() == [("red", 3)]


# Who is probed


@pytest.mark.rule("CL-6")
def test_a_contest_begins_with_a_new_standby_and_with_a_new_best_before_others() -> None:
    red, blue, green = claim("s1"), claim("s2", "blue"), claim("s3", "green")
    claims = with_claims(red)
    assert taken(claims, blue).contest == blue
    assert taken(claims, replace(blue, visible=True)).contest is None
    assert taken(claims, claim("s2", "blue", path="thief a")).contest is None
    assert taken(claims, green).contest == green
    assert taken(claims, replace(red, visible=True)).contest is None
    moved = taken(claims, claim("s1", number=2))  # another session of its leaf may be half open too
    assert moved.contest == claim("s2", "blue", path="thief a")
    ended = claims.withdraw(b"s1", NAME, now=0)
    assert ended is not None
    assert (ended.after, ended.contest) == (claim("s2", "blue", path="thief a"), green)
    ended = claims.withdraw(b"s2", NAME, now=0)
    assert ended is not None
    assert (ended.after, ended.contest) == (green, None)


@pytest.mark.rule("CL-6")
def test_the_best_is_doubted_when_its_owner_has_a_newer_session() -> None:
    near, far = claim("s1", number=2), claim("s2", number=3, path="leaf a b")
    claims = with_claims(near)
    assert taken(claims, far).doubted == near
    assert taken(claims, replace(far, visible=True)).doubted is None
    older = taken(claims, claim("s3", number=1, path="leaf c"))
    assert older.doubted is None  # the best is still the same
    ended = claims.withdraw(b"s1", NAME, now=0)
    assert ended is not None
    assert ended.after == ended.doubted == claim("s3", number=1, path="leaf c")
    assert taken(claims, claim("s4", number=4)).doubted is None


# Names that were claimed a while ago


@pytest.mark.rule("CL-4")
def test_a_name_is_recent_while_it_is_claimed_and_ten_minutes_longer() -> None:
    claims = with_claims(claim("s1"), claim("s2", name="truck-8", expiry=50))
    assert claims.is_recent(NAME, now=10**12)
    assert not claims.is_recent("truck-9", now=0)
    claims.withdraw(b"s1", NAME, now=1_000)
    assert claims.is_recent(NAME, now=1_000 + RECENT_TIME - 1)
    assert not claims.is_recent(NAME, now=1_000 + RECENT_TIME)
    for _ in range(2):  # cleaned up or not
        assert claims.is_recent("truck-8", now=50 + RECENT_TIME - 1)
        assert not claims.is_recent("truck-8", now=50 + RECENT_TIME)
        claims.purge(now=LATE)
    taken(claims, claim("s1"), now=LATE)
    claims.withdraw(b"s1", NAME, now=LATE)
    assert claims.is_recent(NAME, now=LATE + RECENT_TIME - 1)
    claims.purge(now=LATE + RECENT_TIME)
    assert not claims.is_recent(NAME, now=LATE)


@pytest.mark.rule("CL-4")
def test_the_oldest_of_too_many_recent_names_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RECENT_LIMIT", 2)
    names = ["a", "b", "a", "c"]
    claims = Claims("hub")
    for now, name in enumerate(names):
        taken(claims, claim("s1", name=name), now)
        claims.withdraw(b"s1", name, now)
    assert {name: claims.is_recent(name, now=9) for name in names} == {
        "a": True,
        "b": False,
        "c": True,
    }


def test_claims_of_one_owner_share_their_values() -> None:
    words = [claim("s1", path="leaf a", name=f"truck-{number}") for number in range(3)]
    claims = with_claims(*words, claim("s2", path="leaf a", name="x"), claim("s3", name="y"))
    first, second, third = (claims.get(b"s1", word.participant) for word in words)
    assert first is not None
    assert second is not None
    assert third is not None
    assert first.path is second.path is third.path
    assert first.session is second.session
    assert claims.get(b"s2", "x") == claim("s2", path="leaf a", name="x")
    assert sorted(claims.names_of(b"s1")) == ["truck-0", "truck-1", "truck-2"]


# Against a slow, obvious one


class Slow:
    """The rules, by looking at everything that was ever said and still holds."""

    def __init__(self) -> None:
        self.claims: list[Claim] = []  # in the order in which their owners came to the name
        self.holders: dict[str, str] = {}
        self.lowest: dict[str, int] = {}

    def settle(self, now: int) -> None:
        self.claims = [c for c in self.claims if now < c.expiry and not self.is_dead(c)]
        for name in {c.participant for c in self.claims} | set(self.holders):
            owners = [c.owner for c in self.claims if c.participant == name]
            if not owners:
                del self.holders[name]
            elif self.holders.get(name) not in owners:
                self.holders[name] = owners[0]

    def is_dead(self, word: Claim) -> bool:
        return word.number < self.lowest.get(word.owner, 0)

    def announce(self, word: Claim, now: int) -> None:
        key = (word.participant, word.session)
        at = next((i for i, c in enumerate(self.claims) if (c.participant, c.session) == key), None)
        refused = (len(word.path) > 1 and "hub" in word.path) or now >= word.expiry
        if at is not None:
            former = self.claims.pop(at)
            if former.owner != word.owner:
                at = None
        if not refused and not self.is_dead(word):
            self.claims.insert(len(self.claims) if at is None else at, word)

    def all(self, name: str) -> list[Claim]:
        found = [c for c in self.claims if c.participant == name]
        holder = self.holders.get(name)
        return sorted((c for c in found if c.owner == holder), key=rank)[:1] + [
            c for c in found if c.owner != holder
        ]


words = st.builds(
    claim,
    st.sampled_from(["s1", "s2", "s3", "s4"]),
    st.sampled_from(["red", "blue", "green"]),
    st.integers(1, 4),
    st.sampled_from(["leaf", "leaf a", "leaf b", "leaf a b", "leaf hub a"]),
    name=st.sampled_from(["x", "y"]),
    expiry=st.sampled_from([NEVER, NEVER, 20, 40, 10_000]),
)
events = st.one_of(
    words,
    words,
    st.tuples(st.just("withdraw"), st.sampled_from(["s1", "s2", "s3"]), st.sampled_from("xy")),
    st.tuples(st.just("end"), st.sampled_from(["s1", "s2", "s3"])),
    st.tuples(st.just("lowest"), st.sampled_from(["red", "blue"]), st.integers(1, 4)),
    st.tuples(st.just("purge")),
)


@pytest.mark.rule("CL-1", "CL-2", "CL-4")
@given(st.lists(st.tuples(st.integers(0, 5), events), max_size=40))
def test_claims_are_kept_as_a_slow_obvious_one_would(happened: list[tuple[int, Any]]) -> None:
    claims, slow, now = Claims("hub"), Slow(), 0
    seen: dict[str, Claim | None] = {"x": None, "y": None}  # the best, by what changes tell
    for passed, event in happened:
        now += passed
        slow.settle(now)
        for change in happens(claims, slow, event, now):
            assert seen[change.participant] == change.before
            seen[change.participant] = change.after
            check_change(change)
        slow.settle(now)
        for name in ("x", "y"):
            check_name(claims, slow, name, now)
        live = [c for name in ("x", "y") for c in claims.all(name, now)]
        assert sorted(map(repr, live)) == sorted(map(repr, slow.claims))
    for name in ("x", "y"):
        expired = claims.expire(name, now)
        seen[name] = expired.after if expired else seen[name]
        assert seen[name] == claims.best(name, now)
    assert claims.count == len(slow.claims)
    for session in (b"s1", b"s2", b"s3", b"s4"):
        names = {c.participant for c in slow.claims if c.session == session}
        assert set(claims.names_of(session)) == names
    assert claims.contested == sum(
        len({c.owner for c in slow.claims if c.participant == name}) > 1 for name in "xy"
    )


def happens(claims: Claims, slow: Slow, event: Any, now: int) -> Iterator[ClaimChange]:
    """Let both see an event."""
    changes: list[ClaimChange | None]
    if isinstance(event, Claim):
        slow.announce(event, now)
        changes = [claims.announce(event, now)]
    elif event[0] == "withdraw":
        session, name = event[1].encode(), event[2]
        slow.claims = [c for c in slow.claims if (c.session, c.participant) != (session, name)]
        changes = [claims.withdraw(session, name, now)]
    elif event[0] == "end":
        session = event[1].encode()
        slow.claims = [c for c in slow.claims if c.session != session]
        changes = [*claims.session_ended(session, now)]
    elif event[0] == "lowest":
        _, owner, lowest = event
        slow.lowest[owner] = max(slow.lowest.get(owner, 0), lowest)
        changes = [*claims.note_lowest(owner, lowest, now)]
        assert claims.lowest(owner) == slow.lowest[owner] or slow.lowest[owner] == 1
    else:
        changes = [*claims.purge(now)]
    yield from (change for change in changes if change is not None)


def check_change(change: ClaimChange) -> None:
    if change.contest is not None:
        assert change.after is not None
        assert change.contest.owner != change.after.owner
    if change.doubted is not None:
        assert change.doubted == change.after
    assert change.after not in change.ended


def check_name(claims: Claims, slow: Slow, name: str, now: int) -> None:
    expected = slow.all(name)
    assert claims.best(name, now) == (expected[0] if expected else None)
    assert claims.standbys(name, now) == expected[1:]


# Many names at once


@given(
    st.lists(st.sets(st.integers(0, 6), min_size=1), min_size=1, max_size=3),
    st.sets(st.integers(0, 6)),
    st.sampled_from([NEVER, 50]),
)
def test_first_claims_taken_together_are_as_if_taken_one_by_one(
    parts: list[set[int]], departed: set[int], expiry: Expiry
) -> None:
    one_by_one, together = Claims("hub"), Claims("hub")
    for claims in (one_by_one, together):
        for number in departed:  # names and an owner that are remembered
            claims.announce(claim("s0", number=2, name=f"name-{number}"), 0)
        claims.note_lowest("red", 2, 0)
        claims.session_ended(b"s0", 0)
    left = {f"name-{number}" for number in range(7)}
    for part in parts:
        names = sorted(left & {f"name-{number}" for number in part})
        left -= set(names)
        words = [claim("s1", number=2, name=name, expiry=expiry) for name in names]
        for word in words:
            assert not together.objection(word.owner, word.number, word.path)
            assert together.find(word.participant) is None
            one_by_one.announce(word, 1)
        if words:
            assert together.are_free(names)
            told = {word.participant: word for word in words}
            together.announce_first(told, expire=expiry != NEVER)
            assert not together.are_free(names)
            assert together.latest("red") == words[-1]
    for name in (f"name-{number}" for number in range(7)):
        assert together.find(name) == one_by_one.find(name)
        assert together.is_recent(name, 2) == one_by_one.is_recent(name, 2)
    assert list(together.names_of(b"s1")) == list(one_by_one.names_of(b"s1"))
    assert (together.count, together.lowest("red")) == (one_by_one.count, one_by_one.lowest("red"))
    assert together.lowest_numbers() == one_by_one.lowest_numbers()
    assert together.take_grown() == one_by_one.take_grown()
    assert together.note_lowest("red", 3, 3) == one_by_one.note_lowest("red", 3, 3)
    assert together.purge(LATE) == one_by_one.purge(LATE)
    assert (len(together), together.count) == (0, 0)
    assert together.latest("red") is None


def test_names_taken_together_belong_to_their_session_and_their_owner_apart() -> None:
    claims = Claims("hub")
    claims.announce_first({name: claim("s1", name=name) for name in "ab"})
    claims.announce(claim("s2", name="c"), 0)
    assert list(claims.names_of(b"s1")) == ["a", "b"]
    assert [change.participant for change in claims.session_ended(b"s1", 1)] == ["a", "b"]
    assert [change.participant for change in claims.note_lowest("red", 2, 2)] == ["c"]


@pytest.mark.rule("CL-2")
def test_what_is_refused_of_one_way_is_refused_of_all_its_names() -> None:
    claims = with_claims(claim("s1", number=3))
    claims.note_lowest("red", 2, 0)
    ways = ["", "a " * (PATH_LIMIT + 1), "leaf hub b", "leaf"]
    found = [claims.objection("red", 1, tuple(path.split())) for path in ways]
    assert found == [NO_PATH, LONG_PATH, CIRCLE, DEAD]
    assert claims.objection("red", 2, ("leaf",)) == ""


def test_the_only_claim_to_a_name_is_withdrawn_by_its_session_alone() -> None:
    claims = with_claims(claim("s1", expiry=10))
    assert claims.withdraw(b"s2", NAME, 5) is None
    change = claims.withdraw(b"s1", NAME, 20)
    assert change == ClaimChange(
        NAME, claim("s1", expiry=10), None, ended=(claim("s1", expiry=10),)
    )
    assert not claims.is_recent(NAME, 10 + RECENT_TIME)
    assert claims.is_recent(NAME, 9 + RECENT_TIME)
