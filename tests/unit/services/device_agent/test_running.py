from services.device_agent.running import RunQueue
from services.device_agent.store.runs import QueuedRun


def run(number, task="t"):
    return QueuedRun(number, task, "1")


def test_tasks_take_turns_and_each_tasks_oldest_goes_first():
    queue = RunQueue()
    queue.add([run(1), run(2), run(3), run(4, "u")])
    assert [queue.take().run_id for _ in range(4)] == [1, 4, 2, 3]
    assert queue.take() is None


def test_dropped_runs_are_passed_over():
    queue = RunQueue()
    queue.add([run(1), run(2)])
    queue.add([run(3)], dropped=[1, 2])
    assert queue.take().run_id == 3


def test_what_waits_and_runs_is_counted():
    queue = RunQueue()
    queue.add([run(1), run(2)])
    rings = queue.bell.rings
    taken = queue.take()
    assert (queue.waiting("t"), queue.in_flight()) == (2, [1])
    queue.done(taken)
    assert (queue.waiting("t"), queue.in_flight(), queue.waiting("u")) == (1, [], 0)
    assert queue.bell.rings == rings + 1
