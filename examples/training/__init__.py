"""Training programs that run as jobs."""
