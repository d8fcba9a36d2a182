"""What tasks do with whole columns: folds, decisions, traces. Arrow and numpy; no Spark."""
