"""Alembic's entry."""

from libs.common.sql import run_env

run_env()
