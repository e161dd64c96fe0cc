import subprocess
import sys
from pathlib import Path

import pytest

import isthmus.task
from isthmus.task import Context, Event, Frame, TaskError

EVENTS = [Event("e1", "rate", "item", "u1", 10.0, {"rating": 5}), Event("e2", "rate", "item", "u1", 11.0)]


def test_a_script_sees_what_woke_it():
    context = Context("genres", "1", EVENTS, {"profile": {"War": 2}})
    assert (context.task, context.version, context.user) == ("genres", "1", "u1")
    assert [event.get("rating", 0) for event in context.events] == [5, 0]
    assert context.features["profile"] == {"War": 2}
    assert Context("t", "1").user == ""


def test_frames_queue_in_order_and_are_copies():
    context = Context("t", "1")
    fields = {"a": 1}
    context.send("s", fields)
    fields["a"] = 2
    context.send("s", fields)
    assert context.frames == [Frame("s", {"a": 1}), Frame("s", {"a": 2})]


@pytest.mark.parametrize(("stream", "fields"), [(1, {}), ("s", [1]), ("s", {1: 2}), ("s", None)])
def test_a_frame_is_a_stream_and_named_fields(stream, fields):
    context = Context("t", "1")
    with pytest.raises(TaskError):
        context.send(stream, fields)
    assert context.frames == []


def test_a_run_sends_a_bounded_number_of_frames():
    context = Context("t", "1")
    for _ in range(256):
        context.send("s", {})
    with pytest.raises(TaskError, match="at most 256 frames"):
        context.send("s", {})


def test_a_log_is_cut_rather_than_grown():
    context = Context("t", "1")
    context.log({"a": 1})
    for _ in range(100):
        context.log("x" * 1000)
    assert context.log_lines[0] == "{'a': 1}"
    assert sum(map(len, context.log_lines)) <= 64 * 1024


def test_resources_are_those_of_the_manifest(tmp_path):
    context = Context("t", "1", resource_root=tmp_path, resources=["data/a.json"])
    assert context.resource("data/a.json") == tmp_path / "data/a.json"
    with pytest.raises(TaskError, match=r"declares no resource 'data/b\.json'; it declares: data/a\.json"):
        context.resource("data/b.json")
    for path in ("/etc/passwd", "../x", "data/../../x", ""):
        with pytest.raises(TaskError, match="must be relative"):
            context.resource(path)
    with pytest.raises(TaskError, match="has no resources"):
        Context("t", "1").resource("data/a.json")
    assert Context("t", "1", resource_root=tmp_path).resource("x") == tmp_path / "x"


def test_the_package_needs_the_standard_library_only():
    # Also keeps a worker small: no grpc, protobuf or numpy comes in with it.
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import isthmus.task\n"
        "known = set(sys.stdlib_module_names) | {'isthmus', '__main__'}\n"
        "print(sorted({name.split('.')[0] for name in sys.modules} - known))"
    )
    root = str(Path(isthmus.task.__file__).parents[2])
    ran = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code, root], capture_output=True, text=True, check=True
    )
    assert ran.stdout == "[]\n"


def test_the_namespace_has_no_init():
    for folder in (Path(isthmus.task.__file__).parents[1], *map(Path, isthmus.__path__)):
        assert not (folder / "__init__.py").exists()


class Cloud:
    def __init__(self, answer=None, why="no"):
        self.asked = []
        self.reply = answer, why

    def __call__(self, model, inputs, timeout_s, outputs):
        self.asked.append((model, dict(inputs), timeout_s, outputs))
        return self.reply


def test_an_answer_reaches_the_script():
    cloud = Cloud({"score": [0.5]})
    context = Context("t", "1", asker=cloud)
    assert context.ask("ranker", {"item": 7}) == {"score": [0.5]}
    assert context.ask("ranker", {"item": 7}, timeout="2s", outputs=["score"]) == {"score": [0.5]}
    assert cloud.asked == [
        ("ranker", {"item": 7}, 0.2, []),
        ("ranker", {"item": 7}, 2.0, ["score"]),
    ]
    assert context.log_lines == []


def test_no_answer_is_none_and_the_log_says_why():
    context = Context("t", "1", asker=Cloud(None, "no answer within 200 ms"))
    assert context.ask("ranker", {"item": 7}) is None
    assert context.log_lines == ["ask ranker: no answer within 200 ms"]
    bare = Context("t", "1")
    assert bare.ask("ranker", {"item": 7}) is None
    assert bare.log_lines == ["ask ranker: nothing answers here"]


@pytest.mark.parametrize(
    ("arguments", "keywords"),
    [
        ((7, {"x": 1}), {}),
        (("m", [1]), {}),
        (("m", {}), {}),
        (("m", {1: 1}), {}),
        (("m", {str(i): i for i in range(33)}), {}),
        (("m", {"x": 1}), {"outputs": "score"}),
        (("m", {"x": 1}), {"outputs": [1]}),
        (("m", {"x": 1}), {"outputs": ["o"] * 33}),
        *((("m", {"x": 1}), {"timeout": text}) for text in (0.2, "0ms", "31s", "1m", "1.5s", None)),
    ],
)
def test_a_malformed_ask_is_the_scripts_fault(arguments, keywords):
    cloud = Cloud({})
    with pytest.raises(TaskError):
        Context("t", "1", asker=cloud).ask(*arguments, **keywords)
    assert cloud.asked == []


def test_a_run_asks_a_bounded_number_of_times():
    cloud = Cloud({})
    context = Context("t", "1", asker=cloud)
    for _ in range(64):
        context.ask("m", {"x": 1})
    with pytest.raises(TaskError, match="at most 64 times"):
        context.ask("m", {"x": 1})
    assert len(cloud.asked) == 64
