"""What a task's scripts import: `from isthmus.task import Context`.

A script's entry point is a top-level function. `pre(context)` returns a value; `post(context, value)` takes
it and returns the *local result*, a JSON object that stays on the device and is served to the app. A task
with one phase returns its result from that one. Only `context.send` and `context.ask` make data leave the
device, and only the fields and inputs that the task's signed manifest declares.

This package depends on nothing but the standard library.
"""

from isthmus.task.context import Context, Event, Frame, TaskError

__all__ = ["Context", "Event", "Frame", "TaskError"]
