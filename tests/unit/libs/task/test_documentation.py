"""What docs/task-format.md shows is what the code reads."""

import re
from pathlib import Path

from libs.task.event import event_from_json
from libs.task.expression import read_expression
from libs.task.manifest import Blob, check_manifest
from libs.task.script import compile_script
from libs.task.source import read_task_json

TEXT = (Path(__file__).parents[4] / "docs" / "task-format.md").read_text(encoding="utf-8")


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", TEXT, re.DOTALL)


def test_the_examples_are_accepted():
    task, with_model, asks, expression, event = blocks("json")
    checked = {}
    for text, script in zip((task, with_model, asks), blocks("python"), strict=True):
        source = read_task_json(text, Path())
        manifest = check_manifest(
            source.manifest({path: Blob(f"sha256:{i:064x}", i) for i, path in enumerate(source.files)})
        )
        for phase in manifest.phases:
            phase.compile(script.encode())
        checked[manifest.task] = manifest
    assert checked["click"].model is not None
    assert checked["click"].model.path == "click.plan"
    assert checked["cascade"].endpoints["ranker"].inputs["history"].max_elements == 200
    assert read_expression(expression).fields == {"rating", "genres", "hidden", "country", "age"}
    assert event_from_json(event).fields["genres"] == ["Drama", "War"]


def test_the_example_runs_as_written():
    from isthmus.task import Context

    script, with_model, asks = blocks("python")
    namespace: dict = {}
    exec(compile_script(script.encode(), "task.py"), namespace)
    context = Context("genres", "1", features={"genres": {"counts": {"War": 1, "Drama": 2}}})
    assert namespace["post"](context, namespace["pre"](context)) == {"top": ["Drama", "War"]}
    assert context.frames[0].fields["top"] == "Drama"
    exec(compile_script(with_model.encode(), "task.py"), namespace)
    event = event_from_json('{"type": "exposure", "time_s": 1, "fields": {"rank": 1, "price": 2.5}}')
    context = Context("click", "1", [event])
    assert namespace["pre"](context) == {"x": [[1, 2.5]]}
    assert namespace["post"](context, {"probability": [0.25]}) == {"probability": 0.25}
    assert context.frames[0].fields == {"probability": 0.25}
    exec(compile_script(asks.encode(), "task.py"), namespace)
    events = [event_from_json('{"type": "view", "time_s": 1, "fields": {"item": 7}}')]
    asked = []

    def answer(model, inputs, timeout_s, outputs):
        asked.append((model, inputs, timeout_s, outputs))
        return {"score": [0.5]}, ""

    assert namespace["post"](Context("cascade", "1", events, asker=answer)) == {"item": 7, "score": 0.5}
    assert asked == [("ranker", {"item": [7], "history": [3, 5, 8]}, 0.15, ["score"])]
    assert namespace["post"](Context("cascade", "1", events)) == {"item": 7, "score": None}
