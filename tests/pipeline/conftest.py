"""One Spark session for all tests of the pipeline: starting one takes seconds."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from waystation import pipeline


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    with warnings.catch_warnings():
        # PySpark leaves sockets of its JVM open until the process ends.
        warnings.simplefilter("ignore")
        session = pipeline.session(
            "waystation tests",
            master="local[2]",
            config={"spark.sql.shuffle.partitions": "4", "spark.driver.memory": "1g"},
        )
    yield session
    session.stop()
