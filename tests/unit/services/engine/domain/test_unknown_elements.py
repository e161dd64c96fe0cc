"""Sequences that start empty hold what blocks join them with."""

from libs.runtime import plan as plans
from libs.runtime.plan import DataType
from services.engine.domain.composed import BlockCode, Composed, HeldType
from services.engine.domain.graph import LooseTensor, SequenceOf
from services.engine.domain.program import ValueType
from services.engine.domain.unknown_elements import settled

WORDS = SequenceOf(LooseTensor(DataType.STRING, 1))
OPEN = SequenceOf(None)
FLAG = ValueType(DataType.BOOL, ())


def composed(*values: ValueType | HeldType) -> Composed:
    return Composed(values, (), (), {}, BlockCode((), (), ()))


def block(*kinds: plans.Run | plans.Branch | plans.Loop | plans.Host, **more: tuple[int, ...]) -> plans.Block:
    actions = tuple(plans.Action(kind) for kind in kinds)
    return plans.Block(more.get("parameters", ()), actions, more.get("results", ()))


def test_what_one_branch_leaves_empty_holds_what_the_other_gives() -> None:
    blocks = [block(plans.Branch(0, 1, 2, (3,))), block(results=(1,)), block(results=(2,))]
    found = settled(composed(FLAG, OPEN, WORDS, WORDS), blocks)
    assert found.values == (FLAG, WORDS, WORDS, WORDS)


def test_a_loop_that_fills_an_empty_sequence_says_what_it_holds_from_start_to_end() -> None:
    count = ValueType(DataType.INT64, ())
    inner = block(plans.Host("sequence_insert", (4, 5), (6,)), parameters=(2, 3, 4), results=(3, 6))
    outer = block(plans.Host("sequence_empty", (), (1,)), plans.Loop(0, None, 1, (1,), (7,)))
    item = LooseTensor(DataType.STRING, 1)
    found = settled(composed(count, OPEN, count, FLAG, OPEN, item, WORDS, OPEN), [outer, inner])
    assert [found.values[value] for value in (1, 4, 6, 7)] == [WORDS] * 4


def test_what_is_known_stays_and_so_does_what_nobody_knows() -> None:
    numbers = SequenceOf(LooseTensor(DataType.INT64, None))
    blocks = [block(plans.Branch(0, 1, 2, (3,))), block(results=(1,)), block(results=(2,))]
    assert settled(composed(FLAG, numbers, WORDS, OPEN), blocks).values[1:3] == (numbers, WORDS)
    assert settled(composed(FLAG, OPEN, OPEN, OPEN), blocks).values[1:] == (OPEN, OPEN, OPEN)


def test_what_contradicts_itself_ends_and_is_left_to_the_check() -> None:
    lists = SequenceOf(OPEN)
    blocks = [block(plans.Branch(0, 1, 2, (3,))), block(results=(1,)), block(results=(2,))]
    assert settled(composed(FLAG, WORDS, lists, lists), blocks).values == (FLAG, WORDS, lists, lists)
