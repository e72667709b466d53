"""Recorded executions as training data: which rows, and each row's exact tokens."""
