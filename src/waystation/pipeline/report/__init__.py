"""The report: what the built tables say, as one page of HTML with pictures.

The tables are read with Arrow, in batches; neither Spark nor a network takes part.
"""

from waystation.pipeline.report.writing import Progress, Written, write_report

__all__ = ["Progress", "Written", "write_report"]
