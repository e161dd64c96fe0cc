"""Which host operator does what."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from libs.runtime.host import image, random, sequences, strings
from libs.runtime.host.limits import Limits
from libs.runtime.kernels.fault import DataFault
from libs.runtime.ledger import Items
from libs.runtime.numpy_types import DTYPES
from libs.runtime.plan import DataType, Host, RegisterType, TensorType

Apply = Callable[[Sequence[Any], Limits], Sequence[Any]]

_OPERATORS: Mapping[str, Callable[..., Sequence[Any]]] = {
    "sequence_empty": sequences.empty,
    "sequence_insert": sequences.insert,
    "sequence_erase": sequences.erase,
    "sequence_at": sequences.at,
    "sequence_length": sequences.length,
    "sequence_concat": sequences.concat,
    "string_rank": strings.rank,
    "string_take": strings.take,
    "string_concat": strings.concat,
    "string_case": strings.case,
    "string_split": strings.split,
    "string_match": strings.match,
    "string_cast": strings.cast,
    "decode_image": image.decode,
    "random_bits": random.bits,
}


def host_operator(host: Host, types: Sequence[RegisterType]) -> Apply:
    """Return a host operator with its numbers and texts; its results are checked against registers' types.

    Raises Invalid (MISSING_PACKAGE) where it needs a package that isn't there.
    """
    function = _OPERATORS[host.operator]
    options: dict[str, Any] = {}
    if host.integers or host.operator == "random_bits":
        options["integers"] = host.integers
    if host.texts:
        options["texts"] = host.texts
    apply = partial(function, **options)
    wanted = [DTYPES[type_.type] if isinstance(type_, TensorType) else None for type_ in types]
    ranks = [
        len(type_.shape) if isinstance(type_, TensorType) and type_.shape is not None else None
        for type_ in types
    ]

    def checked(inputs: Sequence[Any], limits: Limits) -> Sequence[Any]:
        results = apply(inputs, limits)
        for result, dtype, rank in zip(results, wanted, ranks, strict=True):
            if dtype is None:
                if not isinstance(result, Items):
                    raise DataFault("a tensor comes where the model has a sequence")
            elif not isinstance(result, np.ndarray) or result.dtype != dtype:
                found = result.dtype if isinstance(result, np.ndarray) else "a sequence"
                raise DataFault(f"a value is of type {found}; the model has {_name(dtype)} there")
            elif rank is not None and result.ndim != rank:
                raise DataFault(f"a value has {result.ndim} axes; the model has {rank} there")
        return results

    return checked


def _name(dtype: Any) -> str:
    return DataType.STRING.name.lower() if dtype == np.object_ else str(dtype)
