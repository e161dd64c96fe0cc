"""Turns, order within a task, removal."""

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from services.device_agent.vm.queue import FairQueue


@dataclass(frozen=True)
class Job:
    key: str
    n: int


def drain(queue: FairQueue[Job]) -> str:
    text = ""
    while (job := queue.take()) is not None:
        text += f"{job.key}{job.n} "
    return text


def filled(text: str) -> FairQueue[Job]:
    queue: FairQueue[Job] = FairQueue()
    for word in text.split():
        queue.put(Job(word[0], int(word[1:])))
    return queue


def test_tasks_take_turns_and_keep_their_order() -> None:
    assert drain(filled("a1 a2 a3 b1 c1 b2")) == "a1 b1 c1 a2 b2 a3 "


def test_a_newcomer_waits_for_one_job_of_each_other_task_at_most() -> None:
    queue = filled("a1 a2 a3 a4")
    queue.take()
    queue.put(Job("b", 1))
    assert drain(queue) == "a2 b1 a3 a4 "


def test_what_is_put_back_comes_next() -> None:
    queue = filled("a1 a2 b1")
    job = queue.take()
    assert job == Job("a", 1)
    queue.put_back(job)
    assert drain(queue) == "a1 b1 a2 "


def test_the_oldest_of_a_task_can_be_dropped() -> None:
    queue = filled("a1 b1 a2")
    assert queue.drop_oldest("a") == Job("a", 1)
    assert queue.drop_oldest("z") is None
    assert queue.waiting("a") == 1
    assert drain(queue) == "a2 b1 "


def test_removing_one_or_all_of_a_task() -> None:
    queue = filled("a1 b1 a2 a3")
    assert queue.remove(Job("a", 2))
    assert not queue.remove(Job("a", 2))
    assert not queue.remove(Job("z", 1))
    assert queue.remove_all("a") == [Job("a", 1), Job("a", 3)]
    assert queue.remove_all("a") == []
    assert len(queue) == 1
    assert drain(queue) == "b1 "
    assert len(queue) == 0


@given(
    st.lists(
        st.one_of(st.tuples(st.just("put"), st.sampled_from("abc")), st.tuples(st.just("take"), st.just("")))
    )
)
def test_nothing_is_lost_and_no_task_waits_more_than_a_round(actions: list[tuple[str, str]]) -> None:
    queue: FairQueue[Job] = FairQueue()
    waiting: list[Job] = []
    skipped: dict[str, int] = {}
    for n, (action, key) in enumerate(actions):
        if action == "put":
            job = Job(key, n)
            queue.put(job)
            waiting.append(job)
            skipped.setdefault(key, 0)
        else:
            taken = queue.take()
            assert (taken is None) == (not waiting)
            if taken is None:
                continue
            assert taken == next(j for j in waiting if j.key == taken.key)
            waiting.remove(taken)
            skipped = {j.key: skipped.get(j.key, 0) + 1 for j in waiting if j.key != taken.key} | (
                {taken.key: 0} if any(j.key == taken.key for j in waiting) else {}
            )
            assert all(count < 3 for count in skipped.values())
        assert len(queue) == len(waiting)
