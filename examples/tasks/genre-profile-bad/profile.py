"""A genre profile with a fault that no compiler sees: it asks for a feature that nobody makes."""

from isthmus.task import Context


def profile(context: Context) -> dict[str, object]:
    """Fail with a KeyError on every run."""
    genres = context.features["genre"]
    return {"ratings": genres["ratings"]}
