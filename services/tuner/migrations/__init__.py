"""Migrations of the tuner's database."""
