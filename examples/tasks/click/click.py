"""How likely a user is to like the film on the screen, from what the same user rated before.

The model runs between `pre` and `post`, on the device. Where it is uncertain and may have seen a part of the
user's ratings only, a larger one in the cloud is asked, which sees four times as many; it isn't told whose.
"""

import functools
import json
import zlib

from isthmus.task import Context

EVERY = 10  # of so many scores one goes up


@functools.cache
def _read(path):
    return json.loads(path.read_text("utf-8"))


def _past(context, window):
    """Return the latest films, by index, and their ratings."""
    index, past = _read(context.resource("items.json"))["index"], context.features["past"]
    return [index.get(item, 0) for item in past["items"][-window:]], past["ratings"][-window:]


def _item(context):
    """Return the index of the film on the screen; 0 is every film that isn't known."""
    return _read(context.resource("items.json"))["index"].get(context.events[-1].get("item_id"), 0)


def pre(context: Context):
    """Return the model's input: a batch of one."""
    window = _read(context.resource("items.json"))["window"]
    films, ratings = _past(context, window)
    rest = [0] * (window - len(films))
    return {"item": [_item(context)], "history": [films + rest], "ratings": [ratings + rest]}


def _ask(context: Context, policy):
    """Return what the larger model says, or None."""
    films, ratings = _past(context, policy["window"])
    rest = [0] * (policy["window"] - len(films))
    # In half stars, so that a byte is enough.
    halves = [min(max(round(2 * rating), 1), 10) for rating in ratings]
    inputs = {"item": [_item(context)], "history": [films + rest], "ratings": [halves + rest]}
    answer = context.ask(policy["model"], inputs, timeout=f"{policy['timeout_ms']}ms", outputs=["click"])
    return None if answer is None else float(answer["click"][0])


def post(context: Context, outputs):
    """Return the score as the local result; send a tenth of them up, without saying whose they are."""
    event, past = context.events[-1], context.features["past"]["items"]
    click = device_click = float(outputs["click"][0])
    source = "device"
    policy = _read(context.resource("cascade.json"))
    if policy["low"] <= device_click <= policy["high"] and len(past) >= policy["least_past"]:
        answer = _ask(context, policy)
        source = "unanswered" if answer is None else "cloud"
        click = device_click if answer is None else answer
    # By the event's id, so that a run that is repeated does as it did.
    if zlib.crc32(event.event_id.encode()) % EVERY == 0:
        context.send("scores", {"item": event.get("item_id"), "click": round(click, 4)})
    return {
        "event_id": event.event_id,
        "item": event.get("item_id"),
        "past": len(past),
        "click": click,
        "device_click": device_click,
        "source": source,
    }
