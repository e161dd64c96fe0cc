"""How likely a user is to like the film on the screen, from what the same user rated before.

The model runs between `pre` and `post`, on the device: the ratings don't leave it.
"""

import functools
import json

from isthmus.task import Context

EVERY = 10  # films between two uploads


@functools.cache
def _films(path):
    return json.loads(path.read_text("utf-8"))


def pre(context: Context):
    """Return the model's input: a batch of one."""
    films = _films(context.resource("items.json"))
    index, past = films["index"], context.features["past"]
    history = [index.get(item, 0) for item in past["items"]]
    rest = [0] * (films["window"] - len(history))
    return {
        "item": [index.get(context.events[-1].get("item_id"), 0)],
        "history": [history + rest],
        "ratings": [past["ratings"] + rest],
    }


def post(context: Context, outputs):
    """Return the score as the local result; send every tenth up, without saying whose it is."""
    event, past = context.events[-1], context.features["past"]["items"]
    click = float(outputs["click"][0])
    if len(past) % EVERY == 0:
        context.send("scores", {"item": event.get("item_id"), "click": round(click, 4)})
    return {"event_id": event.event_id, "item": event.get("item_id"), "past": len(past), "click": click}
