"""Does nothing: what is left is what the agent itself costs."""

from isthmus.task import Context


def run(context: Context) -> dict[str, object]:
    """Return an empty result."""
    return {}
