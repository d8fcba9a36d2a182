"""Rows of Spark frames as messages: `df.write.format("waystation")`."""
