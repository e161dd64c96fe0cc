"""How often each value of a field was seen lately: a profile for any event log.

`task.json` is a template: the demo puts the log's event type and field in place of @EVENT and @FIELD.
"""

from isthmus.task import Context

EVERY = 10  # events between two uploads
MOST = 20  # values in an upload: the commonest


def profile(context: Context) -> dict[str, object]:
    """Return the counts as the local result; send the commonest up at every tenth event."""
    values = context.features["values"]
    if values["total"] % EVERY == 0:
        common = sorted(values["seen"].items(), key=lambda item: (-item[1], item[0]))[:MOST]
        context.send("profile", {"total": values["total"], "profile": dict(common)})
    return {"event_id": context.events[-1].event_id, "total": values["total"], "profile": values["seen"]}
