"""The trigger trie: which tasks an event completes, for many tasks in one pass.

**Sharing.** Sequences with equal first steps (event, page, `where`, contiguity) and equal `within` share
nodes. An event looks only at the nodes that the user's partial matches wait for, and at the roots, so that
its cost follows what is live, not how many tasks there are. `within` is part of the first node's identity:
every partial below it then lives under one bound, and sharing changes nothing that a task can see.

**Which matches fire.** Each trigger behaves as if it were alone, from its insertion on, over the events of
one user in the order of their arrival:

- Every event that satisfies the first step starts a partial match. Matches may overlap: an event that ends
  one may start the next.
- At each step waits at most one partial. A newer one that reaches the step replaces the older, whose start is
  no later: it is the partial that has more time left and the fresher events.
- A plain (strict) step looks only at the user's next event: if that doesn't satisfy it, the partial can't
  pass there any more. A `followed_by` (relaxed) step waits for the first event that satisfies it, and the
  partial passes once. So a partial fires at most once, and a trigger at most once per event.
- Each event of a match lies within `within` of the first one, by event time, both ways (a clock that is set
  back joins nothing it shouldn't). An event outside doesn't advance a partial and doesn't use it up.
  Sequences of several steps without `within` get a day, so that nothing waits forever.

In the terms of Flink CEP: skip-till-next per step, no skip after a match, latest start wins.

**Bounds.** Each user holds at most `max_live` partials waiting for relaxed steps and as many for strict ones;
the one waiting longest is evicted first. At most `max_users` users are held, the least recently active is
evicted first. Evictions of what could still have fired are counted.

**After a restart** the state is rebuilt by replaying the user's events of the last `horizon_s` seconds of
event time and ignoring the matches. For exactly the state that was, insert each trigger when the replay
reaches the place where it was inserted, since a trigger sees only the events after its insertion.
"""

import math
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import NamedTuple

from libs.common.errors import AlreadyExists
from libs.task.event import ANY, Event
from libs.task.expression import Expression
from libs.task.trigger import Step, Trigger

DEFAULT_WITHIN_S = 86_400.0
"""Bound of a sequence of several steps that names none, in seconds of event time."""

Symbol = tuple[str, str | None]


class Match(NamedTuple):
    """A trigger that has fired. A tuple: a frozen dataclass takes four times as long to make."""

    key: str
    """What it was inserted under."""
    events: tuple[Event, ...]
    """One event per step, first step first."""


@dataclass(frozen=True, slots=True)
class TriggerStats:
    """What the index holds now, and how much it has had to drop since it was made."""

    keys: int
    nodes: int
    users: int
    partials: int
    """Counted at each step where they wait: at a strict and a relaxed one, twice."""
    evicted_partials: int
    evicted_users: int


@dataclass(slots=True, eq=False)
class _Node:
    """A step reached by the same steps before it; `keys` are the triggers that end here."""

    step: Step
    where: Expression | None
    """The step's, at hand."""
    within_s: float
    parent: "_Node | None"
    since: int
    """Events numbered above this one may pass: no trigger below it is older."""
    keys: dict[str, "_Entry"] = field(default_factory=dict)
    children: dict[Step, "_Node"] = field(default_factory=dict)
    strict: dict[Symbol, list["_Node"]] = field(default_factory=dict)
    relaxed: dict[Symbol, list["_Node"]] = field(default_factory=dict)
    relaxed_count: int = 0

    @property
    def symbol(self) -> Symbol:
        return (self.step.event, self.step.page)


@dataclass(frozen=True, slots=True, eq=False)
class _Entry:
    key: str
    order: int
    since: int
    node: _Node


@dataclass(slots=True, eq=False)
class _Partial:
    events: tuple[Event, ...]
    start: int
    """Number of the first event."""
    passed: set[_Node] | None = None
    """Relaxed steps that it has taken already; None for none, since most partials take only one."""


@dataclass(slots=True, eq=False)
class _User:
    fresh: list[tuple[_Node, _Partial]] = field(default_factory=list)
    """Reached by the user's last event and waiting for strict steps."""
    waiting: OrderedDict[_Node, _Partial] = field(default_factory=OrderedDict)
    """Waiting for relaxed steps, longest wait first."""


class TriggerIndex:
    """Triggers by key, and the live partial matches of each user. Not thread-safe; does no IO."""

    def __init__(self, *, max_live: int = 256, max_users: int = 4096) -> None:
        self._max_live = max_live
        self._max_users = max_users
        self._entries: dict[str, _Entry] = {}
        self._roots: dict[Symbol, list[_Node]] = {}
        self._root_nodes: dict[tuple[Step, float], _Node] = {}
        self._relaxed: dict[Symbol, dict[_Node, None]] = {}
        self._symbols: dict[Symbol, int] = {}
        self._users: OrderedDict[str, _User] = OrderedDict()
        self._horizons: dict[float, int] = {}
        self._ordinal = 0
        self._orders = 0
        self._nodes = 0
        self._evicted_partials = 0
        self._evicted_users = 0

    @property
    def horizon_s(self) -> float:
        """Seconds of event time to replay after a restart: the longest bound of a sequence of steps."""
        return max(self._horizons, default=0.0)

    def stats(self) -> TriggerStats:
        """Return the sizes and the eviction counters."""
        partials = sum(_live(user) for user in self._users.values())
        return TriggerStats(
            keys=len(self._entries),
            nodes=self._nodes,
            users=len(self._users),
            partials=partials,
            evicted_partials=self._evicted_partials,
            evicted_users=self._evicted_users,
        )

    def __contains__(self, key: str) -> bool:
        return key in self._entries

    def insert(self, key: str, trigger: Trigger) -> None:
        """Add `trigger` under `key`; it sees the events from now on. Raises AlreadyExists for a known key."""
        if key in self._entries:
            raise AlreadyExists(f"trigger {key!r} is in the index already; remove it first")
        within_s = _bound(trigger)
        root = (trigger.steps[0], within_s)
        node = self._root_nodes.get(root)
        if node is None:
            node = self._root_nodes[root] = self._node(trigger.steps[0], within_s, None)
            self._roots.setdefault(node.symbol, []).append(node)
        for step in trigger.steps[1:]:
            child = node.children.get(step)
            if child is None:
                child = self._child(node, step)
            node = child
        self._orders += 1
        self._entries[key] = node.keys[key] = _Entry(key, self._orders, self._ordinal, node)
        self._horizons[within_s] = self._horizons.get(within_s, 0) + 1

    def remove(self, key: str) -> bool:
        """Take a trigger out, and what waited only for it; False when there is none under `key`."""
        entry = self._entries.pop(key, None)
        if entry is None:
            return False
        node: _Node | None = entry.node
        within_s = entry.node.within_s
        del entry.node.keys[key]
        gone: list[_Node] = []
        while node is not None and not node.keys and not node.children:
            gone.append(node)
            node = self._unlink(node)
        if gone:
            self._forget(gone)
        self._horizons[within_s] -= 1
        if not self._horizons[within_s]:
            del self._horizons[within_s]
        return True

    def advance(self, event: Event) -> list[Match]:
        """Take the next event and return what it completes, in the order of the triggers' insertion."""
        self._ordinal += 1
        type_, page = event.type, event.page
        used = self._symbols
        exact: tuple[Symbol, ...] = ((type_, page), (type_, None), (ANY, page), (ANY, None))
        symbols = [symbol for symbol in exact if symbol in used]
        user = self._users.get(event.user)
        if not symbols:
            if user is not None and user.fresh:
                user.fresh = []
                self._settle(event.user, user)
            return []
        arrivals: list[tuple[_Node, _Partial]] = []
        if user is not None:
            if user.fresh:
                self._advance_strict(user, event, symbols, arrivals)
            if user.waiting:
                self._advance_relaxed(user, event, symbols, arrivals)
        shared = _Partial((event,), self._ordinal)
        for symbol in symbols:
            for node in self._roots.get(symbol, ()):
                where = node.where
                if where is None or where.matches(event.fields):
                    # Only relaxed steps leave marks in a partial; without them one does for all roots.
                    arrivals.append((node, _Partial(shared.events, shared.start) if node.relaxed else shared))
        return self._arrive(user, event, arrivals)

    def _advance_strict(
        self, user: _User, event: Event, symbols: list[Symbol], arrivals: list[tuple[_Node, _Partial]]
    ) -> None:
        for node, partial in user.fresh:
            for symbol in symbols:
                for child in node.strict.get(symbol, ()):
                    reached = _pass(child, partial, event)
                    if reached is not None:
                        arrivals.append((child, reached))

    def _advance_relaxed(
        self, user: _User, event: Event, symbols: list[Symbol], arrivals: list[tuple[_Node, _Partial]]
    ) -> None:
        waiting = user.waiting
        for child in self._candidates(waiting, symbols):
            node = child.parent
            if node is None or (partial := waiting.get(node)) is None:
                continue
            passed = partial.passed
            if passed is not None and child in passed:
                continue
            reached = _pass(child, partial, event)
            if reached is None:
                continue
            arrivals.append((child, reached))
            if passed is None:
                passed = partial.passed = set()
            passed.add(child)
            if len(passed) == node.relaxed_count:
                del waiting[node]

    def _candidates(self, waiting: OrderedDict[_Node, _Partial], symbols: list[Symbol]) -> list[_Node]:
        """Return the relaxed steps of these symbols that something may wait for, found the cheaper way."""
        known = [steps for symbol in symbols if (steps := self._relaxed.get(symbol))]
        if not known:
            return []
        if sum(map(len, known)) <= len(waiting):
            return [child for steps in known for child in steps]
        return [c for node in waiting for symbol in symbols for c in node.relaxed.get(symbol, ())]

    def _arrive(
        self, user: _User | None, event: Event, arrivals: list[tuple[_Node, _Partial]]
    ) -> list[Match]:
        """Fire what ends where a partial has arrived, and let the rest wait there."""
        fired: list[tuple[_Entry, tuple[Event, ...]]] = []
        fresh: list[tuple[_Node, _Partial]] = []
        waits: list[tuple[_Node, _Partial]] = []
        for arrival in arrivals:
            node, partial = arrival
            for entry in node.keys.values():
                if partial.start > entry.since:
                    fired.append((entry, partial.events))
            if node.strict:
                fresh.append(arrival)
            if node.relaxed:
                waits.append(arrival)
        if user is None:
            if not fresh and not waits:
                return _matches(fired)
            user = self._users[event.user] = _User()
        if len(fresh) > self._max_live:
            self._evicted_partials += len(fresh) - self._max_live
            del fresh[self._max_live :]
        user.fresh = fresh
        for node, partial in waits:
            user.waiting[node] = partial
            user.waiting.move_to_end(node)
        while len(user.waiting) > self._max_live:
            node, partial = user.waiting.popitem(last=False)
            if event.time_s - partial.events[0].time_s <= node.within_s:
                self._evicted_partials += 1
        self._settle(event.user, user)
        return _matches(fired)

    def _settle(self, name: str, user: _User) -> None:
        """Keep `user` as the most recent one, or drop it when nothing of it is live."""
        if not user.fresh and not user.waiting:
            del self._users[name]
            return
        self._users.move_to_end(name)
        if len(self._users) > self._max_users:
            _, evicted = self._users.popitem(last=False)
            self._evicted_users += 1
            self._evicted_partials += _live(evicted)

    def _node(self, step: Step, within_s: float, parent: _Node | None) -> _Node:
        node = _Node(step, step.where, within_s, parent, self._ordinal)
        self._nodes += 1
        self._symbols[node.symbol] = self._symbols.get(node.symbol, 0) + 1
        return node

    def _child(self, parent: _Node, step: Step) -> _Node:
        node = parent.children[step] = self._node(step, parent.within_s, parent)
        if step.contiguous:
            parent.strict.setdefault(node.symbol, []).append(node)
        else:
            parent.relaxed.setdefault(node.symbol, []).append(node)
            parent.relaxed_count += 1
            self._relaxed.setdefault(node.symbol, {})[node] = None
        return node

    def _unlink(self, node: _Node) -> _Node | None:
        """Take `node` out of the trie and return its parent."""
        symbol, parent = node.symbol, node.parent
        self._nodes -= 1
        self._symbols[symbol] -= 1
        if not self._symbols[symbol]:
            del self._symbols[symbol]
        if parent is None:
            del self._root_nodes[(node.step, node.within_s)]
            _drop(self._roots, symbol, node)
            return None
        del parent.children[node.step]
        if node.step.contiguous:
            _drop(parent.strict, symbol, node)
        else:
            _drop(parent.relaxed, symbol, node)
            parent.relaxed_count -= 1
            del self._relaxed[symbol][node]
            if not self._relaxed[symbol]:
                del self._relaxed[symbol]
        return parent

    def _forget(self, gone: list[_Node]) -> None:
        """Drop the partials that waited for these nodes only."""
        parents = {id(node.parent): node.parent for node in gone if node.parent is not None}
        for name, user in list(self._users.items()):
            user.fresh = [(node, partial) for node, partial in user.fresh if node.strict]
            for parent in parents.values():
                partial = user.waiting.get(parent)
                if partial is None:
                    continue
                passed = partial.passed or set()
                passed.difference_update(gone)
                if len(passed) == parent.relaxed_count:
                    del user.waiting[parent]
            if not user.fresh and not user.waiting:
                del self._users[name]


def _bound(trigger: Trigger) -> float:
    if len(trigger.steps) == 1:
        return 0.0
    return DEFAULT_WITHIN_S if trigger.within_s is None else trigger.within_s


def _pass(child: _Node, partial: _Partial, event: Event) -> _Partial | None:
    """Return the partial that has passed into `child` with `event`, or None when it doesn't."""
    if partial.start <= child.since:
        return None
    distance = math.fabs(event.time_s - partial.events[0].time_s)
    if distance > child.within_s:
        return None
    where = child.where
    if where is not None and not where.matches(event.fields):
        return None
    return _Partial((*partial.events, event), partial.start)


def _matches(fired: list[tuple[_Entry, tuple[Event, ...]]]) -> list[Match]:
    if len(fired) > 1:
        fired.sort(key=_order)
    return [Match(entry.key, events) for entry, events in fired]


def _order(item: tuple[_Entry, tuple[Event, ...]]) -> int:
    return item[0].order


def _drop(lists: dict[Symbol, list[_Node]], symbol: Symbol, node: _Node) -> None:
    lists[symbol].remove(node)
    if not lists[symbol]:
        del lists[symbol]


def _live(user: _User) -> int:
    return len(user.fresh) + len(user.waiting)
