"""What a run gives back: results, sends, logs, output; and what is refused as a result."""

from dataclasses import replace
from importlib.util import find_spec

import pytest

from libs.common.errors import Invalid, NotFound
from libs.task.event import Event
from services.device_agent.vm import Execution, Phase, Reason, Sent, TaskVm
from services.device_agent.vm.testing import build_script, build_task


async def test_phases_pass_their_value_on_and_share_the_context(vm: TaskVm) -> None:
    task = build_task(
        {
            Phase.PRE: """
                from isthmus.task import Context

                def pre(context: Context):
                    return [event.fields["rating"] for event in context.events]
                """,
            Phase.POST: """
                def post(context, ratings):
                    print("seen", ratings)
                    context.log(f"{context.task}@{context.version}")
                    mean = sum(ratings) / len(ratings)
                    context.send("profile", {"mean": mean, "genre": context.features["g"]})
                    return {"n": len(ratings), "user": context.user}
                """,
        },
        task="genre-profile",
        version="1.2.0",
    )
    assert (await vm.load(task)).ok
    events = [Event(f"e{n}", "rate", "item", "u7", float(n), {"rating": n}) for n in (3, 4)]
    outcome = await vm.execute(Execution("genre-profile", "1.2.0", events, {"g": {"drama": 2}}))
    assert outcome.ok
    assert outcome.value == {"n": 2, "user": "u7"}
    assert outcome.sends == (Sent("profile", {"mean": 3.5, "genre": {"drama": 2}}),)
    assert outcome.logs == ("genre-profile@1.2.0",)
    assert outcome.output == "seen [3, 4]\n"
    assert outcome.wall_s > 0
    assert outcome.peak_rss_bytes > 1_000_000


async def test_two_phases_in_one_script_share_its_globals(vm: TaskVm) -> None:
    source = """
        STATE = []
        def pre(context): STATE.append("pre")
        def post(context, value): return {"state": STATE}
        """
    scripts = tuple(build_script(source, phase=phase, path="both.py") for phase in Phase)
    assert (await vm.load(replace(build_task(source), scripts=scripts))).ok
    assert (await vm.execute(Execution("probe", "1"))).value == {"state": ["pre"]}


async def test_an_exception_shows_the_scripts_own_lines_only(run) -> None:
    outcome = await run(
        """
        import json

        def helper(text):
            return json.loads(text)

        def post(context):
            try:
                helper("{")
            except ValueError as error:
                raise RuntimeError("profile is damaged") from error
        """
    )
    assert outcome.reason is Reason.EXCEPTION
    assert outcome.value is None
    assert 'File "probe@1/post.py", line 5, in helper' in outcome.message
    assert "return json.loads(text)" in outcome.message
    assert "RuntimeError: profile is damaged" in outcome.message
    assert "JSONDecodeError" in outcome.message
    assert "json/decoder.py" not in outcome.message
    assert "runner.py" not in outcome.message


async def test_a_failed_run_sends_nothing_and_keeps_its_log(run) -> None:
    outcome = await run(
        """
        def post(c):
            c.send("s", {"a": 1})
            c.log("before")
            print("out")
            raise KeyError("x")
        """
    )
    assert outcome.reason is Reason.EXCEPTION
    assert outcome.sends == ()
    assert outcome.logs == ("before",)
    assert outcome.output == "out\n"


@pytest.mark.parametrize(
    ("expression", "says"),
    [
        ("None", "the result of post is None; it must be a dict"),
        ("[1, 2]", "is of type list; it must be a dict"),
        ("{'a': {1, 2}}", "result of post['a'] is of type set"),
        ("{'a': [1, object()]}", "['a'][1] is of type object"),
        ("{'a': float('nan')}", "['a'] is nan; JSON has only finite numbers"),
        ("{1: 2}", "has the key 1; keys must be text"),
        ("{'a': '\\ud800'}", "lone surrogate"),
        ("{'a': 10 ** 5000}", "can't be written as JSON"),
        ("{'a': 'x' * (100 << 20)}", "larger than 1048576 bytes"),
        ("{'a': list(range(2_000_000))}", "larger than 1048576 bytes"),
        ("{'a': '\\n' * 900_000}", "more than 1048576"),
        ("recursive()", "nested deeper than 32 levels"),
        ("coroutine()", "is of type coroutine"),
        ("c.send('s', {'a': b'raw'}) or {}", "frame 0 for stream 's'['a'] is of type bytes"),
    ],
)
async def test_what_is_no_small_json_object_is_refused(run, expression: str, says: str) -> None:
    outcome = await run(
        f"""
        import warnings
        warnings.simplefilter("ignore")

        def recursive():
            value = {{}}
            value["self"] = value
            return value

        async def coroutine(): pass

        def post(c): return {expression}
        """
    )
    assert outcome.reason is Reason.BAD_RESULT, outcome
    assert says in outcome.message


@pytest.mark.skipif(find_spec("numpy") is None, reason="numpy isn't installed")
async def test_numpy_works_in_a_script_and_its_scalars_are_named_when_returned(run) -> None:
    outcome = await run(
        "import numpy as np\n"
        "def post(c): return {'sum': float((np.ones((64, 64)) @ np.ones((64, 64))).sum())}"
    )
    assert outcome.value == {"sum": 64.0**3}
    outcome = await run("import numpy\ndef post(c): return {'n': numpy.int64(1)}", version="2")
    assert outcome.reason is Reason.BAD_RESULT
    assert "numpy.int64" in outcome.message


async def test_features_that_are_no_json_are_the_callers_fault(vm: TaskVm) -> None:
    await vm.load(build_task("def post(c): return {}"))
    with pytest.raises(Invalid, match="no JSON"):
        await vm.execute(Execution("probe", "1", features={"x": float("inf")}))
    with pytest.raises(Invalid, match="more than"):
        await vm.execute(Execution("probe", "1", features={"x": "y" * (9 << 20)}))
    assert (await vm.execute(Execution("probe", "1"))).ok


class TestLoading:
    async def test_a_wrong_digest_is_not_run(self, vm: TaskVm) -> None:
        task = build_task("raise SystemExit('ran')")
        script = replace(task.scripts[0], digest="sha256:" + "0" * 64)
        outcome = await vm.load(replace(task, scripts=(script,)))
        assert outcome.reason is Reason.LOAD_ERROR
        assert "not sha256:0000" in outcome.message

    async def test_a_syntax_error_shows_the_line(self, vm: TaskVm) -> None:
        outcome = await vm.load(build_task("def post(c):\n    return {\n"))
        assert outcome.reason is Reason.LOAD_ERROR
        assert 'File "probe@1/post.py", line 2' in outcome.message
        assert "return {" in outcome.message

    @pytest.mark.parametrize(
        ("source", "says"),
        [
            ("def other(c, v): pass", "no function 'post'"),
            ("post = 3", "no function 'post'"),
            ("import no_such_module\ndef post(c): pass", "No module named 'no_such_module'"),
            ("1 / 0\ndef post(c): pass", 'probe@1/post.py", line 1, in <module>'),
            ("import sys\nsys.exit(2)", "sys.exit(2) in probe@1/post.py, line 2"),
            ("\0", "null bytes"),
            ("(" * 500, "probe@1/post.py"),
        ],
    )
    async def test_what_fails_to_load_says_why(self, vm: TaskVm, source: str, says: str) -> None:
        outcome = await vm.load(build_task(source))
        assert outcome.reason is Reason.LOAD_ERROR, outcome
        assert says in outcome.message
        with pytest.raises(NotFound, match="probe@1"):
            await vm.execute(Execution("probe", "1"))

    async def test_a_module_body_is_held_to_time_and_memory(self, make_vm) -> None:
        vm = await make_vm(workers=1, load_timeout_s=0.3)
        outcome = await vm.load(build_task("while True:\n    pass"))
        assert outcome.reason is Reason.TIMEOUT
        assert outcome.message.startswith("loaded longer than 0.3 s and was killed")
        outcome = await vm.load(build_task("data = [bytes(1 << 20) for _ in range(10_000)]"))
        assert outcome.reason is Reason.MEMORY

    async def test_loading_again_replaces_the_code(self, make_vm) -> None:
        vm = await make_vm(workers=2)
        for answer in (1, 2):
            assert (await vm.load(build_task(f"def post(c): return {{'answer': {answer}}}"))).ok
            for _ in range(4):
                assert (await vm.execute(Execution("probe", "1"))).value == {"answer": answer}

    async def test_the_same_task_may_be_loaded_again(self, vm: TaskVm) -> None:
        task = build_task("def post(c): return {'n': 1}")
        for _ in range(2):
            assert (await vm.load(task)).ok
            assert (await vm.execute(Execution("probe", "1"))).value == {"n": 1}

    async def test_versions_live_side_by_side(self, vm: TaskVm) -> None:
        for version in "12":
            await vm.load(build_task(f"def post(c): return {{'v': {version}}}", version=version))
        for version in "121":
            assert (await vm.execute(Execution("probe", version))).value == {"v": int(version)}

    async def test_more_tasks_than_a_worker_keeps_still_run(self, make_vm) -> None:
        vm = await make_vm(workers=1, max_tasks_per_worker=2)
        for n in range(5):
            await vm.load(build_task(f"def post(c): return {{'n': {n}}}", task=f"t{n}"))
        for n in (0, 1, 2, 3, 4, 0):
            assert (await vm.execute(Execution(f"t{n}", "1"))).value == {"n": n}

    async def test_limits_beyond_the_vms_are_refused(self, vm: TaskVm) -> None:
        with pytest.raises(Invalid, match="memory must be"):
            await vm.load(build_task("def post(c): return {}", memory_bytes=1 << 50))
