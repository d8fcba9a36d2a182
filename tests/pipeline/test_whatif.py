"""What would have been (SP-9): a route expires, a leaf crashes, and what would have helped."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pyspark.sql import DataFrame, SparkSession

from tests.pipeline.small import BEGIN, INCARNATION, SECOND, put_rows, row
from tests.pipeline.test_incidents import written
from tests.pipeline.test_steps import plan_of
from waystation import pipeline
from waystation.cli import waystation as program
from waystation.errors import LocalError
from waystation.pipeline.inprocess import survey
from waystation.pipeline.tables import WHATIF
from waystation.simulate.fleet import Fleet
from waystation.whatif import suggesting
from waystation.whatif.asking import Asked, summary
from waystation.whatif.candidates import (
    CANDIDATES,
    HELPFUL,
    OfKind,
    Suggestion,
    candidates_for,
    suggestions_in,
)
from waystation.whatif.changes import changes_of, parse_changes
from waystation.whatif.local import SmallJournal
from waystation.whatif.suggesting import suggestion_lines, with_best
from waystation.whatif.verdicts import Sentence, sentence_of

Row = dict[str, Any]

DELAY = SECOND // 1000
RESTARTED = INCARNATION + 40_000
LAST = 60  # seconds in which a message is sent each


class Story:
    """A sender, a hub and a leaf with a worker, for a minute.

    The hub's route to the worker holds from 1 s to 15 s, from 20 s to 30 s, and from 46 s on. The
    leaf crashes at 35 s and is back at 40 s; the hub notices at 36 s and has its session again at
    45 s. Instead of the crash the leaf `stops` in good order, if asked.
    """

    def __init__(self, journal: Path, *, stops: bool = False) -> None:
        self._journal = journal
        self._rows: dict[tuple[str, str], list[dict[str, Any]]] = {}
        self._numbers: Counter[tuple[str, int]] = Counter()
        for node in ("sender", "hub", "leaf"):
            self._write(node, "nodes", 0, detail="waystation 0.2.0 sample=1.0")
        up: Row = {"role": "parent", "peer": "hub", "place": "1#hub:1"}
        self._write("sender", "sessions", 0, session="up", **up)
        self._write("leaf", "sessions", 0, session="up", **up)
        self._write("hub", "sessions", 0, session="to-sender", role="leaf", peer="sender")
        to_leaf: Row = {"role": "leaf", "peer": "leaf", "place": "1#leaf:1"}
        self._write("hub", "sessions", 0, session="to-leaf", **to_leaf)
        self._worker(0, INCARNATION)
        self._route(1, "to-leaf", until=15)
        self._route(20, "to-leaf", until=30)
        lost: Row = {"kind": "close", "session": "to-leaf", "reason": "TRANSPORT_DOWN"}
        self._write("hub", "sessions", 36, **{**to_leaf, **lost})
        if stops:
            ended: Row = {"kind": "remove", "participant": "worker", "address": "0#worker"}
            self._write("leaf", "nodes", 35, kind="stop")
            self._write("leaf", "routes", 35.000_005, **ended, cause="worker")
        self._write("leaf", "nodes", 40, RESTARTED, detail="waystation 0.2.0 sample=1.0")
        self._write("leaf", "sessions", 44, RESTARTED, session="up", **up)
        self._write("hub", "sessions", 45, session="to-leaf-2", **to_leaf)
        self._worker(41, RESTARTED)
        self._route(46, "to-leaf-2", until=200)
        for second in range(2, LAST):
            self._message(second)
        for node in ("sender", "hub"):
            self._write(node, "members", 90)
        self._write("leaf", "members", 90, RESTARTED)
        for (node, table), rows in self._rows.items():
            for number in {found["incarnation"] for found in rows}:
                own = [found for found in rows if found["incarnation"] == number]
                put_rows(journal, table, own, node, version=2)

    def _write(
        self, node: str, table: str, at: float, number: int = INCARNATION, **columns: Any
    ) -> None:
        seq = self._numbers[node, number]
        self._numbers[node, number] += 1
        found = {**row(table, seq, round(at * SECOND)), "incarnation": number, **columns}
        self._rows.setdefault((node, table), []).append(found)

    def _worker(self, at: int, number: int) -> None:
        own: Row = {"participant": "worker", "address": "0#worker", "cause": "worker"}
        self._write("leaf", "routes", at, number, **own)

    def _route(self, at: int, session: str, until: int) -> None:
        told: Row = {"participant": "worker", "address": f"0#{session}", "local": True}
        expiry = BEGIN + until * SECOND
        self._write("hub", "routes", at, **told, expiry=expiry, session=session, cause="announced")

    def _message(self, second: int) -> None:
        visit: Row = {
            "message_id": f"{second:032x}",
            "onward": ["0#up", "0#worker"],
            "return": ["0#app"],
            "recipient": "up",
            "received_at": BEGIN + second * SECOND,
            "origin": f"sender/{INCARNATION}",
        }
        left: Row = {"outcome": "FORWARDED", "next_hop": "1#hub:1", "out": "up", "next_node": "hub"}
        self._write("sender", "messages", second, **visit, **left)
        at = second + 0.001
        visit = {
            **visit,
            "onward": ["0#worker"],
            "return": ["0#to-sender", "0#app"],
            "recipient": "worker",
            "received_at": BEGIN + second * SECOND + DELAY,
            "origin": None,
            "via": "to-sender",
            "from_node": "sender",
        }
        if not (second < 15 or 20 <= second < 30 or second >= 46):
            self._write("hub", "messages", at, **visit, outcome="DROPPED", reason="NO_ROUTE")
            return
        session = "to-leaf" if second < 40 else "to-leaf-2"
        left = {"outcome": "FORWARDED", "next_hop": f"0#{session}", "out": session}
        self._write("hub", "messages", at, **visit, **left, next_node="leaf")
        arrived: Row = {
            **visit,
            "return": ["0#up", "0#to-sender", "0#app"],
            "received_at": BEGIN + second * SECOND + 2 * DELAY,
            "via": "up",
            "from_node": "hub",
        }
        number = INCARNATION if second < 40 else RESTARTED
        self._write("leaf", "messages", second + 0.002, number, **arrived, outcome="DELIVERED")


LOST = (*range(15, 20), *range(30, 46))


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("whatif") / "journal"
    Story(found)
    return found


@pytest.fixture(scope="module")
def small(journal: Path) -> SmallJournal:
    return SmallJournal(journal)


def ask(small: SmallJournal, change: str) -> list[Row]:
    """The rows about the worker."""
    rows = [found for found in small.rows(parse_changes(change)) if found["recipient"] == "worker"]
    assert len(rows) == LAST - 2
    return rows


def seconds(rows: list[Row], verdict: str) -> list[int]:
    return sorted(int(found["message_id"], 16) for found in rows if found["verdict"] == verdict)


@pytest.mark.rule("SP-9")
def test_an_empty_change_changes_nothing(small: SmallJournal) -> None:
    rows = small.rows(parse_changes(""))
    assert {found["verdict"] for found in rows} == {"same"}
    sentence = sentence_of(parse_changes(""), rows)
    assert (sentence.lost_before, sentence.saved, sentence.lost) == (len(LOST), 0, 0)
    for name in ("outcome", "reason", "node"):
        assert all(found[f"before_{name}"] == found[f"after_{name}"] for found in rows)


@pytest.mark.rule("SP-9")
def test_routes_that_live_longer_save_what_found_none(small: SmallJournal) -> None:
    found = ask(small, '[[ttl]]\nroutes = true\nnode = "hub"\nat_least = "15s"')
    # The first held 14 s and would have held to 16 s, the second 10 s and would have to 35 s.
    assert seconds(found, "saved") == [15, *range(30, 35)]
    assert seconds(found, "lost") == []


@pytest.mark.rule("SP-9")
def test_a_factor_lengthens_a_life_from_its_beginning_on(small: SmallJournal) -> None:
    change = "[[ttl]]\nroutes = true\nfactor = 2"
    found = ask(small, change)
    # The second would have held to 40 s: from 36 s on the hub knows that the leaf is gone.
    assert seconds(found, "saved")[:10] == [*range(15, 20), *range(30, 35)]
    said = str(sentence_of(parse_changes(change), found))
    assert said.startswith("If all routes had lived 2 times as long: ")


@pytest.mark.rule("SP-9")
def test_sticky_routes_do_not_expire(small: SmallJournal) -> None:
    found = ask(small, "[[sticky]]\nparticipant = 'work*'")
    assert set(range(15, 20)) <= set(seconds(found, "saved"))


@pytest.mark.rule("SP-9")
def test_a_route_that_is_put(small: SmallJournal) -> None:
    told = "[[put]]\nat = 2023-11-14T22:13:37Z\nnode = 'hub'\nparticipant = 'worker'\n"  # at 17 s
    told += "address = '0#to-leaf'\nlocal = true\nexpiry = 2023-11-14T22:13:39Z"
    assert seconds(ask(small, told), "saved") == [17, 18]


@pytest.mark.rule("SP-9")
def test_a_route_that_is_removed_loses_what_it_carried(small: SmallJournal) -> None:
    told = "[[remove]]\nat = 2023-11-14T22:13:45Z\nnode = 'hub'\nparticipant = 'worker'"
    found = ask(small, told)  # at 25 s
    assert seconds(found, "lost") == [*range(25, 30)]
    [why] = {one["why"] for one in found if one["verdict"] == "lost"}
    assert why == "at hub: no_route instead of forwarded to 0#to-leaf"


@pytest.mark.rule("SP-9")
def test_a_crash_that_does_not_happen(small: SmallJournal) -> None:
    told = "[[without]]\nkind = 'crash'\nnode = 'leaf'\n"
    found = ask(small, told + "[[ttl]]\nroutes = true\nat_least = '26s'")
    # The route of 20 s holds until 46 s, the leaf is there all the time, and so is its session.
    assert seconds(found, "saved") == [*LOST]


@pytest.mark.rule("SP-9")
def test_without_a_stop_a_node_does_not_end_what_its_workers_had(tmp_path: Path) -> None:
    Story(tmp_path, stops=True)
    told = "[[without]]\nkind = 'stop'\nnode = 'leaf'\n"
    found = ask(SmallJournal(tmp_path), told + "[[ttl]]\nroutes = true\nat_least = '26s'")
    assert seconds(found, "saved") == [*LOST]


@pytest.mark.rule("SP-9")
def test_a_hop_limit_ends_messages_earlier(small: SmallJournal) -> None:
    found = ask(small, "[limits]\nhop_limit = 3")
    assert seconds(found, "same") == [*LOST]
    assert {one["after_reason"] for one in found if one["verdict"] == "lost"} == {"HOP_LIMIT"}
    assert len(seconds(found, "lost")) == LAST - 2 - len(LOST)


@pytest.mark.rule("SP-9")
@pytest.mark.parametrize(
    "change",
    [
        "[[ttl]]\nroutes = true\nnode = 'sender'\nnever = true",
        "[[ttl]]\nroutes = true\nparticipant = 'nobody'\nfactor = 9",
        "[[ttl]]\nmessages = true\nfactor = 9",
        "[[sticky]]\nnode = 'leaf'",
        "[[without]]\nkind = 'remove'",
        "[[without]]\nkind = 'unsubscribe'",
        "[[without]]\nkind = 'close'\nnode = 'sender'",
        "[limits]\nhop_limit = 200",
    ],
)
def test_what_no_change_touches_stays_the_same(small: SmallJournal, change: str) -> None:
    assert {found["verdict"] for found in ask(small, change)} == {"same"}


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ("[[sticky]]\nnode = 'elsewhere'", "no node 'elsewhere'"),
        ("[[without]]\nkind = 'stop'\nnode = 'leaf'", "no stop of 'leaf'"),
    ],
)
def test_what_is_not_in_the_journal_is_refused(
    small: SmallJournal, change: str, problem: str
) -> None:
    with pytest.raises(LocalError, match=problem):
        small.rows(parse_changes(change))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ("[[ttl]]\nfactor = 2", "routes = true or messages = true"),
        ("[[ttl]]\nroutes = true", "exactly one of factor, at_least and never"),
        ("[[ttl]]\nroutes = true\nat_least = 'long'", "invalid duration 'long'"),
        ("[[ttl]]\nroutes = true\nfactor = 0", "factor must be above 0"),
        ("[[sticky]]\nnodes = 'hub'", "unknown field `nodes`"),
        ("[[without]]\nkind = 'rain'", "Invalid enum value 'rain'"),
        ("[[without]]\nkind = 'stop'\nsince = 'noon'", "invalid time 'noon'"),
        ("[[put]]\nat = 2023-11-14T22:13:45Z\nnode = 'hub'", "participant and address"),
        ("[[remove]]\nat = 2023-11-14T22:13:45Z\nnode = 'hub'", "needs participant"),
        ("[limits]\nhop_limit = 0", "1 or more"),
        ("ttl", "Expected '='"),
    ],
)
def test_a_change_file_with_a_mistake_says_what_it_is(change: str, problem: str) -> None:
    with pytest.raises(LocalError, match=problem):
        parse_changes(change)


@pytest.mark.rule("SP-9")
def test_spark_has_the_same_rows(spark: SparkSession, journal: Path, small: SmallJournal) -> None:
    asked = Asked(pipeline.read_journal(spark, journal))
    told = "[[without]]\nkind = 'crash'\n[[ttl]]\nroutes = true\nat_least = '26s'"
    kept = "[[without]]\nkind = 'remove'\n[[room]]\nmessages = 5"
    for change in ("", told, kept):
        frame = asked.frame(parse_changes(change))
        found = sorted(map(str, (row.asDict() for row in frame.collect())))
        assert found == sorted(map(str, small.rows(parse_changes(change))))
    asked.whole.unpersist()


@pytest.mark.rule("SP-9")
def test_no_plan_compares_all_with_all(
    spark: SparkSession, journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans = []
    frames = type(spark.range(1))  # the class that this version of PySpark makes
    collect = frames.collect

    def collect_and_tell(frame: DataFrame) -> list[Any]:
        plans.append(plan_of(frame))
        return collect(frame)

    monkeypatch.setattr(frames, "collect", collect_and_tell)
    asked = Asked(pipeline.read_journal(spark, journal))
    change = parse_changes("[[without]]\nkind = 'crash'\n[[ttl]]\nroutes = true\nat_least = '26s'")
    frame = asked.frame(change)
    summary(change, frame)
    plans.append(plan_of(frame))
    asked.whole.unpersist()
    # What nodes tell, which messages change, their stories, the delays, a hop, and the counts.
    assert len(plans) > 5
    assert sum("Join" in plan for plan in plans) >= 2
    for plan in plans:
        for costly in ("NestedLoop", "Cartesian", "BatchEvalPython"):
            assert costly not in plan


def test_the_command_writes_a_table_and_says_one_sentence(
    spark: SparkSession, journal: Path, tmp_path: Path
) -> None:
    change = tmp_path / "longer.toml"
    change.write_text("[[ttl]]\nroutes = true\nat_least = '15s'\n")
    options = ["--journal", str(journal), "--change", str(change), "--out", str(tmp_path)]
    result = CliRunner().invoke(program, ["pipeline", "whatif", *options])
    assert result.exit_code == 0, result.output
    assert "If all routes had lived at least 15s: 6 of 21 lost messages" in result.output
    table = spark.read.parquet(str(tmp_path / "whatif"))
    assert table.columns == WHATIF.names
    assert table.where("verdict = 'saved'").count() == 6


@pytest.mark.parametrize("options", [[], ["--suggest", "--out", "t"], ["--change", "missing.toml"]])
def test_the_command_wants_one_question(journal: Path, options: list[str]) -> None:
    given = ["pipeline", "whatif", "--journal", str(journal), *options]
    assert CliRunner().invoke(program, given).exit_code == 2


TRIED: tuple[tuple[dict[str, Any], str], ...] = (
    ({"ttl": [{"routes": True, "factor": 2.0}]}, "longer lives"),
    ({"ttl": [{"routes": True, "factor": 4.0}]}, "much longer lives"),
    ({"without": [{"kind": "crash"}]}, "no crashes"),
    ({"without": [{"kind": "stop"}]}, "no stops"),
)


@pytest.mark.rule("SP-9")
def test_suggestions_say_what_would_have_helped_against_each_kind_of_incident(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    del spark  # the existing session is used
    journal = written(tmp_path / "journal", Fleet(9, 120, 1_500, seed=7))
    monkeypatch.setattr(suggesting, "CANDIDATES", TRIED)
    given = ["pipeline", "whatif", "--journal", str(journal), "--suggest", "--json"]
    result = CliRunner().invoke(program, given)
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    kinds = kinds_of_losses(journal)
    lost = Counter(kinds.values())
    small = SmallJournal(journal)
    for change, price in TRIED:
        [found] = [one for one in told if one["price"] == price]
        assert found["change"] == change
        rows = small.rows(changes_of(change))
        counted = [one for one in rows if one["verdict"] == "saved" and not one["internal"]]
        saved = Counter(kinds.get(key_of(one)) for one in counted)
        by_kind = found["by_kind"]
        assert {kind: one["lost"] for kind, one in by_kind.items()} == lost
        assert {kind: one["saved"] for kind, one in by_kind.items() if one["saved"]} == saved
        assert saved.total() == found["sentence"]["saved"]
    best = {
        (kind, one["price"])
        for one in told
        for kind, of_kind in one["by_kind"].items()
        if of_kind["is_best"]
    }
    wanted = {
        ("route_expired", "much longer lives"),
        ("node_crashed", "no crashes"),
        ("node_stopped", "no stops"),
    }
    assert best == wanted


def key_of(found: Row) -> tuple[str, str | None, str | None]:
    return found["message_id"], found["origin"], found["recipient"]


def kinds_of_losses(journal: Path) -> dict[tuple[str, str | None, str | None], str]:
    """The kind of the incident behind each loss of somebody other than a node."""
    found = survey(str(journal)).found
    kinds = {incident.incident_id: incident.kind for incident in found.incidents}
    return {
        (one.loss.message_id, one.loss.origin, one.loss.lost.recipient): kinds[one.incident_id]
        for one in found.losses
        if not one.loss.lost.internal
    }


def test_of_changes_that_save_as_many_the_smallest_is_the_best() -> None:
    def suggested(price: str, saved: int, **of_kinds: int) -> Suggestion:
        kinds = {kind: OfKind(number, 9) for kind, number in of_kinds.items()}
        return Suggestion(Sentence("it had been so", 50, 9, saved, 0, 0, 0, 0), price, {}, kinds)

    small = suggested("little", 4, clock=0, loop=4, refused=0)
    large = suggested("much", 8, clock=0, loop=4, refused=4)
    assert [*suggestion_lines(with_best([small, large])[::-1])] == [
        f"1. {large.sentence}",
        "   Price: much.",
        f"2. {small.sentence}",
        "   Price: little.",
        "For each kind of incident, the smallest change that would have saved most:",
        "   clock: none of these (9 lost)",
        "   loop: 2 (4 of 9 would have arrived)",
        "   refused: 1 (4 of 9 would have arrived)",
    ]
    assert [*suggestion_lines([])] == [
        "none of the changes that were tried would have saved more than it lost"
    ]


@pytest.mark.rule("SP-9")
def test_what_is_tried_in_this_process_depends_on_the_kind_of_incident(small: SmallJournal) -> None:
    for kind, sorts in HELPFUL.items():
        tried = [change for change, _ in candidates_for(kind)]
        tables = {table for change in tried for table in change}
        assert tables == {sort.partition(" ")[0] for sort in sorts}
        kinds = {one["kind"] for change in tried for one in change.get("without", ())}
        assert kinds == {sort.partition(" ")[2] for sort in sorts} - {""}
    assert candidates_for("never_registered") == []
    found = suggestions_in(small, CANDIDATES)
    gains = [one.sentence.saved - one.sentence.lost for one in found]
    assert gains
    assert gains == sorted(gains, reverse=True)
    assert gains[-1] > 0
    assert suggestions_in(small, CANDIDATES, lambda: False) == []
