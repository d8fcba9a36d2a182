"""The soak: a fleet that runs for hours, and must not grow."""
