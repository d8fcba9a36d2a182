"""A Spark session for those who have none: quiet, well configured, on any master.

Only this file knows of Java, of interpreters and of configuration, and only shipping.py of what the
executors need. Every other part of the pipeline uses the session that it is given.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Final
from weakref import WeakSet

from pyspark.sql import SparkSession

from waystation.errors import LocalError
from waystation.net.hosts import reach
from waystation.pipeline.shipping import check_executors, is_connect, is_local, packed_package

EXACT: Final[Mapping[str, str]] = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",  # as in journals; with statistics
    "spark.sql.sources.partitionColumnTypeInference.enabled": "false",  # a node may be named 7
}
"""Settings that every session needs; a Connect server applies them to this session."""

QUIET: Final[Mapping[str, str]] = {
    **EXACT,
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}

CONNECT: Final = "sc://"
STANDALONE: Final = "spark://"
_USUAL_PORTS: Final = {CONNECT: 15_002, STANDALONE: 7_077}
_PLACE: Final = re.compile(r"(?:\[([^]]+)\]|([^:,/;]+))(?::(\d{1,5}))?")
_ANSWER_SECONDS: Final = 10.0
_shipped: Final[WeakSet[SparkSession]] = WeakSet()


def session(
    name: str = "waystation", *, master: str = "local[*]", config: Mapping[str, str] | None = None
) -> SparkSession:
    """A Spark session: the existing one, unchanged unless `config` is given, or a new one.

    `master` is any that Spark accepts; `sc://…` connects to a Spark Connect server, which has its
    own configuration. `config` overrides the defaults. Unless the session is local, this package is
    sent to the executors, and what else they need is checked.

    ```text
    spark = pipeline.session(master="local[4]", config={"spark.driver.memory": "8g"})
    ```
    """
    active = SparkSession.getActiveSession()
    if active is not None and not config:
        return _fit_for_work(active)
    make = _connected if master.startswith(CONNECT) else _started
    made = make(name, master, config or {})
    try:
        return _fit_for_work(made)
    except BaseException:
        if active is None:
            made.stop()
        raise


def _fit_for_work(spark: SparkSession) -> SparkSession:
    ship(spark)
    check_executors(spark)
    return spark


def ship(spark: SparkSession) -> None:
    """Send this package to the executors of a session, if it has not been sent before.

    `session` does this; call it for a session that you created yourself. A local session needs
    nothing.

    ```text
    spark = SparkSession.builder.remote("sc://10.0.0.5:15002").getOrCreate()
    pipeline.ship(spark)
    ```
    """
    if is_local(spark) or spark in _shipped:
        return
    archive = str(packed_package())
    if is_connect(spark):
        spark.addArtifacts(archive, pyfile=True)
    else:
        spark.sparkContext.addPyFile(archive)
    _shipped.add(spark)


def _connected(name: str, master: str, config: Mapping[str, str]) -> SparkSession:
    _check_connect()
    _reached_from(master)
    builder = SparkSession.builder.remote(master).appName(name)
    for key, value in {**EXACT, **config}.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def _started(name: str, master: str, config: Mapping[str, str]) -> SparkSession:
    _check_java()
    local = master.startswith("local")
    own_address = "127.0.0.1" if local else None
    if master.startswith(STANDALONE):
        own_address = _reached_from(master)
    if own_address is not None:
        os.environ.setdefault("SPARK_LOCAL_IP", own_address)
    if own_address is not None and own_address.startswith("127."):
        # Executors on this machine can use its interpreters; others have a `python3` of their own.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if not local:  # as a setting it would replace options that this cluster needs
        os.environ.setdefault("SPARK_SUBMIT_OPTS", _java_options())
    builder = SparkSession.builder.appName(name).master(master)
    for key, value in {**_defaults(local=local), **config}.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def _defaults(*, local: bool) -> dict[str, str]:
    settings = dict(QUIET)
    if local:
        settings["spark.driver.bindAddress"] = "127.0.0.1"
        settings["spark.driver.host"] = "127.0.0.1"
        settings["spark.sql.shuffle.partitions"] = str(2 * (os.cpu_count() or 1))
        settings["spark.driver.memory"] = "2g"
        settings["spark.driver.extraJavaOptions"] = _java_options()
    return settings


def _java_options() -> str:
    quiet_log = (Path(__file__).parent / "log4j2.properties").as_uri()
    return f"-Dlog4j2.configurationFile={quiet_log} -Djava.net.preferIPv4Stack=true"


def _reached_from(master: str) -> str | None:
    """The address of this machine from which a master is reached; LocalError if none listens.

    Spark itself would try for one to ten minutes, and report it less clearly.
    """
    trouble = "it has no host"
    for host, port in places_of(master):
        try:
            return reach(host, port, _ANSWER_SECONDS)
        except OSError as error:
            trouble = error.strerror or str(error) or type(error).__name__
    raise LocalError(
        f"cannot connect to {master}: {trouble}",
        rule="SP-4",
        hint="start Spark there, or give another --master",
    )


def places_of(master: str) -> list[tuple[str, int]]:
    """The hosts and ports in a master's URL.

    >>> places_of("spark://10.0.0.5:7077,10.0.0.6"), places_of("sc://[::1]/;token=x")
    ([('10.0.0.5', 7077), ('10.0.0.6', 7077)], [('::1', 15002)])
    """
    scheme, _, rest = master.partition("://")
    usual = _USUAL_PORTS[f"{scheme}://"]
    found = [_PLACE.match(place) for place in rest.split("/")[0].split(",")]
    return [(place[1] or place[2], int(place[3] or usual)) for place in found if place]


def _check_connect() -> None:
    if all(map(find_spec, ("grpc", "grpc_status", "google", "zstandard"))):
        return
    raise LocalError(
        "Spark Connect needs grpcio and its companions, which are not installed",
        rule="SP-4",
        hint="pip install 'waystation[connect]'",
    )


def _check_java() -> None:
    home = os.environ.get("JAVA_HOME")
    if (home and (Path(home) / "bin" / "java").exists()) or shutil.which("java"):
        return
    raise LocalError(
        "Spark needs Java, which is not installed",
        rule="SP-4",
        hint="install Java 17 or 21 (on Debian: apt-get install openjdk-17-jre-headless) "
        "or set JAVA_HOME",
    )
