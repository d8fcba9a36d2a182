"""The report: the contents of the built tables as one HTML page with charts.

The tables are read with Arrow, in batches; neither Spark nor a network is used.
"""

from waystation.report.writing import Progress, Written, write_report

__all__ = ["Progress", "Written", "write_report"]
