"""The trigger trie: what fires, against a naive oracle; adding and removing at run time; bounds."""

import json
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libs.common.errors import AlreadyExists
from libs.task.event import Event
from libs.task.expression import parse_expression
from libs.task.trigger import Step, Trigger, parse_trigger
from services.device_agent.domain.triggers import DEFAULT_WITHIN_S, Match, TriggerIndex

DAY = 86_400.0


def event(kind: str, t: float = 0.0, *, page: str = "", user: str = "u", **fields: object) -> Event:
    return Event(event_id="", type=kind, page=page, user=user, time_s=t, fields=fields)


def trigger(*elements: object, within: str | None = None) -> Trigger:
    sequence = [{"event": e} if isinstance(e, str) else e for e in elements]
    body: dict[str, object] = {"sequence": sequence}
    return parse_trigger(json.dumps(body | ({"within": within} if within else {})))


def then(kind: str, **more: object) -> dict[str, object]:
    return {"followed_by": {"event": kind, **more}}


def run(index: TriggerIndex, text: str, *, user: str = "u") -> list[tuple[int, str, list[int]]]:
    """Feed one event per letter, a second apart; return (index, key, indices of the match's events)."""
    fired = []
    for i, letter in enumerate(text):
        for match in index.advance(event(letter, float(i), user=user)):
            fired.append((i, match.key, [int(e.time_s) for e in match.events]))
    return fired


def index_of(**triggers: Trigger) -> TriggerIndex:
    index = TriggerIndex()
    for key, value in triggers.items():
        index.insert(key, value)
    return index


class TestSemantics:
    def test_a_single_step_fires_on_each_event(self) -> None:
        assert run(index_of(k=trigger("a")), "abaa") == [(0, "k", [0]), (2, "k", [2]), (3, "k", [3])]

    def test_a_strict_step_takes_only_the_very_next_event(self) -> None:
        assert run(index_of(k=trigger("a", "b")), "abaxbab") == [(1, "k", [0, 1]), (6, "k", [5, 6])]

    def test_an_unrelated_event_of_an_unknown_type_breaks_strict_contiguity(self) -> None:
        assert run(index_of(k=trigger("a", "b")), "a?b") == []

    def test_another_users_event_breaks_nothing(self) -> None:
        index = index_of(k=trigger("a", "b"))
        assert index.advance(event("a", user="u")) == []
        assert index.advance(event("x", user="v")) == []
        assert [m.key for m in index.advance(event("b", user="u"))] == ["k"]

    def test_a_relaxed_step_waits_and_takes_the_first(self) -> None:
        assert run(index_of(k=trigger("a", then("b"))), "axxbb") == [(3, "k", [0, 3])]

    def test_the_latest_start_wins_and_fires_once(self) -> None:
        assert run(index_of(k=trigger("a", then("b"))), "aaxb") == [(3, "k", [1, 3])]

    def test_matches_may_overlap(self) -> None:
        assert run(index_of(k=trigger("a", then("a"))), "aaa") == [(1, "k", [0, 1]), (2, "k", [1, 2])]

    def test_wildcards_match_any_event_and_page(self) -> None:
        index = index_of(k=trigger("*", {"event": "b", "page": "p"}))
        index.advance(event("zzz"))
        assert [m.key for m in index.advance(event("b", page="p"))] == ["k"]
        index.advance(event("zzz"))
        assert index.advance(event("b", page="q")) == []

    def test_where_looks_at_the_fields(self) -> None:
        index = index_of(k=trigger({"event": "a", "where": {"ge": ["n", 3]}}))
        assert index.advance(event("a", n=2)) == []
        assert index.advance(event("a")) == []
        assert len(index.advance(event("a", n=3))) == 1

    def test_an_event_where_a_relaxed_step_fails_its_where_is_waited_past(self) -> None:
        index = index_of(k=trigger("a", then("b", where={"eq": ["ok", True]})))
        index.advance(event("a"))
        assert index.advance(event("b", ok=False)) == []
        assert len(index.advance(event("b", ok=True))) == 1

    def test_within_is_inclusive_and_by_event_time(self) -> None:
        index = index_of(k=trigger("a", then("b"), within="10s"))
        index.advance(event("a", 100.0))
        assert index.advance(event("b", 110.5)) == []
        assert len(index.advance(event("b", 110.0))) == 1

    def test_a_clock_set_back_joins_nothing(self) -> None:
        index = index_of(k=trigger("a", then("b"), within="10s"))
        index.advance(event("a", 1000.0))
        assert index.advance(event("b", 500.0)) == []

    def test_sequences_without_within_get_a_day(self) -> None:
        index = index_of(k=trigger("a", then("b")))
        index.advance(event("a", 0.0))
        assert index.advance(event("b", DEFAULT_WITHIN_S + 1)) == []
        assert len(index.advance(event("b", DEFAULT_WITHIN_S))) == 1

    def test_matches_come_in_the_order_of_insertion(self) -> None:
        index = index_of(z=trigger("*"), m=trigger("a"), a=trigger({"event": "a", "page": ""}))
        assert [m.key for m in index.advance(event("a"))] == ["z", "m", "a"]

    def test_the_horizon_is_the_longest_within_of_several_steps(self) -> None:
        index = index_of(one=trigger("a"))
        assert index.horizon_s == 0.0
        index.insert("short", trigger("a", "b", within="30s"))
        index.insert("long", trigger("a", "b", within="12h"))
        index.insert("none", trigger("a", "b"))
        assert index.horizon_s == DAY
        index.remove("none")
        assert index.horizon_s == 12 * 3600.0
        index.remove("long")
        assert index.horizon_s == 30.0


class TestChangesAtRunTime:
    def test_a_known_key_is_refused(self) -> None:
        index = index_of(k=trigger("a"))
        with pytest.raises(AlreadyExists, match="'k'"):
            index.insert("k", trigger("b"))

    def test_removing_an_unknown_key_says_so(self) -> None:
        assert index_of(k=trigger("a")).remove("other") is False

    def test_a_trigger_sees_only_events_after_its_insertion(self) -> None:
        index = index_of(old=trigger("a", then("b")))
        index.advance(event("a"))
        index.insert("new", trigger("a", then("b")))
        assert [m.key for m in index.advance(event("b"))] == ["old"]
        index.advance(event("a"))
        assert [m.key for m in index.advance(event("b"))] == ["old", "new"]

    def test_removing_one_leaves_the_partials_of_others(self) -> None:
        index = index_of(
            k1=trigger("a", then("b"), "c"), k2=trigger("a", then("b")), k3=trigger("a", then("d"))
        )
        index.advance(event("a"))
        assert index.remove("k2")
        assert [m.key for m in index.advance(event("b"))] == []
        assert [m.key for m in index.advance(event("c"))] == ["k1"]
        assert [m.key for m in index.advance(event("d"))] == ["k3"]

    def test_removing_a_step_that_was_passed_keeps_the_steps_that_wait(self) -> None:
        index = index_of(k1=trigger("a", then("b")), k2=trigger("a", then("c")))
        index.advance(event("a"))
        assert [m.key for m in index.advance(event("b"))] == ["k1"]
        index.remove("k1")
        index.advance(event("x"))
        assert [m.key for m in index.advance(event("c"))] == ["k2"]
        assert index.stats().partials == 0

    def test_nothing_is_left_when_all_are_removed(self) -> None:
        index = index_of(k1=trigger("a", then("b"), "c"), k2=trigger("a", "b", then("b")), k3=trigger("*"))
        run(index, "abcab")
        for key in ("k1", "k2", "k3"):
            assert index.remove(key)
            assert key not in index
        stats = index.stats()
        assert (stats.keys, stats.nodes, stats.users, stats.partials) == (0, 0, 0, 0)
        assert index.horizon_s == 0.0
        assert run(index, "abc") == []

    def test_equal_prefixes_share_nodes(self) -> None:
        index = index_of(k1=trigger("a", "b", "c"), k2=trigger("a", "b", then("d")), k3=trigger("a", "b"))
        assert index.stats().nodes == 4
        index.insert("k4", trigger("a", "b", within="1s"))  # another bound shares nothing
        assert index.stats().nodes == 6


class TestBounds:
    def test_the_partial_waiting_longest_is_evicted_and_counted(self) -> None:
        index = TriggerIndex(max_live=2)
        for letter in "abc":
            index.insert(letter, trigger(letter, then("z")))
        assert [key for _, key, _ in run(index, "abcz")] == ["b", "c"]
        assert index.stats().evicted_partials == 1

    def test_a_partial_that_is_replaced_waits_anew(self) -> None:
        index = TriggerIndex(max_live=2)
        for letter in "abc":
            index.insert(letter, trigger(letter, then("z")))
        assert [key for _, key, _ in run(index, "abacz")] == ["a", "c"]

    def test_what_has_expired_is_evicted_without_being_counted(self) -> None:
        index = TriggerIndex(max_live=1)
        index.insert("a", trigger("a", then("z"), within="1s"))
        index.insert("b", trigger("b", then("z")))
        index.advance(event("a", 0.0))
        index.advance(event("b", 5.0))
        assert index.stats().evicted_partials == 0
        assert index.stats().partials == 1

    def test_strict_partials_are_bounded_too(self) -> None:
        index = TriggerIndex(max_live=3)
        for n in range(10):
            index.insert(f"k{n}", trigger({"event": "a", "where": {"ge": ["n", n]}}, "b"))
        index.advance(event("a", n=100))
        stats = index.stats()
        assert (stats.partials, stats.evicted_partials) == (3, 7)
        assert len(index.advance(event("b"))) == 3

    def test_the_least_recent_user_is_evicted_and_counted(self) -> None:
        index = TriggerIndex(max_users=2)
        index.insert("k", trigger("a", then("b")))
        for user in ("u1", "u2"):
            index.advance(event("a", user=user))
        index.advance(event("x", user="u1"))  # not an event that anything looks at
        index.advance(event("a", user="u1"))
        index.advance(event("a", user="u3"))
        stats = index.stats()
        assert (stats.users, stats.evicted_users, stats.evicted_partials) == (2, 1, 1)
        assert index.advance(event("b", user="u2")) == []
        assert len(index.advance(event("b", user="u1"))) == 1
        assert len(index.advance(event("b", user="u3"))) == 1

    def test_users_without_partials_take_no_room(self) -> None:
        index = index_of(k=trigger("a", "b"))
        for n in range(100):
            run(index, "ab", user=f"u{n}")
        assert index.stats().users == 0


@dataclass
class Oracle:
    """One trigger alone, by the definition: who arrives at which step with which event. Slow on purpose."""

    trigger: Trigger
    seen: list[Event] = field(default_factory=list)

    def advance(self, new: Event) -> tuple[Event, ...] | None:
        self.seen.append(new)
        return self._arrivals(len(self.trigger.steps) - 1).get(len(self.seen) - 1)

    def _arrivals(self, step: int) -> dict[int, tuple[Event, ...]]:
        """Return the partials that arrive at `step`, by the index of the event that brings them there."""
        wanted = self.trigger.steps[step]
        fits = [i for i, e in enumerate(self.seen) if wanted.matches(e)]
        if step == 0:
            return {i: (self.seen[i],) for i in fits}
        before = self._arrivals(step - 1)
        within = DAY if self.trigger.within_s is None else self.trigger.within_s
        arrivals: dict[int, tuple[Event, ...]] = {}
        used: set[int] = set()
        for j in fits:
            earlier = [i for i in before if i < j]
            if not earlier:
                continue
            i = max(earlier)  # the newest has replaced the older ones
            if wanted.contiguous and i != j - 1:
                continue
            if i in used or abs(self.seen[j].time_s - before[i][0].time_s) > within:
                continue
            used.add(i)
            arrivals[j] = (*before[i], self.seen[j])
        return arrivals


WHERE = parse_expression({"ge": ["n", 1]})
steps = st.builds(
    Step,
    event=st.sampled_from(["a", "b", "c", "*"]),
    page=st.sampled_from([None, None, "p", "q"]),
    where=st.sampled_from([None, None, WHERE]),
    contiguous=st.booleans(),
)


def _trigger(parts: list[Step], within: float | None) -> Trigger:
    first = Step(parts[0].event, parts[0].page, parts[0].where, True)
    return Trigger((first, *parts[1:]), within)


triggers = st.builds(_trigger, st.lists(steps, min_size=1, max_size=4), st.sampled_from([None, 2.0, 5.0]))
events = st.builds(
    event,
    st.sampled_from(["a", "b", "c", "d"]),
    st.integers(0, 20).map(float),  # out of order too
    page=st.sampled_from(["p", "q"]),
    user=st.sampled_from(["u", "v"]),
    n=st.integers(0, 1),
)
actions = st.lists(
    st.one_of(
        events,
        events,
        events,
        st.tuples(st.sampled_from(["k1", "k2", "k3", "k4"]), triggers),
        st.sampled_from(["k1", "k2", "k3", "k4"]),
    ),
    max_size=60,
)


@settings(max_examples=400, deadline=None)
@given(st.lists(triggers, min_size=1, max_size=4), actions)
def test_every_trigger_behaves_as_if_it_were_alone(
    first: list[Trigger], script: list[Event | tuple[str, Trigger] | str]
) -> None:
    """Any mix of events, insertions and removals: the trie fires what one oracle per trigger fires."""
    index = TriggerIndex()
    alive: dict[str, tuple[Trigger, dict[str, Oracle]]] = {}
    start: list[tuple[str, Trigger]] = [(f"k{n + 1}", t) for n, t in enumerate(first)]
    for action in [*start, *script]:
        if isinstance(action, Event):
            expected = []
            for key, (wanted, oracles) in alive.items():
                found = oracles.setdefault(action.user, Oracle(wanted)).advance(action)
                if found is not None:
                    expected.append(Match(key, found))
            assert index.advance(action) == expected
        elif isinstance(action, tuple):
            key, wanted = action
            if key not in alive:
                index.insert(key, wanted)
                alive[key] = (wanted, {})
        else:
            assert index.remove(action) is (alive.pop(action, None) is not None)
    for key in list(alive):
        index.remove(key)
    stats = index.stats()
    assert (stats.keys, stats.nodes, stats.users, stats.partials) == (0, 0, 0, 0)


@settings(max_examples=100, deadline=None)
@given(st.lists(triggers, min_size=1, max_size=6), st.lists(events, max_size=80), st.integers(1, 4))
def test_live_state_stays_within_its_bounds(wanted: list[Trigger], stream: list[Event], most: int) -> None:
    """However small the bounds, the state keeps them, and two indexes fed the same agree."""
    one, two = (TriggerIndex(max_live=most, max_users=1) for _ in range(2))
    for n, t in enumerate(wanted):
        one.insert(f"k{n}", t)
        two.insert(f"k{n}", t)
    for e in stream:
        assert one.advance(e) == two.advance(e)
        assert one.stats() == two.stats()
        assert one.stats().users <= 1
        assert one.stats().partials <= 2 * most
