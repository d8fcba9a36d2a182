"""Codecs for the formats of other systems, one file each: pure, bounded and incremental."""
