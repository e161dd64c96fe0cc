"""A user's genre profile: how much of what they rate lately is of a genre, weighted by how they rate it."""

from isthmus.task import Context

EVERY = 10  # ratings between two uploads: the cloud needs no more than that


def profile(context: Context) -> dict[str, object]:
    """Return the profile as the local result; send it up at every tenth rating."""
    genres = context.features["genres"]
    weights = {
        genre: round(count * (genres["liking"][genre] or 0.0) / 5.0, 4)
        for genre, count in genres["seen"].items()
    }
    total = sum(weights.values()) or 1.0
    shares = {genre: round(weight / total, 4) for genre, weight in sorted(weights.items())}
    event = context.events[-1]
    if genres["ratings"] % EVERY == 0:
        context.send("profile", {"user": event.user, "ratings": genres["ratings"], "profile": shares})
    return {"user": event.user, "event_id": event.event_id, "ratings": genres["ratings"], "profile": shares}
