"""Waystation as a Spark data source: reads journals, and sends messages.

This module only connects Spark's calls to their implementations:
reading is in source.py and source_stream.py, sending in sink.py. Each is imported when it is
needed, since PySpark before 4.2 lacks what they use and the rest of the pipeline does not need it.
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
    """What Spark instantiates for each read and each write of the format `waystation`."""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return NAME

    def schema(self) -> StructType:
        """The columns of the table that is read."""
        from waystation.pipeline.schema import spark_schema  # noqa: PLC0415
        from waystation.pipeline.source.options import Reading  # noqa: PLC0415

        return spark_schema(Reading.of(self.options).schema)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Create the reader for batch queries."""
        from waystation.pipeline.source.options import Reading  # noqa: PLC0415
        from waystation.pipeline.source.reader import FilteringReader, JournalReader  # noqa: PLC0415

        reading = Reading.of(self.options)
        return (FilteringReader if reading.pushdown else JournalReader)(reading, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """Create the reader for streaming queries."""
        from waystation.pipeline.source.options import Reading  # noqa: PLC0415
        from waystation.pipeline.source.stream import JournalStream  # noqa: PLC0415

        return JournalStream(Reading.of(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Create the writer for a frame."""
        from waystation.pipeline.sink.writer import FrameSender  # noqa: PLC0415

        return FrameSender(self.options, schema, overwrite=overwrite)

    def streamWriter(  # noqa: N802
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamArrowWriter:
        """Create the writer for the batches of a stream."""
        from waystation.pipeline.sink.writer import StreamSender  # noqa: PLC0415

        return StreamSender(self.options, schema, overwrite=overwrite)


def register(spark: SparkSession) -> None:
    """Register the format `waystation`, which reads journals and sends messages, with a session.

    ```text
    pipeline.register(spark)
    messages = spark.read.format("waystation").option("table", "messages").load("journal/")
    lost = messages.where("node = 'hub' and outcome = 'DROPPED'")
    ```

    It also enables filter pushdown to Python data sources, which is off by default.
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
    # For writes, Spark looks up the format in the thread's active session, so set this one there.
    spark.createDataFrame([], "nothing int")
    with contextlib.suppress(PySparkException):  # if it is fixed, Spark reports it on reading
        spark.conf.set(PUSHDOWN, "true")
