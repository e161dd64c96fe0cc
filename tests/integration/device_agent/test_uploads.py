"""Only what the signed manifest declares leaves the device: the wire is captured, and looked at."""

from functools import partial

from services.device_agent.app import Agent
from services.device_agent.testing.app import event, running
from services.device_agent.testing.tasks import task

SENDER = """
def run(context):
    kind = context.events[-1].fields["kind"]
    good = {"score": 1.5, "label": "fine"}
    if kind == "undeclared":
        context.send("out", {**good, "secret_field": "secret-value-1"})
    elif kind == "type":
        context.send("out", {**good, "score": "secret-value-2"})
    elif kind == "size":
        context.send("out", {**good, "label": "secret-value-3" * 100})
    elif kind == "stream":
        context.send("secret-stream", good)
    elif kind == "list":
        context.send("out", {**good, "numbers": [1, 2, "secret-value-4"]})
    elif kind == "map":
        context.send("out", {**good, "map": {"a": True}})
    elif kind == "fails":
        context.send("out", {"score": 1, "label": "secret-value-5"})
        raise ValueError("secret-value-6")
    else:
        context.send("out", {**good, "numbers": [1, 2.5], "map": {"drama": 3}})
    return {"raw": "secret-value-7", "kind": kind}
"""
UPLOADS = {
    "out": {
        "score": ("NUMBER", 0),
        "label": ("STRING", 100),
        "numbers": ("NUMBER_LIST", 0),
        "map": ("NUMBER_MAP", 0),
    }
}
REASONS = {
    "undeclared": "FIELD_UNDECLARED",
    "type": "FIELD_TYPE",
    "size": "FIELD_TOO_LARGE",
    "list": "FIELD_TYPE",
    "map": "FIELD_TYPE",
}


async def test_nothing_undeclared_ever_reaches_the_wire(cloud, agent_config):
    cloud.publish(task(source=SENDER, uploads=UPLOADS, max_failures=10))
    await cloud.want("d1", {"hello": "1"})
    kinds = ["good", *REASONS, "stream", "fails", "good"]
    async with running(Agent(agent_config())) as app:
        await app.until_state("hello@1", "ACTIVE")
        for index, kind in enumerate(kinds):
            await app.send(
                event("go", f"e{index}", "secret-user", kind=kind, secret_name="secret-value-8"),
                event("secret-type", f"f{index}", "secret-user"),
            )
            await app.results(index + 1)
        await cloud.until(lambda: len(cloud.frames["d1", "hello/out"]) == 7)
        status = await app.until(lambda s: s.counters.acked_frame_count == 2)
    frames = [cloud.frames["d1", "hello/out"][sequence] for sequence in range(1, 8)]
    assert [frame.tombstone_reason for frame in frames] == ["", *REASONS.values(), ""]
    assert all(frame.payload == b"" for frame in frames[1:-1])
    assert frames[0].payload == b'{"label":"fine","map":{"drama":3},"numbers":[1,2.5],"score":1.5}'
    assert status.counters.refused_frame_count == 6
    assert status.counters.frame_count == 2
    (problem,) = status.problems
    assert "uploads of hello@1" in problem
    assert b"secret" not in b"".join(data for sent in cloud.wire.values() for data in sent)


async def test_a_failure_is_reported_without_the_text_of_its_error(cloud, agent_config):
    cloud.publish(task(source=SENDER, uploads=UPLOADS, max_failures=2))
    await cloud.want("d1", {"hello": "1"})
    async with running(Agent(agent_config())) as app:
        await app.until_state("hello@1", "ACTIVE")
        await app.go(2, kind="fails")
        await cloud.until(lambda: "FAILED" in cloud.stages("hello@1"))
        results = await app.all_results()
    assert all("secret-value-6" in result.failure_message for result in results)
    assert b"secret" not in b"".join(data for sent in cloud.wire.values() for data in sent)
    report = list(cloud.reports.values())[-1]
    assert report.failure_reason == "EXCEPTION"
    assert "2 failures in a row" in report.failure_message
    assert "ValueError (run.py, line 19, in run)" in report.failure_message


SMUGGLES = """
def run(context):
    event = context.events[-1]
    name = "secret_" + event.user.replace("-", "_")
    if event.fields["how"] == "class":
        raise type(name, (Exception,), {})("no")
    code = compile("\\n" * event.fields["n"] + f"def {name}(): raise ValueError", context_file(), "exec")
    scope = {}
    exec(code, scope)
    scope[name]()

def context_file():
    return run.__code__.co_filename.replace("run.py", "secret_file.py")
"""


def told_of(cloud, release):
    return any(r.failure_message and r.release.endswith(f"/{release}") for r in cloud.reports.values())


async def test_names_that_a_script_makes_up_do_not_leave_with_its_failures(cloud, agent_config):
    cloud.publish(task(source=SMUGGLES, max_failures=1))
    for release, how in (("r1", "class"), ("r2", "code")):
        await cloud.want("d1", {"hello": "1"}, release)
        async with running(Agent(agent_config())) as app:
            await app.until_state("hello@1", "ACTIVE")
            await app.send(event("go", release, "alice", how=how, n=424242))
            await app.until_state("hello@1", "FAILED")
            assert "secret_alice" in (await app.all_results())[-1].failure_message
            await cloud.until(partial(told_of, cloud, release))
    assert b"secret" not in b"".join(data for sent in cloud.wire.values() for data in sent)
    first, second = [r.failure_message for r in cloud.reports.values() if r.failure_message]
    assert "an exception of the script (run.py, line 6, in run)" in first
    assert "ValueError (run.py, line 10, in run)" in second


async def test_a_load_error_is_told_in_the_words_of_the_script(cloud, agent_config):
    name = '"secret_" + str(6 * 7)'
    source = f"raise type({name}, (Exception,), {{}})({name})\ndef run(context):\n    return {{}}\n"
    cloud.publish(task(source=source))
    cloud.publish(task("typo", source="def run(context:\n    return {}\n"))
    await cloud.want("d1", {"hello": "1", "typo": "1"})
    async with running(Agent(agent_config())):
        await cloud.until(lambda: "FAILED" in cloud.stages("hello@1") and "FAILED" in cloud.stages("typo@1"))
    told = {r.task: r.failure_message for r in cloud.reports.values() if r.failure_message}
    assert told["hello"].startswith("an exception of the script (run.py, line 1, in <module>)")
    assert told["typo"].startswith("run.py, line 1: '(' was never closed")
    assert b"secret_42" not in b"".join(data for sent in cloud.wire.values() for data in sent)
