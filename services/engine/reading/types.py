"""What files declare of values' types: tensors, sequences, optionals."""

from __future__ import annotations

from onnx import TensorProto, TypeProto

from libs.common.errors import Invalid
from services.engine.domain.graph import Declared, LooseTensor, OptionalOf, SequenceOf
from services.engine.reading.limits import DEEPEST_TYPE, MOST_AXES
from services.engine.reading.tensors import TYPES, element_type


def declared_type(declared: TypeProto, what: str, depth: int = 0) -> Declared | None:
    """Return a type, or None where nothing is said. `what` names it in errors.

    Raises Invalid for types that plans don't have (maps, sparse tensors), and for too many in one another.
    """
    if depth > DEEPEST_TYPE:
        raise Invalid(f"{what} has a type with more than {DEEPEST_TYPE} types in one another")
    match declared.WhichOneof("value"):
        case None:
            return None
        case "tensor_type":
            tensor = declared.tensor_type
            if tensor.elem_type == TensorProto.UNDEFINED:
                return None
            rank = len(tensor.shape.dim) if tensor.HasField("shape") else None
            if rank is not None and rank > MOST_AXES:
                raise Invalid(f"{what} has {rank} axes; at most {MOST_AXES} are supported")
            return LooseTensor(element_type(tensor.elem_type, what), rank)
        case "sequence_type":
            return SequenceOf(declared_type(declared.sequence_type.elem_type, what, depth + 1))
        case "optional_type":
            element = declared_type(declared.optional_type.elem_type, what, depth + 1)
            if isinstance(element, OptionalOf):
                raise Invalid(f"{what} is an optional of an optional, which ONNX doesn't have")
            return OptionalOf(element)
        case other:
            raise Invalid(
                f"{what} is {other}; tensors, sequences and optionals are supported, no maps and no sparse "
                "tensors"
            )


def inferred_tensor(declared: TypeProto) -> LooseTensor | None:
    """Return a tensor's type if it is one that plans have; never raises."""
    tensor = declared.tensor_type
    if declared.WhichOneof("value") != "tensor_type" or tensor.elem_type not in TYPES:
        return None
    rank = len(tensor.shape.dim) if tensor.HasField("shape") else None
    return None if rank is not None and rank > MOST_AXES else LooseTensor(TYPES[tensor.elem_type], rank)
