"""When registers and tensors are done with."""

from libs.runtime.lifetimes import lifetimes, tensor_lifetimes
from libs.runtime.plan import (
    Action,
    Block,
    Branch,
    Composition,
    DataType,
    Host,
    Loop,
    NamedRegister,
    Register,
    TensorType,
)
from libs.runtime.testing import PlanBuilder


def length(given: int, made: int) -> Action:
    """An action that reads one register and writes another; which one it is doesn't matter here."""
    return Action(Host("sequence_length", (given,), (made,)))


def composition(*blocks: Block, output: int, count: int = 12) -> Composition:
    registers = (Register(TensorType(DataType.INT64, ())),) * count
    return Composition((), registers, (NamedRegister("x", 0),), (NamedRegister("y", output),), blocks)


def test_a_register_goes_after_what_reads_it_last() -> None:
    block = Block((), (length(0, 1), length(1, 2), length(1, 3), length(3, 4)), ())
    (found,) = lifetimes(composition(block, output=4))
    assert list(found.after) == [(), (2,), (1,), (3,)], "inputs and outputs stay; 2 is never read"
    assert found.at_end == ()


def test_what_a_block_within_reads_is_needed_until_it_has_run() -> None:
    outer = Block((), (length(0, 1), Action(Branch(0, 1, 2, (5,))), length(5, 6)), ())
    then = Block((), (length(1, 2), length(2, 3)), (3,))
    otherwise = Block((), (), (0,))
    found = lifetimes(composition(outer, then, otherwise, output=6))
    assert list(found[0].after) == [(), (1,), (5,)]
    assert list(found[1].after) == [(), (2,)]
    assert found[1].at_end == (3,), "the branch clears what the block gave back"
    assert found[2].at_end == (), "a register of the block around isn't the branch's to clear"


def test_a_round_lets_go_of_its_parameters_and_leaves_others() -> None:
    outer = Block((), (length(0, 1), Action(Loop(1, None, 1, (0,), (9,)))), ())
    body = Block((2, 3, 4), (length(4, 5), length(1, 6), length(6, 7)), (3, 5))
    found = lifetimes(composition(outer, body, output=9))
    assert list(found[0].after) == [(), (1,)]
    assert [sorted(each) for each in found[1].after] == [[2, 4], [], [6, 7]]
    assert sorted(found[1].at_end) == [3, 5]


def test_parameters_of_a_block_without_actions_are_cleared_by_who_runs_it() -> None:
    outer = Block((), (Action(Loop(None, None, 1, (0,), (9,))),), ())
    found = lifetimes(composition(outer, Block((2, 3, 4), (), (3, 0)), output=9))
    assert sorted(found[1].at_end) == [2, 3, 4]


def test_a_tensor_lives_from_the_step_that_writes_it_to_the_last_that_needs_it() -> None:
    plan = PlanBuilder()
    x, unread = plan.input("x", [4]), plan.input("unread", [4])
    y = plan.compute("neg", [x], [4])
    z = plan.compute("add", [x, plan.constant([1.0, 2.0, 3.0, 4.0])], [4])
    plan.output("y", y)
    births, deaths = tensor_lifetimes(plan.build())
    assert births == {x: -1, unread: -1, y: 0, z: 1}
    assert {tensor: deaths[tensor] for tensor in births} == {x: 1, unread: -1, y: 2, z: 1}
