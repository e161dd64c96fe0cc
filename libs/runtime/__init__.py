"""Executes plans: small, in process, with numpy and nothing else. See `docs/libs/runtime.md`."""
