from services.device_agent.queueing import RunQueue
from services.device_agent.store.runs import QueuedRun


def run(number, task="t", user=""):
    return QueuedRun(number, task, "1", user or f"u{number}")


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


def test_a_run_waits_for_the_earlier_one_of_its_task_and_user_and_holds_up_nobody_else():
    queue = RunQueue()
    queue.add([run(1, user="ann"), run(2, user="ann"), run(3, user="bob"), run(4, "u", user="ann")])
    first, others = queue.take(), [queue.take(), queue.take()]
    assert [first.run_id, *(other.run_id for other in others)] == [1, 4, 3]
    assert queue.take() is None
    assert queue.waiting("t") == 3
    queue.add([run(5, user="bob"), run(6, user="cid")])
    assert queue.take().run_id == 6
    queue.done(others[1])
    assert queue.take().run_id == 5
    queue.done(first)
    assert queue.take().run_id == 2
    assert queue.take() is None


def test_a_users_oldest_waiting_run_comes_before_later_ones_of_other_users():
    queue = RunQueue()
    queue.add([run(1, user="ann"), run(2, user="ann")])
    first = queue.take()
    queue.add([run(3, user="bob")])
    queue.done(first)
    assert [queue.take().run_id, queue.take().run_id] == [2, 3]


def test_a_dropped_run_lets_the_next_of_its_user_go():
    queue = RunQueue()
    queue.add([run(1, user="ann"), run(2, user="ann"), run(3, user="ann")])
    first = queue.take()
    queue.add([], dropped=[2])
    queue.done(first)
    assert queue.take().run_id == 3
    assert queue.waiting("t") == 1
