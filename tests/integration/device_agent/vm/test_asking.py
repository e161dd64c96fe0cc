"""`context.ask` in a real worker: what scripts get, and what a worker can't do with it."""

import asyncio
import os
import signal
from pathlib import Path
from struct import pack, unpack
from typing import Any

import pytest

from libs.task.tensor import Tensor
from services.device_agent.vm import Answerer, Ask, Execution, Outcome, Reason, Reply, TaskVm
from services.device_agent.vm.testing import build_task, until

ENDPOINTS = {"ranker": {"item": "INT64", "history": "INT64", "weight": "FP32", "seen": "BOOL"}}


class Cloud:
    """Answers as it is told, and keeps what was asked."""

    def __init__(self, reply: Reply | None = None) -> None:
        self.asked: list[Ask] = []
        self.reply = reply or Reply(why="nobody is there")
        self.wait: asyncio.Event | None = None
        self.waiting = asyncio.Event()

    async def __call__(self, ask: Ask) -> Reply:
        self.asked.append(ask)
        self.waiting.set()
        if self.wait is not None:
            await self.wait.wait()
        return self.reply


async def run(vm: TaskVm, source: str, cloud: Answerer | None, **task: Any) -> Outcome:
    loaded = build_task(source, **({"endpoints": ENDPOINTS} | task))
    outcome = await vm.load(loaded)
    assert outcome.ok, outcome
    return await vm.execute(Execution(loaded.task, loaded.version, answer=cloud))


def scores(*values: float) -> Reply:
    return Reply((Tensor("score", "FP32", (len(values), 1), pack(f"<{len(values)}f", *values)),))


async def test_an_answer_comes_as_arrays_in_the_middle_of_the_run(vm: TaskVm) -> None:
    cloud = Cloud(scores(0.25, 0.5))
    outcome = await run(
        vm,
        """
        import numpy
        def post(c):
            found = c.ask("ranker", {"item": 7, "history": [[1, 2], [3, 4]]}, timeout="2s")
            score = found["score"]
            score += 1  # it is the script's own
            return {"type": str(score.dtype), "shape": list(score.shape), "sum": float(score.sum())}
        """,
        cloud,
    )
    assert outcome.value == {"type": "float32", "shape": [2, 1], "sum": 2.75}
    (ask,) = cloud.asked
    assert (ask.model, ask.timeout_s, ask.outputs) == ("ranker", 2.0, ())
    item, history = ask.inputs
    assert item == Tensor("item", "INT64", (), pack("<q", 7))
    assert (history.shape, unpack("<4q", history.content)) == ((2, 2), (1, 2, 3, 4))
    assert vm.stats().deaths == {}


async def test_no_answer_is_none_and_the_log_says_why(vm: TaskVm) -> None:
    outcome = await run(vm, 'def post(c): return {"found": c.ask("ranker", {"item": 1})}', Cloud())
    assert outcome.value == {"found": None}
    assert outcome.logs == ("ask ranker: nobody is there",)


async def test_a_fault_of_whoever_answers_is_no_answer(vm: TaskVm, caplog: pytest.LogCaptureFixture) -> None:
    async def faulty(ask: Ask) -> Reply:
        raise TimeoutError("mine")

    outcome = await run(vm, 'def post(c): return {"found": c.ask("ranker", {"item": 1})}', faulty)
    assert outcome.value == {"found": None}
    assert "what a run asks can't be handled" in caplog.text
    assert vm.stats().deaths == {}


async def test_without_anybody_to_answer_it_is_none(vm: TaskVm) -> None:
    outcome = await run(vm, 'def post(c): return {"found": c.ask("ranker", {"item": 1})}', None)
    assert outcome.value == {"found": None}
    assert outcome.logs == ("ask ranker: nothing answers here",)


async def test_a_value_that_does_not_convert_fails_the_run_and_sends_nothing(vm: TaskVm) -> None:
    cloud = Cloud()
    source = """
        def post(c):
            c.ask("ranker", {"item": 0.5})
            return {}
        """
    outcome = await run(vm, source, cloud)
    assert outcome.reason is Reason.BAD_REQUEST
    assert outcome.message == "input 'item' holds a value that no INT64 is in probe@1/post.py, line 3"
    assert cloud.asked == []


async def test_all_inputs_together_are_bounded_before_they_reach_the_agent(vm: TaskVm) -> None:
    cloud = Cloud()
    source = 'def post(c): c.ask("ranker", {"item": [0] * 20_000, "history": [0] * 20_000})'
    outcome = await run(vm, source, cloud)
    assert outcome.reason is Reason.BAD_REQUEST
    assert "bytes together" in outcome.message
    assert cloud.asked == []


@pytest.mark.parametrize("after", ["return {}", "raise KeyError('mine')"])
async def test_a_refusal_fails_the_run_whatever_the_script_makes_of_it(vm: TaskVm, after: str) -> None:
    cloud = Cloud(Reply(refusal="model 'rankr' is not declared"))
    source = f"""
        def post(c):
            c.send("out", {{}})
            for _ in range(3):
                try:
                    c.ask("rankr", {{"x": "secret"}})
                except Exception:
                    pass
            {after}
        """
    outcome = await run(vm, source, cloud)
    assert outcome.reason is Reason.BAD_REQUEST
    assert outcome.sends == ()
    # What isn't declared goes no further than to be refused, and without its value.
    assert cloud.asked == [Ask("rankr", (Tensor("x", "", (), b""),), 0.2)]


SPEAKS = """
    import json, os, stat, struct
    def is_socket(n):
        try:
            return stat.S_ISSOCK(os.fstat(n).st_mode)
        except OSError:
            return False
    def post(c):
        body = json.dumps({"id": 2, "ask": ASK}).encode()
        fd = next(n for n in range(3, 64) if is_socket(n))
        os.write(fd, struct.pack(">I", len(body)) + body)
        os.read(fd, 1000)
        return {"fine": True}
    """
"""A script that speaks to the agent itself."""


async def test_a_worker_that_lies_about_a_refusal_has_failed_all_the_same(vm: TaskVm) -> None:
    cloud = Cloud(Reply(refusal="no"))
    ask = '{"model": "ranker", "timeout_s": 1, "outputs": [], "inputs": []}'
    outcome = await run(vm, SPEAKS.replace("ASK", ask), cloud)
    assert (outcome.reason, outcome.message, outcome.value) == (Reason.BAD_REQUEST, "no", None)


async def test_a_malformed_request_breaks_the_protocol(vm: TaskVm) -> None:
    cloud = Cloud()
    outcome = await run(vm, SPEAKS.replace("ASK", '{"model": 7}'), cloud)
    assert outcome.reason is Reason.CRASH
    assert "broke the protocol" in outcome.message
    assert cloud.asked == []
    assert (await run(vm, "def post(c): return {}", cloud, task="fine")).ok


async def test_requests_of_a_run_are_bounded_for_a_worker_too(make_vm: Any) -> None:
    vm = await make_vm(workers=1, max_asks=3)
    source = 'def post(c):\n    for _ in range(4): c.ask("ranker", {"item": 1})\n    return {}\n'
    cloud = Cloud()
    outcome = await run(vm, source, cloud)
    assert outcome.reason is Reason.CRASH
    assert len(cloud.asked) == 3


async def test_a_load_asks_nothing(vm: TaskVm) -> None:
    source = """
        import os, stat, struct
        def is_socket(n):
            try:
                return stat.S_ISSOCK(os.fstat(n).st_mode)
            except OSError:
                return False
        body = b'{"id": 1, "ask": {"model": "ranker", "timeout_s": 1, "outputs": [], "inputs": []}}'
        os.write(next(n for n in range(3, 64) if is_socket(n)), struct.pack(">I", len(body)) + body)
        def post(c): return {}
        """
    outcome = await vm.load(build_task(source, endpoints=ENDPOINTS))
    assert outcome.reason is Reason.CRASH


ASKS = 'def post(c): return {"found": c.ask("ranker", {"item": 1}, timeout="30s") is None}'


async def test_the_wait_counts_for_the_wall_time(make_vm: Any) -> None:
    vm = await make_vm(workers=1, place_timeout_s=30.0)
    cloud = Cloud()
    cloud.wait = asyncio.Event()
    outcome = await run(vm, ASKS, cloud, wall_time_s=0.5)
    assert outcome.reason is Reason.TIMEOUT
    if cloud.asked:  # else the machine was too busy for the script to come so far
        assert "probe@1/post.py, line 1, in post" in outcome.message


async def test_a_worker_that_is_killed_while_it_asks_ends_the_request(vm: TaskVm) -> None:
    cloud = Cloud()
    cloud.wait = asyncio.Event()
    running = asyncio.create_task(run(vm, ASKS, cloud))
    await cloud.waiting.wait()
    (pid,) = vm.worker_pids()
    os.kill(pid, signal.SIGKILL)
    outcome = await running  # the answer never comes
    assert outcome.reason is Reason.CRASH
    assert outcome.message == "its process ended: signal SIGKILL"
    assert (await run(vm, "def post(c): return {}", cloud, task="fine")).ok


async def test_a_run_that_is_given_up_while_it_asks_ends_the_request(vm: TaskVm) -> None:
    cloud = Cloud()
    cloud.wait = asyncio.Event()
    running = asyncio.create_task(run(vm, ASKS, cloud))
    await cloud.waiting.wait()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await until(lambda: vm.stats().deaths.get("cancelled") == 1, "its worker is replaced")


async def test_closing_while_a_run_asks_ends_in_order(make_vm: Any) -> None:
    vm = await make_vm(workers=1)
    cloud = Cloud()
    cloud.wait = asyncio.Event()
    running = asyncio.create_task(run(vm, ASKS, cloud))
    await cloud.waiting.wait()
    await vm.close()
    (error,) = await asyncio.gather(running, return_exceptions=True)
    assert getattr(error, "reason", "") == "VM_CLOSING"
    assert vm.worker_pids() == []


async def test_threads_of_a_script_ask_one_after_the_other(vm: TaskVm) -> None:
    cloud = Cloud(scores(1.0))
    outcome = await run(
        vm,
        """
        import threading
        def post(c):
            found = []
            def ask():
                for _ in range(10):
                    found.append(float(c.ask("ranker", {"item": 1})["score"][0, 0]))
            threads = [threading.Thread(target=ask) for _ in range(4)]
            for thread in threads: thread.start()
            for thread in threads: thread.join()
            return {"found": found}
        """,
        cloud,
    )
    assert outcome.value == {"found": [1.0] * 40}
    assert len(cloud.asked) == 40


async def test_a_request_that_a_signal_broke_off_costs_the_worker_and_no_other_run(
    vm: TaskVm, tmp_path: Path
) -> None:
    cloud = Cloud(scores(1.0))
    cloud.wait = asyncio.Event()
    running = asyncio.create_task(
        run(
            vm,
            """
            import signal
            def stop(*_): raise InterruptedError("mine")
            def post(c):
                signal.signal(signal.SIGALRM, stop)
                try:
                    c.ask("ranker", {"item": 1}, timeout="30s")
                except InterruptedError:
                    open("broken-off", "w").close()
                    return {"again": c.ask("ranker", {"item": 1}), "log": c.log_lines}
            """,
            cloud,
        )
    )
    await cloud.waiting.wait()
    (pid,) = vm.worker_pids()
    os.kill(pid, signal.SIGALRM)
    # The worker says that its run is over while its request is still open here.
    await until(lambda: bool(list(tmp_path.rglob("broken-off"))), "the request is broken off")
    cloud.wait.set()
    outcome = await running
    assert outcome.value == {"again": None, "log": ["ask ranker: an earlier request was broken off"]}
    assert (await run(vm, "def post(c): return {}", cloud, task="fine")).ok
    assert vm.stats().deaths.get("retired") == 1
