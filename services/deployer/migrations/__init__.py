"""Alembic's scripts, run forward when the deployer starts."""
