"""The page of the report: self-contained, true to the tables, and safe against names in them."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Callable
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from waystation import cli
from waystation.errors import LocalError
from waystation.pipeline.tables import BUILT, REPORTED
from waystation.report import Progress, write_report
from waystation.report.arrays import Found
from waystation.report.blocks import Figure, Words, spread
from waystation.report.page import sections

Row = dict[str, Any]

START = 1_767_225_600_000_000  # the start of 2026
SECOND = 1_000_000
MINUTE = 60 * SECOND

HOSTILE = (
    "<script>alert(1)</script>",
    "\"quoted\" & 'single' </title></svg>",
    "مرحبا-7",
    "🚚-7",
    "turned\u202eround",
    "${jndi}{{ 7 * 7 }}{% raw %}",
    "x" * 300,
)


def write(directory: Path, table: str, rows: list[Row], *, name: str = "part", **how: Any) -> None:
    """One file of a table; missing values are null."""
    (directory / table).mkdir(parents=True, exist_ok=True)
    schema = BUILT[table]
    columns = {key: [row.get(key) for row in rows] for key in schema.names}
    pq.write_table(pa.table(columns, schema), directory / table / f"{name}.parquet", **how)


def write_all(directory: Path, **tables: list[Row]) -> Path:
    for table in BUILT:
        write(directory, table, tables.get(table, []))
    return directory


def id_of(number: int) -> str:
    return f"{number + 1:032x}"


def step(
    node: str,
    at: int,
    outcome: str,
    reason: str | None = None,
    hop: str | None = None,
    to: str | None = None,
) -> Row:
    """A step of a path; `to` is the node that it was sent to, as version 2 tells it."""
    hop = f"1#{to}" if hop is None and to is not None else hop
    told = {"outcome": outcome, "reason": reason, "next_hop": hop, "next_node": to}
    return {"node": node, "at": START + at, "incarnation": 1, **told}


def trace(number: int, *path: Row, **more: Any) -> Row:
    """A trace; steps of one node in a row are a visit, which follows who sent it there."""
    visits: list[list[Row]] = []
    for one in path:
        if visits and visits[-1][0]["node"] == one["node"] and "received_at" not in one:
            visits[-1].append(one)
        else:
            visits.append([one])
    steps: list[Row] = []
    came: set[tuple[int | None, str]] = set()  # the visit that one follows, and its node
    depths: list[int] = []
    for place, visit in enumerate(visits):
        node, received = visit[0]["node"], visit[0].get("received_at", visit[0]["at"])
        former = [
            index
            for index, earlier in enumerate(visits[:place])
            if any(one["outcome"] == "FORWARDED" and _leads(one, node) for one in earlier)
        ]
        follows = former[-1] if former else None
        came.add((follows, node))
        depths.append(0 if follows is None else depths[follows] + 1)
        whence = None if follows is None else visits[follows][0]["node"]
        more_of_it = {"follows": follows, "depth": depths[-1], "from_node": whence}
        steps += [{**one, "received_at": received, **more_of_it} for one in visit]
    first, last = path[0], path[-1]
    gone = last["outcome"] == "FORWARDED"
    lost = last["outcome"] == "DROPPED" or (gone and last["next_node"] is not None)
    return {
        "message_id": id_of(number),
        "started": first["at"],
        "ended": last["at"],
        "hops": len(visits) - 1,
        "path": steps,
        "outcome": "DROPPED" if lost else last["outcome"],
        "reason": "VANISHED" if lost and gone else last["reason"],
        "latency_ms": (last["at"] - first["at"]) / 1_000,
        "complete": not lost and not gone,
        "symmetric": None,
        "looped": False,
        "delivered": sum(one["outcome"] == "DELIVERED" for one in path),
        "lost_copies": int(lost),
        "unknown_copies": 0,
        "left_fleet": 0,
        "fates": [
            _fate(one, (place, str(one["next_node"])) in came, more)
            for place, visit in enumerate(visits)
            for one in visit
        ],
        **more,
    }


def _fate(one: Row, arrived: bool, more: Row) -> str:
    """What became of a copy: with unknown copies, or some that left the fleet, they all did."""
    if one["outcome"] != "FORWARDED":
        return "settled" if one["outcome"] == "QUEUED" else str(one["outcome"]).lower()
    if arrived or one["next_node"] is None:
        return "passed on"
    if more.get("unknown_copies"):
        return "unknown"
    return "left the fleet" if more.get("left_fleet") else "vanished"


def _leads(one: Row, node: str) -> bool:
    return one["next_node"] == node or (one["next_node"] is None and one["next_hop"] is not None)


def window(
    node: str,
    minute: int,
    outcome: str,
    messages: int,
    reason: str | None = None,
    type: str = "tcp",
) -> Row:
    return {
        "node": node,
        "window_start": START + minute * MINUTE,
        "outcome": outcome,
        "reason": reason,
        "address_type": type,
        "messages": messages,
        "bytes": 100 * messages,
        "p50_ms": 0.2,
        "p99_ms": 3.5,
    }


def judged(
    number: int, node: str, expected: str | None, actual: str | None, verdict: str, **more: Any
) -> Row:
    said = {"expected": expected, "actual": actual, "verdict": verdict}
    return {"message_id": id_of(number), "node": node, **said, **more}


def small_fleet(directory: Path, hub: str = "hub", leaf: str = "leaf") -> Path:
    """Two nodes, some messages, and one problem of each kind."""
    paths = [
        trace(
            n,
            step(hub, n * SECOND, "FORWARDED", to=leaf),
            step(leaf, n * SECOND + 2_000, "DELIVERED"),
        )
        for n in range(20)
    ]
    dropped = trace(30, step(hub, 0, "FORWARDED", to=leaf), step(leaf, 900, "DROPPED", "NO_ROUTE"))
    gone = trace(31, step(hub, 0, "FORWARDED", to=leaf))
    full = trace(32, step(hub, 40 * SECOND, "DROPPED", "QUEUE_FULL"))
    wide = trace(33, *(step(hub, 50 * SECOND, "DELIVERED") for _ in range(5)))
    return write_all(
        directory,
        traces=[*paths, dropped, gone, full, wide],
        health=[
            row
            for minute in range(30)
            for row in (
                window(hub, minute, "FORWARDED", 20),
                window(leaf, minute, "DELIVERED", 19, type="local"),
                window(leaf, minute, "DROPPED", minute % 3, "NO_ROUTE", "local"),
            )
        ],
        expected=[
            {"message_id": id_of(30), "node": node, "at": START, "recipient": "truck", **said}
            for node, said in (
                (hub, {"outcome": "FORWARDED", "address": "1#a"}),
                (leaf, {"outcome": "DROPPED", "reason": "NO_ROUTE"}),
            )
        ],
        audit=[
            *(judged(n, hub, "FORWARDED", "FORWARDED", "ok") for n in range(20)),
            judged(30, leaf, "DROPPED", "DROPPED", "ok", reason="NO_ROUTE"),
            judged(31, leaf, "DELIVERED", None, "missing"),
            judged(32, hub, "DELIVERED", "DROPPED", "different", reason="QUEUE_FULL"),
            judged(33, hub, None, "DELIVERED", "unexpected"),
            {
                "node": hub,
                "recipient": "truck",
                "expected": "accepted",
                "actual": "refused",
                "verdict": "different",
            },
        ],
        route_history=[
            {
                "node": hub,
                "incarnation": 1,
                "participant": leaf,
                "address": f"1#{place}",
                "local": False,
                "sticky": False,
                "expiry": START + (n + 1) * MINUTE,
                "valid_from": START + n * MINUTE,
                "valid_to": START + (n + 1) * MINUTE,
                "closed_by": closed,
            }
            for n, (place, closed) in enumerate(
                [("a", "replaced"), ("a", "replaced"), ("b", "removed"), ("c", "expired")]
            )
        ],
        subscription_history=[
            {
                "node": hub,
                "incarnation": 1,
                "pattern": "p/b/*",
                "receiver": leaf,
                "valid_from": START,
            }
        ],
        rejects=[
            {"table": "messages", "node": hub, "file": "f", "row": "{}", "problem": "no outcome"}
        ],
    )


class Reader(HTMLParser):
    """A page as a browser would parse it: elements, attributes and text."""

    VOID = frozenset({"meta", "input", "br", "hr", "img", "link"})

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str | None]] = []
        self.texts: list[str] = []
        self.script = ""
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, key, value) for key, value in attrs]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, key, value) for key, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "script":
            self.script += data
        elif self.open and self.open[-1] != "style":
            self.texts.append(data)

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", " ".join(self.texts))


def page_of(tables: Path, out: Path) -> str:
    write_report(tables, out)
    return out.read_text("utf-8")


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small fleet; no test changes it."""
    made: Path = tmp_path_factory.mktemp("my fleet") / "tables"
    return small_fleet(made)


@pytest.fixture(scope="module")
def page(tables: Path) -> str:
    """The page about it."""
    return page_of(tables, tables.parent / "report.html")


def test_the_page_is_self_contained(page: str) -> None:
    read = Reader(page)
    assert not {"link", "img", "iframe", "object", "embed"} & {*read.tags}
    assert read.tags.count("script") == 1
    for tag, key, value in read.attributes:
        assert not key.startswith("on"), (tag, key)
        if key in ("src", "href", "action"):
            assert value is not None
            assert value.startswith("#")
    assert "default-src 'none'" in page
    assert "url(" not in page
    assert "@import" not in page
    assert "http://" not in page
    assert "https://" not in page


def test_every_link_in_the_page_leads_to_a_section(page: str) -> None:
    read = Reader(page)
    ids = [value for _, key, value in read.attributes if key == "id"]
    assert len({*ids}) == len(ids)
    assert {f"#{id}" for id in ids} >= {v for _, key, v in read.attributes if key == "href"}


def test_pictures_are_well_formed(tmp_path: Path) -> None:
    page = page_of(small_fleet(tmp_path / "t", *HOSTILE[:2]), tmp_path / "report.html")
    pictures = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    assert len(pictures) >= 14
    for picture in pictures:
        drawn = ET.fromstring(picture)  # noqa: S314 - it is our own
        assert drawn.get("aria-label")
        assert "nan" not in picture.lower().replace("nano", "")


@pytest.mark.parametrize(("hub", "leaf"), [*pairwise(HOSTILE)])
def test_names_from_outside_are_escaped(tmp_path: Path, hub: str, leaf: str) -> None:
    page = page_of(small_fleet(tmp_path / "tables", hub, leaf), tmp_path / "report.html")
    read = Reader(page)
    assert read.tags.count("script") == 1
    assert "alert" not in read.script
    assert "\u202e" not in page
    for name in (hub, leaf):
        assert len(name) > 100 or name.replace("\u202e", "\\u202e") in read.text


def test_the_page_begins_with_who_is_missing(tmp_path: Path) -> None:
    life = {"incarnation": 1, "from_time": START, "sample": 1.0, "lost": 0, "sealed": True}
    met = {"node": "hub", "incarnation": 1, "session": "s", "role": "leaf", "opened_at": START}
    tables = write_all(
        tmp_path / "tables",
        coverage=[
            {**life, "node": "hub", "to_time": START + MINUTE},
            {**life, "node": "leaf", "to_time": START + 2 * MINUTE},
        ],
        session_history=[
            {**met, "peer": "leaf"},
            *({**met, "peer": f"<b>\u202e{number}"} for number in range(4)),
            {**met, "peer": "a broker", "role": "global"},
            {**met, "peer": None},
        ],
    )
    page = page_of(tables, tmp_path / "report.html")
    said = "2 of 6 nodes, complete until 2026-01-01 00:01:00 UTC; no record of "
    assert said in Reader(page).text
    assert "&lt;b&gt;\\u202e2 and 1 more</p>" in page
    assert page.index(said) < page.index("<nav")


def test_a_page_of_tables_that_do_not_tell_who_is_missing_says_nothing_of_it(
    tables: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "tables"
    shutil.copytree(tables, copy)
    shutil.rmtree(copy / "coverage")
    assert " nodes, complete until " not in page_of(copy, tmp_path / "report.html")


def test_the_page_shows_the_contents_of_the_tables(page: str) -> None:
    text = Reader(page).text
    for sentence in (
        "1 copy lost between nodes, most from hub to leaf (1).",
        "1 message used a stale route",
        "1 row or file of the journal could not be used.",
        "1 subscription existed at the end, of 1 in total.",
        "QUEUE_FULL",
    ):
        assert sentence in text


def test_the_command_that_explains_a_lost_message_works(
    tables: Path, page: str, capsys: pytest.CaptureFixture[str]
) -> None:
    read = Reader(page)
    commands = {text for text in read.texts if text.startswith("waystation why ")}
    assert f"waystation why {id_of(31)} --tables {shlex.quote(str(tables))}" in commands
    for command in sorted(commands):
        with pytest.raises(SystemExit) as ended:
            cli.main(shlex.split(command)[1:])
        assert ended.value.code == 0, capsys.readouterr()
    capsys.readouterr()


def test_drill_down_leads_from_verdict_to_node_to_reason_to_message(tables: Path) -> None:
    from waystation.report.facts import gather  # noqa: PLC0415
    from waystation.report.reading import Tables  # noqa: PLC0415

    found = gather(Tables(tables), lambda _: None)
    section = next(one for one in sections(found, tables) if one.id == "audit")
    tree = next(block for block in section.blocks if block.block == "tree")
    told = [
        (verdict.label, node.label, reason.label, reason.number, len(reason.commands))
        for verdict in tree.branches  # type: ignore[union-attr]
        for node in verdict.branches
        for reason in node.branches
    ]
    assert told == [
        ("missing", "leaf", "nothing instead of DELIVERED", 1, 1),
        ("different", "hub", "DROPPED QUEUE_FULL instead of DELIVERED", 1, 1),
        ("different", "hub", "refused instead of accepted", 1, 0),
        ("unexpected", "hub", "DELIVERED instead of nothing", 1, 1),
        ("dropped as the rules require", "leaf", "DROPPED NO_ROUTE", 1, 1),
    ]


def test_examples_are_the_first_and_the_last_by_id() -> None:
    found = Found()
    assert found.examples == []
    found.add(2, "b", "c")
    found.add(1, None, None)
    found.add(1, "a", "a")
    assert (found.messages, found.examples) == (4, ["a", "c"])


def test_omitted_parts_are_mentioned(tmp_path: Path) -> None:
    nodes = [f"leaf-{n:04}" for n in range(300)]
    tables = write_all(
        tmp_path / "tables",
        health=[
            window(node, minute, "DROPPED", 1, "NO_ROUTE") for node in nodes for minute in range(10)
        ],
        audit=[judged(n, node, "DELIVERED", None, "missing") for n, node in enumerate(nodes)],
        traces=[
            trace(n, step("hub", n, "FORWARDED", to=node), step(node, n + 5, "DELIVERED"))
            for n, node in enumerate(nodes)
        ],
    )
    text = Reader(page_of(tables, tmp_path / "report.html")).text
    assert "top 20 of 300 links" in text
    assert "top 24 of 300 nodes, by number of drops" in text
    assert "top 200 of 300 nodes, by number of drops" in text
    assert "top 20 of 300 nodes" in text
    assert "Drawn: all 301 nodes" in text


def test_empty_tables_give_friendly_sentences(tmp_path: Path) -> None:
    text = Reader(page_of(write_all(tmp_path / "tables"), tmp_path / "report.html")).text
    for sentence in (
        "Nothing stands out",
        "These tables have no activity.",
        "Nothing was dropped.",
        "The table audit has no rows.",
        "The table health has no rows.",
        "The table route_history has no rows.",
        "These tables have no timed messages.",
        "There are no traces and no subscriptions.",
        "The table traces has no rows.",
        "No journal rows were rejected.",
    ):
        assert sentence in text


def incident(kind: str, at: int, lost: int, cause: str, **more: Any) -> Row:
    told = {"incident_id": f"{kind}-{at}", "kind": kind, "node": "hub", "lost": lost}
    times = {"started": START + at, "ended": START + at + MINUTE}
    return {**told, **times, "cause": cause, "participants": [], "evidence": [], **more}


def test_incidents_come_first_the_costliest_before_the_others(tmp_path: Path) -> None:
    tables = small_fleet(tmp_path / "tables")
    hostile = incident("refused", 3 * MINUTE, 2, HOSTILE[0], node=HOSTILE[1], ended=None)
    trucks = [f"truck-{number}" for number in range(5)]
    told = {"participants": trucks, "evidence": [id_of(1), id_of(2)]}
    crash = incident("node_crashed", MINUTE, 7, "leaf crashed and was back 3.0 s later", **told)
    write(tables, "incidents", [hostile, incident("clock", 0, 0, "hub was slow"), crash])
    page = page_of(tables, tmp_path / "report.html")
    assert HOSTILE[0] not in page
    text = Reader(page).text
    assert "2 incidents cost 9 messages; the worst: leaf crashed and was back 3.0 s later" in text
    cards = re.findall(r"<h3>([^<]*)", page)
    assert [title.strip() for title in cards] == [
        *("A node crashed", "Messages were refused", "A clock was wrong"),
    ]
    assert "2026-01-01 00:01:00 UTC, for 1 min" in text
    assert "2026-01-01 00:03:00 UTC, no end on record" in text
    assert "truck-0, truck-1, truck-2 and 2 more" in text
    assert f"waystation why {id_of(1)} --tables {tables}" in text
    assert text.index("A node crashed") < text.index("Topology", text.index("What stands out"))
    assert page.count('class="band"') % 6 == 0  # each on every chart over time, in both widths
    assert page.count('class="band"') >= 12


def test_a_card_says_in_words_who_went_without_and_what_has_no_kind(tmp_path: Path) -> None:
    tables = small_fleet(tmp_path / "tables")
    unnamed = [f"subscriber-{number:016x}" for number in range(3)]
    write(tables, "incidents", [
        incident("slow_receiver", 0, 3, "a subscriber at leaf had no room", participants=unnamed),
        incident("other", 1, 1, "truck-7 left hub", participants=["truck-7"]),
    ])  # fmt: skip
    text = Reader(page_of(tables, tmp_path / "report.html")).text
    assert "A subscriber at leaf had no room." in text
    assert "3 subscribers" in text
    assert "subscriber-0000000000000000" not in text
    assert "truck-7 left hub" in text
    assert "Other losses" not in text


def test_a_chart_with_one_column_is_a_sentence() -> None:
    told = spread([("1", 5, "t-1"), ("2", 0, "t-1")], "label", "All five are alike.")
    assert told == Words("All five are alike. All are in one group: 1.")
    drawn = spread([("1", 5, "t-1"), ("2", 1, "t-1")], "label", "Five and one.")
    assert isinstance(drawn, Figure)
    assert drawn.caption == "Five and one."


def test_tables_without_incidents_say_so(tmp_path: Path) -> None:
    tables = small_fleet(tmp_path / "tables")
    assert "As far as the tables show, nothing went wrong." in page_of(tables, tmp_path / "a.html")
    shutil.rmtree(tables / "incidents")
    page = page_of(tables, tmp_path / "b.html")
    assert "These tables were built without incidents; build them again" in page
    assert "incidents that cost messages" not in page


@pytest.mark.parametrize("present", REPORTED)
def test_any_table_alone_makes_a_report(tables: Path, tmp_path: Path, present: str) -> None:
    shutil.copytree(tables / present, tmp_path / "part" / present)
    text = Reader(page_of(tmp_path / "part", tmp_path / "report.html")).text
    assert "6 tables are missing" in text


def test_a_missing_table_is_reported(tables: Path, tmp_path: Path) -> None:
    shutil.copytree(tables, tmp_path / "part", ignore=shutil.ignore_patterns("expected"))
    text = Reader(page_of(tmp_path / "part", tmp_path / "report.html")).text
    assert "1 table is missing (expected)" in text


def test_a_directory_without_files_is_an_empty_table(tmp_path: Path) -> None:
    (tmp_path / "tables" / "audit").mkdir(parents=True)
    (tmp_path / "tables" / "audit" / "_SUCCESS").touch()
    assert "The table audit has no rows." in page_of(tmp_path / "tables", tmp_path / "report.html")


def test_the_same_tables_give_the_same_page(tmp_path: Path) -> None:
    tables = small_fleet(tmp_path / "tables")
    first = page_of(tables, tmp_path / "one.html")
    assert page_of(tables, tmp_path / "two.html") == first
    for table in ("traces", "audit", "health"):  # the same rows in other files
        rows = pq.read_table(tables / table).to_pylist()[::-1]
        (tables / table / "part.parquet").unlink()
        write(tables, table, rows[:7], name="a")
        write(tables, table, rows[7:], name="b")
    assert page_of(tables, tmp_path / "three.html") == first


def test_timestamps_of_older_files_are_read_as_well(tmp_path: Path) -> None:
    first = page_of(small_fleet(tmp_path / "tables"), tmp_path / "one.html")
    for table in BUILT:
        rows = pq.read_table(tmp_path / "tables" / table).to_pylist()
        write(tmp_path / "tables", table, rows, use_deprecated_int96_timestamps=True)
    assert page_of(tmp_path / "tables", tmp_path / "two.html") == first


def test_a_directory_without_tables_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(LocalError, match=r"no tables in .*; build them with"):
        write_report(tmp_path, tmp_path / "report.html")
    assert [*tmp_path.iterdir()] == []


def test_a_file_that_is_not_parquet_is_an_error_that_names_the_table(tmp_path: Path) -> None:
    tables = small_fleet(tmp_path / "tables")
    (tables / "audit" / "part.parquet").write_bytes(b"PAR1 not at all")
    with pytest.raises(LocalError, match=r"the table audit in .* cannot be read"):
        write_report(tables, tmp_path / "report.html")


def test_a_table_without_a_column_is_an_error_that_names_it(tmp_path: Path) -> None:
    tables = small_fleet(tmp_path / "tables")
    audit = tables / "audit" / "part.parquet"
    pq.write_table(pq.read_table(audit).drop_columns(["verdict"]), audit)
    with pytest.raises(LocalError, match=r"the table audit in .* has no column verdict"):
        write_report(tables, tmp_path / "report.html")


def test_the_page_is_replaced_atomically(
    tables: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "pages" / "report.html"
    out.parent.mkdir()
    out.write_text("the former page")

    def fail(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(LocalError, match=r"cannot write .* to .*: No space left on device"):
        write_report(tables, out)
    assert out.read_text() == "the former page"
    assert [*out.parent.iterdir()] == [out]
    monkeypatch.undo()
    write_report(tables, out)
    assert [*out.parent.iterdir()] == [out]
    assert out.stat().st_mode & 0o777 == 0o666 & ~_umask()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_a_directory_that_is_not_writable_is_an_error(tables: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(LocalError, match="cannot write the report to"):
        write_report(tables, tmp_path / "file" / "report.html")


def test_progress_is_reported_stage_by_stage(tables: Path, tmp_path: Path) -> None:
    told: list[Progress] = []
    write_report(tables, tmp_path / "report.html", progress=told.append)
    assert [one.number for one in told] == list(range(1, told[0].of + 1))
    assert told[-1].stage == "page"


# The command


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    def call(*arguments: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            cli.main(["pipeline", "report", *map(str, arguments)])
        captured = capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return ended.value.code, captured.out, captured.err

    return call


Run = Callable[..., tuple[int, str, str]]


def test_the_command_writes_the_page_and_says_so(run: Run, tables: Path, tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    code, said, complained = run("--tables", tables, "--out", out, "--title", "A & B")
    assert (code, complained) == (0, "")
    assert re.fullmatch(
        rf"wrote {re.escape(str(out))} \(\d+ kB\): 2 nodes, 24 messages, 3 losses\n", said
    )
    assert "<h1>A &amp; B</h1>" in out.read_text("utf-8")


def test_the_command_reads_its_options_from_the_environment(
    run: Run, tables: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "report.html"
    monkeypatch.setenv("WAYSTATION_TABLES", str(tables))
    monkeypatch.setenv("WAYSTATION_OUT", str(out))
    monkeypatch.setenv("WAYSTATION_TITLE", "Tuesday")
    assert run()[0] == 0
    assert "<h1>Tuesday</h1>" in out.read_text("utf-8")


def test_wrong_usage_is_one_line_and_exit_2(run: Run, tmp_path: Path) -> None:
    for arguments in ((), ("--tables", tmp_path), ("--tables", tmp_path / "none", "--out", "x")):
        code, said, complained = run(*arguments)
        assert (code, said, complained.count("\n")) == (2, "", 1)


def test_an_unreadable_table_is_one_line_and_exit_1(run: Run, tmp_path: Path) -> None:
    code, said, complained = run("--tables", tmp_path, "--out", tmp_path / "report.html")
    assert (code, said, complained.count("\n")) == (1, "", 1)
    assert "waystation pipeline build" in complained


def test_help_says_that_nothing_is_sampled(run: Run) -> None:
    code, said, _ = run("--help")
    assert code == 0
    assert "nothing is sampled" in said
    assert "waystation pipeline report --tables T --out report.html" in said
