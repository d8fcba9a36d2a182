"""Journals as Spark tables and streams: `spark.read.format("waystation")`."""
