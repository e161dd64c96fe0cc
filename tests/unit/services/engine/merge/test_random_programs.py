"""Random programs mean the same before and after merging, at every size."""

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from libs.runtime.codec import decode, encode
from libs.runtime.plan import DataType
from libs.runtime.program import Program as Runtime
from services.engine.domain.check_program import check_program
from services.engine.domain.extents import Extent, product
from services.engine.domain.lower import lower
from services.engine.domain.merge import merge
from services.engine.domain.program import Program
from services.engine.domain.reference import interpret
from services.engine.testing_programs import Sketch, counts

N = Extent.dimension("n")
SIZES = (1, 2, 3, 7)
KINDS = (
    *("transpose", "slice", "flip", "reshape", "flatten", "broadcast", "stretch", "concat", "pad"),
    *("unary", "binary", "reduce", "matmul", "dense", "outer"),
)


def _grow(draw, sketch: Sketch, pool: list[int]) -> int:
    value = draw(st.sampled_from(pool))
    shape = sketch.shape(value)
    rank = len(shape)
    axis = draw(st.integers(0, rank - 1))
    size = shape[axis].constant
    kind = draw(st.sampled_from(KINDS))
    if kind == "transpose":
        return sketch.transpose(value, *draw(st.permutations(range(rank))))
    if kind == "slice" and size is not None and size > 1:
        start = draw(st.integers(0, size - 1))
        step = draw(st.integers(1, 3))
        return sketch.slice(value, axis, start, (size - start + step - 1) // step, step)
    if kind == "slice" and size is None and sketch.bounds.positive(shape[axis]):
        # All but the first; of n alone that may be none.
        return sketch.slice(value, axis, 1, shape[axis] - 1)
    if kind == "flip":
        return sketch.slice(value, axis, shape[axis] - 1, shape[axis], -1)
    if kind == "reshape" and rank < 5:
        if size is not None and size % 2 == 0:
            return sketch.reshape(value, *shape[:axis], 2, size // 2, *shape[axis + 1 :])
        if axis + 1 < rank:
            return sketch.reshape(value, *shape[:axis], shape[axis] * shape[axis + 1], *shape[axis + 2 :])
    if kind == "flatten":
        return sketch.reshape(value, product(shape))
    if kind == "broadcast" and rank < 4:
        return sketch.broadcast(value, draw(st.sampled_from([2, 3, N])), *shape)
    if kind == "stretch" and rank < 5:
        lifted = sketch.reshape(value, *shape[:axis], 1, *shape[axis:])
        return sketch.broadcast(lifted, *shape[:axis], 2, *shape[axis:])
    if kind == "concat":
        alike = [
            other
            for other in pool
            if len(sketch.shape(other)) == rank
            and all(
                a == b for at, (a, b) in enumerate(zip(shape, sketch.shape(other), strict=True)) if at != axis
            )
        ]
        return sketch.concat(axis, *draw(st.lists(st.sampled_from(alike), min_size=1, max_size=3)))
    if kind == "pad":
        before, after = draw(st.integers(0, 2)), draw(st.integers(0, 2))
        return sketch.pad(value, axis, before, after, draw(st.sampled_from([0, 7])))
    if kind == "binary":
        alike = [other for other in pool if sketch.shape(other) == shape]
        return sketch.compute("sub", value, draw(st.sampled_from(alike)))
    if kind == "reduce":
        able = rank > 1 and sketch.bounds.positive(shape[axis])
        return sketch.compute("reduce_max", value, axes=(axis,)) if able else value
    if kind == "matmul" and rank == 2:
        return sketch.compute("matmul", value, sketch.transpose(value, 1, 0))
    if kind == "outer" and rank == 2:
        flat = sketch.reshape(value, product(shape), 1)
        return sketch.compute("matmul", flat, sketch.constant(np.array([[3, -2]])))
    if kind == "dense" and rank > 1 and (width := shape[-1].constant) is not None:
        weights = sketch.constant(np.arange(width * 2, dtype=np.int64).reshape(width, 2))
        return sketch.compute("matmul", value, sketch.broadcast(weights, *shape[:-2], width, 2))
    return sketch.compute("neg", value)


@st.composite
def programs(draw) -> Program:
    sketch = Sketch(n=(1, 64))
    pool = [
        sketch.input("x", "n", 4, 3, type_=DataType.INT64),
        sketch.input("y", N, 6, type_=DataType.INT64),
        sketch.constant(np.arange(12, dtype=np.int64).reshape(2, 6)),
    ]
    for _ in range(draw(st.integers(1, 9))):
        # Mostly go on with the newest, so that chains come about.
        recent = pool[-2:] if draw(st.booleans()) else pool
        value = _grow(draw, sketch, recent)
        if sum(len(term[0]) for term in product(sketch.shape(value)).terms) <= 6:
            pool.append(value)
    outputs = draw(st.lists(st.sampled_from(pool), min_size=1, max_size=3))
    return sketch.program(**{f"out{index}": value for index, value in enumerate(outputs)})


def inputs_of(program: Program, n: int) -> dict[str, np.ndarray]:
    randomness = np.random.default_rng(n)
    inputs = {}
    for named in program.inputs:
        shape = [size.evaluate({"n": n}) for size in program.values[named.value].shape]
        inputs[named.name] = randomness.integers(-99, 99, shape)
    return inputs


def small(program: Program) -> bool:
    """Tell whether every value has few elements at every size tried."""
    return all(product(value.shape).evaluate({"n": max(SIZES)}) < 50_000 for value in program.values)


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(programs().filter(small))
def test_merging_keeps_what_a_program_means_and_never_adds_to_it(program: Program) -> None:
    check_program(program, "the test")
    merged = merge(program)
    check_program(merged, "merge")
    # An output that is an input or given twice becomes a copy of its own.
    assert sum(counts(merged)) <= sum(counts(program)) + len(program.outputs)
    assert counts(merged)[0] <= counts(program)[0]
    plan = lower(merged, model_digest="sha256:" + "0" * 64, producer="the test")
    assert decode(encode(plan)) == plan
    runtime = Runtime(plan)
    for n in SIZES:
        inputs = inputs_of(program, n)
        expected = interpret(program, inputs)
        for got in (interpret(merged, inputs), runtime.run(inputs)):
            assert got.keys() == expected.keys()
            for name, array in expected.items():
                np.testing.assert_array_equal(got[name], array)
                assert got[name].dtype == array.dtype
