"""Who may touch what: sockets, TLS and the event loop's protocols, the wall clock, tasks."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[2] / "src/waystation"

MODULES = frozenset({"socket", "ssl"})
PROTOCOLS = frozenset({"BufferedProtocol", "DatagramProtocol", "Protocol", "SubprocessProtocol"})
CALLS = frozenset(
    {
        "connect_accepted_socket",
        "create_connection",
        "create_datagram_endpoint",
        "create_server",
        "create_unix_connection",
        "create_unix_server",
        "open_connection",
        "open_unix_connection",
        "sendfile",
        "sock_accept",
        "sock_connect",
        "sock_recv",
        "sock_recv_into",
        "sock_recvfrom",
        "sock_recvfrom_into",
        "sock_sendall",
        "sock_sendfile",
        "sock_sendto",
        "start_server",
        "start_tls",
        "start_unix_server",
    }
)


def _imported(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name.partition(".")[0] for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module is not None:
        yield node.module.partition(".")[0]


def _asyncio_names(tree: ast.AST) -> set[str]:
    """What a module calls those names of asyncio that it imports one by one."""
    return {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "asyncio"
        for alias in node.names
    }


def _is_of_asyncio(base: ast.expr, names: set[str]) -> bool:
    if isinstance(base, ast.Attribute):
        return ast.unparse(base.value).startswith("asyncio") and base.attr in PROTOCOLS
    return isinstance(base, ast.Name) and base.id in names & PROTOCOLS


def knows_sockets(source: str) -> list[str]:
    """What a module does that only `net` may do."""
    tree = ast.parse(source)
    names = _asyncio_names(tree)
    found = []
    for node in ast.walk(tree):
        line = getattr(node, "lineno", 0)
        found += [f"{line}: imports {name}" for name in _imported(node) if name in MODULES]
        if isinstance(node, ast.ClassDef):
            bases = [base for base in node.bases if _is_of_asyncio(base, names)]
            found += [f"{line}: {node.name} is an {ast.unparse(base)}" for base in bases]
        elif isinstance(node, ast.Attribute) and node.attr in CALLS:
            found.append(f"{line}: uses {ast.unparse(node)}")
        elif isinstance(node, ast.Name) and node.id in names & CALLS:
            found.append(f"{line}: uses {node.id}")
    return found


def _all_files() -> Iterator[tuple[str, Path]]:
    for path in sorted(SOURCE.rglob("*.py")):
        yield path.relative_to(SOURCE).as_posix(), path


def _files() -> Iterator[tuple[str, Path]]:
    for name, path in _all_files():
        if not name.startswith(("net/", "testing/simulation/")):  # the latter is a network itself
            yield name, path


def test_only_net_knows_sockets() -> None:
    found = {name: knows_sockets(path.read_text("utf-8")) for name, path in _files()}
    guilty = {name: what for name, what in found.items() if what}
    assert guilty == {}, "these belong into waystation.net"


@pytest.mark.parametrize(
    "source",
    [
        "import socket",
        "import ssl as tls",
        "from socket import AF_INET",
        "def f():\n    from ssl import SSLContext",
        "import asyncio\nclass A(asyncio.Protocol): ...",
        "import asyncio\nclass A(Base, asyncio.BufferedProtocol): ...",
        "from asyncio import DatagramProtocol\nclass A(DatagramProtocol): ...",
        "from asyncio.protocols import Protocol\nclass A(Protocol): ...",
        "import asyncio\nawait asyncio.open_connection('a', 1)",
        "from asyncio import start_server\nawait start_server(f)",
        "make = loop.create_server",
        "await loop.start_tls(a, b, c)",
        "await loop.sock_connect(a, b)",
    ],
)
def test_what_only_net_may_do_is_found(source: str) -> None:
    assert knows_sockets(source)


@pytest.mark.parametrize(
    "source",
    [
        "import asyncio\nasyncio.run(main())",
        "from typing import Protocol\nclass A(Protocol): ...",
        "from waystation.net.datagrams import bound_socket",
        "from .socket import something",
    ],
)
def test_what_everybody_may_do_is_not(source: str) -> None:
    assert not knows_sockets(source)


LIVE = ("core", "gossip_router", "groups", "journal", "mqtt", "net", "node", "transports", "wire")


def test_only_one_file_reads_the_wall_clock() -> None:
    found = [
        name
        for name, path in _all_files()
        if name.startswith(LIVE)
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Attribute) and ast.unparse(node) in {"time.time", "time.time_ns"}
    ]
    assert sorted(set(found)) == ["core/clock.py"]


TASKS = frozenset({"TaskGroup", "create_task", "ensure_future"})
ROOMS_WITH_TASKS = (*LIVE, "console")


def creates_tasks(source: str) -> list[str]:
    """Where a module creates a task that nobody watches."""
    tree = ast.parse(source)
    names = _asyncio_names(tree) & TASKS
    return [
        f"{node.lineno}: uses {ast.unparse(node)}"
        for node in ast.walk(tree)
        if (isinstance(node, ast.Attribute) and node.attr in TASKS)
        or (isinstance(node, ast.Name) and node.id in names)
    ]


def test_only_one_file_creates_tasks() -> None:
    found = [
        name
        for name, path in _all_files()
        if name.startswith(ROOMS_WITH_TASKS) and creates_tasks(path.read_text("utf-8"))
    ]
    assert found == ["net/tasks.py"], "start tasks with waystation.net.tasks.Tasks"


@pytest.mark.parametrize(
    "source",
    [
        "import asyncio\nasyncio.create_task(f())",
        "asyncio.get_running_loop().create_task(f())",
        "start = loop.create_task",
        "import asyncio\nasyncio.ensure_future(f())",
        "from asyncio import ensure_future\nensure_future(f())",
        "async with asyncio.TaskGroup() as group: ...",
    ],
)
def test_a_task_that_nobody_watches_is_found(source: str) -> None:
    assert creates_tasks(source)


READING = frozenset(
    {
        "ParquetDataset",
        "ParquetFile",
        "dataset",
        "memory_map",
        "open_file",
        "open_stream",
        "read_metadata",
        "read_message",
        "read_pandas",
        "read_parquet",
        "read_record_batch",
        "read_schema",
        "read_table",
    }
)
READ_OTHER_FILES = {
    "demo/evidence.py": "built tables",
    "pipeline/building.py": "built tables",
    "pipeline/day_building.py": "built tables",
    "pipeline/kernels/blobs.py": "rows in transit",
    "report/reading.py": "built tables",
    "pipeline/watching/losses.py": "built tables",
    "pipeline/watching/segments.py": "built tables",
    "pipeline/watching/store.py": "rows in transit",
    "pipeline/writing.py": "built tables",
    "simulate/scoring.py": "the truth of a simulated fleet",
    "why/finished.py": "built tables",
}
"""Modules that open files of Arrow or Parquet, but none of a journal."""


def opens_arrow_files(source: str) -> list[str]:
    """Where a module opens files of Arrow or Parquet, by names that it imports from pyarrow."""
    tree = ast.parse(source)
    ours, names = set(), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found = [alias for alias in node.names if alias.name.partition(".")[0] in _ARROW]
            ours |= {alias.asname or alias.name.partition(".")[0] for alias in found}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in _ARROW:
            names |= {alias.asname or alias.name for alias in node.names if alias.name in READING}
            ours |= {alias.asname or alias.name for alias in node.names}
    return [
        f"{node.lineno}: uses {ast.unparse(node)}"
        for node in ast.walk(tree)
        if (
            isinstance(node, ast.Attribute)
            and node.attr in READING
            and ast.unparse(node).partition(".")[0] in ours
        )
        or (isinstance(node, ast.Name) and node.id in names)
    ]


_ARROW = frozenset({"pyarrow", "pandas", "polars", "duckdb"})


def test_only_one_file_opens_those_of_a_journal() -> None:
    found = {
        name for name, path in _all_files() if opens_arrow_files(path.read_text("utf-8"))
    } - READ_OTHER_FILES.keys()
    assert found == {"journal/read.py"}, "read journals with waystation.journal.read"


@pytest.mark.parametrize("name", READ_OTHER_FILES)
def test_what_reads_other_files_does_so(name: str) -> None:
    assert opens_arrow_files((SOURCE / name).read_text("utf-8"))


@pytest.mark.parametrize(
    "source",
    [
        "import pyarrow.parquet as pq\npq.ParquetFile(path)",
        "import pyarrow as pa\nwith pa.ipc.open_stream(file) as stream: ...",
        "import pyarrow.parquet\npyarrow.parquet.read_table(path)",
        "from pyarrow.parquet import ParquetFile\nParquetFile(path)",
        "from pyarrow import parquet as pq\nread = pq.read_metadata",
        "import pyarrow.dataset as ds\nds.dataset(path)",
        "def f():\n    import pandas as pd\n    pd.read_parquet(path)",
    ],
)
def test_what_opens_arrow_files_is_found(source: str) -> None:
    assert opens_arrow_files(source)
