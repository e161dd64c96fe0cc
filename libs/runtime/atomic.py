"""The closed set of atomic operators: what a plan's compute steps may name, and what each demands.

Both the engine, which decomposes into them, and the runtime, which executes them, go by this table. Shapes
are those of the operator's input views; the output is always a whole dense tensor.

    elementwise  every input view has the output's shape (broadcasting is a stride of 0)
    reduce       one input; the output's shape is the input's with each of `axes` removed
    matmul       (…, m, k) by (…, k, n) gives (…, m, n); leading axes are equal
    gather       data, and indices of shape I: the output's shape is data's with axis `axes[0]` replaced by I;
                 indices count from 0, from the end when negative, and out-of-range ones are refused
    scan         one input; the output has its shape; along `axes[0]`
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Kind = Literal["elementwise", "reduce", "matmul", "gather", "scan"]
Result = Literal["same", "bool", "index", "any"]


@dataclass(frozen=True, slots=True)
class Atomic:
    """One operator.

    Attributes:
        name: as plans spell it.
        kind: its rule about shapes, above.
        arity: number of inputs.
        result: type of the output: "same" as the (equal) inputs, "bool", "index" (int64), or "any" (a cast).
        types: of the inputs: any of "f" floating, "i" integer, "b" bool. Inputs of one step have one type,
            but for `where` (its first is bool) and `gather` (its second is int32 or int64).
        calculations: elementary ones for one element of the index space, for the cost formula.
    """

    name: str
    kind: Kind
    arity: int
    result: Result
    types: str
    calculations: int = 1


def _table(*rows: Atomic) -> Mapping[str, Atomic]:
    return {row.name: row for row in rows}


def _unary(names: str, types: str, result: Result = "same", calculations: int = 1) -> list[Atomic]:
    return [Atomic(name, "elementwise", 1, result, types, calculations) for name in names.split()]


def _binary(names: str, types: str, result: Result = "same", calculations: int = 1) -> list[Atomic]:
    return [Atomic(name, "elementwise", 2, result, types, calculations) for name in names.split()]


ATOMICS: Mapping[str, Atomic] = _table(
    *_unary("neg abs sign", "fi"),
    *_unary("sqrt floor ceil round", "f"),
    *_unary("exp log tanh erf sin cos", "f", calculations=8),
    *_unary("not", "b"),
    *_unary("is_nan is_inf", "f", "bool"),
    Atomic("cast", "elementwise", 1, "any", "fib"),
    *_binary("add sub mul max min", "fi"),
    # Integers: truncated towards zero, as ONNX's Div; a divisor of 0 is refused.
    *_binary("div", "fi", calculations=4),
    # `mod` has the divisor's sign (Python's), `fmod` the dividend's (C's).
    *_binary("mod fmod", "fi", calculations=4),
    *_binary("pow", "fi", calculations=16),
    *_binary("and or xor", "b"),
    *_binary("eq lt le", "fib", "bool"),
    Atomic("where", "elementwise", 3, "same", "fib"),
    *(
        Atomic(name, "reduce", 1, "same", "fi")
        for name in ("reduce_sum", "reduce_prod", "reduce_max", "reduce_min")
    ),
    # The first of equal ones; one axis.
    *(Atomic(name, "reduce", 1, "index", "fi") for name in ("arg_max", "arg_min")),
    Atomic("matmul", "matmul", 2, "same", "fi", 2),
    Atomic("gather", "gather", 2, "same", "fib"),
    Atomic("cumulative_sum", "scan", 1, "same", "fi"),
)
