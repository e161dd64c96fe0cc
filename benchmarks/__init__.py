"""Benchmarks: each a command that prints a table and ends with a line `RESULT {json}`."""
