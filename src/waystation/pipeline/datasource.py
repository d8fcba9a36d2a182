"""Waystation as a data source of Spark: journals to read, a fabric to send into.

Only the door stands here: what the source is called, and which part of it answers which call of
Spark's. Reading is in source.py and source_stream.py, sending in sink.py; each is loaded when it is
asked for, since PySpark before 4.2 lacks what they need and the rest of the pipeline does not.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

import pyspark
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from waystation.errors import LocalError

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamArrowWriter,
        DataSourceStreamReader,
        DataSourceWriter,
    )

NAME: Final = "waystation"
PUSHDOWN: Final = "spark.sql.python.filterPushdown.enabled"
_OLDEST: Final = (4, 2)


class WaystationSource(DataSource):
    """What Spark makes for each read and each write of the format `waystation`."""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return NAME

    def schema(self) -> StructType:
        """The columns of the table that is read."""
        from waystation.pipeline.schema import spark_schema  # noqa: PLC0415
        from waystation.pipeline.source_options import Reading  # noqa: PLC0415

        return spark_schema(Reading.of(self.options).schema)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Reads what is there."""
        from waystation.pipeline.source import FilteringReader, JournalReader  # noqa: PLC0415
        from waystation.pipeline.source_options import Reading  # noqa: PLC0415

        reading = Reading.of(self.options)
        return (FilteringReader if reading.pushdown else JournalReader)(reading, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """Reads what comes."""
        from waystation.pipeline.source_options import Reading  # noqa: PLC0415
        from waystation.pipeline.source_stream import JournalStream  # noqa: PLC0415

        return JournalStream(Reading.of(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Sends the rows of a frame."""
        from waystation.pipeline.sink import FrameSender  # noqa: PLC0415

        return FrameSender(self.options, schema, overwrite=overwrite)

    def streamWriter(  # noqa: N802
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamArrowWriter:
        """Sends the rows of each batch of a stream."""
        from waystation.pipeline.sink import StreamSender  # noqa: PLC0415

        return StreamSender(self.options, schema, overwrite=overwrite)


def register(spark: SparkSession) -> None:
    """Register the format `waystation`, which reads journals and sends messages, with a session.

    ```text
    pipeline.register(spark)
    messages = spark.read.format("waystation").option("table", "messages").load("journal/")
    lost = messages.where("node = 'hub' and outcome = 'DROPPED'")
    ```

    It also lets Spark push filters down to sources in Python, which is off unless somebody says so.
    Where that cannot be set, read with the option `pushdown=false`. Call it again in each thread of
    your own that sends.
    """
    found = tuple(int(part) for part in pyspark.__version__.split(".")[:2])
    if found < _OLDEST:
        raise LocalError(
            f"the data source needs PySpark 4.2, but {pyspark.__version__} is installed",
            rule="SP-4",
            hint="pip install --upgrade pyspark, or use read_journal",
        )
    spark.dataSource.register(WaystationSource)
    # To write, Spark looks for the format in the thread's active session; this makes it this one.
    spark.createDataFrame([], "nothing int")
    with contextlib.suppress(PySparkException):  # where it is fixed, Spark says so when one reads
        spark.conf.set(PUSHDOWN, "true")
