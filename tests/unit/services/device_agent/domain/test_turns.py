from services.device_agent.domain.turns import Turns


def test_those_who_wait_come_first_and_the_rest_fills_up():
    turns = Turns(3)
    assert turns.choose([("a", False), ("b", True), ("c", False), ("d", True)]) == {"b", "d", "a"}


def test_all_who_wait_get_their_turn():
    turns = Turns(3)
    names = [f"s{i}" for i in range(8)]
    rounds = [turns.choose([(name, True) for name in names]) for _ in range(3)]
    assert [len(chosen) for chosen in rounds] == [3, 3, 3]
    assert frozenset().union(*rounds) == set(names)


def test_a_newcomer_goes_before_those_who_have_had_a_turn():
    turns = Turns(1)
    assert turns.choose([("a", True)]) == {"a"}
    assert turns.choose([("a", True), ("z", True)]) == {"z"}
    assert turns.choose([("a", True), ("z", True)]) == {"a"}


def test_few_all_have_a_place():
    assert Turns(3).choose([("a", True), ("b", False)]) == {"a", "b"}
    assert Turns(3).choose([]) == frozenset()
