"""Finds a serving configuration from few trials."""
