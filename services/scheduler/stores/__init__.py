"""Implementations of the store."""
