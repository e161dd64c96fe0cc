"""Alembic's entry point."""

from libs.common.sql import run_env

run_env()
