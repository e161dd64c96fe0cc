"""Operators of ai.onnx.ml beside the plain ones: labels looked up, trees walked."""

from __future__ import annotations

from typing import Any

import numpy as np

from libs.runtime.plan import DataType
from services.engine.domain.builder import Builder
from services.engine.domain.decompose.generation import arange
from services.engine.domain.decompose.operator import Call, Operator
from services.engine.domain.decompose.text import strings
from services.engine.domain.extents import Extent, product
from services.engine.domain.reference import Array
from services.engine.domain.values import Value

ONE = Extent.of(1)
_KINDS = ("strings", "int64s", "floats", "tensor")


def _list(call: Call, prefix: str) -> Value:
    """Return keys or values as a vector, by whichever attribute has them."""
    b = call.builder
    for kind in _KINDS:
        given: Any = call.node.attributes.get(f"{prefix}_{kind}")
        if given is None or len(given) == 0:
            continue
        if kind == "strings":
            return strings(b, given)
        if kind == "tensor":
            return b.constant(given.reshape(-1))
        return b.constant(np.array(given, np.int64 if kind == "int64s" else np.float32))
    call.fail(f"it has no attribute {prefix}_strings, {prefix}_int64s, {prefix}_floats or {prefix}_tensor")


def _default(call: Call, type_: DataType) -> Value:
    given = call.tensor("default_tensor")
    if given is not None:
        return call.builder.constant(given.reshape(-1)[:1])
    if type_ is DataType.STRING:
        return strings(call.builder, [call.text("default_string", "_Unused")])
    value = (
        call.number("default_float", -0.0) if type_ is DataType.FLOAT32 else call.integer("default_int64", -1)
    )
    return call.builder.reshape(call.builder.scalar(value, type_), (ONE,))


def _labels(call: Call, x: Value) -> tuple[Value, Value]:
    """Return keys and values; the oldest version has names of classes alone, and numbers them."""
    given: Any = call.node.attributes.get("classes_strings")
    if not given:
        return _list(call, "keys"), _list(call, "values")
    names, numbers = strings(call.builder, given), arange(call.builder, Extent.of(len(given)))
    return (names, numbers) if x.type is DataType.STRING else (numbers, names)


def _encode_labels(call: Call) -> Value:
    """Look up each element among the keys: by its place in a table of all, or by comparing with each."""
    x, b = call.input(0), call.builder
    keys, values = _labels(call, x)
    count = keys.shape[0]
    if count != values.shape[0] or keys.type is not x.type:
        call.fail(f"keys are {keys} and values {values} for {x}")
    table = b.joined([values, _default(call, values.type)], 0)
    flat = b.reshape(x, (product(x.shape),))
    if x.type is DataType.STRING:
        places, own = b.places(flat, keys)
        # As many places as there are strings at most.
        room = b.broadcast(b.extent(count, DataType.INT64), (flat.shape[0] + count,), fold=False)
        found = b.gather(b.scatter("scatter", room, own, arange(b, count)), places, 0)
    else:
        same = b.binary("eq", b.reshape(flat, (flat.shape[0], ONE)), keys)
        if x.type is DataType.FLOAT32:  # no number is a key, too
            both = b.binary("and", b.reshape(b.is_nan(flat), (flat.shape[0], ONE)), b.is_nan(keys))
            same = b.binary("or", same, both)
        numbered = b.where(same, arange(b, count), b.extent(count, DataType.INT64))
        found = b.reduce("reduce_min", numbered, (1,), keep=False)
    return b.reshape(b.gather(table, found, 0), x.shape)


_LEAF = 1 << 40


class _Trees:
    """The nodes and leaves of an ensemble, as numbers: a leaf is its number and `_LEAF`."""

    def __init__(self, call: Call) -> None:
        def integers(name: str) -> Array:
            given = call.integers(name)
            if given is None:
                call.fail(f"attribute {name!r} is missing")
            return np.array(given, np.int64)

        self.features = integers("nodes_featureids")
        modes, splits = call.tensor("nodes_modes"), call.tensor("nodes_splits")
        weights = call.tensor("leaf_weights")
        if modes is None or splits is None or weights is None:
            call.fail("attribute 'nodes_modes', 'nodes_splits' or 'leaf_weights' is missing")
        self.modes, self.splits, self.weights = modes.astype(np.int64), splits, weights
        true, false = integers("nodes_truenodeids"), integers("nodes_falsenodeids")
        self.true = true + _LEAF * integers("nodes_trueleafs")
        self.false = false + _LEAF * integers("nodes_falseleafs")
        self.targets, self.roots = integers("leaf_targetids"), integers("tree_roots")
        missing = call.integers("nodes_missing_value_tracks_true")
        count = len(self.features)
        self.missing = np.array(missing if missing else [0] * count, np.int64)
        lists = (self.modes, self.splits, self.true, self.false, self.missing)
        if any(len(each) != count for each in lists) or len(self.targets) != len(self.weights):
            call.fail("its attributes describe other numbers of nodes or leaves")
        for ends, most in (((self.true, self.false), count), ((self.roots,), count)):
            for end in ends:
                inner = end[end < _LEAF]
                if ((inner < 0) | (inner >= most)).any() or ((end - _LEAF) >= len(self.targets)).any():
                    call.fail("a node's branch leads nowhere")
        self.depth = self._depth(call)

    def _depth(self, call: Call) -> int:
        """Return how many nodes there are on the longest way; refuses one that comes back to itself."""
        level, depth = set(self.roots.tolist()), 0
        while level:
            depth += 1
            if depth > len(self.features):
                call.fail("its nodes form a circle")
            ends = [end for node in level for end in (int(self.true[node]), int(self.false[node]))]
            level = {end for end in ends if end < _LEAF}
        return depth


def _members(call: Call, trees: _Trees) -> Array:
    """Return the distinct members, then for each node which of them it has: [1 + nodes, members]."""
    given = call.tensor("membership_values")
    values = np.zeros(0, np.float64) if given is None else given.astype(np.float64)
    order: list[int] = []
    stack = trees.roots.tolist()[::-1]
    while stack:  # members come in the order in which nodes are visited, the true branch first
        node = stack.pop()
        if node >= _LEAF:
            continue
        if trees.modes[node] == 6:
            order.append(node)
        stack += [int(trees.false[node]), int(trees.true[node])]
    sets = np.split(values, np.flatnonzero(np.isnan(values)) + 1)[:-1]
    if len(sets) != len(order):
        call.fail(f"attribute 'membership_values' has {len(sets)} sets for {len(order)} nodes")
    distinct = np.unique(values[~np.isnan(values)])
    table = np.zeros((len(trees.features), len(distinct)), np.bool_)
    for node, members in zip(order, sets, strict=True):
        table[node] = np.isin(distinct, members[:-1])
    return np.vstack([distinct, table.astype(np.float64)])


def _tree_ensemble(call: Call) -> Value:
    """Walk all trees for all rows at once, a level in each round; leaves stay where they are."""
    x, b = call.floats(call.input(0)), call.builder
    trees = _Trees(call)
    if x.rank != 2:
        call.fail(f"its input is {x}, not [rows, features]")
    rows, targets = x.shape[0], call.integer("n_targets", 1)
    count = Extent.of(len(trees.roots))

    def known(array: Array) -> Value:
        return b.constant(np.ascontiguousarray(array))

    leaf, table = b.integer(_LEAF), _members(call, trees)
    at = b.broadcast(known(trees.roots), (rows, count), fold=False)
    row = b.reshape(arange(b, rows), (rows, ONE))
    flat = b.reshape(x, (rows * x.shape[1],))
    for _ in range(trees.depth):
        done = b.binary("le", leaf, at)
        node = b.where(done, b.integer(0), at)
        feature = b.gather(known(trees.features), node, 0)
        place = b.binary("add", b.binary("mul", row, b.extent(x.shape[1], DataType.INT64)), feature)
        value, split = b.gather(flat, place, 0), b.gather(known(trees.splits.astype(_dtype(x))), node, 0)
        holds = _holds(b, trees, node, value, split, known)
        if table.shape[1]:
            own = b.gather(known(table[1:].astype(np.bool_)), node, 0)
            is_it = b.binary("eq", b.reshape(value, (rows, count, ONE)), known(table[0].astype(_dtype(x))))
            inside = b.reduce(
                "reduce_max", b.cast(b.binary("and", own, is_it), DataType.INT64), (2,), keep=False
            )
            by_set = b.binary("eq", b.gather(known(trees.modes), node, 0), b.integer(6))
            holds = b.where(by_set, b.cast(inside, DataType.BOOL), holds)
        tracked = b.binary("eq", b.gather(known(trees.missing), node, 0), b.integer(1))
        holds = b.binary("or", holds, b.binary("and", tracked, b.is_nan(value)))
        branch = b.where(holds, b.gather(known(trees.true), node, 0), b.gather(known(trees.false), node, 0))
        at = b.where(done, at, branch)
    end = b.binary("sub", at, leaf)
    weight = b.gather(known(trees.weights.astype(_dtype(x))), end, 0)
    return _transformed(call, _aggregated(call, weight, b.gather(known(trees.targets), end, 0), targets))


def _dtype(x: Value) -> np.dtype[Any]:
    return np.dtype(x.type.name.lower())


def _holds(b: Builder, trees: _Trees, node: Value, value: Value, split: Value, known: Any) -> Value:
    mode = b.gather(known(trees.modes), node, 0)
    tests = (
        b.binary("le", value, split),
        b.binary("lt", value, split),
        b.binary("le", split, value),
        b.binary("lt", split, value),
        b.binary("eq", value, split),
        b.unary("not", b.binary("eq", value, split)),
    )
    result = tests[0]
    for number in sorted(set(trees.modes.tolist()) - {0, 6}):
        result = b.where(b.binary("eq", mode, b.integer(number)), tests[number], result)
    return result


def _aggregated(call: Call, weight: Value, target: Value, targets: int) -> Value:
    """Return [rows, targets] of weights [rows, trees]."""
    b = call.builder
    rows, count = weight.shape
    width = Extent.of(targets)
    row = b.reshape(arange(b, rows), (rows, ONE))
    places = b.binary("add", b.binary("mul", row, b.integer(targets)), target)
    way = call.integer("aggregate_function", 1)
    operators = {0: "scatter_add", 1: "scatter_add", 2: "scatter_min", 3: "scatter_max"}
    if way not in operators:
        call.fail(f"attribute 'aggregate_function' is {way}; use 0 to 3")
    start = {2: np.inf, 3: -np.inf}.get(way, 0.0)
    none = b.broadcast(b.scalar(start, weight.type), (rows * width,), fold=False)
    flat = (rows * count,)
    total = b.scatter(operators[way], none, b.reshape(places, flat), b.reshape(weight, flat))
    if way in (2, 3):  # of no leaf at all the result is 0
        total = b.where(b.is_inf(total), b.scalar(0, total.type), total)
    if way == 0:
        total = b.binary("div", total, b.extent(count, total.type))
    return b.reshape(total, (rows, width))


def _transformed(call: Call, scores: Value) -> Value:
    if (after := call.integer("post_transform", 0)) != 0:
        call.fail(f"attribute 'post_transform' is {after}; only 0, none, is supported: apply it in the model")
    return scores


OPERATORS = (
    Operator("ai.onnx.ml:LabelEncoder", "composite", _encode_labels, 1),
    Operator("ai.onnx.ml:TreeEnsemble", "composite", _tree_ensemble, 5),
)
