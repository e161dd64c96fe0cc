"""Stores; see `services.tuner.store`."""
