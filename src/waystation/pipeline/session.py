"""A Spark session for people who have none: quiet, local, and well configured.

Only this file knows of Java, of interpreters and of configuration. Every other part of the pipeline
takes whatever session it is given.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from waystation.errors import LocalError

QUIET: Final[Mapping[str, str]] = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",  # as in journals; with statistics
    "spark.sql.sources.partitionColumnTypeInference.enabled": "false",  # a node may be named 7
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
}


def session(
    name: str = "waystation", *, master: str = "local[*]", config: Mapping[str, str] | None = None
) -> SparkSession:
    """A session; the one that is there already, as it is, unless `config` asks for something.

    `master` is any that Spark takes; `sc://…` connects to a Spark Connect server, which brings its
    own configuration. `config` goes over the defaults.

    ```text
    spark = pipeline.session(master="local[4]", config={"spark.driver.memory": "8g"})
    ```
    """
    active = SparkSession.getActiveSession()
    if active is not None and not config:
        return active
    if master.startswith("sc://"):
        return SparkSession.builder.remote(master).appName(name).getOrCreate()
    _check_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    local = master.startswith("local")
    if local:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.appName(name).master(master)
    settings = {**_defaults(local=local), **(config or {})}
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def _defaults(*, local: bool) -> dict[str, str]:
    settings = {
        key: value for key, value in QUIET.items() if local or not key.startswith("spark.driver.")
    }
    if local:
        settings["spark.sql.shuffle.partitions"] = str(2 * (os.cpu_count() or 1))
        settings["spark.driver.memory"] = "2g"
        settings["spark.driver.extraJavaOptions"] = (
            f"-Dlog4j2.configurationFile={_quiet_log()} -Djava.net.preferIPv4Stack=true"
        )
    return settings


def _quiet_log() -> str:
    return (Path(__file__).parent / "log4j2.properties").as_uri()


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
