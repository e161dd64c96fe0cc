"""The closed set of operators: what plans may name, and what each demands.

Both the engine, which decomposes into them, and the runtime, which executes them, go by these tables.

**Atomic operators** are what compute steps name. Shapes are those of the operator's input views; the output
is always a whole dense tensor.

    elementwise  every input view has the output's shape (broadcasting is a stride of 0)
    reduce       one input; the output's shape is the input's with each of `axes` removed
    matmul       (…, m, k) by (…, k, n) gives (…, m, n); leading axes are equal
    gather       data, and indices of shape I: the output's shape is data's with axis `axes[0]` replaced by I;
                 indices count from 0, from the end when negative, and out-of-range ones are refused
    scan         one input; the output has its shape; along `axes[0]`
    sort         one input; the output has its shape, and says from where along `axes[0]` each element comes
                 that puts it in ascending order: equal ones as they were, NaN last
    scatter      data [n, …], indices [k], updates [k, …]: the output is the data, with the updates put at, or
                 combined with what is at, the indices along axis 0. Indices are as for gather; of equal ones
                 the last one counts where updates are put

**Host operators** are what actions of compositions name: they work on sequences, strings and the like, and
on what registers hold. Their inputs and outputs are in order:

    sequence_empty ()                  an empty sequence
    sequence_insert (list, item[, at]) with the item before position `at`; at the end where it is left out
    sequence_erase (list[, at])        without the item at a position; the last where it is left out
    sequence_at (list, at)             the item at a position; positions below 0 count from the end
    sequence_length (list)             how many items there are, one INT64
    sequence_concat (list)             tensors joined; integers: the axis, and 1 for a new one
    string_rank (a, b, …)              a sorted table of the strings in them, each once; then for each input
                                       its strings' places in the table
    string_take (table, places)        strings by their places
    string_concat (a, b)               each of `a` followed by that of `b`; shapes are equal
    string_case (a)                    integers: 0 for lower case, 1 for upper case
    string_split (a)                   pieces [..., most], padded with "", and how many; texts: the
                                       separator, "" for white space; integers: most splits, or -1
    string_match (a)                   whether a whole string matches; texts: the regular expression (RE2's)
    string_cast (a)                    numbers as strings, or the other way; integers: the type wanted
    decode_image (bytes)               [height, width, channels], UINT8; texts: RGB, BGR or Grayscale; of
                                       BMP, JPEG, JPEG 2000, PNG, PNM, TIFF and WebP
    random_bits (shape)                UINT32, evenly distributed; integers: a seed, or none: other ones in
                                       each call. Philox-4x64-10 with the seed as key, counting from 1
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Kind = Literal["elementwise", "reduce", "matmul", "gather", "scan", "sort", "scatter"]
Result = Literal["same", "bool", "index", "any"]


@dataclass(frozen=True, slots=True)
class Atomic:
    """One operator.

    Attributes:
        name: as plans spell it.
        kind: its rule about shapes, above.
        arity: number of inputs.
        result: type of the output: "same" as the (equal) inputs, "bool", "index" (int64), or "any" (a cast).
        types: of the inputs: any of "f" floating, "i" integer, "b" bool, "o" narrow floats and integers,
            which are only kept and converted, "c" complex numbers, which are only kept. Inputs of one step
            have one type, but for `where` (its first is bool), `gather` and `scatter` (their second is int32
            or int64).
        in_place: types for which the output may lie over one of `replaceable`, in exactly its place: each
            element is read before it is written, and none of them after.
        calculations: elementary ones for one element of the index space, for the cost formula.
    """

    name: str
    kind: Kind
    arity: int
    result: Result
    types: str
    in_place: str = ""
    calculations: int = 1

    @property
    def replaceable(self) -> range:
        """Positions of inputs that the output may lie over: any of elementwise operators, data of others."""
        return range(self.arity if self.kind == "elementwise" else 1)


def _table(*rows: Atomic) -> Mapping[str, Atomic]:
    return {row.name: row for row in rows}


def _unary(names: str, types: str, calculations: int = 1) -> list[Atomic]:
    return [Atomic(name, "elementwise", 1, "same", types, types, calculations) for name in names.split()]


def _binary(names: str, types: str, in_place: str, calculations: int = 1) -> list[Atomic]:
    return [Atomic(name, "elementwise", 2, "same", types, in_place, calculations) for name in names.split()]


ATOMICS: Mapping[str, Atomic] = _table(
    *_unary("neg abs", "fi"),
    *_unary("sqrt floor round", "f"),
    *_unary("exp log tanh erf sin cos atan", "f", calculations=8),
    # Of integers: bit by bit.
    *_unary("not", "ib"),
    # Rounds once; not to complex numbers. More in `libs.runtime.kernels.casting`.
    Atomic("cast", "elementwise", 1, "any", "fibo"),
    # The same bits as another type of as many; not to bool, of which most bits say nothing.
    Atomic("bit_cast", "elementwise", 1, "any", "fiboc"),
    *_binary("add sub mul max min", "fi", "fi"),
    # Integers: truncated towards zero, as ONNX's Div, in several goes; a divisor of 0 is refused.
    *_binary("div", "fi", "f", calculations=4),
    # The remainder has the divisor's sign.
    *_binary("mod", "fi", "fi", calculations=4),
    # Of integers in several goes.
    *_binary("pow", "fi", "f", calculations=16),
    # Of integers: bit by bit.
    *_binary("and or xor", "ib", "ib"),
    *(Atomic(name, "elementwise", 2, "bool", "fib") for name in ("eq", "lt", "le")),
    Atomic("where", "elementwise", 3, "same", "fiboc"),
    *(
        Atomic(name, "reduce", 1, "same", "fi")
        for name in ("reduce_sum", "reduce_prod", "reduce_max", "reduce_min")
    ),
    # The first of equal ones; one axis.
    Atomic("arg_max", "reduce", 1, "index", "fi"),
    Atomic("matmul", "matmul", 2, "same", "fi", calculations=2),
    Atomic("gather", "gather", 2, "same", "fiboc"),
    Atomic("cumulative_sum", "scan", 1, "same", "fi"),
    Atomic("arg_sort", "sort", 1, "index", "fib", calculations=16),
    Atomic("scatter", "scatter", 3, "same", "fiboc", "fiboc", 2),
    *(
        Atomic(name, "scatter", 3, "same", "fi", "fi", 4)
        for name in ("scatter_add", "scatter_mul", "scatter_max", "scatter_min")
    ),
)


@dataclass(frozen=True, slots=True)
class HostOperator:
    """A host operator.

    Attributes:
        name: as plans spell it.
        inputs: of what kind they are, in order: "sequence", "tensor", "strings" (a tensor of strings) or
            "any"; a last one that ends in "?" may be left out, one that ends in "+" comes at least once.
        outputs: the same; "+" comes as often as the inputs do.
        integers: how many numbers it asks for, at least and at most.
        texts: how many texts it asks for.
    """

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    integers: tuple[int, int] = (0, 0)
    texts: int = 0


HOST: Mapping[str, HostOperator] = {
    row.name: row
    for row in (
        HostOperator("sequence_empty", (), ("sequence",)),
        HostOperator("sequence_insert", ("sequence", "any", "tensor?"), ("sequence",)),
        HostOperator("sequence_erase", ("sequence", "tensor?"), ("sequence",)),
        HostOperator("sequence_at", ("sequence", "tensor"), ("any",)),
        HostOperator("sequence_length", ("sequence",), ("tensor",)),
        HostOperator("sequence_concat", ("sequence",), ("any",), (2, 2)),
        HostOperator("string_rank", ("strings+",), ("strings", "tensor+")),
        HostOperator("string_take", ("strings", "tensor"), ("strings",)),
        HostOperator("string_concat", ("strings", "strings"), ("strings",)),
        HostOperator("string_case", ("strings",), ("strings",), (1, 1)),
        HostOperator("string_split", ("strings",), ("strings", "tensor"), (1, 1), 1),
        HostOperator("string_match", ("strings",), ("tensor",), texts=1),
        HostOperator("string_cast", ("any",), ("any",), (1, 1)),
        HostOperator("decode_image", ("tensor",), ("tensor",), texts=1),
        HostOperator("random_bits", ("tensor",), ("tensor",), (0, 1)),
    )
}

RASTER = "raster"


def operator_count() -> int:
    """Return how many operators there are for a backend to have: all of both tables, and the raster."""
    return len(ATOMICS) + len(HOST) + 1
