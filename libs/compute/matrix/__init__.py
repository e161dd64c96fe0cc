"""Functions with numpy's names: one file per kind."""
