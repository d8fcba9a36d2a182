"""Foreign formats: bytes to values and back, one file each, pure, bounded and incremental."""
