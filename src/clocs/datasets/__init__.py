"""Datasets, one per module; `table` opens one by name."""
