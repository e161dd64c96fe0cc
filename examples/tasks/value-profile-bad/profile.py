"""A value profile with a fault that no compiler sees: it asks for a feature that nobody makes."""

from isthmus.task import Context


def profile(context: Context) -> dict[str, object]:
    """Fail with a KeyError on every run."""
    return {"total": context.features["value"]["total"]}
